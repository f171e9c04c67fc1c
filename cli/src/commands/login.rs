//! `muster login`: a session from an organisation's identity provider.
//!
//! What must stay true: the provider's tokens stay in memory; the session is written to a file that is nobody else's to read, and is never printed.

use crate::args::access::Login;
use crate::commands::Context;
use crate::failure::Failure;
use crate::output::note;
use crate::session_file;
use crate::web::Web;
use muster_proto::v1;
use muster_proto::v1::auth_client::AuthClient;
use oauth2::basic::{
    BasicErrorResponse, BasicRevocationErrorResponse, BasicTokenIntrospectionResponse, BasicTokenType,
};
use oauth2::url::Url;
use oauth2::{
    AuthUrl, AuthorizationCode, Client, ClientId, CsrfToken, DeviceAuthorizationUrl, ExtraTokenFields,
    PkceCodeChallenge, RedirectUrl, Scope, StandardDeviceAuthorizationResponse, StandardRevocableToken,
    StandardTokenResponse, TokenUrl,
};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// For how long somebody may take at the provider.
const LOGIN_MAX: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The longest request line of a browser that is read.
const LINE_BYTES_MAX: u64 = 16 << 10;

/// What the provider publishes of itself.
#[derive(Deserialize)]
struct Provider {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    #[serde(default)]
    device_authorization_endpoint: Option<String>,
    /// Clients may say which claims are to be in the ID token.
    #[serde(default)]
    claims_parameter_supported: bool,
}

impl Provider {
    /// The parameter that says so, with its name; nothing where this provider or the cluster has none.
    fn claims(&self, settings: &v1::LoginSettingsReply) -> Option<(&'static str, String)> {
        let takes_it = self.claims_parameter_supported && !settings.claims.is_empty();
        takes_it.then(|| ("claims", settings.claims.clone()))
    }
}

/// What a token endpoint answers beside the tokens of OAuth.
#[derive(Debug, Deserialize, Serialize)]
struct IdToken {
    id_token: String,
}

impl ExtraTokenFields for IdToken {}

type Tokens = StandardTokenResponse<IdToken, BasicTokenType>;
type OidcClient = Client<
    BasicErrorResponse,
    Tokens,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
>;

/// Logs in, and keeps the session.
///
/// # Errors
/// That there is no provider, that somebody did not log in, or that the cluster refuses the token.
pub async fn run(context: &Context, args: &Login) -> Result<(), Failure> {
    let ask = |channel| async move { AuthClient::new(channel).login_settings(v1::LoginSettingsRequest {}).await };
    let settings: v1::LoginSettingsReply = context.client.call("ask how to log in", ask).await?;
    let (device, browser, ca_file) = (args.device, !args.no_browser, args.ca_file.clone());
    let asked = settings.clone();
    let proved = tokio::task::spawn_blocking(move || {
        let web = Web::new(ca_file.as_deref())?;
        at_provider(&web, &asked, device, browser)
    });
    let (id_token, nonce) = proved.await.map_err(|lost| Failure::Refused(lost.to_string()))??;
    let request = v1::LoginRequest { id_token, nonce };
    let ask = |channel| {
        let request = request.clone();
        async move { AuthClient::new(channel).login(request).await }
    };
    let reply: v1::LoginReply = context.client.call("log in", ask).await?;
    let path = context.config.session_file(args.out.as_deref())?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| Failure::io(format!("making {}", folder.display()), error))?;
    }
    session_file::write(&path, &reply.token)?;
    let until = muster_model::utc::show(reply.expires_ms);
    let groups = if reply.groups.is_empty() { "none".to_owned() } else { reply.groups.join(", ") };
    context.out.line(&format!(
        "logged in as {} until {until}; groups: {groups}; the session is in {}",
        reply.principal,
        path.display()
    ))
}

/// Has somebody log in, and gives the ID token with the nonce that was asked for.
fn at_provider(
    web: &Web,
    settings: &v1::LoginSettingsReply,
    device: bool,
    browser: bool,
) -> Result<(String, String), Failure> {
    let issuer = settings.issuer.trim_end_matches('/');
    let published = web
        .get(&format!("{issuer}/.well-known/openid-configuration"))
        .and_then(|content| serde_json::from_slice::<Provider>(&content).map_err(|error| error.to_string()));
    let provider =
        published.map_err(|why| Failure::Refused(format!("the identity provider {issuer} cannot be asked: {why}")))?;
    // No control node would take a token of it.
    if provider.issuer != settings.issuer {
        let (own, known) = (&provider.issuer, &settings.issuer);
        return Err(Failure::Refused(format!(
            "the identity provider calls itself {own:?}, and the cluster knows it as {known:?}: an operator corrects `issuer` in the file of `muster control --oidc`"
        )));
    }
    let client = OidcClient::new(ClientId::new(settings.client_id.clone()));
    let scopes = ["openid".to_owned()].into_iter().chain(settings.scopes.clone()).map(Scope::new);
    match device {
        true => with_code(web, settings, &provider, client, scopes),
        false => with_browser(web, settings, &provider, (client, scopes), browser),
    }
}

fn unusable(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Refused(format!("the identity provider names {what} that cannot be used: {error}"))
}

fn refused(error: impl std::error::Error) -> Failure {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Failure::Refused(format!("the identity provider refuses: {error}{cause}"))
}

/// By a code that somebody enters on any machine with a browser.
fn with_code(
    web: &Web,
    settings: &v1::LoginSettingsReply,
    provider: &Provider,
    client: OidcClient,
    scopes: impl Iterator<Item = Scope>,
) -> Result<(String, String), Failure> {
    let Some(endpoint) = provider.device_authorization_endpoint.clone().filter(|_| settings.device_flow) else {
        return Err(Failure::Refused("this cluster or its identity provider allows no --device".to_owned()));
    };
    let endpoint = DeviceAuthorizationUrl::new(endpoint).map_err(|error| unusable("a device endpoint", error))?;
    let token = TokenUrl::new(provider.token_endpoint.clone()).map_err(|error| unusable("a token endpoint", error))?;
    let client = client.set_device_authorization_url(endpoint).set_token_uri(token);
    let send = |request| web.send(request);
    let asked = client.exchange_device_code().add_scopes(scopes);
    let asked = match provider.claims(settings) {
        Some((name, claims)) => asked.add_extra_param(name, claims),
        None => asked,
    };
    let code: StandardDeviceAuthorizationResponse = asked.request(&send).map_err(refused)?;
    note(&format!(
        "Open {} and enter the code {}. Do so only if you have started this login yourself.",
        code.verification_uri().as_str(),
        code.user_code().secret()
    ));
    let tokens = client.exchange_device_access_token(&code).request(&send, std::thread::sleep, Some(LOGIN_MAX));
    Ok((tokens.map_err(refused)?.extra_fields().id_token.clone(), String::new()))
}

/// By a browser on this machine, which comes back to a port of this process.
fn with_browser(
    web: &Web,
    settings: &v1::LoginSettingsReply,
    provider: &Provider,
    (client, scopes): (OidcClient, impl Iterator<Item = Scope>),
    open: bool,
) -> Result<(String, String), Failure> {
    let listening = TcpListener::bind("127.0.0.1:0").and_then(|listener| {
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    });
    let (listener, port) = listening.map_err(|error| Failure::io("listening for the browser", error))?;
    let back = RedirectUrl::new(format!("http://127.0.0.1:{port}/callback"));
    let back = back.map_err(|error| unusable("a callback", error))?;
    let authorize = AuthUrl::new(provider.authorization_endpoint.clone());
    let authorize = authorize.map_err(|error| unusable("an authorization endpoint", error))?;
    let token = TokenUrl::new(provider.token_endpoint.clone()).map_err(|error| unusable("a token endpoint", error))?;
    let client = client.set_auth_uri(authorize).set_token_uri(token).set_redirect_uri(back);
    let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
    let nonce = CsrfToken::new_random().into_secret();
    let asked = client.authorize_url(CsrfToken::new_random).add_scopes(scopes).add_extra_param("nonce", nonce.clone());
    let asked = match provider.claims(settings) {
        Some((name, claims)) => asked.add_extra_param(name, claims),
        None => asked,
    };
    let (url, state) = asked.set_pkce_challenge(challenge).url();
    note(&format!("Open this in a browser on this machine, if none opens by itself:\n{url}"));
    if open {
        open_browser(&url);
    }
    let code = callback(&listener, state.secret())?;
    let tokens = client
        .exchange_code(AuthorizationCode::new(code))
        .set_pkce_verifier(verifier)
        .request(&|request| web.send(request))
        .map_err(refused)?;
    Ok((tokens.extra_fields().id_token.clone(), nonce))
}

/// As desktops do it; whoever has none opens it by hand.
fn open_browser(url: &Url) {
    let program = std::env::var_os("BROWSER").unwrap_or_else(|| "xdg-open".into());
    let started = Command::new(program).arg(url.as_str()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    drop(started);
}

/// Waits for the browser to come back with a code for this login.
fn callback(listener: &TcpListener, state: &str) -> Result<String, Failure> {
    let until = Instant::now() + LOGIN_MAX;
    while Instant::now() < until {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Some(answer) = answered(&stream, state) {
                    return answer;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(LOOK_EVERY),
            Err(error) => return Err(Failure::io("waiting for the browser", error)),
        }
    }
    Err(Failure::Refused(format!("nobody has logged in within {} s", LOGIN_MAX.as_secs())))
}

/// What a browser brings; none of what is not meant for this login.
fn answered(mut stream: &TcpStream, state: &str) -> Option<Result<String, Failure>> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut line = String::new();
    BufReader::new(std::io::Read::take(stream, LINE_BYTES_MAX)).read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?;
    let url = Url::parse("http://127.0.0.1").ok()?.join(path).ok()?;
    let of = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let mine = url.path() == "/callback" && of("state").as_deref() == Some(state);
    let (status, text) = if mine { ("200 OK", "You may close this window.") } else { ("404 Not Found", "Not here.") };
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    if !mine {
        return None;
    }
    Some(match (of("code"), of("error")) {
        (Some(code), None) => Ok(code),
        (_, error) => {
            let why = of("error_description").or(error).unwrap_or_else(|| "it sent no code".to_owned());
            Err(Failure::Refused(format!("the identity provider refuses: {why}")))
        }
    })
}
