//! Jobs: what a tenant submits, and what has become of it.

mod eligible;
mod valid;

pub use valid::{ValidJobSpec, trusted};

use crate::array::{ArraySpec, ArrayState, ArrayTask};
use crate::asked::Asked;
use crate::attempt::AttemptRecord;
use crate::claim::Claim;
use crate::driver::DriverVersion;
use crate::elastic::{Elastic, Growth};
use crate::gpu::GpuModel;
use crate::ids::{AllocationId, Attempt, CellId, JobId, NodeId, TenantId};
use crate::image::Mount;
use crate::movable::Movable;
use crate::preemption::{LimitSignal, Preemption, STOP_MS_MAX};
use crate::priority_class::Preemptor;
use crate::request::TaskRequest;
use crate::resources::ResourceVec;
use crate::start::{StartConditions, Unmet};
use crate::topology::{NumaPolicy, Topology};
use crate::window::START_MS;
use crate::workload::WorkloadClass;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a tenant submits: one gang of identical tasks, all or nothing. Checked by [`crate::validate`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Path of the tenant that pays.
    pub tenant: String,
    /// For people; need not be unique.
    pub name: String,
    /// Size of the gang.
    pub tasks: u32,
    /// What each task needs.
    pub request: TaskRequest,
    /// Closeness.
    pub topology: Topology,
    /// How each task's cards lie with regard to NUMA nodes.
    pub numa: NumaPolicy,
    /// The oldest GPU driver it can run on.
    pub driver_min: Option<DriverVersion>,
    /// How the cards are described beside the request.
    pub asked: Asked,
    /// Kind of work.
    pub class: WorkloadClass,
    /// The only pool it may run in, if it says so.
    pub pool: Option<String>,
    /// Higher goes first inside a tenant; 0 is usual.
    pub priority: i32,
    /// Program and arguments, not a shell line.
    pub command: Vec<String>,
    /// Environment beside what Muster sets.
    pub env: BTreeMap<String, String>,
    /// Working directory; the task's own scratch folder when absent.
    pub workdir: Option<String>,
    /// The task is stopped when it has run this long, in seconds.
    pub time_limit_s: Option<u64>,
    /// From SIGTERM to SIGKILL, in seconds.
    pub grace_s: u64,
    /// How long its tasks may outlive contact with the control plane, in seconds.
    pub disconnect_grace_s: u64,
    /// How often it is started again after one of its own tasks failed. A lost node does not count.
    pub max_retries: u32,
    /// It may be stopped and started again elsewhere in its cell to make room; none: it stays where it started.
    pub movable: Option<Movable>,
    /// Who submitted it, as the client says; empty when it does not say. Nobody has checked it yet: it is for people and for lists,
    /// never for permission.
    #[serde(default)]
    pub user: String,
    /// How it is stopped when its devices are needed elsewhere, and what that costs it.
    #[serde(default)]
    pub preemption: Preemption,
    /// A signal to its tasks before its time limit.
    #[serde(default)]
    pub limit_signal: Option<LimitSignal>,
    /// What must be so before it may start.
    #[serde(default)]
    pub start: StartConditions,
    /// It is an array of jobs, one for each index.
    #[serde(default)]
    pub array: Option<ArraySpec>,
    /// Its priority class; the priority is that of the class then. None: `default`.
    #[serde(default)]
    pub priority_class: Option<String>,
    /// The reservation on whose nodes it is to run, and nowhere else.
    #[serde(default)]
    pub reservation: Option<String>,
    /// It may grow beyond `tasks`, which is its minimum then; none: it always has `tasks`.
    #[serde(default)]
    pub elastic: Option<Elastic>,
    /// The container image in whose file system its tasks run; none: the host's. See [`crate::ImageRef`].
    #[serde(default)]
    pub image: Option<String>,
    /// Folders and files of the node that its tasks see.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// How many equal compute instances its MIG instance is cut into; 0 and 1: one that fills it. They share the memory of the instance.
    #[serde(default)]
    pub compute_instances: u8,
    /// A note for people, such as a ticket or the reason for the job; one line.
    #[serde(default)]
    pub comment: String,
    /// Variables whose values are secrets of the tenant: the secret's name, by the variable's.
    #[serde(default)]
    pub secret_env: BTreeMap<String, String>,
}

/// Seconds from SIGTERM to SIGKILL when a job does not say: long enough to write a small checkpoint, short enough for a person.
pub const GRACE_S_DEFAULT: u64 = 30;
/// Seconds that tasks may outlive contact with the control plane when a job does not say: longer than any failover or upgrade.
pub const DISCONNECT_GRACE_S_DEFAULT: u64 = 600;

impl JobSpec {
    /// How long it holds its devices at most from its binding on, in ms; the greatest number when nothing bounds it.
    #[must_use]
    pub fn stays_at_most_ms(&self) -> u64 {
        let limit_ms = |limit_s: u64| 1_000_u64.saturating_mul(limit_s.saturating_add(self.grace_s));
        self.time_limit_s.map_or(u64::MAX, |limit_s| START_MS.saturating_add(limit_ms(limit_s)))
    }

    /// When an attempt that must be gone at `start_ms` is told to stop.
    #[must_use]
    pub fn stop_for_ms(&self, start_ms: u64) -> u64 {
        start_ms.saturating_sub(1_000 * self.preemption.grace_s(self.grace_s) + STOP_MS_MAX)
    }

    /// A job of one task of which nothing else is said.
    #[must_use]
    pub fn usual(tenant: &str, request: TaskRequest, command: &[&str]) -> Self {
        JobSpec {
            tenant: tenant.to_owned(),
            name: "job".to_owned(),
            tasks: 1,
            request,
            topology: Topology::default(),
            numa: NumaPolicy::default(),
            driver_min: None,
            asked: Asked::default(),
            class: WorkloadClass::default(),
            pool: None,
            priority: 0,
            command: command.iter().map(|&word| word.to_owned()).collect(),
            env: BTreeMap::new(),
            workdir: None,
            time_limit_s: None,
            grace_s: GRACE_S_DEFAULT,
            disconnect_grace_s: DISCONNECT_GRACE_S_DEFAULT,
            max_retries: 0,
            movable: None,
            user: String::new(),
            preemption: Preemption::default(),
            limit_signal: None,
            start: StartConditions::default(),
            array: None,
            priority_class: None,
            reservation: None,
            elastic: None,
            image: None,
            mounts: Vec::new(),
            compute_instances: 0,
            comment: String::new(),
            secret_env: BTreeMap::new(),
        }
    }
}

impl JobSpec {
    /// What the whole gang is charged when it lands on `model`.
    #[must_use]
    pub fn charge_on(&self, model: GpuModel) -> ResourceVec {
        self.request.charge_on(model).times(u64::from(self.tasks))
    }
}

impl JobSpec {
    /// Tasks that the job can use at most.
    #[must_use]
    pub fn tasks_max(&self) -> u32 {
        self.elastic.map_or(self.tasks, |elastic| elastic.tasks_max)
    }

    /// Tasks of one part of its growth.
    #[must_use]
    pub fn growth_unit(&self) -> u32 {
        self.topology.segment_tasks.unwrap_or(1).max(1)
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Every task exited with 0.
    Completed,
    /// A task failed and no retry is left.
    Failed {
        /// What happened, for people: `rank 3 exited with 1 on node-0007`.
        reason: String,
    },
    /// Somebody cancelled it.
    Cancelled,
    /// It ran into its time limit.
    TimedOut,
    /// It could not end by its deadline, or was stopped at it.
    DeadlineMissed,
}

impl Outcome {
    /// The word in tables.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Failed { .. } => "failed",
            Outcome::Cancelled => "cancelled",
            Outcome::TimedOut => "timeout",
            Outcome::DeadlineMissed => "deadline",
        }
    }
}

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobPhase {
    /// Waits for devices.
    Queued,
    /// Holds devices; not every task has been seen running yet.
    Starting(AllocationId),
    /// Every task has been seen running (or has already ended).
    Running(AllocationId),
    /// Its attempt ends: tasks are being stopped, devices are still held.
    Stopping(AllocationId),
    /// Over. Such a job is in the history, not in memory.
    Finished(Outcome),
}

impl JobPhase {
    /// The word in tables.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            JobPhase::Queued => "pending",
            JobPhase::Starting(_) => "starting",
            JobPhase::Running(_) => "running",
            JobPhase::Stopping(_) => "completing",
            JobPhase::Finished(outcome) => outcome.word(),
        }
    }

    /// The allocation it holds, if any.
    #[must_use]
    pub const fn allocation(&self) -> Option<AllocationId> {
        match self {
            JobPhase::Starting(id) | JobPhase::Running(id) | JobPhase::Stopping(id) => Some(*id),
            _ => None,
        }
    }
}

/// A reservation starts at most this far ahead: nodes that are kept for longer would stand idle for too long.
pub const RESERVATION_AHEAD_MS_MAX: u64 = 86_400_000;
/// A reservation may start this long ago at most: shards plan by a clock that is a little behind, and what was late a minute ago is
/// planned anew.
pub const RESERVATION_PAST_MS_MAX: u64 = 60_000;

/// A place and a time that are kept for a waiting gang: its nodes take no work that would still be there then.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reservation {
    /// When it starts at the latest, as far as what runs there keeps its time limits; milliseconds since the Unix epoch.
    pub start_ms: u64,
    /// The nodes, each once, in order.
    pub nodes: Vec<NodeId>,
}

/// A job and its life so far. Times are milliseconds since the Unix epoch, from the commands that made the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Who pays.
    pub tenant: TenantId,
    /// What was submitted. A job is read from nothing but the log, the store and the leader.
    #[serde(deserialize_with = "trusted::spec")]
    pub spec: ValidJobSpec,
    /// Where it stands.
    pub phase: JobPhase,
    /// The last attempt that was bound; 0 before the first.
    pub attempt: Attempt,
    /// Attempts that ended because a task of its own failed (a lost node does not count).
    pub failures: u32,
    /// Cancellation was asked for.
    pub cancelled: bool,
    /// The cell that tries to place it; `None` while no cell could ever hold it.
    pub cell: Option<CellId>,
    /// Cells that handed it on since it last became queued.
    pub visited: BTreeSet<CellId>,
    /// When it was routed to its cell.
    pub routed_ms: u64,
    /// When it was accepted.
    pub submitted_ms: u64,
    /// When its present or last attempt was bound.
    pub bound_ms: Option<u64>,
    /// When every task of that attempt had been seen running.
    pub started_ms: Option<u64>,
    /// When it was over.
    pub finished_ms: Option<u64>,
    /// Nodes of its present or last attempt, by rank, for people and for logs.
    pub nodes: Vec<NodeId>,
    /// The allocation of its present or last attempt: set at each binding and kept when the job is over, so that the logs of a
    /// finished job are still found.
    pub last_allocation: Option<AllocationId>,
    /// Why it went back to the queue, if it did.
    pub requeue_reason: Option<String>,
    /// What its cell keeps for it while it waits.
    pub reserved: Option<Reservation>,
    /// Cards that jobs behind it have started on while it waited for room, as far as its cell's shards have recorded it: what the
    /// starvation guard goes by. 0 from each binding on.
    #[serde(default)]
    pub bypassed_cards: u64,
    /// How its attempts ended, oldest first; at most [`crate::attempt::ATTEMPTS_MAX`].
    #[serde(default)]
    pub attempts: Vec<AttemptRecord>,
    /// Attempts that ended because a node failed to start a task.
    #[serde(default)]
    pub start_faults: u32,
    /// What it gets when those that it preempts have ended, while it waits for that.
    #[serde(default)]
    pub claim: Option<Box<Claim>>,
    /// Attempts that were preempted.
    #[serde(default)]
    pub preemptions: u32,
    /// When its newest checkpoint was made, in this attempt or before.
    #[serde(default)]
    pub checkpoint_ms: Option<u64>,
    /// What the task wrote about it.
    #[serde(default)]
    pub checkpoint_note: String,
    /// Somebody wants it queued again when its present attempt has ended, whatever that ends with.
    #[serde(default)]
    pub requeue_asked: bool,
    /// What keeps it from being eligible while it is pending.
    #[serde(default)]
    pub unmet: Unmet,
    /// It is the record of an array: it never starts itself.
    #[serde(default)]
    pub array: Option<Box<ArrayState>>,
    /// It is a task of an array.
    #[serde(default)]
    pub array_task: Option<ArrayTask>,
    /// What became of its attempts that preempted others.
    #[serde(default)]
    pub preemptor: Preemptor,
    /// It is being moved: the name of the record ([`MoveRecord`](crate::moves::MoveRecord)).
    #[serde(default)]
    pub moving: Option<AllocationId>,
    /// What it has beyond its minimum.
    #[serde(default)]
    pub growth: Growth,
}
