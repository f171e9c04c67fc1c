//! What can go wrong, one enum per boundary.

use muster_model::Revision;
use muster_runtime::{DiskError, NetError};

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings contradict each other.
    #[error("consensus settings: {why}")]
    Config {
        /// Which and why.
        why: String,
    },
    /// The folder belongs to another node.
    #[error(
        "the data folder belongs to control node {stored}, not {configured}; use --id {stored}, or an empty folder"
    )]
    OtherNode {
        /// Whose folder it is.
        stored: u64,
        /// Who was started on it.
        configured: u64,
    },
    /// A restore was cut off before its end.
    #[error(
        "the data folder has a state without a log: `muster backup restore` did not come to its end here. Delete the folder and restore again"
    )]
    HalfRestored,
    /// What is stored is damaged before its end, so this node may have forgotten what it promised: it must not vote any more.
    #[error(
        "the storage of node {id} is damaged: {source}. Remove node {id} from the cluster, delete its data folder, and add it again \
         under an id that was never used"
    )]
    Corrupt {
        /// This node.
        id: u64,
        /// What is damaged.
        source: DiskError,
    },
    /// A newer version of muster has written to the folder.
    #[error(
        "the data folder was written by a newer version of muster: {source}. Start that version or a later one; the folder is unchanged"
    )]
    Newer {
        /// What is too new.
        source: DiskError,
    },
    /// The disk fails.
    #[error(transparent)]
    Disk(DiskError),
    /// Consensus did not start.
    #[error("consensus did not start: {why}")]
    Raft {
        /// Why.
        why: String,
    },
}

impl OpenError {
    pub(crate) fn disk(id: u64, error: DiskError) -> Self {
        match error {
            source @ DiskError::Corrupt { .. } => OpenError::Corrupt { id, source },
            source @ DiskError::Newer { .. } => OpenError::Newer { source },
            other @ DiskError::Io { .. } => OpenError::Disk(other),
        }
    }
}

/// Why a proposal has no answer. `Unknown` may have taken effect: retry with the same request id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum ProposeError {
    /// Nobody leads now, or the leader cannot be reached. Nothing has happened.
    #[error("the cluster has no leader that can be reached")]
    NoLeader,
    /// Too much is waiting. Nothing has happened.
    #[error("this control node is busy: {limit} commands already wait for the log, so this call was refused")]
    Busy {
        /// Its bound.
        limit: usize,
    },
    /// One call asks for more than an entry holds. Nothing has happened.
    #[error("one proposal has {got} {what}, but at most {limit} are allowed; send it in several calls")]
    TooLarge {
        /// `commands` or `bytes`.
        what: String,
        /// The bound.
        limit: usize,
        /// What came.
        got: usize,
    },
    /// Not every voter knows what is asked for. Nothing has happened.
    #[error(
        "{what} needs feature level {needed}, but the cluster is at {level}: upgrade all voters, and the level rises by itself; \
         `muster raft status` shows the level of each"
    )]
    Level {
        /// What of it.
        what: String,
        /// The level it needs.
        needed: u32,
        /// The cluster's.
        level: u32,
    },
    /// Sent, but the answer was lost.
    #[error("the result is not known: {why}")]
    Unknown {
        /// What happened.
        why: String,
    },
    /// This node has stopped.
    #[error("this control node has stopped: {why}")]
    Stopped {
        /// Why.
        why: String,
    },
}

/// Why a change of the membership did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum AdminError {
    /// Ask the leader.
    #[error("this control node is not the leader; {}", .leader.as_ref().map_or("no leader is known, try again".to_owned(), |(id, at)| format!("the leader is node {id} at {at}")))]
    NotLeader {
        /// Who does, and where, if anybody.
        leader: Option<(u64, String)>,
    },
    /// This node is or was part of a cluster.
    #[error(
        "refusing to bootstrap: this node already belongs to a cluster ({why}); bootstrap only a node with an empty data folder"
    )]
    AlreadyMember {
        /// How it shows.
        why: String,
    },
    /// The id was a member before, on another disk or address.
    #[error("node id {id} was used before; use an id that this cluster has never used")]
    IdUsed {
        /// Which.
        id: u64,
    },
    /// There is no such member in that role.
    #[error("node {id} is not a {role}")]
    NotA {
        /// Which.
        id: u64,
        /// `member`, `learner`, `voter`.
        role: String,
    },
    /// It would leave nobody to vote.
    #[error("node {id} is the last voter")]
    LastVoter {
        /// Which.
        id: u64,
    },
    /// The other node cannot be reached, or is not the one that was meant.
    #[error("node {id} at {address}: {why}")]
    Peer {
        /// Which.
        id: u64,
        /// Where.
        address: String,
        /// Why.
        why: String,
    },
    /// Another change is under way, or it took too long; look at the status before trying again.
    #[error("the membership has not changed yet: {why}; check `muster raft status` before you try again")]
    Failed {
        /// Why.
        why: String,
    },
    /// This node has stopped.
    #[error("this control node has stopped: {why}")]
    Stopped {
        /// Why.
        why: String,
    },
}

/// The changes since then are not kept any more: read the whole state, then follow from its revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("changes after revision {after} are no longer kept; the oldest revision to watch from is {oldest}")]
pub struct TooOld {
    /// What was asked for.
    pub after: Revision,
    /// The lowest `after` that works.
    pub oldest: Revision,
}

/// Why a follower gets no further change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lagged {
    /// It was too slow, or a snapshot took the place of the changes: read the whole state, then follow from its revision.
    #[error("changes after revision {after} are no longer kept")]
    Behind {
        /// The last it has had.
        after: Revision,
    },
    /// This node has stopped.
    #[error("this control node has stopped: {why}")]
    Stopped {
        /// Why.
        why: String,
    },
}

/// Why a message from or to another control node was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum PeerRefusal {
    /// It cannot be read.
    #[error("message cannot be read: {why}")]
    Malformed {
        /// Why.
        why: String,
    },
    /// It belongs to another cluster.
    #[error("the message is from cluster {got:016x}, but this node belongs to cluster {expected:016x}")]
    OtherCluster {
        /// Ours.
        expected: u64,
        /// Theirs.
        got: u64,
    },
    /// It was meant for another node, or for an earlier disk of this one.
    #[error(
        "the message is for node {to} on disk {got:016x}, but this is node {id} on disk {expected:016x}: an emptied or replaced node must be \
         removed and added again under a new id"
    )]
    NotMe {
        /// Whom it was for.
        to: u64,
        /// Who this is.
        id: u64,
        /// This node's disk.
        expected: u64,
        /// The disk it was for.
        got: u64,
    },
    /// The sender's id belongs to another disk: it was wiped or replaced.
    #[error("the sender has id {id} and disk {got:016x}, but the member with that id has disk {expected:016x}")]
    Impostor {
        /// What it calls itself.
        id: u64,
        /// The member's disk.
        expected: u64,
        /// Its disk.
        got: u64,
    },
    /// The sender was removed from the cluster.
    #[error("node {id} was removed from the cluster")]
    Removed {
        /// Which.
        id: u64,
    },
    /// This node has stopped.
    #[error("stopped: {why}")]
    Stopped {
        /// Why.
        why: String,
    },
}

/// A network that cannot be used.
impl From<NetError> for AdminError {
    fn from(error: NetError) -> Self {
        AdminError::Failed { why: error.to_string() }
    }
}
