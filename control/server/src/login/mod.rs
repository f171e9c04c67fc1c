//! Login with an organisation's identity provider (OpenID Connect): an ID token becomes a session, once.
//!
//! What must stay true: nothing of a token is believed before its signature, issuer, audience and dates were checked; dates are judged by the time of the
//! cluster; what is fetched of the provider is bounded in size and in how often; a provider that is away ends no session.

mod crypto;
mod keys;
mod verify;

pub use keys::is_private;
pub(crate) use verify::Refused;

use futures::future::BoxFuture;
use keys::Keys;
use muster_runtime::Host;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use verify::{Proved, verify};

/// Gets the content of a URL of the provider, at most [`FETCHED_BYTES_MAX`]; the error is in words.
pub type Fetch = Arc<dyn Fn(String) -> BoxFuture<'static, Result<Vec<u8>, String>> + Send + Sync>;

/// The largest document of a provider that is read: key sets have some kilobytes.
pub const FETCHED_BYTES_MAX: usize = 256 << 10;

/// The identity provider of a cluster; the same on all control nodes.
#[derive(Clone)]
pub struct LoginConfig {
    /// Its URL, as its tokens name it; https, or http on a loopback address.
    pub issuer: String,
    /// What it calls this cluster.
    pub client_id: String,
    /// The claim that names the user.
    pub user_claim: String,
    /// The claim with the user's groups.
    pub groups_claim: String,
    /// What is asked for beside `openid`.
    pub scopes: Vec<String>,
    /// How long a session lasts.
    pub session_ms: u64,
    /// Whether people without a browser may log in with a code that they enter elsewhere.
    pub device_flow: bool,
    /// Gets what the provider publishes.
    pub fetch: Fetch,
}

impl fmt::Debug for LoginConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginConfig")
            .field("issuer", &self.issuer)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

impl LoginConfig {
    /// What is asked of providers that let clients choose where a claim goes: those that are read, in the ID token (OpenID Connect Core 5.5).
    pub(crate) fn claims(&self) -> String {
        let asked = [self.user_claim.as_str(), self.groups_claim.as_str()];
        let verified = (self.user_claim == "email").then_some("email_verified");
        let claims: serde_json::Map<String, Value> =
            asked.into_iter().chain(verified).map(|claim| (claim.to_owned(), Value::Null)).collect();
        serde_json::json!({ "id_token": claims }).to_string()
    }
}

/// See the module.
pub(crate) struct Login {
    pub(crate) config: LoginConfig,
    keys: Keys,
    host: Host,
}

impl Login {
    pub(crate) fn new(host: Host, config: LoginConfig) -> Self {
        Login { keys: Keys::new(&config), host, config }
    }

    /// Whom the token proves at `now_ms`, the time of the cluster.
    ///
    /// # Errors
    /// [`Refused`].
    pub(crate) async fn prove(&self, token: &str, nonce: &str, now_ms: u64) -> Result<Proved, Refused> {
        let keys = self.keys.known(self.since_boot_ms()).await?;
        match verify(&self.config, &keys, token, nonce, now_ms) {
            // The provider may have new keys.
            Err(Refused::UnknownKey { .. }) => {
                let (keys, is_new) = self.keys.newer(self.since_boot_ms()).await?;
                verify(&self.config, &keys, token, nonce, now_ms).map_err(|refused| match refused {
                    Refused::UnknownKey { kid } if !is_new => Refused::MaybeNewKey { kid },
                    other => other,
                })
            }
            judged => judged,
        }
    }

    fn since_boot_ms(&self) -> u64 {
        self.host.clock.boottime_ns() / 1_000_000
    }
}
