//! The objects of the replicated state and their changes. Which kinds there are says the table in `object/kinds.rs`.
//!
//! The same changes are applied to the state machine, written to disk and sent to watchers; nothing else changes either of them but
//! a received snapshot, which replaces all at once. What must stay true: a change carries the whole new value, so applying it twice
//! equals applying it once. (A job that is over is on disk alone, and [`Key::Finished`] names it there.)

mod kinds;

pub use kinds::{Key, KeyBytes, Object, Replicated};

use crate::identity::{AccessMode, AuditRecord, Enrolment};
use crate::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use crate::job::Job;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A submission that was accepted: kept so that a retry answers the same and never runs twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The client's request id.
    pub id: Arc<str>,
    /// Hash of what was asked: the same id with other content is refused.
    pub payload_hash: u64,
    /// When it was accepted.
    pub accepted_ms: u64,
    /// First of the jobs it made.
    pub first_job: JobId,
    /// How many.
    pub jobs: u32,
    /// When the client issued it first; every retry says the same.
    #[serde(default)]
    pub issued_ms: u64,
    /// Who pays for the first job: the tenant whose share of the table it takes.
    #[serde(default)]
    pub tenant: TenantId,
}

/// Up to when a tenant's request ids have been forgotten before their day was over. A submission that was issued no later is refused:
/// nobody knows any more whether it is a retry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFloor {
    /// Path of the tenant; it stays when the tenant is deleted and made anew.
    pub tenant: String,
    /// The latest time of issue that was forgotten.
    pub issued_ms: u64,
}

/// The history of a cluster that was never restored.
pub const FIRST_INCARNATION: u64 = 1;

/// The counters from which ids come, and the clock that commands have reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Numbers the histories of the cluster: [`FIRST_INCARNATION`], then the second of each restore since the Unix epoch, or one more than the last where that is
    /// higher. Of two incarnations of one cluster the higher is the later; those of two clusters are never compared.
    pub incarnation: u64,
    /// What `plan` may do; raised once every voter knows it.
    pub feature_level: u32,
    /// Next job.
    pub next_job: JobId,
    /// Next allocation.
    pub next_allocation: AllocationId,
    /// Next node.
    pub next_node: NodeId,
    /// Next tenant.
    pub next_tenant: TenantId,
    /// Next cell.
    pub next_cell: CellId,
    /// The latest time a command carried; it goes back only when an operator sets it back.
    pub now_ms: u64,
    /// Nothing that was issued at or before this is accepted, unless its request id is still known: set when time was set back, because ids
    /// may have been forgotten too early before.
    #[serde(default)]
    pub requests_floor_ms: u64,
    /// Identity of the cluster, drawn once when it is made; 0 before. It tells clusters apart and says nothing about order.
    #[serde(default)]
    pub cluster: u64,
    /// Finished jobs in the history on disk.
    #[serde(default)]
    pub finished_kept: u64,
    /// Finished jobs that were in it and have been forgotten.
    #[serde(default)]
    pub finished_forgotten: u64,
    /// In how many seconds past use comes to count half in the order of tenants; 0: it does not count.
    #[serde(default)]
    pub half_life_s: u64,
    /// Whether the cluster asks who calls.
    #[serde(default)]
    pub access: AccessMode,
    /// Next grant or credential.
    #[serde(default)]
    pub next_credential: u64,
    /// Records of the audit so far: the number of the last one.
    #[serde(default)]
    pub audited: u64,
    /// The hash of the last record.
    #[serde(default)]
    pub audit_head: [u8; 32],
    /// The number of the last record that was forgotten.
    #[serde(default)]
    pub audit_trimmed: u64,
    /// Whether machines have to be enrolled.
    #[serde(default)]
    pub enrolment: Enrolment,
}

/// A number from a counter of the state: of a grant, a credential, a record of the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Number(pub u64);

/// A finished job as the history orders them: by when they ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FinishedJob {
    /// When it ended.
    pub finished_ms: u64,
    /// Which.
    pub id: JobId,
}

impl FinishedJob {
    /// Of a job that is over.
    #[must_use]
    pub fn of(job: &Job) -> Self {
        FinishedJob { finished_ms: job.finished_ms.unwrap_or_default(), id: job.id }
    }

    /// Its key among all finished jobs, as bytes in their order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.finished_ms.to_be_bytes());
        bytes[8..].copy_from_slice(&self.id.0.to_be_bytes());
        bytes
    }
}

/// One step of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The object has this value now.
    Put(Box<Object>),
    /// The object is gone.
    Delete(Key),
    /// The job is over: it leaves memory and enters the history on disk, with this last value.
    Retire(Box<Job>),
    /// A record of the audit: it enters the disk and no memory.
    Audit(Box<AuditRecord>),
}

impl Change {
    /// Shorthand.
    #[must_use]
    pub fn put(object: Object) -> Self {
        Change::Put(Box::new(object))
    }
}
