//! When nodes of a backup become nodes like others.
//!
//! What must stay true: no node takes work before all of them are clear: each is confirmed, its agent has said what it runs, and what of that the state does
//! not know is over; or it is down, and then nothing runs there.

use crate::draft::Draft;
use crate::task_report::TaskReport;
use muster_model::ids::NodeId;
use muster_model::task::CleanUp;
use muster_model::{HeldTask, Node, NodeHealth, Restored};

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

/// Whether something that the state does not know may run on a node of the backup. Nothing does on one that is down: a restore takes every node for silent,
/// so it was fenced since.
pub(super) fn is_open(draft: &Draft<'_>) -> bool {
    let is_clear = |restored: &Restored| restored.is_clear();
    let may_run = |node: &Node| node.health != NodeHealth::Down && !node.notes.restored.as_deref().is_none_or(is_clear);
    draft.state.index().restored.iter().filter_map(|id| draft.node(*id)).any(may_run)
}

/// Once all nodes are clear, but for those that are down and hence run nothing, they are nodes like others.
pub(super) fn clear(draft: &mut Draft<'_>) {
    if is_open(draft) {
        return;
    }
    for id in &draft.state.index().restored {
        let is_confirmed = draft.node(*id).and_then(|node| node.notes.restored.as_ref()).is_some_and(|it| it.confirmed);
        if is_confirmed && let Some(node) = draft.node_mut(*id) {
            node.notes.restored = None;
        }
    }
}
