//! When what runs in a cell gives back what it holds.
//!
//! What must stay true: an end is never told earlier than the time limit allows; what has no limit never ends here.

use crate::view::View;
use muster_model::{Allocation, CellId, NodeId, TaskPlacement};
use std::sync::Arc;

/// A task runs at most this long after it was bound. One that takes longer (a large image, a slow node) ends later than planned by as much.
pub(crate) const START_MS: u64 = 60_000;

/// An allocation gives back what it holds of one node.
#[derive(Clone, Debug)]
pub(crate) struct Departure {
    node: NodeId,
    pub(crate) end_ms: u64,
    allocation: Arc<Allocation>,
    /// Of its tasks, neighbours in rank that are on the node.
    tasks: (usize, usize),
}

impl Departure {
    pub(crate) fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    pub(crate) fn tasks(&self) -> &[TaskPlacement] {
        &self.allocation.tasks[self.tasks.0..self.tasks.1]
    }
}

/// Everything of a cell whose end is known, by node and time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline(Vec<Departure>);

impl Timeline {
    pub(crate) fn of(view: &View, cell: CellId) -> Self {
        let mut departures = Vec::new();
        for allocation in view.held().filter(|held| held.cell == cell) {
            let Some(end_ms) = end_ms(view, allocation) else { continue };
            let mut first = 0;
            for tasks in allocation.tasks.chunk_by(|one, next| one.node == next.node) {
                let (node, tasks) = (tasks[0].node, (first, first + tasks.len()));
                first = tasks.1;
                departures.push(Departure { node, end_ms, allocation: allocation.clone(), tasks });
            }
        }
        departures.sort_unstable_by_key(|one| (one.node, one.end_ms, one.allocation.id));
        Timeline(departures)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those on `node`, the earliest first.
    pub(crate) fn on(&self, node: NodeId) -> &[Departure] {
        let first = self.0.partition_point(|one| one.node < node);
        let rest = &self.0[first..];
        &rest[..rest.partition_point(|one| one.node == node)]
    }
}

/// When an allocation is over at the latest.
fn end_ms(view: &View, allocation: &Allocation) -> Option<u64> {
    let lasts_ms = view.jobs.get(allocation.job.0)?.lasts_ms?;
    Some(allocation.bound_ms.saturating_add(START_MS).saturating_add(lasts_ms))
}
