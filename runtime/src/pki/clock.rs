//! The certificate clock: the time of the cluster as this machine last heard it, and CLOCK_BOOTTIME since.
//!
//! Dates of certificates are judged by it and by nothing else, so that a wrong wall clock refuses nobody. What must stay true: it never
//! goes back while the process lives, and after a restart it goes on from what was saved, at most [`SAVE_EVERY`] earlier; while everything
//! is off it stands still; before it has heard the time for the first time it has none, and dates are not judged.

use super::error::PkiError;
use crate::clock::Clock;
use crate::disk::Files;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The file that it is kept in.
pub const CLOCK_FILE: &str = "certificate-clock";
/// How often it is saved: certificates live for weeks.
pub const SAVE_EVERY: Duration = Duration::from_secs(600);

/// See the module.
pub struct CertificateClock {
    clock: Arc<dyn Clock>,
    files: Arc<dyn Files>,
    heard: Mutex<Option<Heard>>,
}

/// The time of the cluster, and the boot time at which it was that.
#[derive(Clone, Copy)]
struct Heard {
    at_ms: u64,
    boot_ns: u64,
}

impl Heard {
    fn now_ms(self, boot_ns: u64) -> u64 {
        self.at_ms.saturating_add(boot_ns.saturating_sub(self.boot_ns) / 1_000_000)
    }
}

impl CertificateClock {
    /// One that has heard nothing yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, files: Arc<dyn Files>) -> Self {
        CertificateClock { clock, files, heard: Mutex::default() }
    }

    /// What time it is, if it was ever heard.
    #[must_use]
    pub fn now_ms(&self) -> Option<u64> {
        let boot_ns = self.clock.boottime_ns();
        self.heard.lock().map(|heard| heard.now_ms(boot_ns))
    }

    /// The time of the cluster is `at_ms` or later.
    pub fn hear(&self, at_ms: u64) {
        let boot_ns = self.clock.boottime_ns();
        let mut heard = self.heard.lock();
        if at_ms > 0 && heard.is_none_or(|heard| heard.now_ms(boot_ns) < at_ms) {
            *heard = Some(Heard { at_ms, boot_ns });
        }
    }

    /// Goes on from what was saved.
    ///
    /// # Errors
    /// When the file cannot be read or is no number.
    pub fn load(&self) -> Result<(), PkiError> {
        let Some(content) = self.files.read(CLOCK_FILE)? else { return Ok(()) };
        let text = std::str::from_utf8(&content).unwrap_or_default().trim();
        let saved_ms = text.parse().map_err(|_| {
            let why = "it is not a number of milliseconds; delete it, and the time is heard again".to_owned();
            PkiError::File { file: CLOCK_FILE, why }
        })?;
        self.hear(saved_ms);
        Ok(())
    }

    /// Saves what time it is.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn save(&self) -> Result<(), PkiError> {
        if let Some(now_ms) = self.now_ms() {
            self.files.write(CLOCK_FILE, format!("{now_ms}\n").into_bytes()).await?;
        }
        Ok(())
    }

    /// Saves it now and then, for as long as the host lives. A disk that fails is for those to notice who decide by what is on it.
    pub async fn keep_saved(self: Arc<Self>) {
        loop {
            if let Err(error) = self.save().await {
                tracing::warn!(%error, "the certificate clock cannot be saved");
            }
            tokio::time::sleep(SAVE_EVERY).await;
        }
    }
}
