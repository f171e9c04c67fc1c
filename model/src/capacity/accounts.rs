//! Floor accounts: what of a tenant's guarantee is its own to charge, who charges it, and from whom a covered request may reclaim.
//!
//! A tenant's *floor account* is its guarantee minus the guarantees of its children. The tenant and its descendants may charge it; one account covers
//! a whole charge. What is charged to an account is guaranteed, everything else is burst. GPUs always count; CPU and memory count where an
//! organisation guarantees them (the *floored* resources). What must stay true: no more is charged to an account than it holds, except after a
//! guarantee was lowered, until the caller has demoted the excess.

use super::Capacity;
use crate::claim::Claim;
use crate::ids::{AllocationId, JobId, NodeId, TenantId};
use crate::resources::{Resource, ResourceVec};
use crate::{Allocation, Tenant};
use std::collections::{BTreeMap, BTreeSet};

/// Allocations that are taken to pay no more, on top of a ledger that still has them: what their tenants used, and what was charged to accounts.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    pub(super) used: BTreeMap<TenantId, ResourceVec>,
    floor_charged: BTreeMap<TenantId, ResourceVec>,
}

impl Ended {
    pub(super) fn of(&self, amounts: &BTreeMap<TenantId, ResourceVec>, id: TenantId, resource: Resource) -> u64 {
        amounts.get(&id).map_or(0, |amount| amount.get(resource))
    }
}

/// What accounts need beside the tenants themselves.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounts {
    /// Sum of the guarantees of each tenant's children.
    handed_down: BTreeMap<TenantId, ResourceVec>,
    /// Organisations that guarantee CPU, and memory.
    guaranteeing: (u32, u32),
    /// Accounts that have got something back since [`Capacity::take_freed`].
    freed: BTreeSet<TenantId>,
    /// Which resources are floored has changed since then: any account may cover more, or less.
    floored_changed: bool,
    /// The job that has claimed a node.
    claimed: BTreeMap<NodeId, JobId>,
}

impl Accounts {
    /// A tenant has come, changed or gone.
    pub(super) fn tenant_changed(
        &mut self,
        id: TenantId,
        old: Option<(Option<TenantId>, ResourceVec)>,
        new: Option<&Tenant>,
    ) {
        let new = new.map(|new| (new.parent, new.guarantee));
        if old == new {
            return;
        }
        if let Some((parent, guarantee)) = old {
            match parent {
                Some(parent) => self.handed_down.entry(parent).or_default().sub(&guarantee),
                None => self.count_organisation(&guarantee, false),
            }
            self.freed.extend(parent);
        }
        if let Some((parent, guarantee)) = new {
            match parent {
                Some(parent) => self.handed_down.entry(parent).or_default().add(&guarantee),
                None => self.count_organisation(&guarantee, true),
            }
            self.freed.extend(parent);
            self.freed.insert(id);
        }
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

    /// What a tenant's floor account holds of one resource, charged or not.
    fn account_size(&self, id: TenantId, resource: Resource) -> u64 {
        let Some(at) = self.tenants.get(&id) else { return 0 };
        let handed_down = self.accounts.handed_down.get(&id).map_or(0, |sum| sum.get(resource));
        at.guarantee.get(resource).saturating_sub(handed_down)
    }

    /// What is left of one resource in a tenant's floor account.
    #[must_use]
    pub fn account_free(&self, id: TenantId, resource: Resource) -> u64 {
        self.account_free_without(&Ended::default(), id, resource)
    }

    fn account_free_without(&self, ended: &Ended, id: TenantId, resource: Resource) -> u64 {
        let charged = self.tenants.get(&id).map_or(0, |at| at.floor_charged.get(resource));
        (self.account_size(id, resource) + ended.of(&ended.floor_charged, id, resource)).saturating_sub(charged)
    }

    /// Whether the account of `id` covers the charge beside what is charged to it.
    #[must_use]
    pub fn covers(&self, id: TenantId, charge: &ResourceVec) -> bool {
        self.covers_without(&Ended::default(), id, charge)
    }

    fn covers_without(&self, ended: &Ended, id: TenantId, charge: &ResourceVec) -> bool {
        let mut floored = self.floored(charge).peekable();
        floored.peek().is_some()
            && floored.all(|(resource, amount)| amount <= self.account_free_without(ended, id, resource))
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
        charged
            .filter(move |(resource, charged)| *charged > self.account_size(id, *resource))
            .map(|(resource, _)| resource)
    }

    /// Accounts that have got something back since this was asked last, or whose size has changed.
    pub fn take_freed(&mut self) -> BTreeSet<TenantId> {
        if std::mem::take(&mut self.accounts.floored_changed) {
            self.accounts.freed.extend(self.tenants.keys());
        }
        std::mem::take(&mut self.accounts.freed)
    }

    /// The job that has claimed a node, if one has: nothing else may be bound there.
    #[must_use]
    pub fn claimed_by(&self, node: NodeId) -> Option<JobId> {
        self.accounts.claimed.get(&node).copied()
    }

    /// Charges a claim to the tenants of its job and closes its nodes to others.
    pub fn put_claim(&mut self, job: JobId, tenant: TenantId, claim: &Claim) {
        self.accounts.claimed.extend(claim.tasks.iter().map(|task| (task.node, job)));
        self.charge_tenants(tenant, &claim.charge, claim.account);
    }

    /// Undoes [`Capacity::put_claim`].
    pub fn remove_claim(&mut self, job: JobId, tenant: TenantId, claim: &Claim) {
        for task in &claim.tasks {
            if self.claimed_by(task.node) == Some(job) {
                self.accounts.claimed.remove(&task.node);
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
        if let Some(at) = self.tenants.get_mut(&account) {
            at.floor_charged.add(charge);
        }
        self.each_of_line(account, |at| at.floor_use.add(charge));
    }

    pub(super) fn release_account(&mut self, account: TenantId, charge: &ResourceVec) {
        if let Some(at) = self.tenants.get_mut(&account) {
            at.floor_charged.sub(charge);
        }
        self.each_of_line(account, |at| at.floor_use.sub(charge));
        self.accounts.freed.insert(account);
    }

    /// How long a burst allocation runs at least before it may be preempted: the longest cool-down of the pools that it stands in.
    #[must_use]
    pub fn cool_down_ms(&self, held: &Allocation) -> u64 {
        let pools =
            held.tasks.iter().filter_map(|task| self.nodes.get(&task.node)).map(|there| self.pool_of(&there.node));
        pools.map(|pool| 1_000 * pool.cool_down_s).max().unwrap_or(0)
    }

    /// Whether a request of `tenant` that a floor account covers may reclaim from a burst allocation of `victim`: the victim's side, below the
    /// lowest common ancestor, must use more than its guarantee of something that the victim frees and the request asks for.
    #[must_use]
    pub fn may_reclaim(&self, ended: &Ended, (tenant, asked): (TenantId, &ResourceVec), victim: &Allocation) -> bool {
        let (victim, frees) = (victim.tenant, &victim.charge);
        let common: Vec<Resource> =
            frees.nonzero().map(|(resource, _)| resource).filter(|resource| asked.get(*resource) > 0).collect();
        let gpus = common.iter().any(|resource| matches!(resource, Resource::Gpu(_)));
        let floored = common.iter().any(|resource| self.accounts.is_floored(*resource));
        let counts = |resource: &Resource| match resource {
            _ if gpus => matches!(resource, Resource::Gpu(_)),
            other => !floored || self.accounts.is_floored(*other),
        };
        let mine: BTreeSet<TenantId> = self.line_of(tenant).map(|(id, _)| id).collect();
        if tenant == victim || common.is_empty() {
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
