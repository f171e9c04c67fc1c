//! Ways in for the fuzz targets of `fuzz/`: what control nodes send each other.
//!
//! What must stay true: a function here reads as the Peer service reads, and decides nothing.

use super::forms::NEWEST;
use super::peer::{Envelope, Heartbeat, HeartbeatAnswer, Identified, PreVote, PreVoteAnswer};
use super::snapshot::Frame;
use super::stored;
use super::types::{Batch, LogEntry, Member, Membership, Types, Vote};
use openraft::SnapshotMeta;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The newest form: the first byte of what is written.
pub const FORM: u8 = NEWEST;

/// What a value is read as.
type Reader = fn(&[u8]) -> Option<Vec<u8>>;

/// Every kind of message and record, by its name.
pub const KINDS: &[(&str, Reader)] = &[
    ("append", again::<(Envelope, AppendEntriesRequest<Types>)>),
    ("append-answer", again::<AppendEntriesResponse<u64>>),
    ("heartbeat", again::<(Envelope, Heartbeat)>),
    ("heartbeat-answer", again::<HeartbeatAnswer>),
    ("pre-vote", again::<(Envelope, PreVote)>),
    ("pre-vote-answer", again::<PreVoteAnswer>),
    ("vote", again::<(Envelope, VoteRequest<u64>)>),
    ("vote-answer", again::<VoteResponse<u64>>),
    ("forward", again::<(Envelope, Vec<muster_control_core::Command>)>),
    ("identify", again::<(Envelope, ())>),
    ("identified", again::<Identified>),
    ("snapshot-head", again::<(Envelope, Vote, SnapshotMeta<u64, Member>)>),
    ("snapshot-frame", again::<Frame>),
    ("snapshot-answer", again::<SnapshotResponse<u64>>),
    ("log-entry", again::<LogEntry>),
    ("batch", again::<Batch>),
    ("membership", again::<Membership>),
];

/// Reads a value and writes it in the newest form.
fn again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<Vec<u8>> {
    stored::decode::<T>(bytes).ok().map(|value| stored::encode(NEWEST, &value))
}
