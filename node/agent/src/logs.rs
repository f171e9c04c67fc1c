//! Reading tasks' output to whoever asks through the control plane.
//!
//! What must stay true: each request is answered in pieces of bounded size until its end, or until it is cancelled or the session
//! ends; a follower sees every byte that is kept once, in order, and the end when the task is over; every
//! piece tells its place, so what was dropped shows; the number of readers is bounded.

use crate::exec::{LogError, LogSlice, Stream};
use crate::shared::Shared;
use crate::wire;
use muster_model::ids::{AllocationId, Rank};
use muster_model::validate::bounds::REASON_BYTES_MAX;
use muster_model::validate::clipped;
use muster_node_core::TaskKey;
use muster_proto::v1;
use muster_proto::v1::agent_message::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Bytes per piece: small beside a message's bound, large beside its overhead.
const PIECE_BYTES_MAX: usize = 32 << 10;
/// Readers at the same time on one node; more are refused.
const READERS_MAX: usize = 64;
/// How often a follower looks for more. Only while somebody follows.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The readers of one session; they end with it.
pub(crate) struct LogReaders {
    shared: Arc<Shared>,
    lane: mpsc::Sender<v1::AgentMessage>,
    running: BTreeMap<u64, JoinHandle<()>>,
}

impl LogReaders {
    pub(crate) fn new(shared: Arc<Shared>, lane: mpsc::Sender<v1::AgentMessage>) -> Self {
        LogReaders { shared, lane, running: BTreeMap::new() }
    }

    /// Starts a reader, or ends one.
    pub(crate) fn take(&mut self, request: v1::LogRequest) {
        self.running.retain(|_, reader| !reader.is_finished());
        if request.cancel {
            if let Some(reader) = self.running.remove(&request.request) {
                reader.abort();
            }
            return;
        }
        if self.running.len() >= READERS_MAX {
            let error = format!("this node already serves {READERS_MAX} readers of output; try again later");
            // A lane that is full too leaves the request unanswered; whoever asked gives it up after a while.
            let _ = self.lane.try_send(end(request.request, request.offset, error));
            return;
        }
        let (shared, lane) = (self.shared.clone(), self.lane.clone());
        let id = request.request;
        let reader = self.shared.host.spawn(async move { read(&shared, &lane, &request).await });
        if let Some(replaced) = self.running.insert(id, reader) {
            replaced.abort();
        }
    }
}

impl Drop for LogReaders {
    fn drop(&mut self) {
        for reader in self.running.values() {
            reader.abort();
        }
    }
}

fn end(request: u64, offset: u64, error: String) -> v1::AgentMessage {
    let error = clipped(error, REASON_BYTES_MAX);
    wire::message(Message::Log(v1::LogData { request, data: Vec::new(), offset, end: true, error, truncated: false }))
}

async fn read(shared: &Shared, lane: &mpsc::Sender<v1::AgentMessage>, request: &v1::LogRequest) {
    let key = TaskKey { allocation: AllocationId(request.allocation), rank: Rank(request.rank) };
    let stream = if request.stderr { Stream::Stderr } else { Stream::Stdout };
    let mut offset = request.offset;
    loop {
        let slice = match shared.config.executor.read_log(key, stream, offset, PIECE_BYTES_MAX).await {
            Ok(slice) => slice,
            // It is about to start: a follower waits for it.
            Err(LogError::Unknown { .. }) if request.follow && is_desired(shared, key) => {
                LogSlice { offset, ..LogSlice::default() }
            }
            Err(error) => {
                let _ = lane.send(end(request.request, offset, error.to_string())).await;
                return;
            }
        };
        let is_end = slice.data.is_empty() && (slice.complete || !request.follow);
        if slice.data.is_empty() && !is_end {
            tokio::time::sleep(LOOK_AGAIN).await;
            continue;
        }
        let piece = v1::LogData {
            request: request.request,
            offset: slice.offset,
            end: is_end,
            error: String::new(),
            truncated: slice.offset > offset,
            data: slice.data,
        };
        offset = piece.offset + piece.data.len() as u64;
        if lane.send(wire::message(Message::Log(piece))).await.is_err() || is_end {
            return;
        }
    }
}

fn is_desired(shared: &Shared, key: TaskKey) -> bool {
    shared.state.lock().desired.as_ref().is_some_and(|desired| desired.tasks.contains_key(&key))
}
