//! Allocations: the hold of one attempt on devices, from binding until the last task is gone and the devices are clean.

use crate::gpu::GpuModel;
use crate::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, Rank, TenantId};
use crate::ports::Ports;
use crate::preemption::PreemptReason;
use crate::quota_class::{ClassRecord, QuotaClass};
use crate::resources::ResourceVec;
use crate::task::{RankFailure, TaskPlacement, TaskState};
use crate::topology::RequiredTopology;
use crate::window::WindowKind;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Why an attempt ends before all its tasks succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndCause {
    /// The job was cancelled.
    Cancelled,
    /// A rank failed.
    RankFailed {
        /// Which.
        rank: Rank,
        /// Its exit code, or none when it could not be started.
        code: Option<i32>,
    },
    /// The time limit passed.
    TimeLimit,
    /// A node was lost.
    NodeLost {
        /// Which.
        node: NodeId,
    },
    /// It was preempted: its devices are needed elsewhere. The job goes back to the queue.
    Preempted {
        /// The job that its devices are for, if it is one.
        by: Option<JobId>,
        /// Why.
        reason: PreemptReason,
    },
    /// Somebody, perhaps the job itself, asked that it be queued again.
    Requeued,
    /// The job's deadline came.
    Deadline,
    /// A node of it is kept from such work from some time on. The job goes back to the queue; its tenants pay until its tasks are gone, because
    /// nobody else does.
    Window {
        /// The name of the window.
        name: String,
        /// What it is for.
        kind: WindowKind,
    },
    /// It is growth of a gang, which is needed no more or is needed elsewhere; the gang runs on, or has ended.
    Shrunk {
        /// The waiting job that its devices were freed for, if it was one.
        by: Option<JobId>,
    },
    /// All its tasks have succeeded, and devices of it are being cleaned.
    Completed,
}

/// Where an allocation stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocationState {
    /// Its tasks are to run.
    Active,
    /// Its tasks are to stop; the devices are held until the last is gone and they are clean.
    Stopping(EndCause),
}

/// The hold of one attempt. `tasks[r]` is rank `r`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Its id.
    pub id: AllocationId,
    /// Whose.
    pub job: JobId,
    /// Which run of it.
    pub attempt: Attempt,
    /// Who is charged, with all ancestors.
    pub tenant: TenantId,
    /// The cell that bound it.
    pub cell: CellId,
    /// The epoch of that cell's lease at the binding.
    pub cell_epoch: Epoch,
    /// The model of its cards; `None` for a gang without GPUs.
    pub model: Option<GpuModel>,
    /// CPU of each task.
    pub cpu_milli: u64,
    /// Memory of each task.
    pub memory_mib: u64,
    /// What the tenant is charged for all of it.
    pub charge: ResourceVec,
    /// Where each rank runs.
    pub tasks: Vec<TaskPlacement>,
    /// What is known of each rank, as long as `tasks`.
    pub task_states: Vec<TaskState>,
    /// Epoch of each node at the binding: reports under an older one are refused.
    pub node_epochs: BTreeMap<NodeId, Epoch>,
    /// Where it stands.
    pub state: AllocationState,
    /// When it was bound.
    pub bound_ms: u64,
    /// The first ranks that failed, in the order of their times; at most [`crate::attempt::FAILURES_MAX`].
    #[serde(default)]
    pub failures: Vec<RankFailure>,
    /// Who pays since when. Empty: burst from the binding on, as before classes were recorded.
    #[serde(default)]
    pub classes: ClassRecord,
    /// The job's priority at the binding: the order of promotions and of victims.
    #[serde(default)]
    pub priority: i32,
    /// When the job was submitted: the order of promotions.
    #[serde(default)]
    pub submitted_ms: u64,
    /// It is a part of its job's growth, beside the allocation of the minimum ([`crate::elastic`]).
    #[serde(default)]
    pub is_growth: bool,
    /// Ranks that are over and whose devices are being cleaned.
    #[serde(default)]
    pub cleaning: BTreeSet<Rank>,
    /// How long the longest clean-up of its devices has taken so far, in ms.
    #[serde(default)]
    pub cleaned_ms: u64,
    /// How close together its job required it to stand, at the binding: what it has by luck costs nothing more.
    #[serde(default)]
    pub topology: RequiredTopology,
    /// Ports that its tasks have for themselves on its nodes.
    #[serde(default)]
    pub ports: Ports,
}

impl Allocation {
    /// The tenant whose floor account pays now; none: it is burst.
    #[must_use]
    pub fn account(&self) -> Option<TenantId> {
        self.classes.now()?.account()
    }

    /// From `now_ms` on it is of this class.
    pub fn set_class(&mut self, class: QuotaClass, now_ms: u64) {
        self.classes.set(class, self.bound_ms, now_ms);
    }

    /// Whether its tenants are charged for it: a preempted one holds its devices until its tasks are gone, but no quota.
    #[must_use]
    pub const fn pays(&self) -> bool {
        !matches!(self.state, AllocationState::Stopping(EndCause::Preempted { .. }))
    }

    /// Whether no task of it is left anywhere. Its devices may still have to be cleaned.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.task_states.iter().all(TaskState::is_over)
    }

    /// Whether no task of it is left and its devices are clean: they may pass to others.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.cleaning.is_empty() && self.has_ended()
    }

    /// The ranks on `node`, in order.
    pub fn ranks_on(&self, node: NodeId) -> impl Iterator<Item = Rank> + '_ {
        self.tasks.iter().enumerate().filter(move |(_, task)| task.node == node).map(|(rank, _)| Rank(rank as u32))
    }
}
