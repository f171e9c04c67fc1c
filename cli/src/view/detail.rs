//! One job with everything that was asked for it, where it runs or ran, and its tasks.

use crate::output::{Block, Columns};
use crate::units::{counted, show_cpus, show_mebibytes, show_seconds};
use crate::view::attempt::{AttemptView, EndView, RequiredView, attempts_table, signal_words};
use crate::view::devices::{HoldView, holds_words};
use crate::view::elastic::ElasticView;
use crate::view::job::{ArrayView, JobView, MovableView, NeedsView, PreemptionView, SpreadView};
use crate::view::quota_class::QuotaSegment;
use muster_proto::v1;
use serde::Serialize;
use std::collections::BTreeMap;

/// Nodes that are named in one line; `-o json` has all of them.
const NODES_SHOWN_MAX: usize = 16;

/// One task of a job.
#[derive(Clone, Debug, Serialize)]
pub struct TaskView {
    /// Its place in the gang.
    pub rank: usize,
    /// Its host.
    pub node: String,
    /// The cards it holds, and how.
    pub gpus: Vec<HoldView>,
    /// pending, running, exit code 0 ...
    pub state: String,
    /// How it ended, if it has.
    #[serde(flatten)]
    pub end: Option<EndView>,
    /// What its node says of that; empty for an exit code or a signal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl TaskView {
    /// `said` comes behind the words for its state.
    fn new(rank: usize, node: String, gpus: Vec<HoldView>, state: Option<&v1::TaskState>, said: &str) -> Self {
        TaskView {
            rank,
            node,
            gpus,
            state: state.map(|state| format!("{}{said}", task_state_words(state))).unwrap_or_default(),
            end: state.and_then(EndView::of_task),
            reason: state.map(|state| state.reason.clone()).unwrap_or_default(),
        }
    }
}

/// A job with its tasks.
#[derive(Clone, Debug, Serialize)]
pub struct JobDetail {
    /// The job.
    #[serde(flatten)]
    pub job: JobView,
    /// Where its present or last attempt runs or ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ran_on: Vec<NodeRanks>,
    /// Its tasks, when it holds devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<TaskView>,
    /// How its attempts ended, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptView>,
    /// Who pays for what it holds, since when, oldest first; when it holds nothing, who paid for its last attempt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota_history: Vec<QuotaSegment>,
    /// How close together its tasks were required to stand when what it holds was bound.
    #[serde(flatten)]
    pub required: RequiredView,
    /// The allocation that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<u64>,
    /// The state of the cluster it was read at.
    pub revision: u64,
}

/// A node and the ranks that run or ran there.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRanks {
    /// Its name.
    pub node: String,
    /// First and last rank of each run of ranks.
    pub ranks: Vec<(usize, usize)>,
}

impl NodeRanks {
    /// Node by node in the order of their first ranks.
    fn of(job: &v1::Job, names: &[String]) -> Vec<NodeRanks> {
        let mut found: Vec<NodeRanks> = Vec::new();
        let mut place: BTreeMap<u32, usize> = BTreeMap::new();
        for (rank, id) in job.nodes.iter().enumerate() {
            let at = *place.entry(*id).or_insert_with(|| {
                let node = names.get(rank).cloned().unwrap_or_else(|| format!("#{id}"));
                found.push(NodeRanks { node, ranks: Vec::new() });
                found.len() - 1
            });
            match found[at].ranks.last_mut() {
                Some((_, last)) if *last + 1 == rank => *last = rank,
                _ => found[at].ranks.push((rank, rank)),
            }
        }
        found
    }

    /// `node-0001 (0-3)`.
    fn words(&self) -> String {
        let run =
            |(first, last): &(usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
        format!("{} ({})", self.node, self.ranks.iter().map(run).collect::<Vec<_>>().join(","))
    }
}

impl JobDetail {
    /// From the reply.
    #[must_use]
    pub fn new(reply: &v1::GetJobReply, now_ms: u64) -> Self {
        let job = reply.job.clone().unwrap_or_default();
        let mut view = JobView::new(&job, now_ms).in_cell(&reply.cell_name);
        let paths = &reply.account_paths;
        let attempts: Vec<AttemptView> =
            job.attempts.iter().map(|record| AttemptView::new(record, &reply.failure_nodes, paths)).collect();
        let (quota_history, required) = match &reply.allocation {
            Some(held) => (QuotaSegment::of_allocation(held, paths), RequiredView::new(held.topology.as_ref())),
            None => attempts.last().map(|last| (last.quota_history.clone(), last.required.clone())).unwrap_or_default(),
        };
        if let Some(now) = quota_history.last().filter(|_| reply.allocation.is_some()) {
            view = view.paid_by(now.account.as_deref().unwrap_or_default());
        }
        if let Some(why) = reply.allocation.as_ref().and_then(why_stopping).filter(|_| view.reason.is_empty()) {
            view.reason = why;
        }
        if !reply.secrets_missing.is_empty() && view.reason.is_empty() {
            view.reason = format!("its tasks wait for their secrets: {}", reply.secrets_missing);
        }
        let names: BTreeMap<u32, &String> = job.nodes.iter().copied().zip(&reply.node_names).collect();
        let placed = reply.allocation.as_ref();
        let gpus = |task: &v1::TaskPlacement| -> Vec<HoldView> {
            task.devices.iter().map(|hold| HoldView::new(hold, &view.devices)).collect()
        };
        let task = |(rank, task): (usize, &v1::TaskPlacement)| {
            let node = names.get(&task.node).map_or_else(|| format!("node {}", task.node), |name| (*name).clone());
            let state = placed.and_then(|allocation| allocation.task_states.get(rank));
            TaskView::new(rank, node, gpus(task), state, "")
        };
        let placement = placed.map(|allocation| allocation.tasks.iter().enumerate().map(task).collect());
        let mut placement: Vec<TaskView> = placement.unwrap_or_default();
        for part in &reply.growth {
            for (task, state) in part.tasks.iter().zip(&part.task_states) {
                let name = reply.growth_nodes.get(&task.node).cloned();
                let node = name.unwrap_or_else(|| format!("node {}", task.node));
                placement.push(TaskView::new(placement.len(), node, gpus(task), Some(state), ", growth"));
            }
        }
        JobDetail {
            ran_on: NodeRanks::of(&job, &reply.node_names),
            attempts,
            required,
            job: view,
            placement,
            quota_history,
            allocation: placed.map(|allocation| allocation.id),
            revision: reply.revision,
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> Vec<Block> {
        let mut lines = self.stands();
        lines.extend(self.asked());
        lines.retain(|(_, value)| !value.is_empty());
        let text: Vec<String> = lines.iter().map(|(key, value)| format!("{key:<10} {value}")).collect();
        let mut blocks = vec![Block::Text(text.join("\n"))];
        if !self.placement.is_empty() {
            let mut columns = Columns::new(&["RANK", "NODE", "GPUS", "STATE"]).right(&["RANK"]);
            for task in &self.placement {
                let gpus = holds_words(&task.gpus);
                columns.row(vec![task.rank.to_string(), task.node.clone(), gpus, task.state.clone()]);
            }
            blocks.push(Block::Text(String::new()));
            blocks.push(columns.block());
        }
        if !self.attempts.is_empty() {
            blocks.extend(attempts_table(&self.attempts));
        }
        blocks
    }

    /// Where it stands, and where it ran.
    fn stands(&self) -> Vec<(&'static str, String)> {
        let job = &self.job;
        let retries = if job.retries_max > 0 { format!(" of {} allowed", job.retries_max) } else { String::new() };
        let made = |at: &String| {
            if job.checkpoint_note.is_empty() { at.clone() } else { format!("{at} ({})", job.checkpoint_note) }
        };
        let checkpoint = job.checkpoint.as_ref().map(made).unwrap_or_default();
        let preempted = if job.preemptions > 0 { format!(", {} preempted", job.preemptions) } else { String::new() };
        let mut on: Vec<String> = self.ran_on.iter().take(NODES_SHOWN_MAX).map(NodeRanks::words).collect();
        if self.ran_on.len() > NODES_SHOWN_MAX {
            on.push(format!("and {} more nodes", self.ran_on.len() - NODES_SHOWN_MAX));
        }
        let runs = matches!(job.state, "starting" | "running" | "completing");
        vec![
            ("job", job.id.to_string()),
            ("name", job.name.clone()),
            ("tenant", job.tenant.clone()),
            ("user", job.user.clone()),
            ("comment", job.comment.clone()),
            ("state", job.state.to_owned()),
            ("reason", job.reason.clone()),
            ("submitted", job.submitted.clone()),
            ("waited", show_seconds(job.waited_s)),
            ("starts by", job.starts_by.clone().unwrap_or_default()),
            ("started", job.started.clone().unwrap_or_default()),
            ("ran", job.started.as_ref().map(|_| show_seconds(job.ran_s)).unwrap_or_default()),
            ("finished", job.finished.clone().unwrap_or_default()),
            ("attempt", format!("{} ({} failed{retries}{preempted})", job.attempt, job.failures)),
            ("checkpoint", checkpoint),
            ("cell", job.cell.clone()),
            ("quota", self.quota_words()),
            (if runs { "runs on" } else { "ran on" }, on.join(", ")),
        ]
    }

    /// Who pays or paid, the newest first.
    fn quota_words(&self) -> String {
        let said = self.quota_history.iter().rev().map(QuotaSegment::words).collect::<Vec<_>>().join("; before: ");
        let ended = self.attempts.last().filter(|_| self.allocation.is_none() && !said.is_empty());
        match ended {
            Some(last) => format!("until {}: {said}", last.ended),
            None => said,
        }
    }

    /// What was asked for.
    fn asked(&self) -> Vec<(&'static str, String)> {
        let job = &self.job;
        let if_any = |text: &str, said: String| if text.is_empty() { String::new() } else { said };
        let models = if_any(&job.models.join(""), format!(" ({})", job.models.join(" or ")));
        let gpu_memory = job.gpu_memory_mib.map(|mib| format!(" with {} each at least", show_mebibytes(mib)));
        let mut each = vec![format!("{}{models}{}", job.devices.words(), gpu_memory.unwrap_or_default())];
        // What is not asked for is not guaranteed, and "0 CPUs" would read as if none could be used.
        each.extend((job.cpu_milli > 0).then(|| cpus_words(job.cpu_milli)));
        each.extend((job.memory_mib > 0).then(|| format!("{} of memory", show_mebibytes(job.memory_mib))));
        let class = if_any(&job.device_class, format!(" (device class {})", job.device_class));
        let prefer = if_any(&job.prefer, format!("preferably inside one {}", job.prefer));
        let inside = if_any(&job.topology, format!("inside one {}", job.topology));
        let close = [inside, prefer].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        let segments =
            if job.segment == 0 { String::new() } else { format!("of {}", counted(job.segment as usize, "task")) };
        let time = |seconds: Option<u64>| seconds.map(show_seconds).unwrap_or_default();
        let mut lines = vec![
            ("tasks", job.elastic.as_ref().map_or_else(|| job.tasks.to_string(), ElasticView::words)),
            ("each", each.join(", ")),
            ("needs", job.needs.as_ref().map(NeedsView::words).unwrap_or_default()),
            ("chosen", job.chosen.clone()),
            ("selector", if_any(&job.selector, format!("{}{class}", job.selector))),
            ("driver", if_any(&job.driver_min, format!("{} or newer", job.driver_min))),
            ("topology", close),
            ("segments", segments),
            ("spread", job.spread.as_ref().map(SpreadView::words).unwrap_or_default()),
            ("numa", job.numa.clone()),
            ("pool", job.pool.clone()),
            ("class", job.class.clone()),
            ("priority", priority_words(job)),
            ("reservation", job.reservation.clone()),
            ("movable", job.movable.as_ref().map(MovableView::words).unwrap_or_default()),
            ("preemption", job.preemption.as_ref().map(PreemptionView::words).unwrap_or_default()),
            ("array", job.array.as_ref().map(ArrayView::words).unwrap_or_default()),
            (
                "task",
                match (job.array_id, job.array_index) {
                    (Some(array), Some(index)) => format!("{index} of array {array}"),
                    _ => String::new(),
                },
            ),
            ("begin", job.begin.clone().unwrap_or_default()),
            ("deadline", job.deadline.clone().unwrap_or_default()),
            ("depends on", job.dependencies.join(", ")),
            ("limit", time(job.time_limit_s)),
            ("signal", job.limit_signal.clone().unwrap_or_default()),
            ("grace", time(job.grace_s)),
            ("disconnect", time(job.disconnect_grace_s)),
            ("command", command_words(&job.command)),
            ("workdir", job.workdir.clone()),
            ("image", job.image.clone()),
            ("compute instances", job.compute_instances.map(|count| count.to_string()).unwrap_or_default()),
        ];
        lines.extend(job.mounts.iter().map(|mount| ("mount", mount.clone())));
        lines.extend(job.env.iter().map(|(name, value)| ("env", format!("{name}={value}"))));
        lines.extend(job.secret_env.iter().map(|(name, secret)| ("env", format!("{name} from secret {secret}"))));
        lines
    }
}

/// For whom the attempt is being stopped, if it is preempted.
fn why_stopping(held: &v1::Allocation) -> Option<String> {
    let preempted = match held.stopping.as_ref()?.cause.as_ref()? {
        v1::end_cause::Cause::Preempted(preempted) => preempted,
        v1::end_cause::Cause::Window(window) => return Some(format!("preempted ({} {})", window.kind, window.name)),
        _ => return None,
    };
    Some(match preempted.by {
        Some(by) => format!("preempted by job {by} ({})", preempted.reason),
        None => format!("preempted ({})", preempted.reason),
    })
}

fn cpus_words(milli: u64) -> String {
    if milli == 1_000 { "1 CPU".to_owned() } else { format!("{} CPUs", show_cpus(milli)) }
}

/// A command as a shell would read it, so that it can be copied.
fn command_words(command: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quoted = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn task_state_words(state: &v1::TaskState) -> String {
    use v1::task_state::Kind;
    match state.kind() {
        Kind::Unspecified => "unknown".to_owned(),
        Kind::Pending => "pending".to_owned(),
        Kind::Running => "running".to_owned(),
        Kind::Exited => format!("exit code {}", state.code),
        Kind::Stopped => "stopped".to_owned(),
        Kind::TimedOut => "timeout".to_owned(),
        Kind::StartFailed => format!("could not start: {}", state.reason),
        Kind::Fenced => "node lost".to_owned(),
        Kind::DeviceFault => format!("GPU fault: {}", state.reason),
        Kind::OverShare => format!("over its GPU share: {}", state.reason),
        Kind::OutOfMemory => format!("out of memory: {}", state.reason),
        Kind::Signaled => signal_words(state.code),
    }
}

fn priority_words(job: &JobView) -> String {
    let class = if job.priority_class.is_empty() { String::new() } else { format!(" (class {})", job.priority_class) };
    let barred =
        if job.may_not_preempt { "; may not preempt: attempts that preempted others failed too often" } else { "" };
    format!("{}{class}{barred}", job.priority)
}
