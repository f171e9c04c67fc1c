//! Allocations: the hold of one attempt on devices, from binding until the last task is gone.

use crate::attempt::RankFailure;
use crate::gpu::GpuModel;
use crate::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, Rank, TenantId};
use crate::mig::MigPlacement;
use crate::request::SharingMode;
use crate::resources::ResourceVec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How a task holds a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HoldMode {
    /// All of it.
    Whole,
    /// One MIG instance at its place.
    Mig(MigPlacement),
    /// A share under MPS.
    Mps {
        /// Active thread percentage.
        percent: u8,
        /// Memory limit in MiB.
        memory_mib: u64,
    },
    /// Turns on a shared card.
    TimeSlice {
        /// Memory budget in MiB.
        memory_mib: u64,
    },
}

impl HoldMode {
    /// The card's mode that this needs.
    #[must_use]
    pub const fn mode(self) -> SharingMode {
        match self {
            HoldMode::Whole => SharingMode::Whole,
            HoldMode::Mig(_) => SharingMode::Mig,
            HoldMode::Mps { .. } => SharingMode::Mps,
            HoldMode::TimeSlice { .. } => SharingMode::TimeSlice,
        }
    }
}

impl HoldMode {
    /// In words for a card of `model`, with NVIDIA's name of an instance.
    #[must_use]
    pub fn in_words(self, model: GpuModel) -> String {
        match self {
            HoldMode::Mig(place) => format!("instance {}", place.in_words(model)),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for HoldMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldMode::Whole => f.write_str("whole"),
            HoldMode::Mig(place) => write!(f, "instance {place}"),
            HoldMode::Mps { percent, memory_mib } => write!(f, "MPS share of {percent} % and {memory_mib} MiB"),
            HoldMode::TimeSlice { memory_mib } => write!(f, "time-slice of {memory_mib} MiB"),
        }
    }
}

/// A task's hold on one card of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceHold {
    /// Index of the card in the node.
    pub gpu: u16,
    /// How it is held.
    pub mode: HoldMode,
}

/// Where one rank runs and on what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskPlacement {
    /// The node.
    pub node: NodeId,
    /// Its cards.
    pub devices: Vec<DeviceHold>,
}

/// What is known of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskState {
    /// Not yet seen running.
    #[default]
    Pending,
    /// Seen running.
    Running,
    /// Ended by itself.
    Exited {
        /// Exit code.
        code: i32,
    },
    /// Stopped because the attempt ended, or never started.
    Stopped,
    /// Stopped by its time limit.
    TimedOut,
    /// Could not be started.
    StartFailed {
        /// Why, for people.
        reason: String,
        /// The node failed, whatever the command is: its disk, a card, the shim. Otherwise the job asked for what cannot be run.
        #[serde(default)]
        by_node: bool,
    },
    /// Its node was fenced: the task is dead by its shim's deadline, whatever it had reached.
    Fenced,
    /// Ended by a signal that Muster did not send.
    Signaled {
        /// Its number.
        signal: i32,
    },
}

impl TaskState {
    /// Whether nothing of the task is left.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        !matches!(self, TaskState::Pending | TaskState::Running)
    }
}

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
