//! The file of `muster control --oidc`: the identity provider of a cluster.

use super::yaml;
use crate::failure::Failure;
use crate::units;
use crate::web::Web;
use futures::FutureExt;
use muster_control_server::login::{Fetch, LoginConfig};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KEYS: &[&str] =
    &["issuer", "client-id", "user-claim", "groups-claim", "scopes", "session", "device-flow", "ca-file"];
/// The longest session.
const SESSION_S_MAX: u64 = 8 * 3_600;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    issuer: String,
    client_id: String,
    #[serde(default = "email")]
    user_claim: String,
    #[serde(default = "groups")]
    groups_claim: String,
    #[serde(default = "scopes")]
    scopes: Vec<String>,
    #[serde(default)]
    session: Option<String>,
    #[serde(default = "yes")]
    device_flow: bool,
    #[serde(default)]
    ca_file: Option<PathBuf>,
}

fn email() -> String {
    "email".to_owned()
}

fn groups() -> String {
    "groups".to_owned()
}

fn scopes() -> Vec<String> {
    ["email", "profile"].map(str::to_owned).to_vec()
}

fn yes() -> bool {
    true
}

/// Reads it.
///
/// # Errors
/// When it cannot be read or is no such file.
pub fn read(path: &Path) -> Result<LoginConfig, Failure> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| Failure::io(format!("reading {name}"), error))?;
    let mut documents = yaml::documents::<File>(&text, &name, "an identity provider", KEYS)?;
    let Some(file) = documents.pop().filter(|_| documents.is_empty()) else {
        return Err(Failure::field(name, "does not have exactly one document", "keep one document"));
    };
    for (field, value) in [("issuer", &file.issuer), ("client-id", &file.client_id), ("user-claim", &file.user_claim)] {
        if value.is_empty() {
            return Err(Failure::field(field, "is empty", "give what the identity provider says"));
        }
    }
    if !muster_control_server::login::is_private(&file.issuer) {
        return Err(Failure::field("issuer", format!("is {:?}", file.issuer), "give a URL with https"));
    }
    let session_s = match &file.session {
        None => SESSION_S_MAX,
        Some(text) => units::seconds(text)
            .map_err(|error| Failure::field("session", error.to_string(), "write it as 8h or 30m"))?,
    };
    if session_s == 0 || session_s > SESSION_S_MAX {
        return Err(Failure::field("session", format!("is {session_s} s"), "use 1s to 8h"));
    }
    let web = Web::new(file.ca_file.as_deref())?;
    let fetch: Fetch = Arc::new(move |url: String| {
        let web = web.clone();
        async move {
            let got = tokio::task::spawn_blocking(move || web.get(&url)).await;
            got.unwrap_or_else(|lost| Err(lost.to_string()))
        }
        .boxed()
    });
    Ok(LoginConfig {
        issuer: file.issuer,
        client_id: file.client_id,
        user_claim: file.user_claim,
        groups_claim: file.groups_claim,
        scopes: file.scopes,
        session_ms: session_s * 1_000,
        device_flow: file.device_flow,
        fetch,
    })
}
