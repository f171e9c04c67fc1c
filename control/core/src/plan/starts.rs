//! Nodes that fail to start tasks: counted, and quarantined.
//!
//! What must stay true: only failures that the agent calls the node's own count, so that a misspelt command takes no node away; one
//! attempt counts once, however many of its ranks stand on the node; a start that works begins the count anew; a quarantine ends
//! when an operator lifts it and never by itself.

use crate::bounds::{START_FAILURES_JOBS_MAX, START_FAILURES_MAX};
use crate::draft::Draft;
use muster_model::ids::{AllocationId, JobId, NodeId};
use muster_model::node::Quarantine;
use muster_model::{Allocation, TaskState};
use std::collections::BTreeSet;

/// A task of `held` on `node` was `before` and is now seen as `seen`, which its state does not say yet.
pub(super) fn note(draft: &mut Draft<'_>, id: AllocationId, node: NodeId, before: &TaskState, seen: &TaskState) {
    match seen {
        TaskState::StartFailed { by_node: true, reason } => {
            let Some(held) = draft.allocation(id).filter(|held| !has_failed_on(held, node)) else { return };
            let job = held.job;
            failed(draft, node, job, reason);
        }
        TaskState::Running
        | TaskState::Exited { .. }
        | TaskState::Signaled { .. }
        | TaskState::TimedOut
        | TaskState::DeviceFault { .. }
        | TaskState::OverShare { .. }
        | TaskState::OutOfMemory { .. }
            if *before == TaskState::Pending =>
        {
            worked(draft, node);
        }
        _ => {}
    }
}

fn has_failed_on(held: &Allocation, node: NodeId) -> bool {
    held.ranks_on(node)
        .any(|rank| matches!(held.task_states[rank.0 as usize], TaskState::StartFailed { by_node: true, .. }))
}

fn worked(draft: &mut Draft<'_>, id: NodeId) {
    let counted = |notes: &muster_model::NodeNotes| !notes.start_failures.is_empty() && notes.quarantine.is_none();
    if draft.node(id).is_some_and(|node| counted(&node.notes))
        && let Some(node) = draft.node_mut(id)
    {
        node.notes.start_failures.clear();
    }
}

fn failed(draft: &mut Draft<'_>, id: NodeId, job: JobId, reason: &str) {
    let now_ms = draft.now_ms;
    let Some(node) = draft.node_mut(id).filter(|node| node.notes.quarantine.is_none()) else { return };
    let failures = &mut node.notes.start_failures;
    failures.push(job);
    let jobs: BTreeSet<JobId> = failures.iter().copied().collect();
    if failures.len() < START_FAILURES_MAX && jobs.len() < START_FAILURES_JOBS_MAX {
        return;
    }
    let (attempts, name) = (failures.len(), &node.spec.name);
    let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    let reason = format!(
        "{attempts} attempts in a row could not be started (job{} {}), the last because: {reason}; repair the node, then \
         `muster undrain {name}`",
        if jobs.len() == 1 { "" } else { "s" },
        jobs.join(", ")
    );
    node.notes.quarantine = Some(Quarantine { since_ms: now_ms, reason });
}
