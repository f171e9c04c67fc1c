//! Who is next, over the whole quota tree.
//!
//! At every level of the tree, children whose next job their guarantee covers, in GPUs and in what CPU and memory is guaranteed, go first, the
//! one with the lowest share of its guarantee in use before the others; then the child with the smallest weighted dominant share of what it uses above its
//! guarantee. Inside one tenant: priority, then age. Each step down the tree is decided by what each tenant of that level uses, so a
//! team's guarantee serves its projects. The tournament is kept between passes; a change is carried up its line only. What must stay
//! true: the same ledger and queue give the same order; ids come last; a kept tournament equals one played anew.

use crate::job_class::JobClass;
use crate::queue::QueueKey;
use muster_model::capacity::{Capacity, TenantUse};
use muster_model::resources::Resource;
use muster_model::{ResourceVec, TenantId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Shares are compared in billionths.
const BILLION: u128 = 1_000_000_000;

/// The next job of one tenant.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) tenant: TenantId,
    pub(crate) queue_key: QueueKey,
    pub(crate) class: Arc<JobClass>,
}

impl Head {
    pub(crate) fn new(tenant: TenantId, queue_key: QueueKey, class: Arc<JobClass>) -> Self {
        Head { tenant, queue_key, class }
    }

    /// What it would be charged on the model it prefers.
    fn demand(&self) -> ResourceVec {
        self.class.offers().first().map_or_else(ResourceVec::default, |offer| offer.charge)
    }
}

/// How a child stands among its siblings; the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    above_guarantee: bool,
    share: u128,
    queue_key: QueueKey,
}

/// A tenant with waiting jobs, its own or its descendants'.
#[derive(Clone, Debug, Default)]
struct Branch {
    parent: Option<TenantId>,
    own: Option<Head>,
    children: BTreeSet<(Standing, TenantId)>,
    /// How it stands among its parent's children now.
    stands: Option<Standing>,
    /// The tenant whose own head is the best of the branch.
    best: Option<TenantId>,
}

/// What the tournament is played by.
#[derive(Clone, Copy)]
pub(crate) struct Ledger<'a> {
    pub(crate) capacity: &'a Capacity,
    /// Everything the fleet has: the denominators of dominant shares.
    pub(crate) totals: &'a ResourceVec,
}

/// The tournament: each branch knows its best job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    branches: BTreeMap<TenantId, Branch>,
    roots: BTreeSet<(Standing, TenantId)>,
    /// Use that is not in the capacity ledger, when an order is played through without binding: with descendants', and own alone.
    supposed: BTreeMap<TenantId, (ResourceVec, ResourceVec)>,
}

impl Order {
    /// Of the given heads, at most one per tenant.
    pub(crate) fn of(ledger: Ledger<'_>, heads: impl IntoIterator<Item = Head>) -> Self {
        let mut order = Order::default();
        for head in heads {
            order.update(ledger, head.tenant, Some(head));
        }
        order
    }

    /// The job that goes next.
    pub(crate) fn next(&self) -> Option<&Head> {
        let (_, root) = self.roots.first()?;
        self.branches.get(&self.branches.get(root)?.best?)?.own.as_ref()
    }

    /// Takes over that `tenant` has another head, or that its use has changed.
    pub(crate) fn update(&mut self, ledger: Ledger<'_>, tenant: TenantId, own: Option<Head>) {
        match self.branches.get_mut(&tenant) {
            Some(branch) => branch.own = own,
            None if own.is_some() => {
                let parent = ledger.capacity.tenants().get(&tenant).and_then(|at| at.parent);
                self.branches.insert(tenant, Branch { parent, own, ..Branch::default() });
            }
            None => {}
        }
        // What a tenant uses counts at each of its ancestors, whether or not it waits for anything itself.
        let mut next = Some(tenant);
        while let Some(id) = next {
            next = match self.settle(ledger, id) {
                Some(parent) => parent,
                None => ledger.capacity.tenants().get(&id).and_then(|at| at.parent),
            };
        }
    }

    /// Chooses the best of one branch anew and places the branch among its siblings. Answers its parent; none when there is no such branch.
    fn settle(&mut self, ledger: Ledger<'_>, id: TenantId) -> Option<Option<TenantId>> {
        let branch = self.branches.get(&id)?;
        let (parent, before) = (branch.parent, branch.stands);
        let own = branch.own.as_ref().map(|head| self.standing_of_own(ledger, id, branch, head));
        let best = match (own, branch.children.first()) {
            (Some(own), Some((below, child))) if *below < own => self.branches.get(child)?.best,
            (Some(_), _) => Some(id),
            (None, Some((_, child))) => self.branches.get(child)?.best,
            (None, None) => None,
        };
        let head = best.and_then(|best| self.branches.get(&best)?.own.as_ref());
        let stands = head.map(|head| self.standing(ledger, id, head));
        if let Some(branch) = self.branches.get_mut(&id) {
            (branch.best, branch.stands) = (best, stands);
        }
        if best.is_none() {
            self.branches.remove(&id);
        }
        if before != stands {
            if let Some(parent) = parent.filter(|_| stands.is_some())
                && !self.branches.contains_key(&parent)
            {
                let above = ledger.capacity.tenants().get(&parent).and_then(|at| at.parent);
                self.branches.insert(parent, Branch { parent: above, ..Branch::default() });
            }
            let other_limits = match parent {
                Some(parent) => &mut self.branches.get_mut(&parent)?.children,
                None => &mut self.roots,
            };
            if let Some(before) = before {
                other_limits.remove(&(before, id));
            }
            if let Some(stands) = stands {
                other_limits.insert((stands, id));
            }
        }
        Some(parent)
    }

    /// Plays on as if `head` had started.
    pub(crate) fn suppose(&mut self, ledger: Ledger<'_>, head: &Head) {
        let demand = head.demand();
        for (id, _) in ledger.capacity.line_of(head.tenant) {
            let (used, own) = self.supposed.entry(id).or_default();
            used.add(&demand);
            if id == head.tenant {
                own.add(&demand);
            }
        }
    }

    fn standing(&self, ledger: Ledger<'_>, id: TenantId, head: &Head) -> Standing {
        let Some(at) = ledger.capacity.tenants().get(&id) else {
            return Standing { above_guarantee: true, share: u128::MAX, queue_key: head.queue_key };
        };
        let used = self.used(id, at);
        let demand = head.demand();
        if covered(&used, &demand, &at.guarantee) {
            let share = counted(&demand, &at.guarantee)
                .map(|resource| ratio(used.get(resource), at.guarantee.get(resource)))
                .max();
            return Standing { above_guarantee: false, share: share.unwrap_or(0), queue_key: head.queue_key };
        }
        let share = dominant_share(&used, &at.guarantee, ledger.totals) / u128::from(at.weight.max(1));
        Standing { above_guarantee: true, share, queue_key: head.queue_key }
    }

    fn used(&self, id: TenantId, at: &TenantUse) -> ResourceVec {
        match self.supposed.get(&id) {
            Some((more, _)) => at.used.plus(more),
            None => at.used,
        }
    }

    /// A tenant's own jobs stand beside its children, with what it uses itself, without a guarantee of their own, at weight 1.
    fn standing_of_own(&self, ledger: Ledger<'_>, id: TenantId, branch: &Branch, head: &Head) -> Standing {
        let Some(at) = ledger.capacity.tenants().get(&id) else {
            return Standing { above_guarantee: true, share: u128::MAX, queue_key: head.queue_key };
        };
        let share = if branch.children.is_empty() {
            0
        } else {
            let own = self.supposed.get(&id).map_or(at.own, |(_, more)| at.own.plus(more));
            dominant_share(&own, &ResourceVec::default(), ledger.totals)
        };
        Standing { above_guarantee: true, share, queue_key: head.queue_key }
    }
}

/// The resources that decide whether a demand is covered: GPUs always; CPU and memory where they are guaranteed. A demand without GPUs is
/// decided by both, where neither is.
fn counted<'a>(demand: &'a ResourceVec, guarantee: &'a ResourceVec) -> impl Iterator<Item = Resource> + 'a {
    let is_host = |resource: Resource| !matches!(resource, Resource::Gpu(_));
    let asked = move || demand.nonzero().map(|(resource, _)| resource);
    let any = asked().any(|resource| !is_host(resource) || guarantee.get(resource) > 0);
    asked().filter(move |resource| !any || !is_host(*resource) || guarantee.get(*resource) > 0)
}

fn covered(used: &ResourceVec, demand: &ResourceVec, guarantee: &ResourceVec) -> bool {
    counted(demand, guarantee)
        .all(|resource| used.get(resource).saturating_add(demand.get(resource)) <= guarantee.get(resource))
}

/// The largest share of any one resource of the fleet that is used beyond `floor`.
fn dominant_share(used: &ResourceVec, floor: &ResourceVec, totals: &ResourceVec) -> u128 {
    used.nonzero()
        .map(|(resource, amount)| ratio(amount.saturating_sub(floor.get(resource)), totals.get(resource)))
        .max()
        .unwrap_or(0)
}

fn ratio(part: u64, whole: u64) -> u128 {
    u128::from(part) * BILLION / u128::from(whole.max(1))
}
