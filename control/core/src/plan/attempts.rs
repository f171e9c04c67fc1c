//! The life of an attempt after its binding: what reports, fences and cancellations make of it.
//!
//! What must stay true: devices are released only when no task of the attempt is left anywhere, so the next attempt cannot
//! overlap it (laws 5 and 6); what is over stays over, so a report that comes twice or late decides nothing; the gang ends whole
//! (law 2).

use crate::draft::Draft;
use crate::routing::{Router, models_of};
use muster_model::ids::{AllocationId, JobId, NodeId, Rank};
use muster_model::object::Key;
use muster_model::usage::AllocationUsage;
use muster_model::{Allocation, AllocationState, EndCause, JobPhase, Object, Outcome, TaskState};

/// Takes over what was seen of one task. Says whether that changed anything; [`settle`] is due then.
pub(super) fn observe(draft: &mut Draft<'_>, id: AllocationId, rank: Rank, seen: &TaskState) -> bool {
    let Some(held) = draft.allocation(id) else { return false };
    let Some(before) = held.task_states.get(rank.0 as usize) else { return false };
    if before.is_over() || before == seen || *seen == TaskState::Pending {
        return false;
    }
    let node = held.tasks[rank.0 as usize].node;
    let cause = match held.state {
        AllocationState::Active => cause_of(seen, rank, node),
        AllocationState::Stopping(_) => None,
    };
    if let Some(held) = draft.allocation_mut(id) {
        held.task_states[rank.0 as usize] = seen.clone();
    }
    if let Some(cause) = cause {
        stop(draft, id, cause);
    }
    true
}

/// Why an attempt cannot go on after `seen`, if it cannot.
fn cause_of(seen: &TaskState, rank: Rank, node: NodeId) -> Option<EndCause> {
    match seen {
        TaskState::Pending | TaskState::Running | TaskState::Exited { code: 0 } => None,
        TaskState::Exited { code } => Some(EndCause::RankFailed { rank, code: Some(*code) }),
        TaskState::StartFailed { .. } => Some(EndCause::RankFailed { rank, code: None }),
        TaskState::TimedOut => Some(EndCause::TimeLimit),
        // Stopped though nobody asked: the agent lost it, which is not the job's failure.
        TaskState::Fenced | TaskState::Stopped => Some(EndCause::NodeLost { node }),
    }
}

/// Begins to stop an attempt that is still meant to run.
pub(super) fn stop(draft: &mut Draft<'_>, id: AllocationId, cause: EndCause) {
    let Some(held) = draft.allocation_mut(id) else { return };
    held.state = AllocationState::Stopping(cause);
    let job = held.job;
    if let Some(job) = draft.job_mut(job) {
        job.phase = JobPhase::Stopping(id);
    }
}

/// Draws the conclusion from an attempt's task states: running, over, or neither.
pub(super) fn settle(draft: &mut Draft<'_>, id: AllocationId) {
    let Some(held) = draft.allocation(id) else { return };
    let job = held.job;
    if held.is_over() {
        close(draft, id);
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
    draft.delete(Key::Allocation(id));
    let reported = draft.state.allocation_usage.get(&id).map_or(0, |usage| usage.gpu_unit_ms);
    draft.put(Object::AllocationUsage(AllocationUsage {
        allocation: id,
        tenant: held.tenant,
        gpu_unit_ms: reported,
        released_ms: Some(draft.now_ms),
    }));
    match verdict(draft, &held) {
        Verdict::Over { outcome, failed } => {
            if failed && let Some(job) = draft.job_mut(held.job) {
                job.failures += 1;
            }
            draft.retire(held.job, outcome);
        }
        Verdict::Again { reason, failed } => requeue(draft, held.job, reason, failed),
    }
}

enum Verdict {
    Over { outcome: Outcome, failed: bool },
    Again { reason: String, failed: bool },
}

fn verdict(draft: &Draft<'_>, held: &Allocation) -> Verdict {
    let over = |outcome| Verdict::Over { outcome, failed: false };
    let AllocationState::Stopping(cause) = &held.state else { return over(Outcome::Completed) };
    let Some(job) = draft.job(held.job) else { return over(Outcome::Cancelled) };
    if job.cancelled {
        return over(Outcome::Cancelled);
    }
    match cause {
        EndCause::Cancelled => over(Outcome::Cancelled),
        EndCause::TimeLimit => over(Outcome::TimedOut),
        EndCause::NodeLost { node } => {
            Verdict::Again { reason: format!("lost node {}", node_name(draft, *node)), failed: false }
        }
        EndCause::RankFailed { rank, code } => {
            // Ranks fail when a neighbour's node dies, long before its fence has passed: the loss is the cause then.
            if let Some(lost) = held.task_states.iter().position(|state| *state == TaskState::Fenced) {
                let node = node_name(draft, held.tasks[lost].node);
                return Verdict::Again { reason: format!("lost node {node}"), failed: false };
            }
            let reason = why_failed(draft, held, *rank, *code);
            if job.failures < job.spec.max_retries {
                Verdict::Again { reason, failed: true }
            } else {
                Verdict::Over { outcome: Outcome::Failed { reason }, failed: true }
            }
        }
    }
}

fn why_failed(draft: &Draft<'_>, held: &Allocation, rank: Rank, code: Option<i32>) -> String {
    let index = rank.0 as usize;
    let node = held.tasks.get(index).map(|task| node_name(draft, task.node)).unwrap_or_default();
    match (code, held.task_states.get(index)) {
        (Some(code), _) => format!("rank {rank} exited with {code} on {node}"),
        (None, Some(TaskState::StartFailed { reason })) => format!("rank {rank} could not start on {node}: {reason}"),
        (None, _) => format!("rank {rank} could not start on {node}"),
    }
}

fn node_name(draft: &Draft<'_>, node: NodeId) -> String {
    draft.state.nodes.get(&node).map_or_else(|| format!("node {node}"), |node| node.spec.name.clone())
}

/// Back to the queue, with its id and its age, to whichever cell suits it now.
fn requeue(draft: &mut Draft<'_>, id: JobId, reason: String, failed: bool) {
    let Some(spec) = draft.job(id).map(|job| job.spec.clone()) else { return };
    let cell = Router::new(draft.state).route(&spec, &models_of(&spec));
    let now_ms = draft.now_ms;
    if let Some(job) = draft.job_mut(id) {
        job.phase = JobPhase::Queued;
        job.failures += u32::from(failed);
        job.visited.clear();
        job.cell = cell;
        job.routed_ms = now_ms;
        job.requeue_reason = Some(reason);
    }
}

/// Every task of `node` that is not over yet is dead by its shim's deadline, or by a reboot.
pub(super) fn fence_tasks(draft: &mut Draft<'_>, node: NodeId) {
    let state = draft.state;
    for id in state.index().allocations_on(node) {
        let ranks: Vec<Rank> = draft.allocation(id).map(|held| held.ranks_on(node).collect()).unwrap_or_default();
        let mut changed = false;
        for rank in ranks {
            changed |= observe(draft, id, rank, &TaskState::Fenced);
        }
        if changed {
            settle(draft, id);
        }
    }
}
