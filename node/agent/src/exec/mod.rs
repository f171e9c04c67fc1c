//! Running tasks: the interface, and its two implementations.
//!
//! [`process`] runs real commands under shims; [`virtual_`] runs nothing but obeys the same rules on a virtual clock, for simulation
//! and for benches with thousands of nodes. What must stay true of both: tasks outlive the agent; a task is started at most once;
//! a fence that passes ends its task whether or not the agent is there; the record of a task stays until it is forgotten.

mod claim;
mod kept;
mod orphans;
pub mod process;
mod start;
mod trash;
pub mod virtual_;

pub use crate::task_folder::Stream;

pub use crate::task_folder::record::DeviceNode;
use futures::future::BoxFuture;
use muster_model::ids::Epoch;
use muster_model::{Stop, TaskState, World};
use muster_node_core::{ObservedTask, TaskKey, TaskSpec, TaskUsers};
use muster_runtime::Host;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::Notify;

/// Everything needed to start a task.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What to run.
    pub spec: Arc<TaskSpec>,
    /// The node's epoch now.
    pub node_epoch: Epoch,
    /// What Muster and the job add to the host's environment.
    pub env: BTreeMap<String, String>,
    /// The first fence, on CLOCK_BOOTTIME.
    pub deadline_ns: u64,
    /// Devices of its cards.
    pub devices: Vec<DeviceNode>,
}

/// A piece of a task's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSlice {
    /// From `offset`; empty at the end of what there is.
    pub data: Vec<u8>,
    /// Where it begins: later than asked for when output between was dropped.
    pub offset: u64,
    /// Nothing will be added any more.
    pub complete: bool,
}

/// Why an output cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The node has no record of the task, or not any more.
    #[error("this node has no output of task {key}: the task never ran here, or its output was deleted")]
    Unknown {
        /// Which.
        key: TaskKey,
    },
    /// The disk said no.
    #[error("reading the output of task {key}: {source}")]
    Io {
        /// Which.
        key: TaskKey,
        /// What it said.
        source: std::io::Error,
    },
}

/// Why an executor cannot take over its node.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The folder of the tasks cannot be used.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, with the path.
        doing: String,
        /// What the disk said.
        source: std::io::Error,
    },
    /// Another agent uses the data folder.
    #[error(
        "data folder {} is in use by another agent (process {pid}): stop that agent, or give this one another folder (--data)",
        folder.display()
    )]
    FolderInUse {
        /// Which.
        folder: std::path::PathBuf,
        /// Who, as it wrote down.
        pid: String,
    },
    /// Another agent on this host serves the node.
    #[error("another agent on this machine serves {owner}{}: stop that agent, or give this node another name", who(*pid, folder.as_deref()))]
    HostInUse {
        /// Which node.
        owner: Owner,
        /// Its process, where that can be seen.
        pid: Option<i32>,
        /// Its data folder, where that is known.
        folder: Option<std::path::PathBuf>,
    },
}

fn who(pid: Option<i32>, folder: Option<&std::path::Path>) -> String {
    let pid = pid.map(|pid| format!("process {pid}"));
    let folder = folder.map(|folder| format!("data folder {}", folder.display()));
    let known: Vec<String> = [pid, folder].into_iter().flatten().collect();
    if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) }
}

/// Why a fault of a device ends a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// For people.
    pub reason: String,
    /// The task's program made it.
    pub by_job: bool,
    /// It is no fault of the device: the task took more of it than its share.
    #[serde(default)]
    pub over_share: bool,
}

impl Fault {
    /// A fault of a device, in words.
    #[must_use]
    pub const fn of_device(reason: String, by_job: bool) -> Self {
        Fault { reason, by_job, over_share: false }
    }

    /// A task took more of a device than its share.
    #[must_use]
    pub const fn over_share(reason: String) -> Self {
        Fault { reason, by_job: true, over_share: true }
    }

    /// How a task ends that had this fault and would have ended as `state` without it: what completed, ran out of time or was fenced did so.
    #[must_use]
    pub fn end(self, state: TaskState) -> TaskState {
        match state {
            TaskState::Stopped | TaskState::Signaled { .. } => self.state(),
            TaskState::Exited { code } if code != 0 => self.state(),
            other => other,
        }
    }

    fn state(self) -> TaskState {
        let Fault { reason, by_job, over_share } = self;
        if over_share { TaskState::OverShare { reason } } else { TaskState::DeviceFault { reason, by_job } }
    }
}

/// Whose tasks an executor runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The cluster, by its identity.
    pub cluster: u64,
    /// The node, by its name.
    pub node: String,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {} of cluster {:016x}", self.node, self.cluster)
    }
}

/// What runs the tasks of one node.
pub trait Executor: Send + Sync + 'static {
    /// Takes over what runs already, and from now on notifies `changed` whenever [`Executor::observe`] would answer otherwise.
    /// Called once by each agent, before anything else.
    ///
    /// # Errors
    /// When what is there cannot be read.
    fn attach(&self, host: &Host, changed: Arc<Notify>) -> BoxFuture<'_, Result<(), ExecError>>;

    /// Takes the host for a node of a cluster: nobody else on it runs that node's tasks, and what still ran of them without a record
    /// is ended. Gives the names of those: they are never started again. Called once by each agent, when it knows its cluster
    /// and before anything is started or told to the control plane.
    ///
    /// # Errors
    /// When another agent has the host.
    fn claim(&self, owner: Owner) -> BoxFuture<'_, Result<BTreeSet<TaskKey>, ExecError>>;

    /// Starts a task; what becomes of it is observed. A task with a record is left as it is.
    fn start(&self, launch: Launch);

    /// Records a task that ended before it ever started.
    fn record_over(&self, spec: Arc<TaskSpec>, node_epoch: Epoch, state: TaskState);

    /// A signal, a grace, SIGKILL. Asking twice is asking once: the first counts.
    fn stop(&self, key: TaskKey, how: Stop);

    /// SIGKILL for all of it.
    fn kill(&self, key: TaskKey);

    /// A fault of a device that the task holds: it is stopped as with [`Executor::stop`], with its own grace, and unless it completes it ends as
    /// [`TaskState::DeviceFault`]. The first fault counts.
    fn fault(&self, key: TaskKey, fault: Fault);

    /// Takes note that a running task has nearly filled the GPU memory of its slice, in words, or that it has not (any more). If it fails soon after, its error
    /// output ends with it; how it ended stays as it was. What simulates tasks has no output.
    fn note_memory(&self, _key: TaskKey, _note: Option<String>) {}

    /// The live task that a process of the host belongs to.
    fn task_of(&self, pid: u32) -> Option<TaskKey>;

    /// Gives a task another time limit, in seconds from its start; one that has passed ends it like any that passes.
    fn set_time_limit(&self, key: TaskKey, limit_s: Option<u64>);

    /// Tells a worker of an elastic gang the gang's new size: its world file is replaced, and it is sent the signal that its job has chosen.
    fn set_world(&self, key: TaskKey, world: World);

    /// Moves a fence forward; a lower one changes nothing.
    fn push_deadline(&self, key: TaskKey, deadline_ns: u64);

    /// As which users tasks run.
    fn users(&self) -> TaskUsers {
        TaskUsers::Agent
    }

    /// Every task on record.
    fn observe(&self) -> BTreeMap<TaskKey, ObservedTask>;

    /// Drops the record of a task that is over; its output is kept for a while.
    fn forget(&self, key: TaskKey);

    /// At most `bytes_max` bytes of output from `offset`, or from the first place behind it of which there is something.
    ///
    /// # Errors
    /// When there is none of that task, or it cannot be read.
    fn read_log(
        &self,
        key: TaskKey,
        stream: Stream,
        offset: u64,
        bytes_max: usize,
    ) -> BoxFuture<'static, Result<LogSlice, LogError>>;
}
