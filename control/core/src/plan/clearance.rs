//! When nodes of a backup become nodes like others.
//!
//! What must stay true: no node takes work before all of them are clear: each is confirmed, its agent has said what it runs, and what of that the state does
//! not know is over; or it is down, and then nothing runs there.

use crate::draft::Draft;
use crate::restoration::may_run_unknown;
use crate::task_report::TaskReport;
use muster_model::HeldTask;
use muster_model::ids::NodeId;
use muster_model::task::CleanUp;

/// Tasks were reported: those that are over, with nothing of them left on their devices, run there no longer.
pub(super) fn reported(draft: &mut Draft<'_>, id: NodeId, reports: &[TaskReport]) {
    let is_over = |task: &HeldTask| {
        let of_it = |report: &&TaskReport| (report.allocation, report.rank) == (task.allocation, task.rank);
        reports.iter().find(of_it).is_some_and(|it| it.state.is_over() && it.clean_up != CleanUp::UnderWay)
    };
    let held = draft.node(id).and_then(|node| node.notes.restored.as_ref()?.held.as_ref());
    if !held.is_some_and(|held| held.iter().any(is_over)) {
        return;
    }
    if let Some(held) = draft.node_mut(id).and_then(|node| node.notes.restored.as_mut()?.held.as_mut()) {
        held.retain(|task| !is_over(task));
    }
    clear(draft);
}

/// Nothing of what ran on the node before is left: it was fenced, or has booted since.
pub(super) fn nothing_is_left(draft: &mut Draft<'_>, id: NodeId) {
    let held = draft.node(id).and_then(|node| node.notes.restored.as_ref()?.held.as_ref());
    if held.is_some_and(|held| !held.is_empty())
        && let Some(held) = draft.node_mut(id).and_then(|node| node.notes.restored.as_mut()?.held.as_mut())
    {
        held.clear();
    }
}

/// Whether something that the state does not know may run on a node of the backup.
pub(super) fn is_open(draft: &Draft<'_>) -> bool {
    draft.state.index().restored.iter().filter_map(|id| draft.node(*id)).any(may_run_unknown)
}

/// Once all nodes are clear, but for those that are down and hence run nothing, they are nodes like others. Those wait on for their agents.
pub(super) fn clear(draft: &mut Draft<'_>) {
    if is_open(draft) {
        return;
    }
    for id in &draft.state.index().restored {
        let restored = draft.node(*id).and_then(|node| node.notes.restored.as_ref());
        let is_over = restored.is_some_and(|restored| restored.confirmed && restored.held.is_some());
        if is_over && let Some(node) = draft.node_mut(*id) {
            node.notes.restored = None;
        }
    }
}
