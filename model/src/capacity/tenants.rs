//! The tenants' side of the capacity ledger: use of every level, and the max that bounds it (law 3).

use super::Capacity;
use super::ended::Ended;
use crate::ids::TenantId;
use crate::resources::{Limits, Resource, ResourceVec};
use crate::tenant::{AntiAffinity, Tenant, Trust, value_for};
use std::collections::{BTreeMap, BTreeSet};

/// A ceiling that a charge would pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tenant {path} would use {}, its max is {}", .resource.in_words(*.would_use), .resource.in_words(*.max))]
pub struct OverMax {
    /// At which level.
    pub tenant: TenantId,
    /// Its path.
    pub path: String,
    /// Which resource.
    pub resource: Resource,
    /// What it would come to.
    pub would_use: u64,
    /// The ceiling.
    pub max: u64,
}

/// A tenant and what it and its descendants have in use.
#[derive(Clone, Debug)]
pub struct TenantUse {
    /// Its path.
    pub path: String,
    /// Who it belongs to.
    pub parent: Option<TenantId>,
    /// The floor.
    pub guarantee: ResourceVec,
    /// The ceiling.
    pub max: Limits,
    /// Share among siblings.
    pub weight: u32,
    /// Shares cards only through MIG.
    pub untrusted: bool,
    /// Whom it is kept apart from.
    pub anti_affinity: Vec<AntiAffinity>,
    /// Whether burst of other tenants may use its idle guarantee.
    pub lend: bool,
    /// Weights of resources that have one of their own.
    pub weights: BTreeMap<Resource, u32>,
    /// The same for lending.
    pub lends: BTreeMap<Resource, bool>,
    /// In use, descendants included.
    pub used: ResourceVec,
    /// In use by its own jobs alone.
    pub own: ResourceVec,
    /// Charged to its own floor account.
    pub floor_charged: ResourceVec,
    /// Charged to its floor account and those of its descendants.
    pub floor_use: ResourceVec,
}

impl TenantUse {
    /// Its share among siblings of one resource.
    #[must_use]
    pub fn weight_of(&self, resource: Resource) -> u32 {
        value_for(self.weight, &self.weights, resource).max(1)
    }

    /// Whether burst of other tenants may use what is idle of its guarantee of one resource.
    #[must_use]
    pub fn lends(&self, resource: Resource) -> bool {
        value_for(self.lend, &self.lends, resource)
    }

    /// Whether there may be a resource that it does not lend.
    fn keeps_any(&self) -> bool {
        !self.lend || self.lends.values().any(|lent| !lent)
    }

    /// What no floor account at or below it pays for, descendants included.
    #[must_use]
    pub fn burst(&self) -> ResourceVec {
        self.used.less(&self.floor_use)
    }
}

impl Capacity {
    /// Adds a tenant or takes over its new limits and place; what it uses stays charged, to the ancestors that it has now.
    pub fn put_tenant(&mut self, tenant: &Tenant) {
        let old = self.tenants.get(&tenant.id);
        let (used, own) = old.map(|old| (old.used, old.own)).unwrap_or_default();
        let (floor_charged, floor_use) = old.map(|old| (old.floor_charged, old.floor_use)).unwrap_or_default();
        let had = old.is_some_and(|old| !old.anti_affinity.is_empty());
        let counted = old.map(|old| (old.parent, old.guarantee));
        self.change_floors(tenant.id, counted, Some((tenant.parent, tenant.guarantee)));
        if let Some((parent, _)) = counted.filter(|(parent, _)| *parent != tenant.parent) {
            self.use_changes(parent);
            self.use_changes(tenant.parent);
            self.each_of_line(parent, |at| {
                at.used.sub(&used);
                at.floor_use.sub(&floor_use);
            });
            self.each_of_line(tenant.parent, |at| {
                at.used.add(&used);
                at.floor_use.add(&floor_use);
            });
        }
        let new = TenantUse {
            path: tenant.path.clone(),
            parent: tenant.parent,
            guarantee: tenant.guarantee,
            max: tenant.max.clone(),
            weight: tenant.weight,
            untrusted: tenant.trust == Trust::Untrusted,
            anti_affinity: tenant.anti_affinity.clone(),
            lend: tenant.lend,
            weights: tenant.weights.clone(),
            lends: tenant.lends.clone(),
            used,
            own,
            floor_charged,
            floor_use,
        };
        let kept = self.tenants.get(&tenant.id).is_some_and(TenantUse::keeps_any);
        self.accounts.count_lender(kept, new.keeps_any());
        self.recount_rules(had, !tenant.anti_affinity.is_empty());
        self.tenants.insert(tenant.id, new);
    }

    /// Changes the limits of a tenant and leaves its place, its rules against neighbours and its use as they are.
    pub fn edit_tenant(&mut self, id: TenantId, edit: impl FnOnce(&mut TenantUse)) {
        let Some(mut at) = self.tenants.get(&id).cloned() else { return };
        let (before, kept) = ((at.parent, at.guarantee), at.keeps_any());
        edit(&mut at);
        self.change_floors(id, Some(before), Some((at.parent, at.guarantee)));
        self.accounts.count_lender(kept, at.keeps_any());
        self.tenants.insert(id, at);
    }

    /// Takes a tenant out; it must have nothing in use and no children.
    pub fn remove_tenant(&mut self, id: TenantId) {
        let Some(old) = self.tenants.remove(&id) else { return };
        self.change_floors(id, Some((old.parent, old.guarantee)), None);
        self.accounts.count_lender(old.keeps_any(), false);
        self.recount_rules(!old.anti_affinity.is_empty(), false);
    }

    /// `tenant` and its ancestors, from the bottom.
    pub fn line_of(&self, tenant: TenantId) -> impl Iterator<Item = (TenantId, &TenantUse)> + '_ {
        std::iter::successors(self.tenants.get_key_value(&tenant), |(_, at)| {
            at.parent.and_then(|parent| self.tenants.get_key_value(&parent))
        })
        .map(|(id, at)| (*id, at))
    }

    /// The organisation at the top: the trust domain.
    #[must_use]
    pub fn domain_of(&self, tenant: TenantId) -> TenantId {
        self.line_of(tenant).last().map_or(tenant, |(id, _)| id)
    }

    /// Whether `charge` fits under the max of `tenant` and of every ancestor.
    ///
    /// # Errors
    /// The lowest ceiling that it would pass.
    pub fn max_allows(&self, tenant: TenantId, charge: &ResourceVec) -> Result<(), OverMax> {
        self.max_allows_without(&Ended::default(), tenant, charge)
    }

    /// The same once `ended` pay no more.
    ///
    /// # Errors
    /// The lowest ceiling that it would pass.
    pub fn max_allows_without(&self, ended: &Ended, tenant: TenantId, charge: &ResourceVec) -> Result<(), OverMax> {
        for (id, at) in self.line_of(tenant) {
            // Only what this charge adds to can be refused: a max that was below present use before that was refused stops growth alone.
            let passed = charge.nonzero().find_map(|(resource, more)| {
                let max = at.max.get(resource)?;
                let would_use = at.used.get(resource) + more - ended.of(&ended.used, id, resource);
                (would_use > max).then_some((resource, max, would_use))
            });
            if let Some((resource, max, would_use)) = passed {
                return Err(OverMax { tenant: id, path: at.path.clone(), resource, would_use, max });
            }
        }
        Ok(())
    }

    /// Whether it is noted from now on whose use changes.
    pub fn watch_use(&mut self, watch: bool) {
        if watch != self.accounts.use_changed.is_some() {
            self.accounts.use_changed = watch.then(BTreeSet::new);
        }
    }

    /// Whose use has changed since this was asked last: tenants and all above them.
    pub fn take_use_changed(&mut self) -> BTreeSet<TenantId> {
        let changed = self.accounts.use_changed.as_mut().map(std::mem::take).unwrap_or_default();
        changed.into_iter().flat_map(|tenant| self.line_of(tenant)).map(|(id, _)| id).collect()
    }

    pub(super) fn use_changes(&mut self, tenant: Option<TenantId>) {
        if let Some(changed) = &mut self.accounts.use_changed {
            changed.extend(tenant);
        }
    }

    pub(super) fn charge_tenants(&mut self, tenant: TenantId, charge: &ResourceVec, account: Option<TenantId>) {
        self.use_changes(Some(tenant));
        if let Some(at) = self.tenants.get_mut(&tenant) {
            at.own.add(charge);
        }
        self.each_of_line(Some(tenant), |at| at.used.add(charge));
        if let Some(account) = account {
            self.charge_account(account, charge);
        }
    }

    pub(super) fn release_tenants(&mut self, tenant: TenantId, charge: &ResourceVec, account: Option<TenantId>) {
        self.use_changes(Some(tenant));
        if let Some(at) = self.tenants.get_mut(&tenant) {
            at.own.sub(charge);
        }
        self.each_of_line(Some(tenant), |at| at.used.sub(charge));
        if let Some(account) = account {
            self.release_account(account, charge);
        }
    }

    pub(super) fn each_of_line(&mut self, mut next: Option<TenantId>, mut touch: impl FnMut(&mut TenantUse)) {
        while let Some(at) = next.and_then(|id| self.tenants.get_mut(&id)) {
            touch(at);
            next = at.parent;
        }
    }
}
