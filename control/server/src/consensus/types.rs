//! The types that openraft is used with.

use crate::consensus::frozen::Frozen;
use crate::consensus::spawn::HostRuntime;
use muster_control_core::{Decided, Entry};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

openraft::declare_raft_types!(
    /// openraft over our commands, members, stores and tasks.
    pub(crate) Types:
        D = Batch,
        R = Answer,
        NodeId = u64,
        Node = Member,
        SnapshotData = Frozen,
        AsyncRuntime = HostRuntime,
);

/// What one log entry carries. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// When set, the entry is void unless the leader of this very term appended it: what a deposed leader found due must not happen
    /// under the next one. Every replica sees the term in the entry's log id, so all decide alike.
    pub(crate) only_in_term: Option<u64>,
    /// The commands.
    pub(crate) entry: Arc<Entry>,
}

/// What became of an entry; `None` when it was void or carried no commands.
pub(crate) type Answer = Option<Decided>;

/// A member of the cluster, as the replicated membership knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// `host:port`.
    pub(crate) address: String,
    /// Identity of its disk: drawn when the disk was first used, so a wiped node is told from the member it was.
    pub(crate) disk: u64,
    /// The cluster's history, the same on all members.
    pub(crate) cluster: u64,
    /// Of a member that the cluster began with: the feature level at which it began, which all of them knew.
    #[serde(default)]
    pub(crate) level: u32,
}

pub(crate) type LogId = openraft::LogId<u64>;
pub(crate) type Vote = openraft::Vote<u64>;
pub(crate) type Membership = openraft::StoredMembership<u64, Member>;
pub(crate) type LogEntry = openraft::Entry<Types>;
pub(crate) type StorageError = openraft::StorageError<u64>;
pub(crate) type Raft = openraft::Raft<Types>;
