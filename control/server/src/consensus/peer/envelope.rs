//! What every message between control nodes says about itself.

use super::Lane;
use serde::{Deserialize, Serialize};

/// Of which cluster, from whom, for whom. Disks tell a wiped node from the member it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Envelope {
    pub(super) cluster: u64,
    pub(super) from: u64,
    pub(super) from_disk: u64,
    pub(super) to: u64,
    pub(super) to_disk: u64,
}

/// Calls with one message each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raftward {
    /// Entries, or a heartbeat.
    Append,
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
            Raftward::Append | Raftward::Vote | Raftward::ReadIndex => Lane::Raft,
            Raftward::Forward | Raftward::Identify => Lane::Bulk,
        }
    }
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
}
