//! The keys of the identity provider, as it publishes them.
//!
//! What must stay true: they come from where the provider's own document says, over https; they are read at most once a minute, whoever sends tokens; while
//! the provider is away those of the last day are used.

use super::verify::Refused;
use super::{FETCHED_BYTES_MAX, Fetch, LoginConfig};
use jsonwebtoken::jwk::JwkSet;
use muster_model::validate::clipped;
use serde::Deserialize;
use std::sync::Arc;
use tokio::sync::Mutex;

/// For so long they are not looked at again.
const FRESH_MS: u64 = 3_600_000;
/// For so long they are used while the provider does not answer.
const USABLE_MS: u64 = 24 * 3_600_000;
/// Between two looks.
const LOOK_EVERY_MS: u64 = 60_000;
/// Of the name that a provider gives itself, in an error.
const ISSUER_BYTES_MAX: usize = 200;
/// Keys of one provider.
const KEYS_MAX: usize = 64;

/// See the module. Times are in ms since this machine was started.
pub(super) struct Keys {
    issuer: String,
    fetch: Fetch,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    keys: Option<(Arc<JwkSet>, u64)>,
    looked_ms: Option<u64>,
    /// Why the last look has found none, if it has.
    failed: Option<String>,
}

/// What is read of the provider's document.
#[derive(Deserialize)]
struct Provider {
    issuer: String,
    jwks_uri: String,
}

impl Keys {
    pub(super) fn new(config: &LoginConfig) -> Self {
        Keys { issuer: config.issuer.clone(), fetch: Arc::clone(&config.fetch), known: Mutex::default() }
    }

    /// Those that are known, read anew when they are old.
    ///
    /// # Errors
    /// [`Refused::Provider`].
    pub(super) async fn known(&self, now_ms: u64) -> Result<Arc<JwkSet>, Refused> {
        let mut known = self.known.lock().await;
        match &known.keys {
            Some((keys, read_ms)) if now_ms.saturating_sub(*read_ms) < FRESH_MS => Ok(Arc::clone(keys)),
            _ => self.look(&mut known, now_ms).await,
        }
    }

    /// Those of now, for a token whose key is not among the known ones; and whether the provider was asked for them just now.
    ///
    /// # Errors
    /// [`Refused::Provider`].
    pub(super) async fn newer(&self, now_ms: u64) -> Result<(Arc<JwkSet>, bool), Refused> {
        let mut known = self.known.lock().await;
        let keys = self.look(&mut known, now_ms).await?;
        let is_new = known.keys.as_ref().is_some_and(|(_, read_ms)| *read_ms == now_ms);
        Ok((keys, is_new))
    }

    async fn look(&self, known: &mut Known, now_ms: u64) -> Result<Arc<JwkSet>, Refused> {
        let usable = known.keys.as_ref().filter(|(_, read_ms)| now_ms.saturating_sub(*read_ms) < USABLE_MS);
        let usable = usable.map(|(keys, _)| Arc::clone(keys));
        if known.looked_ms.is_some_and(|looked_ms| now_ms.saturating_sub(looked_ms) < LOOK_EVERY_MS) {
            let asked = "its keys were asked for less than a minute ago";
            let why = known.failed.as_ref().map_or_else(|| asked.to_owned(), |why| format!("{why} ({asked})"));
            return usable.ok_or(Refused::Provider { issuer: self.issuer.clone(), why });
        }
        known.looked_ms = Some(now_ms);
        match self.read().await {
            Ok(keys) => {
                let keys = Arc::new(keys);
                known.keys = Some((Arc::clone(&keys), now_ms));
                known.failed = None;
                Ok(keys)
            }
            Err(why) => {
                tracing::warn!(issuer = self.issuer, why, "the keys of the identity provider cannot be read");
                known.failed = Some(why.clone());
                usable.ok_or(Refused::Provider { issuer: self.issuer.clone(), why })
            }
        }
    }

    async fn read(&self) -> Result<JwkSet, String> {
        let base = self.issuer.trim_end_matches('/');
        let provider: Provider = self.json(format!("{base}/.well-known/openid-configuration")).await?;
        if provider.issuer != self.issuer {
            let issuer = clipped(provider.issuer, ISSUER_BYTES_MAX);
            return Err(format!("it calls itself {:?}; an operator corrects `issuer` in the file of --oidc", issuer));
        }
        let keys: JwkSet = self.json(provider.jwks_uri).await?;
        match keys.keys.len() {
            0 => Err("it publishes no keys".to_owned()),
            count if count > KEYS_MAX => Err(format!("it publishes {count} keys; at most {KEYS_MAX} are read")),
            _ => Ok(keys),
        }
    }

    async fn json<T: for<'de> Deserialize<'de>>(&self, url: String) -> Result<T, String> {
        if !is_private(&url) {
            return Err(format!("{url:?} is not https"));
        }
        let content = (self.fetch)(url.clone()).await.map_err(|why| format!("{url}: {why}"))?;
        if content.len() > FETCHED_BYTES_MAX {
            return Err(format!("{url} has {} bytes; at most {FETCHED_BYTES_MAX} are read", content.len()));
        }
        serde_json::from_slice(&content).map_err(|error| format!("{url}: {error}"))
    }
}

/// Whether nobody on the way can alter what comes from there: https, or this machine.
#[must_use]
pub fn is_private(url: &str) -> bool {
    let loopback = |rest: &str| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        // What stands before an @ is a user's name, and the host comes after it; some take \ for /.
        !authority.contains(['@', '\\']) && matches!(host, "127.0.0.1" | "localhost" | "[::1]")
    };
    url.starts_with("https://") || url.strip_prefix("http://").is_some_and(loopback)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn only_https_and_this_machine_are_trusted() {
        for (url, trusted) in [
            ("https://login.example.com/keys", true),
            ("http://127.0.0.1:8080/keys", true),
            ("http://[::1]:8080/keys", true),
            ("http://localhost/keys", true),
            ("http://login.example.com/keys", false),
            ("http://127.0.0.1.example.com/keys", false),
            ("http://example.com/127.0.0.1", false),
            ("http://localhost:1@example.com/keys", false),
            ("http://localhost:1\\@example.com/keys", false),
            ("ftp://localhost/keys", false),
        ] {
            assert_eq!(is_private(url), trusted, "{url}");
        }
    }

    /// Whoever sends tokens with invented keys makes this node ask the provider once a minute and no oftener; while it is away its keys serve for a day.
    #[tokio::test]
    async fn the_provider_is_asked_once_a_minute_and_its_keys_outlive_it_for_a_day() {
        let (asked, away) = (Arc::new(AtomicUsize::new(0)), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let (count, gone) = (Arc::clone(&asked), Arc::clone(&away));
        let fetch: Fetch = Arc::new(move |url: String| {
            let answer = if gone.load(Ordering::Relaxed) {
                Err("connection refused".to_owned())
            } else if url.ends_with("openid-configuration") {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(br#"{"issuer":"https://idp","jwks_uri":"https://idp/keys"}"#.to_vec())
            } else {
                Ok(br#"{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA","kid":"1"}]}"#.to_vec())
            };
            async move { answer }.boxed()
        });
        let config = super::super::verify::tests::config("https://idp", fetch);
        let keys = Keys::new(&config);
        keys.known(0).await.expect("read");
        for at_ms in [1, 1_000, 59_999] {
            keys.known(at_ms).await.expect("known");
            assert!(!keys.newer(at_ms).await.expect("known").1, "not asked again");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(keys.newer(60_000).await.expect("read").1);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        away.store(true, Ordering::Relaxed);
        keys.known(60_000 + USABLE_MS - 1).await.expect("those of the last day");
        // Who asks again at once is told the same.
        for later_ms in [0, 1_000] {
            let gone = keys.known(60_000 + USABLE_MS + LOOK_EVERY_MS + later_ms).await.expect_err("too old");
            assert!(gone.to_string().contains("connection refused"), "{gone}");
        }
    }
}
