//! Allocations in the order in which they are promoted, and those of each floor account.
//!
//! What must stay true: an allocation that pays is in exactly one of the two; one that is being preempted is in neither, so it is never
//! promoted.

use muster_model::capacity::{Capacity, PromotionRank};
use muster_model::ids::{AllocationId, TenantId};
use muster_model::{Allocation, ResourceVec};
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassIndex {
    /// Every burst allocation, with its tenant and its charge.
    all_burst: BTreeMap<PromotionRank, (TenantId, ResourceVec)>,
    /// Burst allocations of each tenant and its descendants, by what they are charged.
    burst: BTreeMap<TenantId, BTreeMap<ResourceVec, BTreeSet<PromotionRank>>>,
    /// Allocations that each floor account pays for.
    guaranteed: BTreeMap<TenantId, BTreeSet<PromotionRank>>,
}

impl ClassIndex {
    /// An allocation has come, pays otherwise, or has gone.
    pub(crate) fn changed(&mut self, capacity: &Capacity, old: Option<&Allocation>, new: Option<&Allocation>) {
        let filed = |held: &Allocation| held.pays().then(|| (held.tenant, held.account()));
        if old.and_then(filed) == new.and_then(filed) {
            return;
        }
        if let Some(held) = old.filter(|held| held.pays()) {
            self.file(capacity, held, false);
        }
        if let Some(held) = new.filter(|held| held.pays()) {
            self.file(capacity, held, true);
        }
    }

    fn file(&mut self, capacity: &Capacity, held: &Allocation, comes: bool) {
        let rank = held.promotion_rank();
        // Growth is burst whatever floors would cover.
        if held.is_growth {
            return;
        }
        if let Some(account) = held.account() {
            change(&mut self.guaranteed, account, rank, comes);
            return;
        }
        if comes {
            self.all_burst.insert(rank, (held.tenant, held.charge));
        } else {
            self.all_burst.remove(&rank);
        }
        self.file_burst(capacity, (held.tenant, held.charge), rank, comes);
    }

    fn file_burst(
        &mut self,
        capacity: &Capacity,
        (tenant, charge): (TenantId, ResourceVec),
        rank: PromotionRank,
        comes: bool,
    ) {
        for (id, _) in capacity.line_of(tenant) {
            let by_charge = self.burst.entry(id).or_default();
            change(by_charge, charge, rank, comes);
            if by_charge.is_empty() {
                self.burst.remove(&id);
            }
        }
    }

    /// A tenant has another parent: whoever is below it has other ancestors.
    pub(crate) fn tenant_moved(&mut self, capacity: &Capacity) {
        self.burst.clear();
        for (rank, of) in std::mem::take(&mut self.all_burst) {
            self.file_burst(capacity, of, rank, true);
            self.all_burst.insert(rank, of);
        }
    }

    /// The burst allocation that the account of `id` covers and that is promoted first.
    pub(crate) fn first_covered(&self, capacity: &Capacity, id: TenantId) -> Option<AllocationId> {
        let by_charge = self.burst.get(&id)?;
        let covered = by_charge.iter().filter(|(charge, _)| capacity.covers(id, charge));
        covered.filter_map(|(_, ranks)| ranks.first()).min().map(|rank| rank.2)
    }

    /// The allocations of an account, those that are demoted first before others.
    pub(crate) fn last_of(&self, account: TenantId) -> impl Iterator<Item = AllocationId> + '_ {
        self.guaranteed.get(&account).into_iter().flatten().rev().map(|rank| rank.2)
    }
}

fn change<K: Ord>(sets: &mut BTreeMap<K, BTreeSet<PromotionRank>>, key: K, rank: PromotionRank, comes: bool) {
    if comes {
        sets.entry(key).or_default().insert(rank);
        return;
    }
    if let Some(set) = sets.get_mut(&key) {
        set.remove(&rank);
        if set.is_empty() {
            sets.remove(&key);
        }
    }
}
