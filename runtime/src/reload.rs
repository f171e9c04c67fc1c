//! Credentials from a host's files: at its start, and again when somebody has renewed them while it runs.
//!
//! What must stay true: a host uses no credentials but those of the machine that it is; files that cannot be used (half written, of another
//! cluster) leave it with those that it has.

use crate::disk::Files;
use crate::net::Net;
use crate::pki::{Admit, Credentials, MACHINE_FILE, PkiError, ROOTS_FILE, Role, Scheme, SpkiHash};
use std::sync::Arc;
use std::time::Duration;

/// How often the files are looked at: two small ones. Certificates are renewed weeks before they expire.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What was read, and which content of the files that was.
pub(crate) struct Loaded {
    pub(crate) credentials: Credentials,
    pub(crate) content: Content,
}

/// Hashes of the two files.
pub(crate) type Content = [Option<SpkiHash>; 2];

/// Where the credentials of a host are, and whose they have to be.
pub(crate) struct Kept {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) scheme: Arc<dyn Scheme>,
    pub(crate) role: Role,
    /// Whoever knows which keys are pinned.
    pub(crate) pins: Option<Arc<dyn Admit>>,
}

impl Kept {
    pub(crate) fn load(&self) -> Result<Loaded, PkiError> {
        // First: what is replaced between the two is read again at the next look.
        let content = self.content()?;
        let credentials = Credentials::load(&*self.scheme, &*self.files)?;
        let named = credentials.name().ok_or(PkiError::Missing { file: MACHINE_FILE })?;
        if *named.role() != self.role {
            let expected = named.as_role(self.role.clone())?;
            let (expected, got) = (expected.to_string(), named.to_string());
            return Err(PkiError::Other { what: "the certificate is of another machine", expected, got });
        }
        let credentials = match &self.pins {
            Some(pins) => credentials.with_pins(Arc::clone(pins)),
            None => credentials,
        };
        Ok(Loaded { credentials, content })
    }

    fn content(&self) -> Result<Content, PkiError> {
        let hash = |file| Ok::<_, PkiError>(self.files.read(file)?.map(|content| SpkiHash::of(&content)));
        Ok([hash(MACHINE_FILE)?, hash(ROOTS_FILE)?])
    }

    /// Takes over what is replaced, for as long as the host lives.
    pub(crate) async fn follow(self, net: Arc<dyn Net>, mut known: Content) {
        let mut said = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = match self.content() {
                Ok(now) if now != known => now,
                // A disk that fails is for those to notice who decide by what is on it.
                _ => continue,
            };
            let taken = self.load().map_err(|error| error.to_string()).and_then(|loaded| {
                let until_ms = loaded.credentials.presented().map(|presented| presented.validity.until_ms);
                net.set_credentials(Some(loaded.credentials)).map_err(|error| error.to_string())?;
                known = loaded.content;
                Ok(until_ms)
            });
            match taken {
                Ok(until_ms) => tracing::info!(until_ms, "this machine uses its renewed credentials"),
                // Once for each content.
                Err(why) if said != Some(now) => {
                    said = Some(now);
                    tracing::error!(
                        why,
                        "the credentials were replaced by some that cannot be used; the earlier ones stay in use"
                    );
                }
                Err(_) => {}
            }
        }
    }
}
