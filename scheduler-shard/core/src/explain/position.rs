//! Who goes before whom: the order of a cell's queue played through, as if nothing ever blocked.
//!
//! What must stay true: it is the order in which a pass would look at the jobs; it changes nothing and is bounded.

use crate::order::{Head, Order};
use crate::queue::Turn;
use crate::shape::Shape;
use crate::view::View;
use muster_model::{CellId, JobId, TenantId};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A position in the queue is played through up to here; beyond, it is said to be at least this.
pub const POSITION_MAX: u64 = 10_000;

/// How many jobs go before `id`.
pub(super) fn of(view: &View, cell: CellId, id: JobId) -> Option<u64> {
    let mut before = 0;
    let found = in_turn(view, cell, |job| {
        if job == id || before == POSITION_MAX {
            return ControlFlow::Break(());
        }
        before += 1;
        ControlFlow::Continue(())
    });
    found.then_some(before)
}

/// Shows the waiting jobs of `cell` one after the other, who is next first, until it is told to stop. Answers whether it was.
pub(crate) fn in_turn(view: &View, cell: CellId, mut visit: impl FnMut(JobId) -> ControlFlow<()>) -> bool {
    let mut queues: BTreeMap<TenantId, Vec<(Turn, Arc<Shape>)>> = BTreeMap::new();
    for job in view.jobs.values().filter(|job| job.cell == Some(cell)) {
        let Some(shape) = &job.shape else { continue };
        queues.entry(job.tenant).or_default().push((job.turn, shape.clone()));
    }
    for queue in queues.values_mut() {
        queue.sort_by_key(|(turn, _)| std::cmp::Reverse(*turn));
    }
    let mut pop = |tenant: TenantId| {
        let (turn, shape) = queues.get_mut(&tenant)?.pop()?;
        Some(Head::new(tenant, turn, shape))
    };
    let tenants: Vec<TenantId> = view.capacity.tenants().keys().copied().collect();
    let heads: Vec<Head> = tenants.into_iter().filter_map(&mut pop).collect();
    let books = view.books();
    let mut order = Order::of(books, heads);
    while let Some(head) = order.next().cloned() {
        if visit(head.turn.job).is_break() {
            return true;
        }
        order.suppose(books, &head);
        order.update(books, head.tenant, pop(head.tenant));
    }
    false
}
