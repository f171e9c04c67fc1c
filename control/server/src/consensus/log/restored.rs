//! The log of a folder that is made from a backup: it has no entries, and begins after the one at which the state stands.
//!
//! What must stay true: it is written last and in one step, so that a folder whose restore did not come to its end belongs to no cluster.

use super::{Identity, key};
use crate::consensus::stored::{encode, log_space};
use crate::consensus::types::{LogId, Vote};
use muster_runtime::{Batch, DiskError, Host};

/// Whether the folder has a log that belongs to somebody.
pub(crate) fn is_in_use(host: &Host) -> Result<bool, DiskError> {
    let kv = host.disk.open("log", &log_space::ALL)?;
    Ok(!kv.scan(log_space::META, &[], None, 1, false)?.is_empty())
}

/// Makes the log.
pub(crate) async fn begin_after(
    host: &Host,
    form: u8,
    identity: &Identity,
    generation: u64,
    last: LogId,
) -> Result<(), DiskError> {
    let kv = host.disk.open("log", &log_space::ALL)?;
    // It has led in the term of the entry, and asks to be elected in a later one.
    let vote = Vote::new(last.leader_id.term, identity.id);
    let mut batch = Batch::default();
    batch.put(log_space::META, key::PURGED, encode(form, &last));
    batch.put(log_space::META, key::VOTE, encode(form, &vote));
    batch.put(log_space::META, key::GENERATION, encode(form, &generation));
    batch.put(log_space::META, key::IDENTITY, encode(form, identity));
    kv.write(&batch)?;
    kv.sync().await
}
