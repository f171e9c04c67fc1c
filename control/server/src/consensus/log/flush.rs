//! The one task that syncs: takes everything that waits, syncs once, answers all.

use super::Shared;
use crate::consensus::stored::corrupt;
use crate::consensus::types::{LogId, Types};
use muster_runtime::{DiskError, timeline};
use openraft::storage::LogFlushed;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Who waits for a sync.
pub(super) enum Request {
    /// Appended entries of a follower.
    Entries(LogFlushed<Types>),
    /// Appended entries of the leader, reported already.
    Reported,
    /// A vote or a mark.
    Mark(oneshot::Sender<Result<(), DiskError>>),
}

impl Shared {
    /// A sync that began when `written` was the last entry has ended; unless entries were cut off meanwhile, it vouches for all up to there.
    fn note_synced(&self, written: Option<LogId>, truncations: u64) {
        let mut marks = self.marks.lock();
        if marks.truncations == truncations {
            marks.synced = written.max(marks.synced);
            if marks.reported <= marks.synced.map(|synced| synced.index) {
                marks.reported = None;
            }
            self.synced.send_replace(marks.synced.map(|synced| synced.index));
        }
    }

    /// Waits until everything written so far is durable.
    pub(super) async fn sync(&self) -> Result<(), DiskError> {
        let (answer, answered) = oneshot::channel();
        let ended =
            || DiskError::Io { doing: "syncing the log".to_owned(), why: "the syncing task has ended".to_owned() };
        self.flush.send(Request::Mark(answer)).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

/// Runs until the log is closed or the disk fails: after a failed sync nobody knows what is durable, so nothing more is synced.
pub(super) async fn run(shared: Arc<Shared>, mut requests: mpsc::Receiver<Request>) {
    let mut waiting = Vec::new();
    loop {
        let taken = tokio::select! {
            biased;
            taken = requests.recv_many(&mut waiting, super::FLUSH_QUEUE) => taken,
            _why = shared.stop.stopped() => return,
        };
        if taken == 0 {
            return;
        }
        let (written, truncations) = {
            let marks = shared.marks.lock();
            (marks.last, marks.truncations)
        };
        let began = Instant::now();
        let synced = shared.kv.sync().await;
        metrics::histogram!("muster_raft_sync_seconds").record(began.elapsed().as_secs_f64());
        metrics::histogram!("muster_raft_sync_group_size").record(waiting.len() as f64);
        match &synced {
            Ok(()) => {
                let revision = written.map_or(0, |written| written.index);
                tracing::trace!(target: timeline::TARGET, step = "synced", revision);
                shared.note_synced(written, truncations);
            }
            Err(error) => shared.stop.failed("syncing the log", error),
        }
        for request in waiting.drain(..) {
            match request {
                Request::Entries(callback) => {
                    callback.log_io_completed(synced.clone().map_err(std::io::Error::other));
                }
                Request::Reported => {}
                Request::Mark(answer) => {
                    // Who does not wait any more does not need the answer.
                    let _ = answer.send(synced.clone());
                }
            }
        }
        if synced.is_err() {
            return;
        }
    }
}

/// A value of the meta space that should be there and is not.
pub(super) fn missing(what: &str, why: &str) -> DiskError {
    corrupt(what, &why)
}
