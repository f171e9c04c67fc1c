//! Who waits in a cell, in the order in which passes would look at them if all of them started.
//!
//! What must stay true:
//! - the order is that of the tournament, with what each would use charged to its tenant before the next is chosen;
//! - a short look costs what it looks at: each cell keeps the tournament of everybody who waits ([`Turns`]), takes into it who has changed, plays on from
//!   there, and puts it back. It equals one played anew (a property test).

use super::View;
use crate::job_class::JobClass;
use crate::queue::order::{Head, Ledger, Order};
use crate::queue::turns::Turns;
use crate::queue::{CellQueue, JobGroups, QueueKey};
use muster_model::{CellId, JobId, TenantId};
use std::cmp::Reverse;
use std::collections::btree_set::{Iter, Range};
use std::collections::{BTreeMap, BinaryHeap};
use std::iter::Peekable;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Shows the waiting jobs of `cell` one after the other, who is next first, until it is told to stop. Answers whether it was.
pub(crate) fn in_turn(view: &mut View, cell: CellId, mut visit: impl FnMut(&View, JobId) -> ControlFlow<()>) -> bool {
    let Some(queue) = view.queues.get_mut(&cell) else { return false };
    let mut turns = queue.take_turns();
    let ledger = view.ledger();
    let Some(queue) = view.queues.get(&cell) else { return false };
    turns.catch_up(ledger, queue);
    let (stopped, looked_at) = play(&mut turns.order, ledger, queue, |job| visit(view, job));
    turns.order.stop_supposing(ledger, looked_at.into_iter().map(|tenant| (tenant, queue.first(tenant))));
    if let Some(queue) = view.queues.get_mut(&cell) {
        queue.put_turns(turns);
    }
    stopped
}

/// The same in the order of a pass at `now_ms`, whenever the view's last one was; played anew.
pub(crate) fn in_turn_at(view: &View, cell: CellId, now_ms: u64, visit: impl FnMut(JobId) -> ControlFlow<()>) -> bool {
    let ledger = view.ledger_at(view.past.at(now_ms));
    let Some(queue) = view.queues.get(&cell) else { return false };
    let mut turns = Turns::default();
    turns.forget(queue.tenants.keys().copied());
    turns.catch_up(ledger, queue);
    play(&mut turns.order, ledger, queue, visit).0
}

/// Plays on with each next job as if it had started. Answers whether it was told to stop, and the tenants that have been looked at.
fn play(
    order: &mut Order,
    ledger: Ledger<'_>,
    queue: &CellQueue,
    mut visit: impl FnMut(JobId) -> ControlFlow<()>,
) -> (bool, Vec<TenantId>) {
    let mut opened: BTreeMap<TenantId, InTurn<'_>> = BTreeMap::new();
    let mut stopped = false;
    while let Some(head) = order.next().cloned() {
        if visit(head.queue_key.job).is_break() {
            stopped = true;
            break;
        }
        let next = queue.tenants.get(&head.tenant).and_then(|groups| {
            let of_tenant = opened.entry(head.tenant).or_insert_with(|| InTurn::behind_first(groups));
            of_tenant.next()
        });
        order.suppose(ledger, &head);
        let next = next.map(|(queue_key, class)| Head::new(head.tenant, queue_key, class.clone()));
        order.update(ledger, [(head.tenant, next)]);
    }
    (stopped, opened.into_keys().collect())
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
    /// All but the first.
    fn behind_first(groups: &'a JobGroups) -> Self {
        let mut of_tenant = InTurn { groups, heads: BinaryHeap::new(), sources: Vec::new() };
        for firsts in groups.families.values() {
            of_tenant.add(Source::Family(firsts.iter().peekable()));
        }
        of_tenant.next();
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
