//! The log: entries, vote and marks in one store, with one task that syncs.
//!
//! A leader's own entries are reported to openraft as appended before they are synced: openraft 0.9 sends entries to the followers only after
//! that report, and so the leader's sync and theirs go on at the same time. openraft may then take an entry for committed that this disk does not
//! have yet. What must stay true:
//! - a follower reports entries only after the sync (their callback runs after it, in order);
//! - nothing that depends on a commit becomes visible before this disk has the entry: it is not applied here ([`Log::shown`]) and no
//!   other node is told that it is committed ([`Log::may_show`]);
//! - entries can be read when `append` returns;
//! - a vote is ordered with the entries and synced before it is given away;
//! - what one sync makes durable shares it: the syncing task takes everything that waits, syncs once, answers all;
//! - on opening, damage after the last group known to be synced is a torn tail and is cut; any other damage is an error.

mod flush;
mod open;
mod restored;
mod store;

use crate::consensus::config::PlantedBug;
use crate::consensus::stop::Stop;
use crate::consensus::types::{LogEntry, LogId, Vote};
use muster_runtime::{Batch, DiskError, Kv};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

pub(crate) use open::{Opened, open};
pub(crate) use restored::{begin_after, is_in_use};

use crate::consensus::forms::WriteForm;
use crate::consensus::stored::{encode, log_space};

/// Keys of the meta space.
mod key {
    pub(super) const VOTE: &[u8] = b"vote";
    pub(super) const COMMITTED: &[u8] = b"committed";
    pub(super) const PURGED: &[u8] = b"purged";
    /// Index of the last entry that was known to be synced when the last group began.
    pub(super) const SYNCED: &[u8] = b"synced";
    pub(super) const IDENTITY: &[u8] = b"identity";
    /// Which state store is in use.
    pub(super) const GENERATION: &[u8] = b"generation";
}

/// Entries kept in memory for applying and replicating without reading them back.
const CACHED_ENTRIES: usize = 1_024;
/// And their bytes.
const CACHED_BYTES: usize = 32 << 20;
/// Bytes of entries sent to a follower at once: small enough to arrive and sync within a heartbeat.
const APPEND_BYTES: usize = 1 << 20;
/// Entries read from disk at once.
const PAGE_ENTRIES: usize = 64;
/// Requests waiting for the syncing task; openraft has one append or vote in flight, plus our own marks.
const FLUSH_QUEUE: usize = 64;

/// Whose folder this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The node.
    pub(crate) id: u64,
    /// Drawn when the disk was first used.
    pub(crate) disk: u64,
    /// The cluster, once it is part of one.
    pub(crate) cluster: Option<u64>,
}

/// The log store. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    kv: Arc<dyn Kv>,
    marks: Mutex<Marks>,
    flush: mpsc::Sender<flush::Request>,
    /// How far the log is synced; changes after [`Marks::synced`].
    synced: watch::Sender<Option<u64>>,
    /// The index of the last entry that this node appended as a leader.
    appended: watch::Sender<u64>,
    form: WriteForm,
    stop: Stop,
    /// Whose log it is.
    me: u64,
    planted: Option<PlantedBug>,
}

/// What is known about the log without reading it.
#[derive(Debug, Default)]
struct Marks {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    /// The last entry; the purged one when there is none.
    last: Option<LogId>,
    /// The last entry known to be synced.
    synced: Option<LogId>,
    /// The last entry that was reported as appended before it was synced, if there is one.
    reported: Option<u64>,
    /// Counts truncations, so that a sync that began before one does not vouch for what came after it.
    truncations: u64,
    /// Bytes of all entries appended since the log was opened.
    appended_bytes: u64,
    cache: Cache,
}

/// The youngest entries, contiguous up to the last.
#[derive(Debug, Default)]
struct Cache {
    entries: VecDeque<(LogEntry, usize)>,
    bytes: usize,
}

impl Cache {
    fn push(&mut self, entry: LogEntry, bytes: usize) {
        self.entries.push_back((entry, bytes));
        self.bytes += bytes;
        while self.entries.len() > CACHED_ENTRIES || (self.bytes > CACHED_BYTES && self.entries.len() > 1) {
            if let Some((_, freed)) = self.entries.pop_front() {
                self.bytes -= freed;
            }
        }
    }

    fn truncate(&mut self, from: u64) {
        while self.entries.back().is_some_and(|(entry, _)| entry.log_id.index >= from) {
            if let Some((_, freed)) = self.entries.pop_back() {
                self.bytes -= freed;
            }
        }
    }

    fn purge(&mut self, upto: u64) {
        while self.entries.front().is_some_and(|(entry, _)| entry.log_id.index <= upto) {
            if let Some((_, freed)) = self.entries.pop_front() {
                self.bytes -= freed;
            }
        }
    }

    /// Entries from `start` to below `end`, at most so many bytes but at least one entry; `None` when they are not all here.
    fn get(&self, start: u64, end: u64, bytes_max: usize) -> Option<Vec<LogEntry>> {
        let first = self.entries.front()?.0.log_id.index;
        let skip = usize::try_from(start.checked_sub(first)?).ok()?;
        if skip >= self.entries.len() {
            return None;
        }
        let mut found = Vec::new();
        let mut bytes = 0;
        for (entry, size) in self.entries.iter().skip(skip).take_while(|(entry, _)| entry.log_id.index < end) {
            bytes += size;
            if bytes > bytes_max && !found.is_empty() {
                break;
            }
            found.push(entry.clone());
        }
        Some(found)
    }
}

impl Log {
    /// The form in which this node writes, here and everywhere.
    pub(crate) fn form(&self) -> &WriteForm {
        &self.shared.form
    }

    /// Whether this log has ever had a vote or an entry.
    pub(crate) fn is_pristine(&self) -> bool {
        let marks = self.shared.marks.lock();
        marks.vote.is_none() && marks.last.is_none() && marks.purged.is_none()
    }

    /// The last entry, synced or not.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.shared.marks.lock().last
    }

    /// Waits until an entry that openraft takes for committed may be applied: until this disk has it.
    ///
    /// # Errors
    /// When this node has stopped, as it does when its disk fails.
    pub(crate) async fn shown(&self, index: u64) -> Result<(), DiskError> {
        let awaited = self.shared.marks.lock().reported.map(|reported| reported.min(index));
        if self.shared.planted == Some(PlantedBug::ShownBeforeSync) {
            return Ok(());
        }
        let mut synced = self.shared.synced.subscribe();
        if *synced.borrow() >= awaited {
            return Ok(());
        }
        tokio::select! {
            biased;
            // The sender lives as long as this log.
            _ = synced.wait_for(|synced| *synced >= awaited) => Ok(()),
            why = self.shared.stop.stopped() => Err(DiskError::Io { doing: "waiting for the log's sync".to_owned(), why }),
        }
    }

    /// As much of `committed` as other nodes may be told.
    pub(crate) fn may_show(&self, committed: Option<LogId>) -> Option<LogId> {
        let marks = self.shared.marks.lock();
        match marks.reported {
            Some(_) if self.shared.planted != Some(PlantedBug::ShownBeforeSync) => committed.min(marks.synced),
            _ => committed,
        }
    }

    /// Changes when this node appends an entry as a leader.
    pub(crate) fn appended(&self) -> watch::Receiver<u64> {
        self.shared.appended.subscribe()
    }

    /// The entries after `after`, while this node leads under `vote`; at most so many bytes but at least one entry. None when it does not lead,
    /// and none of those that are not in memory any more.
    pub(crate) fn following(&self, vote: Vote, after: LogId, bytes_max: usize) -> Vec<LogEntry> {
        let marks = self.shared.marks.lock();
        // Nothing is cut off this log as long as the vote is its own.
        if marks.vote != Some(vote) || marks.last <= Some(after) {
            return Vec::new();
        }
        marks.cache.get(after.index + 1, u64::MAX, bytes_max).unwrap_or_default()
    }

    /// Bytes of all entries appended since it was opened.
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.shared.marks.lock().appended_bytes
    }

    /// Records whose folder this is, durably.
    pub(crate) async fn save_identity(&self, identity: &Identity) -> Result<(), DiskError> {
        self.put_meta(key::IDENTITY, encode(self.form().get(), identity)).await
    }

    /// Records which state store is in use, durably.
    pub(crate) async fn save_generation(&self, generation: u64) -> Result<(), DiskError> {
        self.put_meta(key::GENERATION, encode(self.form().get(), &generation)).await
    }

    async fn put_meta(&self, key: &'static [u8], value: Vec<u8>) -> Result<(), DiskError> {
        let mut batch = Batch::default();
        batch.put(log_space::META, key, value);
        self.shared.kv.write(&batch)?;
        self.shared.sync().await
    }
}
