//! Who waits in a cell, in the order in which passes would look at them if all of them started.
//!
//! What must stay true: the order is that of the tournament, with what each would use charged to its tenant before the next is chosen.

use super::View;
use crate::job_class::JobClass;
use crate::queue::order::{Head, Ledger, Order};
use crate::queue::{JobGroups, QueueKey};
use muster_model::{CellId, JobId, TenantId};
use std::cmp::Reverse;
use std::collections::btree_set::{Iter, Range};
use std::collections::{BTreeMap, BinaryHeap};
use std::iter::Peekable;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Shows the waiting jobs of `cell` one after the other, who is next first, until it is told to stop. Answers whether it was.
pub(crate) fn in_turn(view: &View, cell: CellId, visit: impl FnMut(JobId) -> ControlFlow<()>) -> bool {
    played(view, view.ledger(), cell, visit)
}

/// The same in the order of a pass at `now_ms`, whenever the view's last one was.
pub(crate) fn in_turn_at(view: &View, cell: CellId, now_ms: u64, visit: impl FnMut(JobId) -> ControlFlow<()>) -> bool {
    played(view, view.ledger_at(view.past.at(now_ms)), cell, visit)
}

fn played(view: &View, ledger: Ledger<'_>, cell: CellId, mut visit: impl FnMut(JobId) -> ControlFlow<()>) -> bool {
    let Some(queue) = view.queues.get(&cell) else { return false };
    let mut waiting: BTreeMap<TenantId, InTurn<'_>> =
        queue.tenants.iter().map(|(tenant, groups)| (*tenant, InTurn::of(groups))).collect();
    let mut pop = |tenant: TenantId| {
        let (queue_key, class) = waiting.get_mut(&tenant)?.next()?;
        Some(Head::new(tenant, queue_key, class.clone()))
    };
    let heads: Vec<Head> = queue.tenants.keys().filter_map(|tenant| pop(*tenant)).collect();
    let mut order = Order::of(ledger, heads);
    while let Some(head) = order.next().cloned() {
        if visit(head.queue_key.job).is_break() {
            return true;
        }
        order.suppose(ledger, &head);
        order.update(ledger, [(head.tenant, pop(head.tenant))]);
    }
    false
}

/// The first of some waiting jobs, as if they alone waited: at most `most`, and the one after them. `heads`: of each tenant, its last first.
pub(crate) fn first_of(
    view: &View,
    mut heads: BTreeMap<TenantId, Vec<Head>>,
    most: usize,
) -> (Vec<Head>, Option<Head>) {
    let ledger = view.ledger();
    let mut order = Order::of(ledger, heads.values_mut().filter_map(Vec::pop));
    let mut found = Vec::new();
    while found.len() < most
        && let Some(head) = order.next().cloned()
    {
        order.suppose(ledger, &head);
        order.update(ledger, [(head.tenant, heads.get_mut(&head.tenant).and_then(Vec::pop))]);
        found.push(head);
    }
    (found, order.next().cloned())
}

/// The jobs of one tenant in turn: its groups, merged. A group is opened when its first job is next, so that a short look costs little.
struct InTurn<'a> {
    groups: &'a JobGroups,
    /// The next of each source.
    heads: BinaryHeap<Reverse<(QueueKey, usize)>>,
    sources: Vec<Source<'a>>,
}

/// Where the next job may come from.
enum Source<'a> {
    /// The first jobs of the groups of one family.
    Family(Peekable<Iter<'a, (QueueKey, Arc<JobClass>)>>),
    /// The other jobs of one group.
    Group(&'a Arc<JobClass>, Peekable<Range<'a, QueueKey>>),
}

impl<'a> InTurn<'a> {
    fn of(groups: &'a JobGroups) -> Self {
        let mut of_tenant = InTurn { groups, heads: BinaryHeap::new(), sources: Vec::new() };
        for firsts in groups.families.values() {
            of_tenant.add(Source::Family(firsts.iter().peekable()));
        }
        of_tenant
    }

    fn add(&mut self, source: Source<'a>) {
        self.sources.push(source);
        self.advance(self.sources.len() - 1);
    }

    fn next(&mut self) -> Option<(QueueKey, &'a Arc<JobClass>)> {
        let Reverse((_, at)) = self.heads.pop()?;
        let (queue_key, class, opens) = match &mut self.sources[at] {
            Source::Family(firsts) => firsts.next().map(|(queue_key, class)| (*queue_key, class, true))?,
            Source::Group(class, keys) => (*keys.next()?, *class, false),
        };
        self.advance(at);
        if opens {
            let mut others = self.groups.all.get(class)?.keys.range(..);
            others.next();
            self.add(Source::Group(class, others.peekable()));
        }
        Some((queue_key, class))
    }

    fn advance(&mut self, at: usize) {
        let next = match &mut self.sources[at] {
            Source::Family(firsts) => firsts.peek().map(|(queue_key, _)| *queue_key),
            Source::Group(_, keys) => keys.peek().map(|queue_key| **queue_key),
        };
        self.heads.extend(next.map(|queue_key| Reverse((queue_key, at))));
    }
}
