//! What agents saw of tasks.

use super::{attempts, checkpoints, clean_ups, clearance, nodes};
use crate::bounds::REPORTS_PER_COMMAND_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::task_report::TaskReport;
use muster_model::ids::{AllocationId, Epoch, NodeId};
use std::collections::BTreeSet;

/// Reports come at least once: those of unknown allocations, of tasks that are over, and of ranks that are not on this node are
/// accepted and change nothing. Those of an older epoch of the node are refused whole.
pub(super) fn report(
    draft: &mut Draft<'_>,
    node: NodeId,
    epoch: Epoch,
    reports: &[TaskReport],
) -> Result<Done, Reject> {
    nodes::at_epoch(draft.state, node, epoch)?;
    if reports.len() > REPORTS_PER_COMMAND_MAX {
        return Err(Reject::field("reports", format!("has {}", reports.len()), "send at most 4,096 at once"));
    }
    let mut touched: BTreeSet<AllocationId> = BTreeSet::new();
    for report in reports {
        let here = draft.allocation(report.allocation).and_then(|held| held.tasks.get(report.rank.0 as usize));
        if here.is_none_or(|task| task.node != node) {
            continue;
        }
        checkpoints::note(draft, report);
        let seen = attempts::observe(draft, report.allocation, report.rank, &report.state, report.ended_ms);
        let cleaned = clean_ups::note(draft, report, seen);
        if seen || cleaned {
            touched.insert(report.allocation);
        }
    }
    for allocation in touched {
        attempts::settle(draft, allocation);
    }
    clearance::reported(draft, node, reports);
    Ok(Done::Ok)
}
