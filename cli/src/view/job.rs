//! Jobs as they are shown, in lists and alone.

mod pending;

use self::pending::{dependencies, reason};
use crate::units::{counted, show_mebibytes, show_moment, show_seconds};
use crate::view::devices::DevicesView;
use crate::view::elastic::ElasticView;
use muster_model::priority_class::PREEMPTOR_FAILURES_MAX;
use muster_proto::v1;
use muster_proto::v1::JobPhase;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The words for states, in the order of a job's life.
pub const PHASES: &[(JobPhase, &str)] = &[
    (JobPhase::Pending, "pending"),
    (JobPhase::Starting, "starting"),
    (JobPhase::Running, "running"),
    (JobPhase::Completing, "completing"),
    (JobPhase::Completed, "completed"),
    (JobPhase::Failed, "failed"),
    (JobPhase::Cancelled, "cancelled"),
    (JobPhase::Timeout, "timeout"),
    (JobPhase::Deadline, "deadline"),
];

/// The word for a state.
#[must_use]
pub fn phase_word(phase: JobPhase) -> &'static str {
    PHASES.iter().find(|(known, _)| *known == phase).map_or("unknown", |(_, word)| word)
}

/// The state of a word.
#[must_use]
pub fn phase_of(word: &str) -> Option<JobPhase> {
    PHASES.iter().find(|(_, known)| *known == word.trim().to_ascii_lowercase()).map(|(phase, _)| *phase)
}

/// Whether a job in this state is over.
#[must_use]
pub fn is_over(phase: JobPhase) -> bool {
    matches!(
        phase,
        JobPhase::Completed | JobPhase::Failed | JobPhase::Cancelled | JobPhase::Timeout | JobPhase::Deadline
    )
}

/// A job.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// Its id.
    pub id: u64,
    /// Who pays.
    pub tenant: String,
    /// Who submitted it, as the client said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Its name.
    pub name: String,
    /// pending, starting, running, completing, completed, failed, cancelled, timeout.
    pub state: &'static str,
    /// Why it waits, why it waits again, or why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A stable word for why it waits, where that was asked for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason_code: String,
    /// Size of the gang; of an elastic one the least.
    pub tasks: u32,
    /// Of an elastic gang: how far it may grow, and how far it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elastic: Option<ElasticView>,
    /// What each task asks for.
    pub devices: DevicesView,
    /// Acceptable models; any when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Memory that each card or MIG instance must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_mib: Option<u64>,
    /// Which cards will do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// The selector's name, if it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device_class: String,
    /// What each task needs, where the system chose the devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<NeedsView>,
    /// How the system picked the devices for the job's needs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub chosen: String,
    /// CPUs of each task.
    pub cpu_milli: u64,
    /// Host memory of each task.
    pub memory_mib: u64,
    /// Required closeness.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topology: String,
    /// Preferred closeness.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefer: String,
    /// Tasks of a segment; 0 without.
    #[serde(skip_serializing_if = "is_zero")]
    pub segment: u32,
    /// How far apart its tasks stand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<SpreadView>,
    /// How each task's cards lie; none is not shown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub numa: String,
    /// The oldest driver.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub driver_min: String,
    /// The only pool it may run in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pool: String,
    /// training, inference, interactive, batch.
    pub class: String,
    /// Higher goes first inside a tenant.
    pub priority: i32,
    /// What sets it; empty: nothing does.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub priority_class: String,
    /// The reservation on whose nodes alone it runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reservation: String,
    /// It may not preempt any more: attempts that preempted others have failed too often.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub may_not_preempt: bool,
    /// What a move loses; absent: it is never moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub movable: Option<MovableView>,
    /// How it is stopped when it is preempted; absent: SIGTERM and its grace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<PreemptionView>,
    /// While it holds devices: burst, or the tenant whose guarantee pays for them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub quota: String,
    /// Number of hosts of the present or last attempt.
    pub nodes: usize,
    /// The last attempt that was bound.
    pub attempt: u32,
    /// Attempts that a task of its own ended.
    pub failures: u32,
    /// Attempts that were preempted.
    pub preemptions: u32,
    /// When its newest checkpoint was made; RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// What it wrote about that.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub checkpoint_note: String,
    /// How often it is started again after such a failure.
    pub retries_max: u32,
    /// Its cell.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cell: String,
    /// RFC 3339.
    pub submitted: String,
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<String>,
    /// How long it has run, or ran.
    pub ran_s: u64,
    /// How long it waited for its first or present start.
    pub waited_s: u64,
    /// When it starts at the latest, as far as what runs keeps its time limits; RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_by: Option<String>,
    /// Of an array: how its tasks stand, as sets of indices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayView>,
    /// Of a task of an array: the array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_id: Option<u64>,
    /// Of a task of an array: its index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_index: Option<u32>,
    /// It starts no earlier; RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin: Option<String>,
    /// It must have ended by then; RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// What it was submitted to wait for: `afterok:12`, `singleton`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<String>,
    /// Time limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<u64>,
    /// The signal before it: USR1@120.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_signal: Option<String>,
    /// From SIGTERM to SIGKILL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u64>,
    /// How long its tasks may outlive contact with the control plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disconnect_grace_s: Option<u64>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Working directory.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workdir: String,
    /// Container image.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// What of the node its tasks see: SOURCE:TARGET:ro or :rw.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// A note for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// Equal compute instances in its MIG instance, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_instances: Option<u32>,
    /// Its variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Its variables that are secrets: their names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secret_env: BTreeMap<String, String>,
}

/// An array.
#[derive(Clone, Debug, Serialize)]
pub struct ArrayView {
    /// Tasks that have no job yet.
    pub left: String,
    /// Tasks that completed.
    pub completed: String,
    /// Tasks that ended otherwise.
    pub failed: String,
    /// At most so many at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
}

impl ArrayView {
    fn new(array: &v1::ArrayState) -> Self {
        let v1::ArrayState { left, completed, failed, max_running, .. } = array.clone();
        ArrayView { left, completed, failed, max_running }
    }

    /// In a line.
    pub(crate) fn words(&self) -> String {
        let limit = self.max_running.map(|limit| format!("at most {limit} at once"));
        let part = |name: &str, tasks: &str| (!tasks.is_empty()).then(|| format!("{name} {tasks}"));
        let parts = [part("not started", &self.left), part("completed", &self.completed), part("failed", &self.failed)];
        parts.into_iter().flatten().chain(limit).collect::<Vec<_>>().join("; ")
    }
}

/// How far apart the tasks of a gang stand.
#[derive(Clone, Debug, Serialize)]
pub struct SpreadView {
    /// node, leaf, block or region.
    pub level: String,
    /// Tasks on one of them at most.
    pub tasks_max: u32,
    /// Or the job waits.
    pub required: bool,
}

/// What a move of a job loses.
#[derive(Clone, Debug, Serialize)]
pub struct MovableView {
    /// It saves its progress at least this often; absent: a move loses all since its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_every_s: Option<u64>,
    /// From a start to useful work.
    pub restart_s: u64,
}

/// How a job is stopped when it is preempted, and what that costs it.
#[derive(Clone, Debug, Serialize)]
pub struct PreemptionView {
    /// TERM, USR1, ...
    pub signal: String,
    /// From that signal to SIGKILL; absent: its own grace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u64>,
    /// Size of a checkpoint of the whole gang; 0: not known.
    pub checkpoint_bytes: u64,
    /// Of the whole gang.
    pub restart_cost_s: u64,
}

/// What a task needs.
#[derive(Clone, Debug, Serialize)]
pub struct NeedsView {
    /// On the card.
    pub memory_mib: u64,
    /// Of one card; 0: it does not matter.
    pub compute_percent: u32,
    /// strict, trusted, best-effort.
    pub isolation: String,
    /// It is idle most of the time.
    pub bursty: bool,
    /// It must not wait for a neighbour.
    pub latency_critical: bool,
}

impl JobView {
    /// As seen at `now_ms`.
    #[must_use]
    pub fn new(job: &v1::Job, now_ms: u64) -> Self {
        let spec = job.spec.clone().unwrap_or_default();
        let request = spec.request.clone().unwrap_or_default();
        let devices = request.devices.clone().unwrap_or_default();
        let topology = spec.topology.unwrap_or_default();
        let start = spec.start.clone().unwrap_or_default();
        let end_ms = job.finished_ms.unwrap_or(now_ms);
        let live = job.phase() != JobPhase::Pending;
        let since = |start: Option<u64>| start.map_or(0, |start| end_ms.saturating_sub(start) / 1_000);
        let started_ms = job.started_ms.filter(|_| live);
        let waited_until = job.bound_ms.filter(|_| live).unwrap_or(end_ms);
        JobView {
            id: job.id,
            tenant: spec.tenant,
            user: spec.user,
            name: spec.name,
            state: phase_word(job.phase()),
            reason: reason(job),
            reason_code: String::new(),
            tasks: spec.tasks,
            elastic: spec.elastic.map(|elastic| ElasticView::new(&elastic, spec.tasks, job)),
            devices: DevicesView::new(devices.kind.as_ref()),
            models: devices.models,
            gpu_memory_mib: spec.gpu_memory_mib,
            segment: topology.segment_tasks,
            spread: topology.spread.map(|spread| SpreadView {
                tasks_max: spread.tasks_max.unwrap_or(1),
                required: spread.required,
                level: spread.level,
            }),
            numa: if spec.numa == "none" { String::new() } else { spec.numa },
            driver_min: spec.driver_min,
            selector: spec.selector,
            device_class: spec.device_class,
            needs: spec.needs.map(NeedsView::new),
            chosen: spec.choice.map(|choice| choice.text).unwrap_or_default(),
            cpu_milli: request.cpu_milli,
            memory_mib: request.memory_mib,
            topology: topology.required,
            prefer: topology.preferred,
            pool: spec.pool,
            class: if spec.workload_class.is_empty() { "batch".to_owned() } else { spec.workload_class },
            priority: spec.priority,
            priority_class: spec.priority_class,
            reservation: spec.reservation,
            may_not_preempt: job.preemptor_failures >= PREEMPTOR_FAILURES_MAX,
            movable: spec.movable.map(|movable| MovableView {
                checkpoint_every_s: movable.checkpoint_every_s,
                restart_s: movable.restart_s.unwrap_or_default(),
            }),
            preemption: spec.preemption.map(|said| PreemptionView {
                signal: if said.signal.is_empty() { "TERM".to_owned() } else { said.signal },
                grace_s: said.grace_s,
                checkpoint_bytes: said.checkpoint_bytes,
                restart_cost_s: said.restart_cost_s,
            }),
            quota: String::new(),
            nodes: job.nodes.iter().collect::<BTreeSet<_>>().len(),
            attempt: job.attempt,
            failures: job.failures,
            preemptions: job.preemptions,
            checkpoint: job.checkpoint_ms.map(show_moment),
            checkpoint_note: job.checkpoint_note.clone(),
            retries_max: spec.max_retries,
            cell: job.cell.map(|cell| cell.to_string()).unwrap_or_default(),
            submitted: show_moment(job.submitted_ms),
            started: started_ms.map(show_moment),
            finished: job.finished_ms.map(show_moment),
            ran_s: since(started_ms),
            waited_s: waited_until.saturating_sub(job.submitted_ms) / 1_000,
            starts_by: job.reserved.as_ref().map(|kept| show_moment(kept.start_ms)),
            array: job.array.as_ref().map(ArrayView::new),
            array_id: job.array_task.map(|task| task.array),
            array_index: job.array_task.map(|task| task.index),
            begin: start.begin_ms.map(show_moment),
            deadline: start.deadline_ms.map(show_moment),
            dependencies: dependencies(&start),
            time_limit_s: spec.time_limit_s,
            limit_signal: spec.limit_signal.map(|said| format!("{}@{}", said.signal, said.before_s)),
            grace_s: spec.grace_s,
            disconnect_grace_s: spec.disconnect_grace_s,
            command: spec.command,
            workdir: spec.workdir,
            image: spec.image,
            comment: spec.comment,
            compute_instances: Some(spec.compute_instances).filter(|count| *count > 1),
            mounts: spec.mounts.into_iter().map(|mount| muster_model::Mount::from(mount).to_string()).collect(),
            env: spec.env,
            secret_env: spec.secret_env,
        }
    }

    /// Where its state stands in the life of a job.
    #[must_use]
    pub fn state_order(&self) -> usize {
        PHASES.iter().position(|(_, word)| *word == self.state).unwrap_or(PHASES.len())
    }

    /// With why it waits, as the control plane says.
    #[must_use]
    pub fn with_reason(mut self, reason: &v1::PendingReason) -> Self {
        self.reason.clone_from(&reason.text);
        self.reason_code.clone_from(&reason.code);
        self
    }

    /// With the tenant whose floor account pays for its devices; an empty path: they are burst.
    #[must_use]
    pub fn paid_by(mut self, account: &str) -> Self {
        self.quota = if account.is_empty() { "burst".to_owned() } else { format!("guaranteed by {account}") };
        self
    }

    /// With the name of its cell in the place of the number.
    #[must_use]
    pub fn in_cell(mut self, name: &str) -> Self {
        if !name.is_empty() {
            name.clone_into(&mut self.cell);
        }
        self
    }
}

impl NeedsView {
    fn new(needs: v1::Needs) -> Self {
        let v1::Needs { memory_mib, compute_percent, isolation, bursty, latency_critical, models: _ } = needs;
        NeedsView { memory_mib, compute_percent, isolation, bursty, latency_critical }
    }

    /// In a line.
    pub(crate) fn words(&self) -> String {
        let mut words = vec![show_mebibytes(self.memory_mib)];
        words.extend((self.compute_percent > 0).then(|| format!("{} % of a GPU", self.compute_percent)));
        words.extend((!self.isolation.is_empty()).then(|| format!("isolation {}", self.isolation)));
        words.extend(self.bursty.then(|| "bursty".to_owned()));
        words.extend(self.latency_critical.then(|| "latency-critical".to_owned()));
        words.join(", ")
    }
}

impl SpreadView {
    /// In a line.
    pub(crate) fn words(&self) -> String {
        let how = if self.required { "at most" } else { "preferably at most" };
        format!("{how} {} on each {}", counted(self.tasks_max as usize, "task"), self.level)
    }
}

impl MovableView {
    /// In a line.
    pub(crate) fn words(&self) -> String {
        let restart = show_seconds(self.restart_s);
        match self.checkpoint_every_s {
            Some(every) => {
                format!("a move loses at most {} of work, and {restart} to start again", show_seconds(every))
            }
            None => format!("a move loses all work since the start, and {restart} to start again"),
        }
    }
}

impl PreemptionView {
    /// In a line.
    pub(crate) fn words(&self) -> String {
        let mut words = vec![match self.grace_s {
            Some(grace_s) => format!("SIG{}, then {} to stop", self.signal, show_seconds(grace_s)),
            None => format!("SIG{}, then its grace to stop", self.signal),
        }];
        let size = show_mebibytes(self.checkpoint_bytes.div_ceil(1 << 20));
        words.extend((self.checkpoint_bytes > 0).then(|| format!("a checkpoint has {size}")));
        let cost = show_seconds(self.restart_cost_s);
        words.extend((self.restart_cost_s > 0).then(|| format!("a restart costs {cost}")));
        words.join("; ")
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
