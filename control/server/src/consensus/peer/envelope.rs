//! What every message between control nodes says about itself.

use super::Lane;
use crate::consensus::types::{LogId, Vote};
use openraft::raft::AppendEntriesResponse;
use serde::{Deserialize, Serialize};

/// Of which cluster, from whom, for whom. Disks tell a wiped node from the member it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) cluster: u64,
    pub(crate) from: u64,
    pub(crate) from_disk: u64,
    pub(crate) to: u64,
    pub(crate) to_disk: u64,
}

/// Calls with one message each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raftward {
    /// Entries.
    Append,
    /// An append without entries.
    Probe,
    /// The leader is there.
    Heartbeat,
    /// Would a candidate be elected?
    PreVote,
    /// A candidate asks.
    Vote,
    /// Commands for the leader.
    Forward,
    /// The index a read has to wait for.
    ReadIndex,
    /// Who is at that address.
    Identify,
}

impl Raftward {
    pub(super) fn lane(self) -> Lane {
        match self {
            Raftward::Probe | Raftward::Heartbeat | Raftward::PreVote | Raftward::Vote | Raftward::ReadIndex => {
                Lane::Urgent
            }
            Raftward::Append => Lane::Append,
            Raftward::Forward | Raftward::Identify => Lane::Bulk,
        }
    }
}

/// The leader's word that it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    /// Its committed vote.
    pub(crate) vote: Vote,
}

/// What a voter answers to a heartbeat.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeartbeatAnswer {
    /// What consensus said: accepted, or a higher vote.
    pub(crate) answer: AppendEntriesResponse<u64>,
    /// The voter's wall clock, in milliseconds since the Unix epoch.
    pub(crate) wall_ms: u64,
    /// The newest feature level that it knows.
    pub(crate) knows_level: u32,
}

/// What a voter asks before it stands for election. Nobody's vote changes by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PreVote {
    /// The last entry of its log.
    pub(crate) last_log: Option<LogId>,
}

/// The answer to a pre-vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PreVoteAnswer {
    /// It would be given a vote.
    Granted,
    /// A leader was heard of too lately; ask again when so much time has passed without another word of it.
    LeaderHeard {
        /// Milliseconds.
        again_in_ms: u64,
    },
    /// The asked voter's log goes further.
    LogBehind,
}

/// Who is at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identified {
    /// The node.
    pub(crate) id: u64,
    /// Its disk.
    pub(crate) disk: u64,
    /// The cluster it belongs to, if any.
    pub(crate) cluster: Option<u64>,
    /// It has never had a vote or an entry.
    pub(crate) pristine: bool,
    /// The newest feature level that it knows.
    pub(crate) knows_level: u32,
}
