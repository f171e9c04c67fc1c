//! Who goes before whom: the order of a cell's queue played through, as if nothing ever blocked.
//!
//! What must stay true: it is the order in which a pass would look at the jobs; it changes nothing and is bounded.

use crate::job_class::JobClass;
use crate::order::{Head, Order};
use crate::queue::{JobGroups, QueueKey};
use crate::view::View;
use muster_model::{CellId, JobId, TenantId};
use std::cmp::Reverse;
use std::collections::btree_set::Range;
use std::collections::{BTreeMap, BinaryHeap};
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
    let Some(queue) = view.queues.get(&cell) else { return false };
    let mut waiting: BTreeMap<TenantId, InTurn<'_>> =
        queue.tenants.iter().map(|(tenant, lines)| (*tenant, InTurn::of(lines))).collect();
    let mut pop = |tenant: TenantId| {
        let (turn, class) = waiting.get_mut(&tenant)?.next()?;
        Some(Head::new(tenant, turn, class.clone()))
    };
    let heads: Vec<Head> = queue.tenants.keys().filter_map(|tenant| pop(*tenant)).collect();
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

/// The jobs of one tenant in turn: its lines, merged.
struct InTurn<'a> {
    heads: BinaryHeap<Reverse<(QueueKey, usize)>>,
    lines: Vec<(&'a Arc<JobClass>, Range<'a, QueueKey>)>,
}

impl<'a> InTurn<'a> {
    fn of(lines: &'a JobGroups) -> Self {
        let mut of_tenant = InTurn { heads: BinaryHeap::new(), lines: Vec::new() };
        for (class, line) in &lines.all {
            of_tenant.lines.push((class, line.turns.range(..)));
            of_tenant.advance(of_tenant.lines.len() - 1);
        }
        of_tenant
    }

    fn advance(&mut self, line: usize) {
        self.heads.extend(self.lines[line].1.next().map(|turn| Reverse((*turn, line))));
    }

    fn next(&mut self) -> Option<(QueueKey, &'a Arc<JobClass>)> {
        let Reverse((turn, line)) = self.heads.pop()?;
        self.advance(line);
        Some((turn, self.lines[line].0))
    }
}
