//! The log as openraft reads and writes it.

use super::{APPEND_BYTES, Log, Marks, PAGE_ENTRIES, Shared, flush, key};
use crate::consensus::stored::{self, corrupt, encode, encode_raised, index_key, log_space};
use crate::consensus::types::{LogEntry, LogId, StorageError, Types, Vote};
use muster_runtime::{Batch, DiskError, timeline};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{AnyError, LogState, OptionalSend, RaftLogReader, StorageIOError};
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};

impl Log {
    /// Any failure of the disk ends this node: openraft stops on the error, and so does everybody else.
    fn fatal(&self, error: DiskError, wrap: impl FnOnce(AnyError) -> StorageIOError<u64>) -> StorageError {
        self.shared.stop.failed("the log", &error);
        wrap(AnyError::new(&error)).into()
    }

    fn entries(&self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<LogEntry>, DiskError> {
        let end = {
            let marks = self.shared.marks.lock();
            if let Some(entries) = marks.cache.get(start, end, bytes_max) {
                return Ok(entries);
            }
            end.min(marks.last.map_or(0, |last| last.index + 1))
        };
        self.shared.read(start, end, bytes_max)
    }
}

impl Shared {
    /// Entries from `start`, or from the first after it that is there, to below `end`; at most so many bytes but at least one entry.
    fn read(&self, start: u64, end: u64, bytes_max: usize) -> Result<Vec<LogEntry>, DiskError> {
        let mut entries: Vec<LogEntry> = Vec::new();
        let (mut next, mut bytes) = (start, 0);
        while next < end {
            let page =
                self.kv.scan(log_space::ENTRIES, &index_key(next), Some(&index_key(end)), PAGE_ENTRIES, false)?;
            if page.is_empty() {
                break;
            }
            for (_, stored) in page {
                bytes += stored.len();
                if bytes > bytes_max && !entries.is_empty() {
                    return Ok(entries);
                }
                let (log_id, payload) = stored::decode_stored("a log entry", &stored)?;
                let entry = LogEntry { log_id, payload };
                if entries.is_empty() {
                    next = entry.log_id.index;
                }
                if entry.log_id.index != next {
                    return Err(corrupt("the log", &format!("entry {next} is missing")));
                }
                next += 1;
                entries.push(entry);
            }
        }
        Ok(entries)
    }
}

impl Marks {
    /// Whether this node leads and these are its own entries. Entries that it proposed as an earlier leader and gets back from another come
    /// under that one's vote.
    fn are_own(&self, entries: &[(LogEntry, usize)], me: u64) -> bool {
        let own = |vote: &Vote| {
            vote.leader_id().voted_for() == Some(me)
                && entries.iter().all(|(entry, _)| entry.log_id.leader_id == *vote.leader_id())
        };
        self.vote.as_ref().is_some_and(own)
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<LogEntry>, StorageError> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.entries(start, end, usize::MAX).map_err(|error| self.fatal(error, StorageIOError::read_logs))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<LogEntry>, StorageError> {
        let mut entries =
            self.entries(start, end, APPEND_BYTES).map_err(|error| self.fatal(error, StorageIOError::read_logs))?;
        // Purged while it was read: what is left would not follow what the receiver has.
        if entries.first().is_some_and(|first| first.log_id.index != start) {
            entries.clear();
        }
        Ok(entries)
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let marks = self.shared.marks.lock();
        Ok(LogState { last_purged_log_id: marks.purged, last_log_id: marks.last })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let mut batch = Batch::default();
        batch.put(log_space::META, key::VOTE, encode(self.form().get(), vote));
        let saved = async {
            self.shared.kv.write(&batch)?;
            self.shared.sync().await
        };
        saved.await.map_err(|error| self.fatal(error, StorageIOError::write_vote))?;
        self.shared.marks.lock().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.shared.marks.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        // It is written with the next entries: all that is lost when it is old is that a start applies less before it hears a leader.
        self.shared.marks.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        Ok(self.shared.marks.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut batch = Batch::default();
        let form = self.form().get();
        let mut appended = Vec::new();
        for entry in entries {
            let stored = encode_raised(form, &(&entry.log_id, &entry.payload));
            appended.push((entry.clone(), stored.len()));
            batch.put(log_space::ENTRIES, index_key(entry.log_id.index), stored);
        }
        let (synced, committed) = {
            let marks = self.shared.marks.lock();
            (marks.synced, marks.committed.min(marks.synced))
        };
        if let Some(synced) = synced {
            batch.put(log_space::META, key::SYNCED, encode(form, &synced.index));
        }
        if let Some(committed) = committed {
            batch.put(log_space::META, key::COMMITTED, encode(form, &committed));
        }
        self.shared.kv.write(&batch).map_err(|error| self.fatal(error, StorageIOError::write_logs))?;
        let bytes: usize = appended.iter().map(|(_, bytes)| *bytes).sum();
        metrics::counter!("muster_raft_log_bytes_total").increment(bytes as u64);
        let leads = {
            let mut marks = self.shared.marks.lock();
            let leads = marks.are_own(&appended, self.shared.me);
            for (entry, bytes) in appended {
                tracing::trace!(target: timeline::TARGET, step = "appended", revision = entry.log_id.index);
                marks.last = Some(entry.log_id);
                marks.appended_bytes += bytes as u64;
                marks.cache.push(entry, bytes);
            }
            if leads {
                marks.reported = marks.last.map(|last| last.index);
                self.shared.appended.send_replace(marks.last.map_or(0, |last| last.index));
            }
            leads
        };
        let (request, callback) =
            if leads { (flush::Request::Reported, Some(callback)) } else { (flush::Request::Entries(callback), None) };
        let queued = self.shared.flush.send(request).await;
        let ended = || std::io::Error::other("the syncing task has ended");
        match (queued, callback) {
            (Ok(()), Some(callback)) => callback.log_io_completed(Ok(())),
            (Ok(()), None) => {}
            (Err(_), Some(callback)) => callback.log_io_completed(Err(ended())),
            (Err(lost), None) => {
                if let flush::Request::Entries(callback) = lost.0 {
                    callback.log_io_completed(Err(ended()));
                }
            }
        }
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let first = log_id.index;
        let before = first.checked_sub(1);
        let last_kept = || -> Result<Option<LogId>, DiskError> {
            let Some(before) = before else { return Ok(None) };
            Ok(self.shared.read(before, first, usize::MAX)?.first().map(|entry| entry.log_id))
        };
        let last_kept = last_kept().map_err(|error| self.fatal(error, StorageIOError::read_logs))?;
        let mut batch = Batch::default();
        batch.delete_range(log_space::ENTRIES, index_key(first), index_key(u64::MAX));
        // All marks change under one lock and before the store does: a sync that begins in between must not vouch for entries
        // that are about to go.
        let synced = {
            let mut marks = self.shared.marks.lock();
            marks.truncations += 1;
            marks.last = last_kept.or(marks.purged);
            marks.synced = marks.synced.min(marks.last);
            marks.reported = marks.reported.min(marks.last.map(|last| last.index));
            marks.cache.truncate(first);
            self.shared.synced.send_replace(marks.synced.map(|synced| synced.index));
            marks.synced
        };
        match synced {
            Some(synced) => batch.put(log_space::META, key::SYNCED, encode(self.form().get(), &synced.index)),
            None => batch.delete(log_space::META, key::SYNCED),
        }
        self.shared.kv.write(&batch).map_err(|error| self.fatal(error, StorageIOError::write_logs))
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let mut batch = Batch::default();
        batch.delete_range(log_space::ENTRIES, index_key(0), index_key(log_id.index + 1));
        batch.put(log_space::META, key::PURGED, encode(self.form().get(), &log_id));
        self.shared.kv.write(&batch).map_err(|error| self.fatal(error, StorageIOError::write_logs))?;
        let mut marks = self.shared.marks.lock();
        marks.purged = marks.purged.max(Some(log_id));
        marks.last = marks.last.max(Some(log_id));
        marks.cache.purge(log_id.index);
        Ok(())
    }
}
