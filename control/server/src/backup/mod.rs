//! Backups: the whole state in one file, and a new cluster made from it.
//!
//! What must stay true: a backup is the state at one revision, all of it or none: a file that was cut or changed is not restored; nothing secret is
//! readable in it that is not in the data folder of a control node (values of secrets are sealed, tokens are hashes); restoring begins a new history of the cluster
//! in an empty folder, and never touches one that is in use.

mod file;
mod restore;

pub use file::{BackupError, Head, Reader, Summary};
pub(crate) use file::{example_parts, file_of};
pub use restore::{RestoreError, Restored, Target, restore};

use crate::consensus::restored::About;
use crate::consensus::{Consensus, ProposeError};
use file::Writer;
use muster_runtime::DiskError;

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum NotMade {
    /// No quorum, or no leader.
    #[error("{0}; --stale makes a backup of what this control node has, which may lack the newest changes")]
    Propose(#[from] ProposeError),
    /// The state store.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// This node is no part of a cluster yet.
    #[error("this control node has no state yet")]
    Empty,
}

/// A backup on its way to a file, part by part.
pub struct Backup {
    writer: Writer,
    frames: crate::consensus::BackupFrames,
}

impl Backup {
    /// Of what this node has applied, which with `fresh` is all that was acknowledged before the call.
    ///
    /// # Errors
    /// [`NotMade`].
    pub async fn begin(consensus: &Consensus, wall_ms: u64, fresh: bool) -> Result<Backup, NotMade> {
        if fresh {
            consensus.read_index().await?;
        }
        let frozen = consensus.freeze()?;
        let About { meta, term, index, members } = frozen.about().ok_or(NotMade::Empty)?;
        let head = Head {
            cluster: meta.cluster,
            incarnation: meta.incarnation,
            feature_level: meta.feature_level,
            term,
            revision: index,
            state_ms: meta.now_ms,
            made_ms: wall_ms,
            made_by: consensus.id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            members,
        };
        Ok(Backup { writer: Writer::new(head), frames: frozen.frames() })
    }

    /// The next bytes of the file; `None` after the last.
    ///
    /// # Errors
    /// When the state store cannot be read.
    pub fn part(&mut self) -> Result<Option<Vec<u8>>, DiskError> {
        if let Some(head) = self.writer.head() {
            return Ok(Some(head));
        }
        match self.frames.next()? {
            Some(frame) => Ok(Some(self.writer.frame(&frame))),
            None => Ok(self.writer.end()),
        }
    }
}
