//! Task output that passes through a session.
//!
//! What must stay true: a reader that falls behind holds nothing up. Its tap is closed at both ends, and the reader opens a new one
//! from where it has come to.

use muster_model::{AllocationId, Rank};
use muster_proto::v1;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Pieces that wait for a reader: some megabytes.
pub(crate) const PIECES_MAX: usize = 64;
/// Taps of one session.
const TAPS_MAX: usize = 64;

/// Which output is wanted of the session's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogAsk {
    pub(crate) allocation: AllocationId,
    pub(crate) rank: Rank,
    pub(crate) stderr: bool,
    pub(crate) follow: bool,
    pub(crate) offset: u64,
}

/// What comes out. A stream of pieces that ends without `End` or `Failed` broke off and can be opened again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LogPiece {
    /// Output.
    Data {
        /// The bytes.
        data: Vec<u8>,
        /// Place of the first.
        offset: u64,
        /// What is between the piece before and this one was dropped.
        truncated: bool,
    },
    /// The output is complete.
    End,
    /// The agent cannot give it.
    Failed {
        /// Why.
        why: String,
    },
}

/// A reader's wish, on its way to the session.
#[derive(Debug)]
pub(super) struct OpenTap {
    pub(super) ask: LogAsk,
    pub(super) pieces: mpsc::Sender<LogPiece>,
}

/// The open taps of one session.
#[derive(Default)]
pub(super) struct Taps {
    last: u64,
    open: BTreeMap<u64, mpsc::Sender<LogPiece>>,
}

impl Taps {
    /// Opens one: what to ask of the agent, or nothing when there are too many.
    pub(super) fn open(&mut self, log_stream: OpenTap) -> Option<v1::LogRequest> {
        if self.open.len() >= TAPS_MAX {
            let _ = log_stream
                .pieces
                .try_send(LogPiece::Failed { why: format!("{TAPS_MAX} readers follow logs of this node") });
            return None;
        }
        self.last += 1;
        self.open.insert(self.last, log_stream.pieces);
        let LogAsk { allocation, rank, stderr, follow, offset } = log_stream.ask;
        Some(v1::LogRequest {
            request: self.last,
            allocation: allocation.0,
            rank: rank.0,
            stderr,
            follow,
            offset,
            cancel: false,
        })
    }

    /// Passes on what the agent sent: what to tell the agent, if its reader has gone or fallen behind.
    pub(super) fn data(&mut self, data: v1::LogData) -> Option<v1::LogRequest> {
        let v1::LogData { request, data, offset, end, error, truncated } = data;
        let Some(pieces) = self.open.get(&request) else {
            // Closed already; the agent learns it again unless it has ended by itself.
            return (!end).then(|| cancel(request));
        };
        let mut sent = Ok(());
        if !data.is_empty() {
            sent = pieces.try_send(LogPiece::Data { data, offset, truncated });
        }
        let over = if !error.is_empty() { Some(LogPiece::Failed { why: error }) } else { end.then_some(LogPiece::End) };
        if let (Ok(()), Some(over)) = (&sent, over) {
            let _ = pieces.try_send(over);
            self.open.remove(&request);
            return None;
        }
        match sent {
            Ok(()) => None,
            Err(TrySendError::Full(_) | TrySendError::Closed(_)) => {
                self.open.remove(&request);
                (!end).then(|| cancel(request))
            }
        }
    }

    /// Closes the taps whose readers have gone: what to tell the agent.
    pub(super) fn prune(&mut self) -> Vec<v1::LogRequest> {
        let gone: Vec<u64> =
            self.open.iter().filter(|(_, pieces)| pieces.is_closed()).map(|(request, _)| *request).collect();
        for request in &gone {
            self.open.remove(request);
        }
        gone.into_iter().map(cancel).collect()
    }
}

fn cancel(request: u64) -> v1::LogRequest {
    v1::LogRequest { request, cancel: true, ..v1::LogRequest::default() }
}
