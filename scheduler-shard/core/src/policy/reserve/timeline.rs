//! When what runs in a cell gives back what it holds.
//!
//! What must stay true: an end is never told earlier than the time limit allows, and never in the past; what has no limit never ends here.

use crate::job_class::START_MS;
use crate::search::Steps;
use crate::view::View;
use muster_model::{Allocation, CellId, NodeId, TaskPlacement};
use std::ops::Range;
use std::sync::Arc;

/// An allocation gives back what it holds of one node.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseEvent {
    node: NodeId,
    pub(crate) end_ms: u64,
    allocation: Arc<Allocation>,
    /// Of its ranks, neighbours that are on the node.
    ranks: Range<usize>,
}

impl ReleaseEvent {
    pub(crate) fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    pub(crate) fn tasks(&self) -> &[TaskPlacement] {
        &self.allocation.tasks[self.ranks.clone()]
    }
}

/// Everything of a cell whose end is known, by node and time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline(Vec<ReleaseEvent>);

impl Timeline {
    pub(crate) fn of(view: &View, cell: CellId, now_ms: u64, steps: &mut Steps) -> Self {
        let mut releases = Vec::new();
        for allocation in view.held().filter(|held| held.cell == cell) {
            steps.0 += 1;
            let Some(end_ms) = end_ms(view, allocation, now_ms) else { continue };
            let mut first = 0;
            for tasks in allocation.tasks.chunk_by(|one, next| one.node == next.node) {
                let (node, ranks) = (tasks[0].node, first..first + tasks.len());
                first = ranks.end;
                releases.push(ReleaseEvent { node, end_ms, allocation: allocation.clone(), ranks });
            }
        }
        releases.sort_unstable_by_key(|one| (one.node, one.end_ms, one.allocation.id));
        Timeline(releases)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those on `node`, the earliest first.
    pub(crate) fn on(&self, node: NodeId) -> &[ReleaseEvent] {
        let first = self.0.partition_point(|one| one.node < node);
        let rest = &self.0[first..];
        &rest[..rest.partition_point(|one| one.node == node)]
    }
}

/// When an allocation is over at the latest. What has run over its time will take as long again, or as long as a start may.
pub(crate) fn end_ms(view: &View, allocation: &Allocation, now_ms: u64) -> Option<u64> {
    let lasts_ms = view.jobs.get(allocation.job.0)?.lasts_ms?;
    let end_ms = allocation.bound_ms.saturating_add(START_MS).saturating_add(lasts_ms);
    let over_ms = now_ms.saturating_sub(end_ms);
    Some(if over_ms == 0 { end_ms } else { now_ms.saturating_add(over_ms.max(START_MS)) })
}
