//! Allocations: the hold of one attempt on devices, from binding until the last task is gone.

use crate::gpu::GpuModel;
use crate::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, Rank, TenantId};
use crate::resources::ResourceVec;
use crate::task::{RankFailure, TaskPlacement, TaskState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    /// The job's deadline came.
    Deadline,
}

/// Where an allocation stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocationState {
    /// Its tasks are to run.
    Active,
    /// Its tasks are to stop; the devices are held until the last is gone.
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
}

impl Allocation {
    /// Whether no task of it is left anywhere.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.task_states.iter().all(TaskState::is_over)
    }

    /// The ranks on `node`, in order.
    pub fn ranks_on(&self, node: NodeId) -> impl Iterator<Item = Rank> + '_ {
        self.tasks.iter().enumerate().filter(move |(_, task)| task.node == node).map(|(rank, _)| Rank(rank as u32))
    }
}
