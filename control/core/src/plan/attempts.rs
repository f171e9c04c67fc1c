//! The life of an attempt after its binding: what reports, fences and cancellations make of it.
//!
//! What must stay true: devices are released only when no task of the attempt is left anywhere, so the next attempt cannot
//! overlap it (laws 5 and 6); what is over stays over, so a report that comes twice or late decides nothing; the gang ends whole
//! (law 2). A preempted attempt, and one that somebody wants queued again, leads back to the queue with its place there, whatever its
//! tasks exit with, and uses up no retry; only what ended by itself before the stop reached it is over.

use super::{claims, clean_ups, growth, level, run_times, starts};
use crate::bounds::{START_FAULTS_FORGIVEN_AFTER_MS, START_FAULTS_PER_JOB_MAX};
use crate::draft::Draft;
use crate::routing::{Router, models_of};
use muster_model::attempt::{self, AttemptRecord, FAILURE_REASON_BYTES_MAX, PreemptedBy};
use muster_model::elastic::{GROWTH_ENDS_MAX, GROWTH_REASON_BYTES_MAX, GrowthEnd};
use muster_model::ids::{AllocationId, JobId, NodeId, Rank};
use muster_model::object::Key;
use muster_model::task::{RankFailure, TaskEnd};
use muster_model::usage::{AllocationUsage, HeldRecord};
use muster_model::validate::clipped;
use muster_model::{Allocation, AllocationState, EndCause, Job, JobPhase, Object, Outcome, PreemptReason, TaskState};

/// Takes over what was seen of one task, which was over at `ended_ms` by its node's clock if it is. Says whether that changed
/// anything; [`settle`] is due then.
pub(super) fn observe(
    draft: &mut Draft<'_>,
    id: AllocationId,
    rank: Rank,
    seen: &TaskState,
    ended_ms: Option<u64>,
) -> bool {
    let Some(held) = draft.allocation(id) else { return false };
    let Some(before) = held.task_states.get(rank.0 as usize) else { return false };
    if before.is_over() || before == seen || *seen == TaskState::Pending {
        return false;
    }
    let (node, before) = (held.tasks[rank.0 as usize].node, before.clone());
    let cause = match held.state {
        AllocationState::Active => cause_of(seen, rank, node),
        AllocationState::Stopping(_) => None,
    };
    starts::note(draft, id, node, &before, seen);
    let now_ms = draft.now_ms;
    if let Some(held) = draft.allocation_mut(id) {
        // A node's clock may be off: it did not happen before the binding, nor later than now.
        let at_ms = ended_ms.unwrap_or(now_ms).min(now_ms).max(held.bound_ms);
        held.task_states[rank.0 as usize] = seen.clone();
        if let Some(end) = TaskEnd::of(seen).filter(|end| end.is_failure()) {
            let reason = reason_of(seen);
            attempt::note_failure(&mut held.failures, RankFailure { rank, node, end, reason, at_ms });
        }
    }
    if let Some(cause) = cause {
        stop(draft, id, cause);
    }
    true
}

/// What a node says of a failure, cut to its bound.
fn reason_of(seen: &TaskState) -> String {
    let (TaskState::StartFailed { reason, .. }
    | TaskState::DeviceFault { reason, .. }
    | TaskState::OverShare { reason }
    | TaskState::OutOfMemory { reason }) = seen
    else {
        return String::new();
    };
    clipped(reason.clone(), FAILURE_REASON_BYTES_MAX)
}

/// Why an attempt cannot go on after `seen`, if it cannot.
fn cause_of(seen: &TaskState, rank: Rank, node: NodeId) -> Option<EndCause> {
    match seen {
        TaskState::Pending | TaskState::Running | TaskState::Exited { code: 0 } => None,
        TaskState::Exited { code } => Some(EndCause::RankFailed { rank, code: Some(*code) }),
        // As a shell says it.
        TaskState::Signaled { signal } => Some(EndCause::RankFailed { rank, code: Some(128 + signal) }),
        TaskState::StartFailed { .. }
        | TaskState::DeviceFault { .. }
        | TaskState::OverShare { .. }
        | TaskState::OutOfMemory { .. } => Some(EndCause::RankFailed { rank, code: None }),
        TaskState::TimedOut => Some(EndCause::TimeLimit),
        // Stopped though nobody asked: the agent lost it, which is not the job's failure.
        TaskState::Fenced | TaskState::Stopped => Some(EndCause::NodeLost { node }),
    }
}

/// Begins to stop an attempt that is still meant to run.
pub(super) fn stop(draft: &mut Draft<'_>, id: AllocationId, cause: EndCause) {
    if draft.allocation(id).is_some_and(|held| held.is_growth) {
        return growth::stop_part(draft, id, cause);
    }
    let Some(held) = draft.allocation_mut(id) else { return };
    held.state = AllocationState::Stopping(cause.clone());
    let job = held.job;
    growth::stop_all(draft, job, &cause);
    if let Some(job) = draft.job_mut(job) {
        job.phase = JobPhase::Stopping(id);
    }
}

/// Draws the conclusion from an attempt's task states: running, over, or neither.
pub(super) fn settle(draft: &mut Draft<'_>, id: AllocationId) {
    let Some(held) = draft.allocation(id) else { return };
    let job = held.job;
    if held.is_growth {
        if held.is_over() {
            close_part(draft, id);
        }
    } else if held.has_ended() {
        let (is_over, is_active) = (held.is_over(), held.state == AllocationState::Active);
        growth::stop_all(draft, job, &EndCause::Shrunk { by: None });
        // Its parts are of the same attempt: the next one waits for them too.
        if is_over && growth::parts_of(draft, job).is_empty() {
            return close(draft, id);
        }
        if !is_over && is_active {
            stop(draft, id, EndCause::Completed);
        }
        if let Some(job) = draft.job_mut(job) {
            // Its work is done: nobody is to be started for it any more.
            job.growth.ends = job.growth.ends.max(GROWTH_ENDS_MAX);
        }
    } else if held.state == AllocationState::Active && !held.task_states.contains(&TaskState::Pending) {
        let starting = draft.job(job).is_some_and(|job| matches!(job.phase, JobPhase::Starting(_)));
        let now_ms = draft.now_ms;
        if starting && let Some(job) = draft.job_mut(job) {
            job.phase = JobPhase::Running(id);
            job.started_ms = Some(now_ms);
        }
    }
}

/// The last task is gone: the devices are released, and the job is over or waits again.
fn close(draft: &mut Draft<'_>, id: AllocationId) {
    let Some(held) = draft.allocation(id).cloned() else { return };
    let job = draft.job(held.job);
    let preempted = job.and_then(|job| preempted_by(draft, &held, job.checkpoint_ms));
    draft.delete(Key::Allocation(id));
    claims::victim_ended(draft, &held);
    keep_usage(draft, &held);
    let verdict = verdict(draft, &held);
    let (now_ms, reason) = (draft.now_ms, verdict.reason());
    let keeps_each_end = level::has(draft.state, level::ENROLMENT);
    if let Some(job) = draft.job_mut(held.job) {
        job.failures += u32::from(verdict.blame == Blame::Job);
        job.start_faults = start_faults(job, &held, now_ms) + u32::from(verdict.blame == Blame::Start);
        job.preemptions += u32::from(verdict.blame == Blame::Preemption);
        let preempted_others = job.preemptor.attempt == Some(held.attempt);
        job.preemptor.failures += u32::from(verdict.blame == Blame::Job && preempted_others);
        let preempted = preempted.filter(|_| matches!(verdict.blame, Blame::Preemption | Blame::Window));
        let mut record = AttemptRecord { preempted, ..AttemptRecord::of(&held, job.started_ms, now_ms, reason) };
        if !keeps_each_end {
            record.end_runs.clear();
        }
        attempt::note_attempt(&mut job.attempts, record);
    }
    if verdict.is_own_end() {
        run_times::note(draft, &held);
    }
    match verdict.then {
        Then::Over(outcome) => draft.retire(held.job, outcome),
        Then::Again(reason) => {
            requeue(draft, held.job, reason);
            claims::moved_ended(draft, &held);
        }
    }
}

/// The last task of a part is gone: its devices are released, and the attempt ends if it only waited for that.
fn close_part(draft: &mut Draft<'_>, id: AllocationId) {
    let Some(part) = draft.allocation(id).cloned() else { return };
    let by_itself = match &part.state {
        AllocationState::Active => Some(String::new()),
        AllocationState::Stopping(EndCause::RankFailed { rank, .. }) => Some(why_failed(draft, &part, *rank)),
        AllocationState::Stopping(EndCause::TimeLimit) => Some("time limit".to_owned()),
        AllocationState::Stopping(_) => None,
    };
    if part.state == AllocationState::Active {
        growth::stop_part(draft, id, EndCause::Shrunk { by: None });
    }
    draft.delete(Key::Allocation(id));
    claims::victim_ended(draft, &part);
    keep_usage(draft, &part);
    let Some(job) = draft.job_mut(part.job) else { return };
    job.growth.parts.remove(&id);
    if let Some(reason) = by_itself {
        job.growth.ends += 1;
        let reason = clipped(reason, GROWTH_REASON_BYTES_MAX);
        job.growth.last_end = Some(GrowthEnd { allocation: id, reason });
    }
    let minimum = job.phase.allocation().filter(|_| job.growth.parts.is_empty());
    if let Some(minimum) = minimum.filter(|minimum| draft.allocation(*minimum).is_some_and(Allocation::is_over)) {
        settle(draft, minimum);
    }
}

/// Keeps what was reported of an allocation that is released now, for intervals that come late.
fn keep_usage(draft: &mut Draft<'_>, held: &Allocation) {
    let reported = draft.state.allocation_usage.get(&held.id).cloned().unwrap_or_default();
    let kept = AllocationUsage {
        allocation: held.id,
        tenant: held.tenant,
        released_ms: Some(draft.now_ms),
        held: kept_of(draft, held),
        ..reported
    };
    draft.put(Object::AllocationUsage(kept));
}

/// What stays known of an allocation that is released.
fn kept_of(draft: &Draft<'_>, held: &Allocation) -> Option<Box<HeldRecord>> {
    level::has(draft.state, level::QUOTAS).then(|| Box::new(HeldRecord::of(held)))
}

/// Who took the devices of an attempt, and what that costs its job.
fn preempted_by(draft: &Draft<'_>, held: &Allocation, checkpoint_ms: Option<u64>) -> Option<PreemptedBy> {
    let (by, reason) = match &held.state {
        AllocationState::Stopping(EndCause::Preempted { by, reason }) => (*by, *reason),
        AllocationState::Stopping(EndCause::Window { kind, .. }) => (None, PreemptReason::from(*kind)),
        _ => return None,
    };
    let job = by.and_then(|by| draft.job(by));
    let saved_ms = checkpoint_ms.unwrap_or(0).max(held.bound_ms);
    Some(PreemptedBy {
        job: by,
        tenant: job.map(|job| job.tenant),
        account: job.and_then(|job| job.claim.as_ref()?.account),
        reason,
        lost_gpu_unit_ms: held.charge.gpu_total().0.saturating_mul(draft.now_ms.saturating_sub(saved_ms)),
    })
}

/// Why an attempt ended that somebody wanted queued again.
const ON_REQUEST: &str = "requeued on request";

/// What becomes of a job after an attempt, and who is to blame for the attempt's end.
struct Verdict {
    then: Then,
    blame: Blame,
}

enum Then {
    Over(Outcome),
    Again(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Blame {
    /// Nobody, or a node that was lost.
    Nobody,
    /// The job's own tasks.
    Job,
    /// A node that could not start a task.
    Start,
    /// Whoever needed its devices.
    Preemption,
    /// A window of its nodes: it is not one preemption more of those that are bounded.
    Window,
}

impl Verdict {
    /// Whether its tasks, and nobody else, ended the attempt.
    fn is_own_end(&self) -> bool {
        match &self.then {
            Then::Over(Outcome::Completed | Outcome::TimedOut) => true,
            Then::Over(Outcome::Failed { .. }) | Then::Again(_) => self.blame == Blame::Job,
            Then::Over(_) => false,
        }
    }

    /// Why the attempt ended, for people; empty when nothing was wrong.
    fn reason(&self) -> String {
        match &self.then {
            Then::Over(Outcome::Failed { reason }) | Then::Again(reason) => reason.clone(),
            Then::Over(Outcome::Completed) => String::new(),
            Then::Over(outcome) => outcome.word().to_owned(),
        }
    }
}

fn verdict(draft: &Draft<'_>, held: &Allocation) -> Verdict {
    let over = |outcome| Verdict { then: Then::Over(outcome), blame: Blame::Nobody };
    let again = |reason, blame| Verdict { then: Then::Again(reason), blame };
    let AllocationState::Stopping(cause) = &held.state else { return over(Outcome::Completed) };
    let Some(job) = draft.job(held.job) else { return over(Outcome::Cancelled) };
    // Its work was done when it was asked.
    if *cause == EndCause::Completed {
        return over(Outcome::Completed);
    }
    if job.cancelled {
        return over(Outcome::Cancelled);
    }
    if job.requeue_asked {
        let preempted = matches!(cause, EndCause::Preempted { .. });
        return again(ON_REQUEST.to_owned(), if preempted { Blame::Preemption } else { Blame::Nobody });
    }
    match cause {
        EndCause::Cancelled => over(Outcome::Cancelled),
        EndCause::TimeLimit => over(Outcome::TimedOut),
        EndCause::Requeued => again(ON_REQUEST.to_owned(), Blame::Nobody),
        EndCause::Preempted { by, reason } => match ended_before_the_stop(held) {
            Some(outcome) => over(outcome),
            None => again(why_preempted(*by, *reason), Blame::Preemption),
        },
        EndCause::Window { name, kind } => match ended_before_the_stop(held) {
            Some(outcome) => over(outcome),
            None => {
                again(format!("preempted ({}): {kind} {name} of its nodes", PreemptReason::from(*kind)), Blame::Window)
            }
        },
        EndCause::Deadline => over(Outcome::DeadlineMissed),
        EndCause::Shrunk { .. } | EndCause::Completed => over(Outcome::Completed),
        EndCause::NodeLost { node } => again(format!("lost node {}", node_name(draft, *node)), Blame::Nobody),
        EndCause::RankFailed { rank, .. } => {
            // Ranks fail when a neighbour's node dies, long before its fence has passed: the loss is the cause then.
            if let Some(lost) = held.task_states.iter().position(|state| *state == TaskState::Fenced) {
                let node = node_name(draft, held.tasks[lost].node);
                return again(format!("lost node {node}"), Blame::Nobody);
            }
            // What was heard of first need not have happened first: by the nodes' clocks another rank may have taken this one along. Ranks fail
            // when a neighbour's card does, too, while that neighbour still has its grace.
            let faulty = held.task_states.iter().position(is_of_the_card).map(|index| Rank(index as u32));
            let rank = faulty.or(held.failures.first().map(|first| first.rank)).unwrap_or(*rank);
            let reason = why_failed(draft, held, rank);
            let state = held.task_states.get(rank.0 as usize);
            let by_node = state.is_some_and(|state| {
                is_of_the_card(state) || matches!(state, TaskState::StartFailed { by_node: true, .. })
            });
            let (blame, may_again) = if by_node {
                (Blame::Start, start_faults(job, held, draft.now_ms) < START_FAULTS_PER_JOB_MAX)
            } else {
                (Blame::Job, job.failures < job.spec.max_retries)
            };
            match may_again {
                true => again(reason, blame),
                false => Verdict { then: Then::Over(Outcome::Failed { reason }), blame },
            }
        }
    }
}

/// Attempts that nodes have spoilt since one lasted: a job that runs for months meets faults of cards, and each one is a new one.
fn start_faults(job: &Job, held: &Allocation, now_ms: u64) -> u32 {
    if now_ms.saturating_sub(held.bound_ms) >= START_FAULTS_FORGIVEN_AFTER_MS { 0 } else { job.start_faults }
}

/// Whether a rank ended by a fault for which its card is to blame.
fn is_of_the_card(state: &TaskState) -> bool {
    matches!(state, TaskState::DeviceFault { by_job: false, .. })
}

/// What a preempted attempt came to by itself before any signal had reached it. A task that ends after the signal counts as stopped
/// whatever its exit code is ([`TaskState::Stopped`]), so that a job which saves its work and exits with 0 is not taken for one that
/// has completed.
fn ended_before_the_stop(held: &Allocation) -> Option<Outcome> {
    if held.task_states.contains(&TaskState::TimedOut) {
        return Some(Outcome::TimedOut);
    }
    let completed = held.task_states.iter().all(|state| *state == TaskState::Exited { code: 0 });
    completed.then_some(Outcome::Completed)
}

fn why_preempted(by: Option<JobId>, reason: PreemptReason) -> String {
    match by {
        Some(by) => format!("preempted by job {by} ({reason})"),
        None => format!("preempted ({reason})"),
    }
}

/// What the rank that ended the attempt came to, for people.
fn why_failed(draft: &Draft<'_>, held: &Allocation, rank: Rank) -> String {
    let index = rank.0 as usize;
    let node = held.tasks.get(index).map(|task| node_name(draft, task.node)).unwrap_or_default();
    match held.task_states.get(index) {
        Some(TaskState::Exited { code }) => format!("rank {rank} exited with {code} on {node}"),
        Some(state @ TaskState::Signaled { .. }) => {
            let by = TaskEnd::of(state).map(|end| end.to_string()).unwrap_or_default();
            format!("rank {rank} was ended by {by} on {node}")
        }
        Some(TaskState::StartFailed { reason, .. }) => format!("rank {rank} could not start on {node}: {reason}"),
        Some(TaskState::DeviceFault { reason, .. }) => {
            format!("rank {rank} was ended by a GPU fault on {node}: {reason}")
        }
        Some(TaskState::OverShare { reason }) => {
            format!("rank {rank} was ended for taking more than its share of a GPU on {node}: {reason}")
        }
        Some(TaskState::OutOfMemory { reason }) => format!("rank {rank} ran out of memory on {node}: {reason}"),
        _ => format!("rank {rank} failed on {node}"),
    }
}

fn node_name(draft: &Draft<'_>, node: NodeId) -> String {
    draft.state.nodes.get(&node).map_or_else(|| format!("node {node}"), |node| node.spec.name.clone())
}

/// Back to the queue, with its id and its age, to whichever cell suits it now.
fn requeue(draft: &mut Draft<'_>, id: JobId, reason: String) {
    let Some(spec) = draft.job(id).map(|job| job.spec.clone()) else { return };
    let cell = Router::new(draft.state).route(&spec, &models_of(&spec));
    let now_ms = draft.now_ms;
    if let Some(job) = draft.job_mut(id) {
        job.phase = JobPhase::Queued;
        job.visited.clear();
        job.cell = cell;
        job.routed_ms = now_ms;
        job.requeue_reason = Some(reason);
        job.requeue_asked = false;
    }
}

/// Every task of `node` that is not over yet is dead by its shim's deadline, or by a reboot.
pub(super) fn fence_tasks(draft: &mut Draft<'_>, node: NodeId) {
    lose_tasks(draft, node, |_, _| false);
}

/// Every task of `node` is gone, but for those that are still there; nobody says any more how they ended.
pub(super) fn lose_tasks(draft: &mut Draft<'_>, node: NodeId, is_there: impl Fn(AllocationId, Rank) -> bool) {
    let state = draft.state;
    for id in state.index().allocations_on(node) {
        let ranks = draft.allocation(id).map(|held| held.ranks_on(node).filter(|rank| !is_there(id, *rank)).collect());
        let ranks: Vec<Rank> = ranks.unwrap_or_default();
        let mut changed = false;
        for rank in &ranks {
            changed |= observe(draft, id, *rank, &TaskState::Fenced, None);
        }
        changed |= clean_ups::give_up(draft, id, &ranks);
        if changed {
            settle(draft, id);
        }
    }
}

#[cfg(test)]
mod tests;
