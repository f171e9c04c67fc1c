//! What the agent and the shim tell each other in the task folder, as JSON: a person may have to read it.

use muster_model::TaskState;
use muster_model::ids::Epoch;
use muster_node_core::TaskSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything the shim needs to run a task, and the agent to take it over again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRecord {
    /// The task.
    pub spec: TaskSpec,
    /// The node's epoch at the start.
    pub node_epoch: Epoch,
    /// The host's boot at the start: the processes of another boot are gone.
    pub boot_id: String,
    /// The whole environment of the command.
    pub env: BTreeMap<String, String>,
    /// Of each output this much is kept.
    pub log_bytes_max: u64,
}

/// Left when a shim has taken the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimRecord {
    /// Its process; it is alive for as long as the folder's lock is held.
    pub pid: u32,
}

/// Left when the command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedRecord {
    /// The command's process and group.
    pub pid: i32,
    /// Since when, on CLOCK_BOOTTIME.
    pub started_ns: u64,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By itself.
    Exited {
        /// Exit code.
        code: i32,
    },
    /// By a signal that this shim did not send.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// It was told to stop.
    Stopped,
    /// Its time limit passed.
    TimedOut,
    /// Its fence passed without word from the control plane.
    Fenced,
    /// The command could not be started.
    StartFailed {
        /// Why.
        reason: String,
        /// By the node's fault, whatever the command is.
        #[serde(default)]
        by_node: bool,
    },
}

impl End {
    /// In the words of the model.
    #[must_use]
    pub fn to_state(&self) -> TaskState {
        match self {
            End::Exited { code } => TaskState::Exited { code: *code },
            End::Signaled { signal } => TaskState::Signaled { signal: *signal },
            End::Stopped => TaskState::Stopped,
            End::TimedOut => TaskState::TimedOut,
            End::Fenced => TaskState::Fenced,
            End::StartFailed { reason, by_node } => {
                TaskState::StartFailed { reason: reason.clone(), by_node: *by_node }
            }
        }
    }
}

/// Left when nothing of the task is there any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// How it ended.
    pub end: End,
    /// From when the command ran, on CLOCK_BOOTTIME.
    pub started_ns: Option<u64>,
    /// When its last descendant was gone, on CLOCK_BOOTTIME.
    pub ended_ns: u64,
    /// Output that was not kept, of both streams.
    pub dropped_bytes: u64,
}
