//! Tasks as the node sees them: what is wanted of each, and what has become of it.

use crate::secrets::Secrets;
use crate::stamp::Stamp;
use muster_model::ids::{AllocationId, Attempt, Epoch, JobId, Rank, TenantId};
use muster_model::mig::MigPlacement;
use muster_model::sharing::CardSharing;
use muster_model::task::{DeviceHold, TaskState};
use muster_model::{Checkpoint, LimitSignal, Ports, Stop, TaskImage, TaskMount, World};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Names a task for ever: an allocation is one attempt, and ids are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskKey {
    /// The hold it runs under.
    pub allocation: AllocationId,
    /// Its place in the gang.
    pub rank: Rank,
}

impl fmt::Display for TaskKey {
    /// `<allocation>.<rank>`, which is also the name of its folder.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.allocation, self.rank)
    }
}

/// A text that is not `<allocation>.<rank>`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got:?} is not <allocation>.<rank>")]
pub struct BadTaskKey {
    /// What was read.
    pub got: String,
}

impl FromStr for TaskKey {
    type Err = BadTaskKey;
    fn from_str(text: &str) -> Result<Self, BadTaskKey> {
        let bad = || BadTaskKey { got: text.to_owned() };
        let (allocation, rank) = text.split_once('.').ok_or_else(bad)?;
        let key =
            TaskKey { allocation: allocation.parse().map_err(|_| bad())?, rank: rank.parse().map_err(|_| bad())? };
        // One name per key: "01.0" would be a second name for "1.0".
        if key.to_string() == text { Ok(key) } else { Err(bad()) }
    }
}

/// Everything needed to run one task. Nothing of it changes while the task lives, but for its time limit and its gang's size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Its name.
    pub key: TaskKey,
    /// Its job.
    pub job: JobId,
    /// Which run of the job.
    pub attempt: Attempt,
    /// The job's name, for people.
    pub job_name: String,
    /// Path of the tenant.
    pub tenant: String,
    /// The tenant's number, by which a node knows as which of its users to run the task.
    #[serde(default)]
    pub tenant_id: TenantId,
    /// Its devices on this node.
    pub devices: Vec<DeviceHold>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The job's own environment.
    pub env: BTreeMap<String, String>,
    /// Working directory; the task's scratch folder when absent.
    pub workdir: Option<String>,
    /// Tasks of the gang.
    pub world_size: u32,
    /// Its place among the gang's tasks on this node.
    pub local_rank: u32,
    /// The gang's tasks on this node.
    pub local_world_size: u32,
    /// This node's place among the gang's nodes.
    pub node_rank: u32,
    /// Where rank 0 listens.
    pub master_addr: String,
    /// On which port.
    pub master_port: u16,
    /// Attempts before this one.
    pub restart_count: u32,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// MiB of memory.
    pub memory_mib: u64,
    /// It is stopped when it has run this long, in seconds.
    pub time_limit_s: Option<u64>,
    /// From SIGTERM to SIGKILL, in seconds.
    pub grace_s: u64,
    /// How long it may outlive contact with the control plane, in seconds.
    pub disconnect_grace_s: u64,
    /// GPU units it holds, for metering.
    pub gpu_units: u64,
    /// What an earlier attempt wrote about its newest checkpoint.
    #[serde(default)]
    pub checkpoint_note: String,
    /// A signal before its time limit.
    #[serde(default)]
    pub limit_signal: Option<LimitSignal>,
    /// Of an elastic gang: its size and this worker's place. It may change while the task lives.
    #[serde(default)]
    pub world: Option<World>,
    /// The image it runs in; none: the node's own file system.
    #[serde(default)]
    pub image: Option<TaskImage>,
    /// What of the node it sees.
    #[serde(default)]
    pub mounts: Vec<TaskMount>,
    /// Equal compute instances in its MIG instance; 0 and 1: one that fills it.
    #[serde(default)]
    pub compute_instances: u8,
    /// The user to run as; none: the node makes one up for the tenant.
    #[serde(default)]
    pub run_as: Option<u32>,
    /// It has a network of its own, with nothing but a loopback.
    #[serde(default)]
    pub private_network: bool,
    /// Ports that it has for itself.
    #[serde(default)]
    pub ports: Ports,
    /// MiB that it may use, where that differs from `memory_mib`; 0: it does not.
    #[serde(default)]
    pub memory_limit_mib: u64,
    /// The channel of its gang in their NVLink domain.
    #[serde(default)]
    pub imex_channel: Option<u16>,
    /// Secrets of its tenant that it is to have in its environment: in memory alone.
    #[serde(skip)]
    pub secrets: Secrets,
}

impl TaskSpec {
    /// The only task of a job that runs these words on CPUs, for tests, benches and simulations. The job has the allocation's number.
    #[must_use]
    pub fn usual(key: TaskKey, command: &[&str]) -> Self {
        TaskSpec {
            key,
            job: JobId(key.allocation.0),
            attempt: Attempt(1),
            job_name: "train".to_owned(),
            tenant: "research".to_owned(),
            tenant_id: TenantId(3),
            devices: Vec::new(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            env: BTreeMap::new(),
            workdir: None,
            world_size: 1,
            local_rank: 0,
            local_world_size: 1,
            node_rank: 0,
            master_addr: "127.0.0.1".to_owned(),
            master_port: 29_500,
            restart_count: 0,
            cpu_milli: 100,
            memory_mib: 64,
            time_limit_s: None,
            grace_s: 1,
            disconnect_grace_s: 600,
            gpu_units: 0,
            checkpoint_note: String::new(),
            limit_signal: None,
            world: None,
            image: None,
            mounts: Vec::new(),
            compute_instances: 0,
            run_as: None,
            private_network: false,
            ports: Ports::Unassigned,
            memory_limit_mib: 0,
            imex_channel: None,
            secrets: Secrets::default(),
        }
    }

    /// MiB that it may use; 0: no bound.
    #[must_use]
    pub const fn memory_max_mib(&self) -> u64 {
        if self.memory_mib > 0 { self.memory_mib } else { self.memory_limit_mib }
    }

    /// Whether ranks of its gang are on other nodes, or may come to be.
    #[must_use]
    pub const fn spans_nodes(&self) -> bool {
        self.world_size > self.local_world_size || self.world.is_some()
    }

    /// Compute instances in each MIG instance that it holds, at least one.
    #[must_use]
    pub fn compute_instances(&self) -> u8 {
        self.compute_instances.max(1)
    }
}

/// A task that the node should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredTask {
    /// What to run.
    pub spec: Arc<TaskSpec>,
    /// It is to be stopped in this way instead, and never started.
    pub stop: Option<Stop>,
}

/// The whole of what the node should run. A task that is not in it is to be stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Where it stands in history.
    pub stamp: Stamp,
    /// The tasks.
    pub tasks: BTreeMap<TaskKey, DesiredTask>,
    /// How its cards are shared.
    pub sharing: CardSharing,
    /// MIG instances that its cards keep while nobody holds them, by card.
    pub pinned: BTreeMap<u16, Vec<MigPlacement>>,
    /// Tasks that are over here and whose devices are held on for the rest of their gang.
    pub held_on: BTreeSet<TaskKey>,
    /// The node is drained.
    pub drained: bool,
}

/// How far a task has come. Times are nanoseconds of the host's CLOCK_BOOTTIME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Being started: its process may or may not be there yet.
    Starting,
    /// Its process runs.
    Running {
        /// Since when.
        started_ns: u64,
    },
    /// Nothing of it is left.
    Over {
        /// How it ended.
        state: TaskState,
        /// From when it ran; absent when it never did.
        started_ns: Option<u64>,
        /// Until when.
        ended_ns: u64,
    },
}

/// Whether its end has been asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stopping {
    /// No.
    #[default]
    No,
    /// A signal, a grace, SIGKILL.
    Gracefully,
    /// SIGKILL.
    AtOnce,
}

/// A task that the node has a record of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedTask {
    /// What it was started with.
    pub spec: Arc<TaskSpec>,
    /// The node's epoch when it was started.
    pub node_epoch: Epoch,
    /// How far it has come.
    pub phase: Phase,
    /// Whether its end has been asked for.
    pub stopping: Stopping,
    /// The newest checkpoint that it says it has made.
    pub checkpoint: Option<Checkpoint>,
    /// The time limit that holds for it now, in seconds; it may have been changed since it was started.
    pub time_limit_s: Option<u64>,
    /// Of an elastic gang: the generation of the size that it has been told last.
    pub world_generation: Option<u64>,
}

impl ObservedTask {
    /// Whether something of it may still be there.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        !matches!(self.phase, Phase::Over { .. })
    }

    /// What to tell the control plane; nothing while it is being started.
    #[must_use]
    pub fn state(&self) -> Option<TaskState> {
        match &self.phase {
            Phase::Starting => None,
            Phase::Running { .. } => Some(TaskState::Running),
            Phase::Over { state, .. } => Some(state.clone()),
        }
    }
}
