//! What a follower keeps of jobs, allocations and nodes.
//!
//! What must stay true: nothing here grows with a job's specification or a gang's size, so that a log of a large cluster is followed in little memory.

use muster_model::ids::{AllocationId, Epoch, JobId, TenantId};
use muster_model::{EndCause, ResourceVec};
use std::collections::BTreeSet;

/// A live job.
#[derive(Clone, Debug)]
pub(super) struct JobSeen {
    pub(super) asks: Asks,
    /// The devices that it holds, as far as the log says.
    pub(super) held: Option<AllocationId>,
    /// Its growth, as far as the log says.
    pub(super) growth: BTreeSet<AllocationId>,
    pub(super) hold: Option<HoldSeen>,
    /// It is in the queue, as far as the log says.
    pub(super) waits: bool,
    pub(super) ready: bool,
    pub(super) cancelled: bool,
    pub(super) preemptions: u32,
    /// Failures of its own and of nodes that could not start it.
    pub(super) failures: (u32, u32),
    pub(super) grace_ms: u64,
    pub(super) checkpoint_ms: Option<u64>,
    /// Claims that were told as allocations and came to nothing: the log counts them as attempts.
    pub(super) claims_lost: u32,
}

/// What may change of a pending job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asks {
    pub(super) tenant: TenantId,
    pub(super) priority: i32,
    pub(super) class: Option<String>,
    pub(super) tasks: u32,
    pub(super) charge: ResourceVec,
    pub(super) movable: bool,
}

/// What a waiting job gets when those that it preempts have ended.
#[derive(Clone, Debug)]
pub(super) struct HoldSeen {
    pub(super) id: AllocationId,
    pub(super) account: Option<TenantId>,
    /// It was there before the log began, and is written as the allocation that it becomes.
    pub(super) bound: bool,
}

/// An allocation.
#[derive(Clone, Debug)]
pub(super) struct HeldSeen {
    pub(super) job: JobId,
    pub(super) account: Option<TenantId>,
    pub(super) pays: bool,
    /// Why it is being stopped, if it is.
    pub(super) cause: Option<EndCause>,
    pub(super) is_growth: bool,
}

/// A node.
#[derive(Clone, Debug)]
pub(super) struct NodeSeen {
    pub(super) pool: String,
    pub(super) epoch: Epoch,
    pub(super) accepts_work: bool,
    /// What it adds to the capacity.
    pub(super) adds: ResourceVec,
}
