//! What the agent and the shim tell each other in the task folder, as JSON: a person may have to read it.

use muster_model::ids::Epoch;
use muster_model::{PortBlock, TaskState};
use muster_node_core::TaskSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

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
    /// How it is isolated; absent where the operator wants none, or the host can give none.
    #[serde(default)]
    pub isolation: Option<Isolation>,
    /// What its image says, where the job says nothing.
    #[serde(default)]
    pub of_image: Option<OfImage>,
}

/// What an image says about running it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfImage {
    /// Its variables.
    pub env: BTreeMap<String, String>,
    /// What it runs: its entry point, and the arguments that belong to that.
    pub command: Vec<String>,
    /// Its working directory.
    pub workdir: Option<String>,
}

/// How a task is kept apart from the host and from other tasks. It is part of the record, so that whoever ends the task later needs to find
/// out nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// Folder of the allocation's sandbox on this node.
    pub folder: PathBuf,
    /// The user and group that the task gets. Absent where the agent is not root: the task has the agent's own user, in a user namespace.
    pub user: Option<u32>,
    /// Paths of the host below which the task may write, as far as its user may.
    pub writable: Vec<PathBuf>,
    /// Hierarchies of control groups in which the task has a group of its own.
    pub cgroups: Vec<Cgroup>,
    /// What it may use.
    pub limits: Limits,
    /// Devices of its cards that it may open beside the usual ones.
    #[serde(default)]
    pub devices: Vec<DeviceNode>,
    /// Folders of the host that it sees at their place, beside those that all see: the pipe of its MPS server.
    #[serde(default)]
    pub folders: Vec<PathBuf>,
    /// The root file system of its image; none: the host's system, read-only.
    #[serde(default)]
    pub root: Option<ImageRoot>,
    /// What of the host it sees beside that.
    #[serde(default)]
    pub binds: Vec<Bind>,
    /// Its sandbox has a network of its own, with nothing but a loopback.
    #[serde(default)]
    pub private_network: bool,
    /// Which of the ports that jobs have for themselves it may use; none: all.
    #[serde(default)]
    pub ports: Option<PortFence>,
    /// It may pin memory without bound: for network cards that read and write it.
    #[serde(default)]
    pub pins_memory: bool,
    /// The operator lets tasks run as users of the system.
    #[serde(default)]
    pub allows_system_users: bool,
    /// Where the driver of the cards says how it was loaded.
    #[serde(default)]
    pub driver_params: Option<PathBuf>,
    /// Bounds on what it may leave in files.
    #[serde(default)]
    pub files: FileBounds,
}

/// Blocks of ports that a task may use, of those that jobs have for themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFence {
    /// Its own, on which it may listen.
    pub own: Option<PortBlock>,
    /// That of rank 0 of its gang, to which it may connect.
    pub gang: Option<PortBlock>,
}

/// Bounds on files; 0: none of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileBounds {
    /// Files that each of its processes has open.
    pub open_max: u64,
    /// MiB of `/tmp` and of `/dev/shm`, each.
    pub memory_mib: u64,
    /// MiB of its scratch folder, which is memory then.
    pub scratch_mib: u64,
}

/// A path of the host below a folder that an operator has allowed. It is opened by [`crate::sandbox::beneath`], which follows no link out of the folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Beneath {
    /// The folder.
    pub below: PathBuf,
    /// The way from there; empty: the folder itself.
    pub rest: PathBuf,
}

/// The root file system that takes the place of the host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRoot {
    /// Where it is.
    pub at: Beneath,
    /// Bytes of memory that may be written over it.
    pub upper_bytes_max: u64,
}

/// A folder or file of the host that a sandbox shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Where it is.
    pub source: Beneath,
    /// Where it is seen.
    pub target: PathBuf,
    /// Nothing can be written there.
    pub read_only: bool,
}

/// A character device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Its place below `/dev`, such as `nvidia0` or `nvidia-caps/nvidia-cap12`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// A hierarchy of control groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Of version 2.
    pub is_v2: bool,
    /// What it limits here.
    pub controllers: Vec<Controller>,
    /// Groups of tasks are made below this.
    pub base: PathBuf,
    /// It takes programs that say which ports may be used: version 2 alone.
    #[serde(default)]
    pub fences_ports: bool,
}

/// What a hierarchy limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    /// Time on processors.
    Cpu,
    /// Memory.
    Memory,
    /// The number of processes.
    Pids,
    /// Which devices may be opened: version 2 has a program of the kernel for that.
    Devices,
}

impl Controller {
    /// All of them.
    pub const ALL: [Controller; 4] = [Controller::Cpu, Controller::Memory, Controller::Pids, Controller::Devices];

    /// As the kernel calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Devices => "devices",
        }
    }
}

/// What one task may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Milli-CPUs; 0 is no limit.
    pub cpu_milli: u64,
    /// MiB of memory; 0 is no limit.
    pub memory_mib: u64,
    /// Processes and threads.
    pub pids_max: u64,
}

/// A note of the agent counts for so long: some of the agent's looks at the cards, so that one slow answer of a driver does not void it.
pub const MEMORY_NOTE_MAX_NS: u64 = 15_000_000_000;

/// Left while the memory of the task's MIG slice is nearly full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNote {
    /// When that was seen last, on CLOCK_BOOTTIME.
    pub at_ns: u64,
    /// In words.
    pub note: String,
}

impl MemoryNote {
    /// What to tell the user of a task that ended so; none where its end has another reason, or the note is too old.
    #[must_use]
    pub fn about(&self, end: &End, ended_ns: u64) -> Option<String> {
        let has_failed = matches!(end, End::Exited { code } if *code != 0) || matches!(end, End::Signaled { .. });
        let is_new = ended_ns.saturating_sub(self.at_ns) <= MEMORY_NOTE_MAX_NS;
        (has_failed && is_new).then(|| format!("muster: hint: shortly before this task failed, {}\n", self.note))
    }
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
    /// The kernel killed it because memory was used up.
    OutOfMemory {
        /// The limit, and how many processes were killed.
        reason: String,
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
            End::OutOfMemory { reason } => TaskState::OutOfMemory { reason: reason.clone() },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_explains_a_failure_soon_after_it_and_nothing_else() {
        const AT_NS: u64 = 60_000_000_000;
        let note = MemoryNote { at_ns: AT_NS, note: "it was full".to_owned() };
        let said = |end: End, after_ns: u64| note.about(&end, AT_NS + after_ns).is_some();
        assert!(said(End::Exited { code: 1 }, 0) && said(End::Signaled { signal: 6 }, MEMORY_NOTE_MAX_NS));
        assert!(!said(End::Exited { code: 1 }, MEMORY_NOTE_MAX_NS + 1), "the agent has gone, or does not look");
        for end in [End::Exited { code: 0 }, End::Stopped, End::TimedOut, End::Fenced] {
            assert!(!said(end.clone(), 0), "{end:?}");
        }
    }
}
