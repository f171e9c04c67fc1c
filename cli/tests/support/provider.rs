//! A small identity provider (OpenID Connect) for tests: discovery, keys, code flow with PKCE, device flow. Whoever comes is logged in as whom the test says.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is wrong with the tokens that it makes from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Forged {
    /// Nothing.
    #[default]
    Nothing,
    /// They have no signature, and say so.
    NoSignature,
    /// They are signed with the public key as a shared secret.
    PublicKeyAsSecret,
    /// They are signed by somebody else's key of the same name.
    OtherKey,
}

#[derive(Default)]
struct State {
    forged: Forged,
    /// Of codes that were given out: challenge and nonce.
    codes: BTreeMap<String, (String, String)>,
    approved: bool,
    away: bool,
    claims: BTreeMap<String, Value>,
}

/// See the module. It answers until the test's process ends.
#[derive(Clone)]
pub(crate) struct Provider {
    pub(crate) issuer: String,
    key: Arc<EcdsaKeyPair>,
    state: Arc<Mutex<State>>,
}

fn new_key() -> EcdsaKeyPair {
    let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
    EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("a key")
}

fn encoded(part: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(part)
}

impl Provider {
    /// One that logs everybody in with these claims.
    pub(crate) fn start(claims: &[(&str, Value)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let issuer = format!("http://{}", listener.local_addr().expect("an address"));
        let key = Arc::new(new_key());
        let claims = claims.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let provider = Provider { issuer, key, state: Arc::new(Mutex::new(State { claims, ..State::default() })) };
        let serving = provider.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let provider = serving.clone();
                std::thread::spawn(move || provider.serve(&stream));
            }
        });
        provider
    }

    /// Somebody enters the code of a device.
    pub(crate) fn approve(&self) {
        self.state.lock().expect("a lock").approved = true;
    }

    /// From now on its tokens have these claims too, and that is wrong with them.
    pub(crate) fn forge(&self, forged: Forged, claims: &[(&str, Value)]) {
        let mut state = self.state.lock().expect("a lock");
        state.forged = forged;
        state.claims.extend(claims.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    }

    /// From now on it hangs up on everybody.
    pub(crate) fn go_away(&self) {
        self.state.lock().expect("a lock").away = true;
    }

    fn serve(&self, mut stream: &TcpStream) -> Option<()> {
        if self.state.lock().expect("a lock").away {
            return None;
        }
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let (method, target) = (line.split(' ').next()?.to_owned(), line.split(' ').nth(1)?.to_owned());
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            if header.trim().is_empty() {
                break;
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let (status, more, text) = self.answer(&method, path, &fields(query), &fields(&String::from_utf8_lossy(&body)));
        write!(
            stream,
            "HTTP/1.1 {status}\r\n{more}Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
            text.len()
        )
        .ok()
    }

    fn answer(
        &self,
        method: &str,
        path: &str,
        query: &BTreeMap<String, String>,
        form: &BTreeMap<String, String>,
    ) -> (&'static str, String, String) {
        let ok = |value: Value| ("200 OK", String::new(), value.to_string());
        let refused = |error: &str| ("400 Bad Request", String::new(), json!({ "error": error }).to_string());
        let issuer = &self.issuer;
        let mut state = self.state.lock().expect("a lock");
        match (method, path) {
            ("GET", "/.well-known/openid-configuration") => ok(json!({
                "issuer": issuer,
                "jwks_uri": format!("{issuer}/keys"),
                "authorization_endpoint": format!("{issuer}/authorize"),
                "token_endpoint": format!("{issuer}/token"),
                "device_authorization_endpoint": format!("{issuer}/device"),
            })),
            ("GET", "/keys") => {
                let point = self.key.public_key().as_ref();
                let (x, y) = (encoded(&point[1..33]), encoded(&point[33..]));
                ok(
                    json!({"keys": [{"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "k1", "use": "sig", "alg": "ES256"}]}),
                )
            }
            ("GET", "/authorize") => {
                let of = |name: &str| query.get(name).cloned().unwrap_or_default();
                if of("client_id") != "muster" || of("code_challenge_method") != "S256" || of("response_type") != "code"
                {
                    return refused("invalid_request");
                }
                let code = format!("code-{}", state.codes.len());
                state.codes.insert(code.clone(), (of("code_challenge"), of("nonce")));
                let location = format!("Location: {}?code={code}&state={}\r\n", of("redirect_uri"), of("state"));
                ("302 Found", location, String::new())
            }
            ("POST", "/device") => ok(json!({
                "device_code": "d1", "user_code": "ABCD-EFGH", "verification_uri": format!("{issuer}/enter"),
                "expires_in": 300, "interval": 1,
            })),
            ("POST", "/token") => {
                let of = |name: &str| form.get(name).cloned().unwrap_or_default();
                let nonce = match of("grant_type").as_str() {
                    "authorization_code" => match state.codes.remove(&of("code")) {
                        Some((challenge, nonce)) => {
                            let verifier = ring::digest::digest(&ring::digest::SHA256, of("code_verifier").as_bytes());
                            if encoded(verifier.as_ref()) != challenge {
                                return refused("invalid_grant");
                            }
                            Some(nonce)
                        }
                        None => return refused("invalid_grant"),
                    },
                    _ if !state.approved => return refused("authorization_pending"),
                    _ => None,
                };
                let token = self.token(&state.claims, nonce, state.forged);
                ok(json!({"access_token": "a", "token_type": "Bearer", "expires_in": 60, "id_token": token}))
            }
            _ => ("404 Not Found", String::new(), "{}".to_owned()),
        }
    }

    fn token(&self, claims: &BTreeMap<String, Value>, nonce: Option<String>, forged: Forged) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let mut all = json!({"iss": self.issuer, "aud": "muster", "sub": "17", "iat": now, "exp": now + 300});
        claims.iter().for_each(|(name, value)| all[name] = value.clone());
        if let Some(nonce) = nonce {
            all["nonce"] = json!(nonce);
        }
        let algorithm = match forged {
            Forged::Nothing | Forged::OtherKey => "ES256",
            Forged::NoSignature => "none",
            Forged::PublicKeyAsSecret => "HS256",
        };
        let header = json!({"alg": algorithm, "kid": "k1"}).to_string();
        let signed = format!("{}.{}", encoded(header.as_bytes()), encoded(all.to_string().as_bytes()));
        let by =
            |key: &EcdsaKeyPair| key.sign(&SystemRandom::new(), signed.as_bytes()).expect("signed").as_ref().to_vec();
        let signature = match forged {
            Forged::Nothing => by(&self.key),
            Forged::NoSignature => Vec::new(),
            Forged::PublicKeyAsSecret => {
                let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, self.key.public_key().as_ref());
                ring::hmac::sign(&secret, signed.as_bytes()).as_ref().to_vec()
            }
            Forged::OtherKey => by(&new_key()),
        };
        format!("{signed}.{}", encoded(&signature))
    }
}

/// Of a query or a form, with its escapes undone.
fn fields(text: &str) -> BTreeMap<String, String> {
    oauth2::url::form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

/// What a browser does: follows where it is sent, until it is sent nowhere. Gives the last answer.
pub(crate) fn browse(url: &str) -> String {
    let mut url = url.to_owned();
    for _ in 0..5 {
        let rest = url.strip_prefix("http://").expect("http");
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut stream = TcpStream::connect(host).expect("somebody listens");
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        match answer.lines().find_map(|line| line.strip_prefix("Location: ")) {
            Some(next) => url = next.trim().to_owned(),
            None => return answer,
        }
    }
    panic!("it is sent around for ever");
}
