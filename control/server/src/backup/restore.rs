//! A new cluster of one control node, from a backup.

use super::file::{BackupError, Head, Reader};
use crate::consensus::restored::{self, FIRST_GENERATION, NotRestored, Owner};
use crate::consensus::{FEATURE_LEVEL_NEWEST, Identity, Member, begin_after, form_of, is_in_use};
use muster_control_core::{Command, Entry, Restoration};
use muster_runtime::{DiskError, Host};
use std::io::Read;

/// Whose folder is made.
#[derive(Clone, Debug)]
pub struct Target {
    /// The control node.
    pub id: u64,
    /// `host:port` at which other machines reach it.
    pub address: String,
    /// SHA-256 of its public key, where machines have identities.
    pub key_sha256: Option<[u8; 32]>,
    /// The history gets a number above this.
    pub incarnation_above: u64,
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What it was made from.
    pub head: Head,
    /// The history that begins.
    pub incarnation: u64,
    /// The first job that is submitted gets this number.
    pub next_job: u64,
    /// The revision at which it begins.
    pub revision: u64,
}

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The folder belongs to a control node.
    #[error("the folder holds the data of a control node; a backup is restored into an empty one")]
    InUse,
    /// The backup.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The folder.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The state in it.
    #[error("{why}")]
    State {
        /// Why it cannot be restored.
        why: String,
    },
}

/// Makes the folder of `host` that of a control node, the only one of a cluster with the state of the backup.
///
/// # Errors
/// [`RestoreError`]; what was written by then belongs to nobody.
pub async fn restore<R: Read>(host: &Host, target: &Target, mut from: Reader<R>) -> Result<Restored, RestoreError> {
    if is_in_use(host)? || host.disk.list()?.iter().any(|name| name.starts_with("state-")) {
        return Err(RestoreError::InUse);
    }
    let head = from.head().clone();
    // Zero stands for "not known". Members of before are of another cluster of control nodes, though agents know this one by the same identity.
    let (disk, group) = (host.chance.u64().max(1), host.chance.u64().max(1));
    let owner =
        Owner { id: target.id, member: Member { address: target.address.clone(), disk, cluster: group, level: 0 } };
    let (now_ms, backup_ms) = (host.clock.wall_ms(), head.state_ms);
    let made = restored::restore(
        host,
        &owner,
        || from.frame(),
        |meta| {
            let raise = (meta.feature_level < FEATURE_LEVEL_NEWEST)
                .then_some(Command::RaiseFeatureLevel { level: FEATURE_LEVEL_NEWEST });
            let above = target.incarnation_above;
            let begin = Restoration::Begin { member: target.id, key_sha256: target.key_sha256, backup_ms, above };
            let commands = raise.into_iter().chain([Command::Restore(begin)]).collect();
            Entry { now_ms, commands }
        },
    );
    let (meta, begins) = made.await.map_err(|error| match error {
        NotRestored::Frames(error) => RestoreError::Backup(error),
        NotRestored::Disk(error) => RestoreError::Disk(error),
        NotRestored::State(why) => RestoreError::State { why },
    })?;
    let identity = Identity { id: target.id, disk, cluster: Some(group) };
    begin_after(host, form_of(meta.feature_level), &identity, FIRST_GENERATION, begins).await?;
    let (incarnation, next_job, revision) = (meta.incarnation, meta.next_job.0, begins.index);
    Ok(Restored { head, incarnation, next_job, revision })
}
