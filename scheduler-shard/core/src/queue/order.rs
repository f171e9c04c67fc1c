//! Who is next, over the whole quota tree.
//!
//! At every level of the tree, children go first whose next job a floor account at or below them covers, the one with the lowest share of its
//! guarantee charged before the others; then the child with the smallest weighted dominant share of its burst use. Where a half-life is set, half of
//! that use is present use and half the average of the past (`past.rs`). The share of each resource is divided by the weight for it, and counts
//! only resources that the next job asks for, so that a child whose other jobs use up one resource is not kept from another (the
//! starvation of complementary demands for which the published H-DRF gives examples). GPU models of which the job may have any count as one
//! resource; models that the fleet does not have count nowhere. Inside one tenant: priority, then age. Each step down the tree is decided by what each tenant of that level uses, so a
//! team's guarantee serves its projects. The tournament is kept between passes; a change is carried up its line only. What must stay
//! true: the same ledger and queue give the same order; ids come last; a kept tournament equals one played anew. Where past use counts, all shares
//! of one tournament are of one time, and whoever moves that time on plays it anew.

use crate::job_class::JobClass;
use crate::queue::QueueKey;
use crate::queue::past::{Of, PastUse};
use muster_model::capacity::Capacity;
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

    /// What it would be charged on each model that the fleet has, the one it prefers first.
    fn charges(&self, totals: &ResourceVec) -> impl Iterator<Item = &ResourceVec> {
        let in_fleet = |model| totals.get(Resource::Gpu(model)) > 0;
        self.class.offers().iter().filter(move |offer| offer.model.is_none_or(in_fleet)).map(|offer| &offer.charge)
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
    pub(crate) past: &'a PastUse,
    /// As of when past use counts.
    pub(crate) at_ms: u64,
}

/// The tournament: each branch knows its best job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    branches: BTreeMap<TenantId, Branch>,
    roots: BTreeSet<(Standing, TenantId)>,
    /// Use that is not in the capacity ledger, when an order is played through without binding.
    supposed: BTreeMap<TenantId, Supposed>,
}

/// Use of one tenant on top of the ledger's.
#[derive(Clone, Debug, Default)]
struct Supposed {
    /// With its descendants'.
    used: ResourceVec,
    own: ResourceVec,
    /// Charged to its floor account.
    charged: ResourceVec,
    /// Charged to its account and those of its descendants.
    floor_use: ResourceVec,
}

impl Order {
    /// Of the given heads, at most one per tenant.
    pub(crate) fn of(ledger: Ledger<'_>, heads: impl IntoIterator<Item = Head>) -> Self {
        let mut order = Order::default();
        order.update(ledger, heads.into_iter().map(|head| (head.tenant, Some(head))));
        order
    }

    /// The job that goes next.
    pub(crate) fn next(&self) -> Option<&Head> {
        let (_, root) = self.roots.first()?;
        self.branches.get(&self.branches.get(root)?.best?)?.own.as_ref()
    }

    /// Takes over that tenants have other heads, or that what they use has changed. Branches that several of them are part of are settled together.
    pub(crate) fn update(&mut self, ledger: Ledger<'_>, heads: impl IntoIterator<Item = (TenantId, Option<Head>)>) {
        let tenants = ledger.capacity.tenants();
        let parent_of = |tenant: &TenantId| tenants.get(tenant).and_then(|at| at.parent);
        let mut changed: Vec<TenantId> = Vec::new();
        for (tenant, own) in heads {
            match self.branches.get_mut(&tenant) {
                Some(branch) => branch.own = own,
                None if own.is_some() => {
                    self.branches.insert(tenant, Branch { parent: parent_of(&tenant), own, ..Branch::default() });
                }
                None => {}
            }
            changed.push(tenant);
        }
        // What a tenant uses counts at each of its ancestors, whether or not it waits for anything itself.
        while !changed.is_empty() {
            let above = |id: &TenantId| self.settle(ledger, *id).unwrap_or_else(|| parent_of(id));
            changed = changed.iter().filter_map(above).collect();
            changed.sort_unstable();
            changed.dedup();
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
        let covered = self.account_of(ledger, head);
        let preferred = || head.charges(ledger.totals).next().copied().unwrap_or_default();
        let (account, demand) =
            covered.map_or_else(|| (None, preferred()), |(account, charge)| (Some(account), charge));
        let mut at_or_above_account = false;
        for (id, _) in ledger.capacity.line_of(head.tenant) {
            at_or_above_account |= account == Some(id);
            let supposed = self.supposed.entry(id).or_default();
            supposed.used.add(&demand);
            if id == head.tenant {
                supposed.own.add(&demand);
            }
            if account == Some(id) {
                supposed.charged.add(&demand);
            }
            if at_or_above_account {
                supposed.floor_use.add(&demand);
            }
        }
    }

    /// Nothing is supposed any more; `heads`: of the tenants for whose jobs it was.
    pub(crate) fn stop_supposing(
        &mut self,
        ledger: Ledger<'_>,
        heads: impl IntoIterator<Item = (TenantId, Option<Head>)>,
    ) {
        self.supposed.clear();
        self.update(ledger, heads);
    }

    /// The floor account that would pay for the job, its tenant's or the nearest above that covers it, and what it would be charged: on the first
    /// of its models on which there is one.
    fn account_of(&self, ledger: Ledger<'_>, head: &Head) -> Option<(TenantId, ResourceVec)> {
        let line = || ledger.capacity.line_of(head.tenant).map(|(id, _)| id);
        let account_for = |charge| line().find(|id| self.covers(ledger, *id, charge));
        head.charges(ledger.totals).find_map(|charge| Some((account_for(charge)?, *charge)))
    }

    /// What it would be charged on the first of its models that an account of its tenant, or of one above up to `id`, covers.
    fn covered_up_to(&self, ledger: Ledger<'_>, head: &Head, id: TenantId) -> Option<ResourceVec> {
        let covered = |charge: &&ResourceVec| {
            let mut line = ledger.capacity.line_of(head.tenant).map(|(above, _)| above);
            line.find(|above| *above == id || self.covers(ledger, *above, charge))
                .is_some_and(|found| found != id || self.covers(ledger, id, charge))
        };
        head.charges(ledger.totals).find(covered).copied()
    }

    fn covers(&self, ledger: Ledger<'_>, account: TenantId, charge: &ResourceVec) -> bool {
        match self.supposed.get(&account) {
            Some(more) => ledger.capacity.covers(account, &charge.plus(&more.charged)),
            None => ledger.capacity.covers(account, charge),
        }
    }

    fn standing(&self, ledger: Ledger<'_>, id: TenantId, head: &Head) -> Standing {
        let Some(at) = ledger.capacity.tenants().get(&id) else {
            return Standing { above_guarantee: true, share: u128::MAX, queue_key: head.queue_key };
        };
        let supposed = self.supposed.get(&id);
        let more = |of: fn(&Supposed) -> &ResourceVec, resource| supposed.map_or(0, |more| of(more).get(resource));
        let floor_use = |resource| at.floor_use.get(resource) + more(|more| &more.floor_use, resource);
        // An account further up covers it as any other job below that account: here its share of burst decides. So a tenant's place follows from what is
        // charged at and below it.
        if let Some(charge) = self.covered_up_to(ledger, head, id) {
            let floored = ledger.capacity.floored(&charge).map(|(resource, _)| resource);
            let share = floored.map(|resource| ratio(floor_use(resource), at.guarantee.get(resource))).max();
            return Standing { above_guarantee: false, share: share.unwrap_or(0), queue_key: head.queue_key };
        }
        let counted = ledger.past.counting(id, Of::Burst, ledger.at_ms);
        let used = |resource| at.used.get(resource) + more(|more| &more.used, resource);
        let burst = |resource| counted(resource, used(resource).saturating_sub(floor_use(resource)));
        let share = dominant_share(head, ledger.totals, burst, |resource| at.weight_of(resource));
        Standing { above_guarantee: true, share, queue_key: head.queue_key }
    }

    /// A tenant's own jobs stand beside its children, with what it uses itself, without a guarantee of their own, at weight 1.
    fn standing_of_own(&self, ledger: Ledger<'_>, id: TenantId, branch: &Branch, head: &Head) -> Standing {
        let Some(at) = ledger.capacity.tenants().get(&id) else {
            return Standing { above_guarantee: true, share: u128::MAX, queue_key: head.queue_key };
        };
        let share = if branch.children.is_empty() {
            0
        } else {
            let supposed = self.supposed.get(&id);
            let own = |resource| at.own.get(resource) + supposed.map_or(0, |more| more.own.get(resource));
            let counted = ledger.past.counting(id, Of::Own, ledger.at_ms);
            dominant_share(head, ledger.totals, |resource| counted(resource, own(resource)), |_| 1)
        };
        Standing { above_guarantee: true, share, queue_key: head.queue_key }
    }
}

/// The largest share of the fleet that is used of any one resource that the job asks for, over the weight of that resource; the GPUs of all models that
/// it may have are one, each counted over the weight of its own model.
fn dominant_share(
    head: &Head,
    totals: &ResourceVec,
    used: impl Fn(Resource) -> u64,
    weight: impl Fn(Resource) -> u32,
) -> u128 {
    let (mut gpus_used, mut gpus, mut largest) = (0, 0, 0);
    for (resource, _) in head.charges(totals).flat_map(ResourceVec::nonzero) {
        let (used, total) =
            (u128::from(used(resource)) * BILLION / u128::from(weight(resource).max(1)), totals.get(resource));
        match resource {
            Resource::Gpu(_) => (gpus_used, gpus) = (gpus_used + used, gpus + total),
            Resource::Cpu | Resource::Memory => largest = largest.max(used / u128::from(total.max(1))),
        }
    }
    largest.max(gpus_used / u128::from(gpus.max(1)))
}

fn ratio(part: u64, whole: u64) -> u128 {
    u128::from(part) * BILLION / u128::from(whole.max(1))
}
