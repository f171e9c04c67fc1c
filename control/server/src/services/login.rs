//! `Auth.Login` and `Auth.LoginSettings`: sessions for whom the identity provider vouches.
//!
//! What must stay true: the text of a session is in one reply only; what did not hold is in the record of denials, without the token.

use super::App;
use super::calls::number;
use crate::api::{credential_text, refusal};
use crate::login::{Login, Refused};
use muster_control_core::Command;
use muster_model::identity::{Author, CredentialKind};
use muster_model::{Principal, Rpc};
use muster_proto::v1;
use sha2::{Digest, Sha256};
use tonic::Status;

/// What somebody needs to know to log in.
///
/// # Errors
/// That there is no identity provider.
pub(super) fn settings(app: &App) -> Result<v1::LoginSettingsReply, Status> {
    let config = &provider(app)?.config;
    Ok(v1::LoginSettingsReply {
        issuer: config.issuer.clone(),
        client_id: config.client_id.clone(),
        scopes: config.scopes.clone(),
        device_flow: config.device_flow,
        claims: config.claims(),
    })
}

/// Makes a session.
///
/// # Errors
/// What is wrong with the token, or that the provider or the log does not answer.
pub(super) async fn login(app: &App, author: &Author, request: v1::LoginRequest) -> Result<v1::LoginReply, Status> {
    let login = provider(app)?;
    app.may_try(author)?;
    let v1::LoginRequest { id_token, nonce } = request;
    let proved = login.prove(&id_token, &nonce, app.consensus.now_ms()).await;
    // That the provider is away, or has new keys, is nobody's fault.
    if !matches!(proved, Err(Refused::Provider { .. } | Refused::MaybeNewKey { .. })) {
        app.tried(author, proved.is_err());
    }
    let proved = proved.map_err(|error| {
        app.denials.note(author, Rpc::AuthLogin.name(), format!("denied: {error}"));
        match &error {
            Refused::Provider { .. } | Refused::MaybeNewKey { .. } => refusal::unavailable(error.to_string()),
            Refused::UnknownKey { .. } | Refused::Token(_) => Status::unauthenticated(error.to_string()),
        }
    })?;
    let principal = Principal::User(proved.user);
    let (secret, ttl_ms) = (credential_text::secret(&app.host.chance), login.config.session_ms);
    let command = Command::PutCredential {
        kind: CredentialKind::Session,
        principal: principal.clone(),
        groups: proved.groups.clone(),
        secret_sha256: Sha256::digest(&secret).into(),
        ttl_ms,
        scope: None,
        from: Vec::new(),
        note: login.config.issuer.chars().take(NOTE_CHARS_MAX).collect(),
    };
    // This node has checked the token, and vouches for whom it proves.
    let vouching =
        Author { principal: Principal::Member(app.consensus.id()), from: author.from.clone(), ..Author::default() };
    let (done, revision) = app.decide(&vouching, command).await?;
    let id = number(done)?;
    tracing::info!(%principal, id, from = author.from, %revision, "logged in");
    Ok(v1::LoginReply {
        token: credential_text::text(CredentialKind::Session, id, &secret),
        principal: principal.to_string(),
        groups: proved.groups,
        expires_ms: app.ends_ms(id, ttl_ms),
        revision: revision.0,
    })
}

/// What a note of a credential may have, with room for characters of several bytes.
const NOTE_CHARS_MAX: usize = 64;

fn provider(app: &App) -> Result<&Login, Status> {
    let none = "this cluster has no identity provider (`muster control --oidc`); make a session with `muster recover`, or a token with \
                `muster token create`";
    app.login.as_deref().ok_or_else(|| Status::failed_precondition(none))
}
