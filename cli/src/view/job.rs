//! Jobs as they are shown.

use crate::output::{Block, Columns};
use crate::units::{show_cpus, show_mebibytes, show_moment, show_seconds};
use muster_proto::v1;
use muster_proto::v1::JobPhase;
use muster_proto::v1::device_request::Kind;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Longest reason in a list; `muster job` and `muster explain` show all of it.
const REASON_CHARS: usize = 60;

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
    matches!(phase, JobPhase::Completed | JobPhase::Failed | JobPhase::Cancelled | JobPhase::Timeout)
}

/// A job.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// Its id.
    pub id: u64,
    /// Who pays.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// pending, starting, running, completing, completed, failed, cancelled, timeout.
    pub state: &'static str,
    /// Why it failed, or why it waits again.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Size of the gang.
    pub tasks: u32,
    /// What each task asks for: `8`, `1g.10gb`, `30%/20Gi`, `slice/8Gi`, `-`.
    pub devices: String,
    /// Acceptable models; any when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Tasks of a segment; 0 without.
    #[serde(skip_serializing_if = "is_zero")]
    pub segment: u32,
    /// How far apart its tasks stand.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub spread: String,
    /// How each task's cards lie; none is not shown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub numa: String,
    /// The oldest driver.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub driver_min: String,
    /// Which cards will do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// What a move loses at most; empty: it is never moved.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub movable: String,
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
    /// Number of hosts of the present or last attempt.
    pub nodes: usize,
    /// The last attempt that was bound.
    pub attempt: u32,
    /// Attempts that a task of its own ended.
    pub failures: u32,
    /// Its cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<u32>,
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
    /// Time limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<u64>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Its variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

impl JobView {
    /// As seen at `now_ms`.
    #[must_use]
    pub fn new(job: &v1::Job, now_ms: u64) -> Self {
        let spec = job.spec.clone().unwrap_or_default();
        let request = spec.request.clone().unwrap_or_default();
        let devices = request.devices.clone().unwrap_or_default();
        let end_ms = job.finished_ms.unwrap_or(now_ms);
        let live = job.phase() != JobPhase::Pending;
        let since = |start: Option<u64>| start.map_or(0, |start| end_ms.saturating_sub(start) / 1_000);
        let started_ms = job.started_ms.filter(|_| live);
        let waited_until = job.bound_ms.filter(|_| live).unwrap_or(end_ms);
        JobView {
            id: job.id,
            tenant: spec.tenant,
            name: spec.name,
            state: phase_word(job.phase()),
            reason: reason(job),
            tasks: spec.tasks,
            devices: devices_words(devices.kind.as_ref()),
            models: devices.models,
            segment: spec.topology.as_ref().map_or(0, |topology| topology.segment_tasks),
            spread: spec
                .topology
                .as_ref()
                .and_then(|topology| topology.spread.as_ref())
                .map(spread_words)
                .unwrap_or_default(),
            numa: if spec.numa == "none" { String::new() } else { spec.numa },
            driver_min: spec.driver_min,
            selector: selector_words(&spec.selector, &spec.device_class),
            movable: spec.movable.as_ref().map(movable_words).unwrap_or_default(),
            chosen: spec.choice.map(|choice| choice.text).unwrap_or_default(),
            cpu_milli: request.cpu_milli,
            memory_mib: request.memory_mib,
            topology: spec.topology.map(|topology| topology.required).unwrap_or_default(),
            nodes: job.nodes.iter().collect::<BTreeSet<_>>().len(),
            attempt: job.attempt,
            failures: job.failures,
            cell: job.cell,
            submitted: show_moment(job.submitted_ms),
            started: started_ms.map(show_moment),
            finished: job.finished_ms.map(show_moment),
            ran_s: since(started_ms),
            waited_s: waited_until.saturating_sub(job.submitted_ms) / 1_000,
            starts_by: job.reserved.as_ref().map(|kept| show_moment(kept.start_ms)),
            time_limit_s: spec.time_limit_s,
            command: spec.command,
            env: spec.env,
        }
    }

    /// GPUs of the whole gang, as a list shows them.
    #[must_use]
    pub fn gpus_words(&self) -> String {
        match self.devices.parse::<u64>() {
            Ok(each) => (each * u64::from(self.tasks)).to_string(),
            Err(_) => self.devices.clone(),
        }
    }
}

fn reason(job: &v1::Job) -> String {
    match job.phase() {
        JobPhase::Pending if job.cell.is_none() && job.requeue_reason.is_empty() => {
            "no cell could hold it yet".to_owned()
        }
        JobPhase::Pending if job.reason.is_empty() => job.requeue_reason.clone(),
        JobPhase::Completing if job.cancelled && job.reason.is_empty() => "cancelled".to_owned(),
        _ => job.reason.clone(),
    }
}

fn devices_words(kind: Option<&Kind>) -> String {
    match kind {
        None => "-".to_owned(),
        Some(Kind::Whole(whole)) => whole.count.to_string(),
        Some(Kind::Mig(mig)) => mig.profile.clone(),
        Some(Kind::Mps(mps)) => format!("{}%/{}", mps.percent, show_mebibytes(mps.memory_mib)),
        Some(Kind::TimeSlice(slice)) => format!("slice/{}", show_mebibytes(slice.memory_mib)),
    }
}

fn spread_words(spread: &v1::Spread) -> String {
    let most = spread.tasks_max.unwrap_or(1);
    let how = if spread.required { "at most" } else { "preferably" };
    format!("{how} {most} on each {}", spread.level)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn selector_words(selector: &str, class: &str) -> String {
    if class.is_empty() { selector.to_owned() } else { format!("{selector} (device class {class})") }
}

fn movable_words(movable: &v1::Movable) -> String {
    let restart = show_seconds(movable.restart_s.unwrap_or_default());
    match movable.checkpoint_every_s {
        Some(every) => format!("a move loses at most {} and {restart} to start", show_seconds(every)),
        None => format!("a move loses all since its start and {restart} to start"),
    }
}

fn clipped(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= REASON_CHARS {
        return line.to_owned();
    }
    line.chars().take(REASON_CHARS - 1).chain(['…']).collect()
}

/// The list, as squeue's reader expects it.
#[must_use]
pub fn table(jobs: &[JobView], wide: bool) -> Vec<Block> {
    let narrow = ["JOBID", "TENANT", "NAME", "STATE", "GPUS", "NODES", "TIME", "REASON"];
    let more = ["MODEL", "TASKS", "ATTEMPT", "CELL", "SUBMITTED", "WAITED"];
    let heads: Vec<&'static str> = if wide { narrow.iter().chain(&more).copied().collect() } else { narrow.to_vec() };
    let mut columns =
        Columns::new(&heads).right(&["JOBID", "GPUS", "NODES", "TIME", "TASKS", "ATTEMPT", "CELL", "WAITED"]);
    for job in jobs {
        let mut row = vec![
            job.id.to_string(),
            job.tenant.clone(),
            job.name.clone(),
            job.state.to_owned(),
            job.gpus_words(),
            job.nodes.to_string(),
            show_seconds(job.ran_s),
            clipped(&job.reason),
        ];
        if wide {
            row.extend([
                if job.models.is_empty() { "any".to_owned() } else { job.models.join(",") },
                job.tasks.to_string(),
                job.attempt.to_string(),
                job.cell.map_or_else(|| "-".to_owned(), |cell| cell.to_string()),
                job.submitted.clone(),
                show_seconds(job.waited_s),
            ]);
        }
        columns.row(row);
    }
    vec![columns.block()]
}

/// One task of a job.
#[derive(Clone, Debug, Serialize)]
pub struct TaskView {
    /// Its place in the gang.
    pub rank: usize,
    /// Its host.
    pub node: String,
    /// The cards it holds, and how: `0,1,2,3`, `2 (1g.10gb at 3)`.
    pub gpus: String,
    /// pending, running, exited 0 ...
    pub state: String,
}

/// A job with its tasks.
#[derive(Clone, Debug, Serialize)]
pub struct JobDetail {
    /// The job.
    #[serde(flatten)]
    pub job: JobView,
    /// Its tasks, when it holds devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<TaskView>,
    /// The state of the cluster it was read at.
    pub revision: u64,
}

impl JobDetail {
    /// From the reply.
    #[must_use]
    pub fn new(reply: &v1::GetJobReply, now_ms: u64) -> Self {
        let job = reply.job.clone().unwrap_or_default();
        let names: BTreeMap<u32, &String> = job.nodes.iter().copied().zip(&reply.node_names).collect();
        let placed = reply.allocation.as_ref();
        let task = |(rank, placement): (usize, &v1::TaskPlacement)| TaskView {
            rank,
            node: names.get(&placement.node).map_or_else(|| format!("node {}", placement.node), |name| (*name).clone()),
            gpus: holds_words(&placement.devices),
            state: placed
                .and_then(|allocation| allocation.task_states.get(rank))
                .map(task_state_words)
                .unwrap_or_default(),
        };
        let placement = placed.map(|allocation| allocation.tasks.iter().enumerate().map(task).collect());
        JobDetail {
            job: JobView::new(&job, now_ms),
            placement: placement.unwrap_or_default(),
            revision: reply.revision,
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> Vec<Block> {
        let job = &self.job;
        let models = if job.models.is_empty() { "any model".to_owned() } else { job.models.join(" or ") };
        let mut lines = vec![
            ("job", job.id.to_string()),
            ("tenant", job.tenant.clone()),
            ("name", job.name.clone()),
            ("state", job.state.to_owned()),
            ("reason", job.reason.clone()),
            ("tasks", job.tasks.to_string()),
            (
                "each",
                format!(
                    "{} gpu ({models}), {} cpus, {}",
                    job.devices,
                    show_cpus(job.cpu_milli),
                    show_mebibytes(job.memory_mib)
                ),
            ),
            ("selector", job.selector.clone()),
            ("chosen", job.chosen.clone()),
            ("movable", job.movable.clone()),
            ("topology", job.topology.clone()),
            ("segments", if job.segment == 0 { String::new() } else { format!("of {} tasks", job.segment) }),
            ("spread", job.spread.clone()),
            ("numa", job.numa.clone()),
            ("driver", if job.driver_min.is_empty() { String::new() } else { format!("{} or newer", job.driver_min) }),
            ("attempt", format!("{} ({} failed)", job.attempt, job.failures)),
            ("cell", job.cell.map(|cell| cell.to_string()).unwrap_or_default()),
            ("submitted", job.submitted.clone()),
            ("waited", show_seconds(job.waited_s)),
            ("starts by", job.starts_by.clone().unwrap_or_default()),
            ("started", job.started.clone().unwrap_or_default()),
            ("ran", job.started.as_ref().map(|_| show_seconds(job.ran_s)).unwrap_or_default()),
            ("limit", job.time_limit_s.map(show_seconds).unwrap_or_default()),
            ("finished", job.finished.clone().unwrap_or_default()),
            ("command", job.command.join(" ")),
        ];
        lines.extend(job.env.iter().map(|(name, value)| ("env", format!("{name}={value}"))));
        lines.retain(|(_, value)| !value.is_empty());
        let text: Vec<String> = lines.iter().map(|(key, value)| format!("{key:<10} {value}")).collect();
        let mut blocks = vec![Block::Text(text.join("\n"))];
        if !self.placement.is_empty() {
            let mut columns = Columns::new(&["RANK", "NODE", "GPUS", "STATE"]).right(&["RANK"]);
            for task in &self.placement {
                columns.row(vec![task.rank.to_string(), task.node.clone(), task.gpus.clone(), task.state.clone()]);
            }
            blocks.push(Block::Text(String::new()));
            blocks.push(columns.block());
        }
        blocks
    }
}

fn holds_words(holds: &[v1::DeviceHold]) -> String {
    use v1::device_hold::Mode;
    let one = |hold: &v1::DeviceHold| match &hold.mode {
        Some(Mode::Mig(mig)) => format!("{} (mig {} at {})", hold.gpu, mig.shape, mig.start),
        Some(Mode::Mps(mps)) => format!("{} (mps {}%, {})", hold.gpu, mps.percent, show_mebibytes(mps.memory_mib)),
        Some(Mode::TimeSlice(slice)) => format!("{} (time-slice, {})", hold.gpu, show_mebibytes(slice.memory_mib)),
        _ => hold.gpu.to_string(),
    };
    if holds.is_empty() { "-".to_owned() } else { holds.iter().map(one).collect::<Vec<_>>().join(",") }
}

fn task_state_words(state: &v1::TaskState) -> String {
    use v1::task_state::Kind;
    match state.kind() {
        Kind::Unspecified => "unknown".to_owned(),
        Kind::Pending => "pending".to_owned(),
        Kind::Running => "running".to_owned(),
        Kind::Exited => format!("exited {}", state.code),
        Kind::Stopped => "stopped".to_owned(),
        Kind::TimedOut => "timeout".to_owned(),
        Kind::StartFailed => format!("could not start: {}", state.reason),
        Kind::Fenced => "fenced".to_owned(),
    }
}
