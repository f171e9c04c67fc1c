//! Opening a log: what was synced must be there, whole; only what was never known to be synced may be cut.

use super::{Cache, FLUSH_QUEUE, Identity, Log, Marks, PAGE_ENTRIES, Shared, flush, key};
use crate::consensus::config::PlantedBug;
use crate::consensus::forms::WriteForm;
use crate::consensus::stop::Stop;
use crate::consensus::stored::{self, corrupt, index_key, log_space};
use crate::consensus::types::{LogId, Vote};
use muster_runtime::disk::KvRead;
use muster_runtime::{Batch, DiskError, Host, Kv};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// An open log and what it says about its node.
pub(crate) struct Opened {
    pub(crate) log: Log,
    /// Whose folder it is; `None` when the folder is new.
    pub(crate) identity: Option<Identity>,
    /// Which state store is in use.
    pub(crate) generation: u64,
}

/// Opens the log of `host` and starts its syncing task.
///
/// # Errors
/// [`DiskError::Corrupt`] when something that had been synced is damaged or missing.
pub(crate) async fn open(host: &Host, me: u64, stop: Stop, planted: Option<PlantedBug>) -> Result<Opened, DiskError> {
    let kv = host.disk.open("log", &log_space::ALL)?;
    let purged: Option<LogId> = meta(kv.as_ref(), key::PURGED, "the log's purge mark")?;
    let synced: Option<u64> = meta(kv.as_ref(), key::SYNCED, "the log's sync mark")?;
    let vote: Option<Vote> = meta(kv.as_ref(), key::VOTE, "the vote")?;
    let committed: Option<LogId> = meta(kv.as_ref(), key::COMMITTED, "the commit mark")?;
    let tail = check_entries(kv.as_ref(), purged, synced)?;
    if let Some(damage) = &tail.damage {
        tracing::warn!(last = ?tail.last, synced, %damage, "the last entry of the log is incomplete and was removed; it was never acknowledged");
        let mut batch = Batch::default();
        batch.delete_range(log_space::ENTRIES, index_key(tail.next), index_key(u64::MAX));
        kv.write(&batch)?;
    }
    // After a mere restart of the process entries may be there that were never synced; from here on they count.
    kv.sync().await?;
    let last = tail.last.or(purged);
    let identity: Option<Identity> = meta(kv.as_ref(), key::IDENTITY, "the node's identity")?;
    let marks = Marks {
        vote: match planted {
            Some(PlantedBug::LeadershipResumed) => vote,
            _ => vote.map(|vote| not_resumed(vote, identity.as_ref())),
        },
        // It is written without a sync, but what it names was synced before: it cannot be ahead of the log for long.
        committed: committed.min(last),
        purged,
        last,
        synced: last,
        reported: None,
        truncations: 0,
        appended_bytes: 0,
        cache: Cache::default(),
    };
    let generation = meta(kv.as_ref(), key::GENERATION, "the state's generation")?.unwrap_or(1);
    if identity.is_none() && (marks.vote.is_some() || marks.last.is_some()) {
        return Err(flush::missing("the node's identity", "a log without one"));
    }
    let (flush, requests) = mpsc::channel(FLUSH_QUEUE);
    let synced = watch::Sender::new(last.map(|last| last.index));
    let appended = watch::Sender::new(last.map_or(0, |last| last.index));
    let (marks, form) = (Mutex::new(marks), WriteForm::default());
    let shared = Arc::new(Shared { kv, marks, flush, synced, appended, form, stop, me, planted });
    host.spawn(flush::run(shared.clone(), requests));
    Ok(Opened { log: Log { shared }, identity, generation })
}

/// A leader that starts again does not lead on in its old term, as openraft would have it: its commit mark on disk may lie before entries
/// that it acknowledged, and it would serve reads by that mark. It asks to be elected, in a new term, whose first entry commits all before.
/// No promise is taken back: no vote lies between the two.
fn not_resumed(vote: Vote, identity: Option<&Identity>) -> Vote {
    match identity {
        Some(me) if vote.leader_id().voted_for() == Some(me.id) => Vote { committed: false, ..vote },
        _ => vote,
    }
}

fn meta<T: DeserializeOwned>(kv: &dyn Kv, key: &[u8], what: &str) -> Result<Option<T>, DiskError> {
    kv.get(log_space::META, key)?.map(|bytes| stored::decode_stored(what, &bytes)).transpose()
}

struct Tail {
    /// The last good entry.
    last: Option<LogId>,
    /// The index after it.
    next: u64,
    /// What is wrong after it.
    damage: Option<String>,
}

/// Reads every entry after the purged ones: each must be whole, follow the one before, and carry the index it is stored under.
fn check_entries(kv: &dyn KvRead, purged: Option<LogId>, synced: Option<u64>) -> Result<Tail, DiskError> {
    let mut tail = Tail { last: None, next: purged.map_or(0, |purged| purged.index + 1), damage: None };
    'entries: loop {
        let page = kv.scan(log_space::ENTRIES, &index_key(tail.next), None, PAGE_ENTRIES, false)?;
        let full = page.len() == PAGE_ENTRIES;
        for (stored_under, bytes) in page {
            match check_entry(&stored_under, &bytes, &tail) {
                Ok(log_id) => {
                    tail.next += 1;
                    tail.last = Some(log_id);
                }
                Err(damage) => {
                    tail.damage = Some(damage);
                    break 'entries;
                }
            }
        }
        if !full {
            break;
        }
    }
    // Everything up to the mark was synced before the mark was written, so it has to be there.
    if synced.is_some_and(|synced| tail.next <= synced) {
        let damage = tail.damage.unwrap_or_else(|| "it is missing".to_owned());
        let why = format!("entry {}: {damage}; it was synced (up to {})", tail.next, synced.unwrap_or_default());
        return Err(corrupt("the log", &why));
    }
    Ok(tail)
}

fn check_entry(stored_under: &[u8], bytes: &[u8], tail: &Tail) -> Result<LogId, String> {
    if stored_under != index_key(tail.next) {
        return Err(format!("entry {} is missing", tail.next));
    }
    let log_id: LogId = stored::decode_head(bytes).map_err(|unreadable| unreadable.to_string())?;
    if log_id.index != tail.next {
        return Err(format!("it calls itself entry {}", log_id.index));
    }
    match tail.last {
        Some(last) if last >= log_id => Err(format!("its term {} goes back", log_id.leader_id)),
        _ => Ok(log_id),
    }
}
