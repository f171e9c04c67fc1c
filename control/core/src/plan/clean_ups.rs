//! The clean-up of devices after their tasks.
//!
//! What must stay true: devices are released only when the node has said that nothing of the task is left on them, or that they are withheld because
//! something is (law 13); what is clean never becomes unclean again by a report that comes late; a node that was fenced cleans its devices before it
//! starts anything on them, so nobody waits for its word.

use crate::draft::Draft;
use crate::level;
use crate::task_report::TaskReport;
use muster_model::Allocation;
use muster_model::ids::{AllocationId, Rank};
use muster_model::node::{Repair, Withheld};
use muster_model::task::{CleanUp, HoldMode};

/// Takes over what a report says of the devices of a task, which was seen to be over just now if `is_news`. Says whether that changed anything.
pub(super) fn note(draft: &mut Draft<'_>, report: &TaskReport, is_news: bool) -> bool {
    let (id, rank) = (report.allocation, report.rank);
    let Some(held) = draft.allocation(id) else { return false };
    let is_over = held.task_states.get(rank.0 as usize).is_some_and(muster_model::TaskState::is_over);
    let is_cleaning = held.cleaning.contains(&rank);
    // Neither live, nor clean for long; and below that level there is no place for it.
    if !is_over || !(is_cleaning || is_news) || !level::has(draft.state, level::QUOTAS) {
        return false;
    }
    match &report.clean_up {
        CleanUp::UnderWay => {
            let begins = !is_cleaning;
            if begins && let Some(held) = draft.allocation_mut(id) {
                held.cleaning.insert(rank);
            }
            begins
        }
        CleanUp::Done { took_ms } => {
            if *took_ms > 0
                && let Some(held) = draft.allocation_mut(id)
            {
                held.cleaned_ms = held.cleaned_ms.max(*took_ms);
            }
            is_cleaning && end(draft, report)
        }
        CleanUp::Failed { reason } => {
            withhold(draft, report, reason);
            is_cleaning && end(draft, report)
        }
    }
}

fn end(draft: &mut Draft<'_>, report: &TaskReport) -> bool {
    draft.allocation_mut(report.allocation).is_some_and(|held| held.cleaning.remove(&report.rank))
}

/// Keeps the devices of a rank from everybody, before they are released. The node's next report of its cards says the same.
fn withhold(draft: &mut Draft<'_>, report: &TaskReport, reason: &str) {
    let task = draft.allocation(report.allocation).and_then(|held| held.tasks.get(report.rank.0 as usize)).cloned();
    let Some(task) = task else { return };
    let Some(known) = draft.node(task.node) else { return };
    let mut withheld = known.spec.withheld();
    withheld.extend(task.devices.iter().map(|hold| Withheld {
        gpu: hold.gpu,
        slice: match hold.mode {
            HoldMode::Mig(place) => Some(place),
            HoldMode::Whole | HoldMode::Mps { .. } | HoldMode::TimeSlice { .. } => None,
        },
        reason: reason.to_owned(),
        by_verdict: false,
        repair: Repair::Wait,
    }));
    let gpus = known.spec.withholding(&withheld);
    if let Some(node) = draft.node_mut(task.node) {
        node.spec.gpus = gpus;
    }
}

/// These ranks are gone: nobody waits for what their node would say of them.
pub(super) fn give_up(draft: &mut Draft<'_>, id: AllocationId, gone: &[Rank]) -> bool {
    let is_waited_for = |held: &Allocation| gone.iter().any(|rank| held.cleaning.contains(rank));
    if !draft.allocation(id).is_some_and(is_waited_for) {
        return false;
    }
    if let Some(held) = draft.allocation_mut(id) {
        held.cleaning.retain(|rank| !gone.contains(rank));
    }
    true
}
