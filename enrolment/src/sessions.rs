//! How an agent counts its sessions, beside its key: two machines with one key show by it.
//!
//! What must stay true: what will be said is on disk before it is said, so that a lost answer is repeated and not taken for a copy.

use muster_model::identity::SessionCount;
use muster_runtime::{DiskError, Host};
use serde::{Deserialize, Serialize};

const FILE: &str = "sessions.json";

/// What is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// The number that was given last.
    generation: u64,
    /// Drawn for the session that is being asked for; 0: none is.
    pending: u64,
}

/// The count of one host.
pub struct Sessions<'a>(pub &'a Host);

impl Sessions<'_> {
    /// What to say when a session is asked for.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn begin(&self) -> Result<SessionCount, DiskError> {
        let mut kept = self.read()?;
        if kept.pending == 0 {
            kept.pending = self.0.chance.u64().max(1);
            self.write(kept).await?;
        }
        Ok(SessionCount { generation: kept.generation, nonce: kept.pending })
    }

    /// The session has this number; 0: it was not counted.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn begun(&self, generation: u64) -> Result<(), DiskError> {
        if generation == 0 {
            return Ok(());
        }
        self.write(Kept { generation, pending: 0 }).await
    }

    fn read(&self) -> Result<Kept, DiskError> {
        let Some(content) = self.0.identity.read(FILE)? else { return Ok(Kept::default()) };
        let corrupt = |error: serde_json::Error| DiskError::Corrupt {
            what: FILE.to_owned(),
            why: format!("{error}; delete it, and the machine is enrolled anew or resumed by an operator"),
        };
        serde_json::from_slice(&content).map_err(corrupt)
    }

    async fn write(&self, kept: Kept) -> Result<(), DiskError> {
        let content = serde_json::to_vec(&kept).unwrap_or_default();
        self.0.identity.write(FILE, content).await
    }
}
