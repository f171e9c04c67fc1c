//! The one task that syncs: takes everything that waits, syncs once, answers all.

use super::Shared;
use crate::consensus::stored::corrupt;
use crate::consensus::types::Types;
use muster_runtime::{DiskError, timeline};
use openraft::storage::LogFlushed;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Who waits for a sync.
pub(super) enum Request {
    /// Appended entries.
    Entries(LogFlushed<Types>),
    /// A vote or a mark.
    Mark(oneshot::Sender<Result<(), DiskError>>),
}

impl Shared {
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
            (marks.last.map(|last| last.index), marks.truncations)
        };
        let began = Instant::now();
        let synced = shared.kv.sync().await;
        metrics::histogram!("muster_raft_sync_seconds").record(began.elapsed().as_secs_f64());
        metrics::histogram!("muster_raft_sync_group_size").record(waiting.len() as f64);
        if synced.is_ok() {
            tracing::trace!(target: timeline::TARGET, step = "synced", revision = written.unwrap_or(0));
            let mut marks = shared.marks.lock();
            if marks.truncations == truncations {
                marks.synced = written.max(marks.synced);
            }
        }
        if let Err(error) = &synced {
            shared.stop.failed("syncing the log", error);
        }
        for request in waiting.drain(..) {
            match request {
                Request::Entries(callback) => {
                    callback.log_io_completed(synced.clone().map_err(std::io::Error::other));
                }
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
