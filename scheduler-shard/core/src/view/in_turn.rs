//! Who waits in a cell, in the order in which passes would look at them if all of them started.
//!
//! What must stay true: the order is that of the tournament, with what each would use charged to its tenant before the next is chosen.

use super::View;
use crate::job_class::JobClass;
use crate::queue::order::{Head, Order};
use crate::queue::{JobGroups, QueueKey};
use muster_model::{CellId, JobId, TenantId};
use std::cmp::Reverse;
use std::collections::btree_set::Range;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Shows the waiting jobs of `cell` one after the other, who is next first, until it is told to stop. Answers whether it was.
pub(crate) fn in_turn(view: &View, cell: CellId, mut visit: impl FnMut(JobId) -> ControlFlow<()>) -> bool {
    let Some(queue) = view.queues.get(&cell) else { return false };
    let mut waiting: BTreeMap<TenantId, InTurn<'_>> =
        queue.tenants.iter().map(|(tenant, groups)| (*tenant, InTurn::of(groups))).collect();
    let mut pop = |tenant: TenantId| {
        let (queue_key, class) = waiting.get_mut(&tenant)?.next()?;
        Some(Head::new(tenant, queue_key, class.clone()))
    };
    let heads: Vec<Head> = queue.tenants.keys().filter_map(|tenant| pop(*tenant)).collect();
    let ledger = view.ledger();
    let mut order = Order::of(ledger, heads);
    while let Some(head) = order.next().cloned() {
        if visit(head.queue_key.job).is_break() {
            return true;
        }
        order.suppose(ledger, &head);
        order.update(ledger, head.tenant, pop(head.tenant));
    }
    false
}

/// The jobs of one tenant in turn: its groups, merged.
struct InTurn<'a> {
    heads: BinaryHeap<Reverse<(QueueKey, usize)>>,
    groups: Vec<(&'a Arc<JobClass>, Range<'a, QueueKey>)>,
}

impl<'a> InTurn<'a> {
    fn of(groups: &'a JobGroups) -> Self {
        let mut of_tenant = InTurn { heads: BinaryHeap::new(), groups: Vec::new() };
        for (class, group) in &groups.all {
            of_tenant.groups.push((class, group.keys.range(..)));
            of_tenant.advance(of_tenant.groups.len() - 1);
        }
        of_tenant
    }

    fn advance(&mut self, group: usize) {
        self.heads.extend(self.groups[group].1.next().map(|queue_key| Reverse((*queue_key, group))));
    }

    fn next(&mut self) -> Option<(QueueKey, &'a Arc<JobClass>)> {
        let Reverse((queue_key, group)) = self.heads.pop()?;
        self.advance(group);
        Some((queue_key, self.groups[group].0))
    }
}
