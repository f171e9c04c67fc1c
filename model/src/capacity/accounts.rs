//! Floor accounts: what of a tenant's guarantee is its own to charge, who charges it, and from whom a covered request may reclaim.
//!
//! A tenant's *floor account* is its guarantee minus the guarantees of its children. The tenant and its descendants may charge it; one account covers
//! a whole charge. What is charged to an account is guaranteed, everything else is burst. GPUs always count; CPU and memory count where an
//! organisation guarantees them (the *floored* resources). What must stay true: no more is charged to an account than it holds, except after a
//! guarantee was lowered, until the caller has demoted the excess.

use super::ended::Ended;
use super::floors::Guarantee;
use super::{Capacity, TenantUse};
use crate::Allocation;
use crate::claim::Claim;
use crate::ids::{AllocationId, JobId, NodeId, TenantId};
use crate::node::{Node, Pool};
use crate::resources::{Resource, ResourceVec};
use std::collections::{BTreeMap, BTreeSet};

/// Burst work that would use what others are guaranteed and do not lend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is not covered by a floor, {} is free, and tenants that do not lend are guaranteed {} of it", .resource.in_words(*.asked), .resource.in_words(*.free), .resource.in_words(*.kept))]
pub struct NotLent {
    /// Of which resource.
    pub resource: Resource,
    /// What was asked.
    pub asked: u64,
    /// What nobody uses.
    pub free: u64,
    /// What is kept of that.
    pub kept: u64,
}

/// What accounts need beside the tenants themselves.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounts {
    /// Organisations that guarantee CPU, and memory.
    guaranteeing: (u32, u32),
    /// Tenants that do not lend something.
    not_lending: u32,
    /// Accounts that have got something back since [`Capacity::take_freed`].
    freed: BTreeSet<TenantId>,
    /// Which resources are floored has changed since then: any account may cover more, or less.
    floored_changed: bool,
    /// Whose use, own or charged to a floor account, has changed since [`Capacity::take_use_changed`]; none where nobody asks.
    pub(super) use_changed: Option<BTreeSet<TenantId>>,
    /// The jobs that have claimed a node: several only where one move gives it to them together.
    claimed: BTreeMap<NodeId, BTreeSet<JobId>>,
}

impl Accounts {
    /// A tenant lends from now on, or no longer.
    pub(super) fn count_lender(&mut self, kept: bool, keeps: bool) {
        self.not_lending = self.not_lending - u32::from(kept) + u32::from(keeps);
    }

    fn count_organisation(&mut self, guarantee: &ResourceVec, comes: bool) {
        let step = |count: &mut u32, has: bool| match comes {
            true => *count += u32::from(has),
            false => *count -= u32::from(has),
        };
        let before = (self.guaranteeing.0 > 0, self.guaranteeing.1 > 0);
        step(&mut self.guaranteeing.0, guarantee.cpu_milli > 0);
        step(&mut self.guaranteeing.1, guarantee.memory_mib > 0);
        self.floored_changed |= before != (self.guaranteeing.0 > 0, self.guaranteeing.1 > 0);
    }

    fn is_floored(&self, resource: Resource) -> bool {
        match resource {
            Resource::Gpu(_) => true,
            Resource::Cpu => self.guaranteeing.0 > 0,
            Resource::Memory => self.guaranteeing.1 > 0,
        }
    }
}

impl Capacity {
    /// The floored resources of a charge.
    pub fn floored<'a>(&'a self, charge: &'a ResourceVec) -> impl Iterator<Item = (Resource, u64)> + 'a {
        charge.nonzero().filter(|(resource, _)| self.accounts.is_floored(*resource))
    }

    /// A tenant came, went, moved, or has another guarantee.
    pub(super) fn change_floors(&mut self, id: TenantId, old: Option<Guarantee>, new: Option<Guarantee>) {
        if old == new {
            return;
        }
        let short = self.floors.is_short();
        self.floors.change_tenant(old, new);
        for (guarantee, comes) in [(old, false), (new, true)] {
            let Some((parent, guarantee)) = guarantee else { continue };
            if parent.is_none() {
                self.accounts.count_organisation(&guarantee, comes);
            }
            self.accounts.freed.extend(parent);
        }
        self.accounts.freed.insert(id);
        // Every account above a new place may cover what a tenant brings along as burst.
        if let (Some((from, _)), Some((Some(to), _))) = (old, new)
            && from != Some(to)
        {
            let above: Vec<TenantId> = self.line_of(to).map(|(above, _)| above).collect();
            self.accounts.freed.extend(above);
        }
        self.marks_may_change(short);
    }

    /// A node came, went, or has other hardware or health.
    pub(super) fn change_healthy(&mut self, old: Option<&Node>, new: Option<&Node>) {
        let (before, short) = (*self.healthy(), self.floors.is_short());
        self.floors.change_node(old, new);
        if *self.healthy() != before {
            self.marks_may_change(short);
        }
    }

    /// What is marked as unmet follows from all tenants and nodes: where it may be otherwise than before, every account may have more.
    pub(super) fn marks_may_change(&mut self, was_short: bool) {
        if was_short || self.floors.is_short() {
            self.accounts.freed.extend(self.tenants.keys().copied());
        }
    }

    /// What is left of one resource in a tenant's floor account.
    #[must_use]
    pub fn account_free(&self, id: TenantId, resource: Resource) -> u64 {
        self.account_free_without(&Ended::default(), id, resource)
    }

    /// What a tenant's floor account holds of one resource, without what lost hardware leaves unmet.
    fn met(&self, id: TenantId, resource: Resource) -> u64 {
        let unmet = self.unmet_floors().get(&id).map_or(0, |unmet| unmet.get(resource));
        self.by_tree(id, resource).saturating_sub(unmet)
    }

    /// What it holds by the tree.
    fn by_tree(&self, id: TenantId, resource: Resource) -> u64 {
        let guarantee = self.tenants.get(&id).map_or(0, |at| at.guarantee.get(resource));
        guarantee.saturating_sub(self.floors.handed_down_of(id, resource))
    }

    fn account_free_without(&self, ended: &Ended, id: TenantId, resource: Resource) -> u64 {
        let charged = self.tenants.get(&id).map_or(0, |at| at.floor_charged.get(resource));
        (self.met(id, resource) + ended.of(&ended.floor_charged, id, resource)).saturating_sub(charged)
    }

    /// Whether the account of `id` covers the charge beside what is charged to it.
    #[must_use]
    pub fn covers(&self, id: TenantId, charge: &ResourceVec) -> bool {
        self.covers_without(&Ended::default(), id, charge)
    }

    fn covers_without(&self, ended: &Ended, id: TenantId, charge: &ResourceVec) -> bool {
        let Some(at) = self.tenants.get(&id) else { return false };
        let mut floored = self.floored(charge).peekable();
        // Most tenants have no guarantee: nothing else is looked up for them.
        floored.peek().is_some()
            && floored.all(|(resource, amount)| {
                amount <= at.guarantee.get(resource) && amount <= self.account_free_without(ended, id, resource)
            })
    }

    /// The account that would pay for the charge: that of the tenant or of the nearest ancestor that covers it. None: it would be burst.
    #[must_use]
    pub fn account_for(&self, tenant: TenantId, charge: &ResourceVec) -> Option<TenantId> {
        self.account_for_without(&Ended::default(), tenant, charge)
    }

    /// The same once `ended` pay no more.
    #[must_use]
    pub fn account_for_without(&self, ended: &Ended, tenant: TenantId, charge: &ResourceVec) -> Option<TenantId> {
        self.line_of(tenant).map(|(id, _)| id).find(|id| self.covers_without(ended, *id, charge))
    }

    /// The allocation pays no more, as `ended` has it.
    pub fn note_ended(&self, ended: &mut Ended, held: &Allocation) {
        if !held.pays() {
            return;
        }
        for (id, _) in self.line_of(held.tenant) {
            ended.used.entry(id).or_default().add(&held.charge);
        }
        if let Some(account) = held.account() {
            ended.floor_charged.entry(account).or_default().add(&held.charge);
        }
    }

    /// Whether more is charged to an account than it holds: a guarantee was lowered.
    #[must_use]
    pub fn is_overcharged(&self, id: TenantId) -> bool {
        self.overcharged(id).next().is_some()
    }

    /// The resources of which more is charged to an account than it holds.
    pub fn overcharged(&self, id: TenantId) -> impl Iterator<Item = Resource> + '_ {
        let charged = self.tenants.get(&id).into_iter().flat_map(|at| self.floored(&at.floor_charged));
        charged.filter(move |(resource, charged)| *charged > self.by_tree(id, *resource)).map(|(resource, _)| resource)
    }

    /// Accounts that have got something back since this was asked last, or whose size has changed.
    pub fn take_freed(&mut self) -> BTreeSet<TenantId> {
        if std::mem::take(&mut self.accounts.floored_changed) {
            self.accounts.freed.extend(self.tenants.keys());
        }
        std::mem::take(&mut self.accounts.freed)
    }

    /// The first job that has claimed a node, if one has: nothing else may be bound there.
    #[must_use]
    pub fn claimed_by(&self, node: NodeId) -> Option<JobId> {
        self.accounts.claimed.get(&node)?.first().copied()
    }

    /// Charges a claim to the tenants of its job and closes its nodes to others.
    pub fn put_claim(&mut self, job: JobId, tenant: TenantId, claim: &Claim) {
        for task in &claim.tasks {
            self.accounts.claimed.entry(task.node).or_default().insert(job);
        }
        self.charge_tenants(tenant, &claim.charge, claim.account);
    }

    /// Undoes [`Capacity::put_claim`].
    pub fn remove_claim(&mut self, job: JobId, tenant: TenantId, claim: &Claim) {
        for node in claim.nodes() {
            let Some(jobs) = self.accounts.claimed.get_mut(&node) else { continue };
            jobs.remove(&job);
            if jobs.is_empty() {
                self.accounts.claimed.remove(&node);
            }
        }
        self.release_tenants(tenant, &claim.charge, claim.account);
        // What a burst claim becomes may be covered by now.
        if claim.account.is_none() {
            let line: Vec<TenantId> = self.line_of(tenant).map(|(id, _)| id).collect();
            self.accounts.freed.extend(line);
        }
    }

    /// The same allocation pays otherwise than before: from another account, or not at all any more.
    pub fn recharge(&mut self, old: &Allocation, new: &Allocation) {
        let paid = |held: &Allocation| held.pays().then(|| (held.tenant, held.account()));
        if paid(old) == paid(new) {
            return;
        }
        if let Some((tenant, account)) = paid(old) {
            self.release_tenants(tenant, &old.charge, account);
        }
        if let Some((tenant, account)) = paid(new) {
            self.charge_tenants(tenant, &new.charge, account);
        }
    }

    pub(super) fn charge_account(&mut self, account: TenantId, charge: &ResourceVec) {
        self.use_changes(Some(account));
        if let Some(at) = self.tenants.get_mut(&account) {
            at.floor_charged.add(charge);
        }
        self.each_of_line(Some(account), |at| at.floor_use.add(charge));
    }

    pub(super) fn release_account(&mut self, account: TenantId, charge: &ResourceVec) {
        self.use_changes(Some(account));
        if let Some(at) = self.tenants.get_mut(&account) {
            at.floor_charged.sub(charge);
        }
        self.each_of_line(Some(account), |at| at.floor_use.sub(charge));
        self.accounts.freed.insert(account);
    }

    /// Whether burst work of `tenant` leaves free what others are guaranteed and do not lend.
    ///
    /// # Errors
    /// The first resource of which it would use what is kept, and how much of it is kept.
    pub fn lending_allows(&self, ended: &Ended, tenant: TenantId, charge: &ResourceVec) -> Result<(), NotLent> {
        if self.accounts.not_lending == 0 {
            return Ok(());
        }
        for (resource, asked) in self.floored(charge) {
            let idle = |(id, at): (TenantId, &TenantUse)| {
                let used = at.used.get(resource) - ended.of(&ended.used, id, resource);
                at.guarantee.get(resource).saturating_sub(used)
            };
            let kept: u64 = self.keepers(tenant, resource).map(idle).sum();
            let organisations = self.tenants.iter().filter(|(_, at)| at.parent.is_none());
            let used: u64 =
                organisations.map(|(id, at)| at.used.get(resource) - ended.of(&ended.used, *id, resource)).sum();
            let free = self.healthy().get(resource).saturating_sub(used);
            if kept > 0 && free < kept + asked {
                return Err(NotLent { resource, asked, free, kept });
            }
        }
        Ok(())
    }

    /// Tenants outside of the line of `tenant` that do not lend a resource: of several, one below the other, the highest, whose guarantee has the
    /// others' in it.
    fn keepers(&self, tenant: TenantId, resource: Resource) -> impl Iterator<Item = (TenantId, &TenantUse)> + '_ {
        let mine: BTreeSet<TenantId> = self.line_of(tenant).map(|(id, _)| id).collect();
        self.tenants.iter().map(|(id, at)| (*id, at)).filter(move |(id, at)| {
            let outside = |(above, _): &(TenantId, &TenantUse)| !mine.contains(above);
            let mut kept_above = self.line_of(*id).skip(1).filter(outside);
            !at.lends(resource) && !mine.contains(id) && kept_above.all(|(_, above)| above.lends(resource))
        })
    }

    /// Whether a charge could ever be granted: if nothing were in use, a floor account would cover it or it would leave free what others do not lend.
    /// Nothing is kept free for a job for which this does not hold.
    #[must_use]
    pub fn could_be_lent(&self, tenant: TenantId, charge: &ResourceVec) -> bool {
        if self.accounts.not_lending == 0 {
            return true;
        }
        let mut floored = self.floored(charge);
        let covers = |id: TenantId| self.floored(charge).all(|(resource, asked)| asked <= self.met(id, resource));
        let lent = |(resource, asked): (Resource, u64)| {
            let kept: u64 = self.keepers(tenant, resource).map(|(_, at)| at.guarantee.get(resource)).sum();
            kept == 0 || kept + asked <= self.healthy().get(resource)
        };
        floored.all(lent) || self.line_of(tenant).any(|(id, _)| covers(id))
    }

    /// How long a burst allocation runs at least before it may be preempted: the longest cool-down of the pools that it stands in.
    #[must_use]
    pub fn cool_down_ms(&self, held: &Allocation) -> u64 {
        let pools = self.pools_under(held).filter(|_| !held.is_growth);
        pools.map(|pool| 1_000 * pool.cool_down_s).max().unwrap_or(0)
    }

    /// How often the job of an allocation may be preempted: the least of the bounds of the pools that it stands in.
    #[must_use]
    pub fn preemptions_max(&self, held: &Allocation) -> Option<u32> {
        self.pools_under(held).filter(|_| !held.is_growth).filter_map(|pool| pool.preemptions_max).min()
    }

    /// The pools that an allocation stands in, once for each task.
    pub fn pools_under<'a>(&'a self, held: &'a Allocation) -> impl Iterator<Item = &'a Pool> + 'a {
        held.tasks.iter().filter_map(|task| self.nodes.get(&task.node)).map(|there| self.pool_of(&there.node))
    }

    /// Whether a request of `tenant` that a floor account covers may reclaim from a burst allocation of `victim`: the victim's side, below the
    /// lowest common ancestor, must use more than its guarantee of something that the victim frees and the request asks for. One tenant reclaims
    /// from itself only the growth of its gangs.
    #[must_use]
    pub fn may_reclaim(&self, ended: &Ended, (tenant, asked): (TenantId, &ResourceVec), victim: &Allocation) -> bool {
        let (victim, frees, is_growth) = (victim.tenant, &victim.charge, victim.is_growth);
        let common: Vec<Resource> =
            frees.nonzero().map(|(resource, _)| resource).filter(|resource| asked.get(*resource) > 0).collect();
        let gpus = common.iter().any(|resource| matches!(resource, Resource::Gpu(_)));
        let floored = common.iter().any(|resource| self.accounts.is_floored(*resource));
        let counts = |resource: &Resource| match resource {
            _ if gpus => matches!(resource, Resource::Gpu(_)),
            other => !floored || self.accounts.is_floored(*other),
        };
        let mine: BTreeSet<TenantId> = self.line_of(tenant).map(|(id, _)| id).collect();
        if tenant == victim && !is_growth || common.is_empty() {
            return false;
        }
        // Its own jobs of an ancestor are a side without a guarantee.
        if mine.contains(&victim) {
            return true;
        }
        let Some((id, side)) = self.line_of(victim).take_while(|(id, _)| !mine.contains(id)).last() else {
            return false;
        };
        let used = |resource| side.used.get(resource) - ended.of(&ended.used, id, resource);
        common.iter().filter(|resource| counts(resource)).any(|one| used(*one) > side.guarantee.get(*one))
    }
}

/// Order of victims and of promotions: the allocation's priority, its job's age, its id.
pub type Rank = (std::cmp::Reverse<i32>, u64, AllocationId);

impl Allocation {
    /// Its place among burst allocations when a floor gets free: the first is promoted first, the last is demoted first.
    #[must_use]
    pub fn promotion_rank(&self) -> Rank {
        (std::cmp::Reverse(self.priority), self.submitted_ms, self.id)
    }
}
