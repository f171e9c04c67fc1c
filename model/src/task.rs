//! One task of a gang: where it stands, how it holds its cards, and what has become of it.
//!
//! What must stay true: control plane, shards and agents mean the same by these; a state that is over stays over.

use crate::gpu::GpuModel;
use crate::ids::{Attempt, JobId, NodeId, Rank};
use crate::mig::MigPlacement;
use crate::request::SharingMode;
use serde::{Deserialize, Serialize};
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

/// A gang and the places that a shard found for it: what it proposes, and what the control plane commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The job.
    pub job: JobId,
    /// The attempt it would be: the job's last one plus one.
    pub attempt: Attempt,
    /// Model of all its cards; `None` for a gang without GPUs.
    pub model: Option<GpuModel>,
    /// Rank by rank.
    pub tasks: Vec<TaskPlacement>,
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
    /// Ended because of a fault of a card that it held.
    DeviceFault {
        /// Which fault, for people.
        reason: String,
        /// The program made it, for example by an access out of bounds; the card is not to blame.
        by_job: bool,
    },
    /// Ended because it took more of a card than its share.
    OverShare {
        /// Of what, and how much, for people.
        reason: String,
    },
    /// Killed by the kernel because the memory of its host or of its control group was used up.
    OutOfMemory {
        /// The limit, and how many processes were killed, for people.
        reason: String,
    },
}

impl TaskState {
    /// Whether nothing of the task is left.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        !matches!(self, TaskState::Pending | TaskState::Running)
    }
}

/// What its node says of the devices of a task that is over (law 13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CleanUp {
    /// Nothing of the task is left on them: they may pass to another tenant.
    Done {
        /// How long it took to see that, in ms.
        took_ms: u64,
    },
    /// Something may be left on them.
    UnderWay,
    /// Something was left on them when the time for cleaning had passed. They are withheld.
    Failed {
        /// What is left, for people.
        reason: String,
    },
}

impl Default for CleanUp {
    /// As an agent has it that has nothing to clean.
    fn default() -> Self {
        CleanUp::Done { took_ms: 0 }
    }
}

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TaskEnd {
    /// By itself.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// By a signal that Muster did not send.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// Stopped because the attempt ended.
    Stopped,
    /// By its time limit.
    TimedOut,
    /// It could not be started.
    StartFailed {
        /// By the node's fault.
        by_node: bool,
    },
    /// Its node was lost.
    Fenced,
    /// By a fault of a card that it held.
    DeviceFault {
        /// The program made it.
        by_job: bool,
    },
    /// Because it took more of a card than its share.
    OverShare,
    /// Killed by the kernel because memory was used up.
    OutOfMemory,
}

impl TaskEnd {
    /// How a task in this state ended; `None` while it has not.
    #[must_use]
    pub const fn of(state: &TaskState) -> Option<TaskEnd> {
        Some(match state {
            TaskState::Pending | TaskState::Running => return None,
            TaskState::Exited { code } => TaskEnd::Exited { code: *code },
            TaskState::Signaled { signal } => TaskEnd::Signaled { signal: *signal },
            TaskState::Stopped => TaskEnd::Stopped,
            TaskState::TimedOut => TaskEnd::TimedOut,
            TaskState::StartFailed { by_node, .. } => TaskEnd::StartFailed { by_node: *by_node },
            TaskState::Fenced => TaskEnd::Fenced,
            TaskState::DeviceFault { by_job, .. } => TaskEnd::DeviceFault { by_job: *by_job },
            TaskState::OverShare { .. } => TaskEnd::OverShare,
            TaskState::OutOfMemory { .. } => TaskEnd::OutOfMemory,
        })
    }

    /// Whether the rank itself failed: not one that was stopped or lost for another's sake.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        !matches!(self, TaskEnd::Exited { code: 0 } | TaskEnd::Stopped | TaskEnd::TimedOut | TaskEnd::Fenced)
    }
}

impl fmt::Display for TaskEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskEnd::Exited { code } => write!(f, "exit code {code}"),
            TaskEnd::Signaled { signal } => match signal_name(*signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
            TaskEnd::Stopped => f.write_str("stopped"),
            TaskEnd::TimedOut => f.write_str("time limit"),
            TaskEnd::StartFailed { .. } => f.write_str("could not start"),
            TaskEnd::Fenced => f.write_str("node lost"),
            TaskEnd::DeviceFault { .. } => f.write_str("GPU fault"),
            TaskEnd::OverShare => f.write_str("over its GPU share"),
            TaskEnd::OutOfMemory => f.write_str("out of memory"),
        }
    }
}

/// The name of a signal on Linux.
#[must_use]
pub const fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// A rank that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFailure {
    /// Which.
    pub rank: Rank,
    /// Where.
    pub node: NodeId,
    /// How.
    pub end: TaskEnd,
    /// What the node says of it; empty for an exit code or a signal.
    pub reason: String,
    /// When it was over by its node's clock, or when the control plane heard of it.
    pub at_ms: u64,
}
