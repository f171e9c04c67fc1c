//! Looks for broken laws in what is recorded for bills: who paid for an allocation since when, and what each tenant was.
//!
//! What must stay true: nothing here trusts the capacity ledger; what tenants keep from others is counted again from the tree and the payers.

use crate::level;
use crate::state::State;
use muster_model::capacity::healthy_of;
use muster_model::ids::TenantId;
use muster_model::laws::{Broken, Law};
use muster_model::topology::RequiredTopology;
use muster_model::{AllocationState, ResourceVec, Tenant};
use std::collections::BTreeMap;

fn ensure(holds: bool, law: u8, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { law: Law(law), what: what() }) }
}

impl State {
    /// Law 3: each millisecond of an allocation has one payer, and the level that it may be priced by is that of its job.
    pub(crate) fn check_classes(&self) -> Result<(), Broken> {
        for held in self.allocations.values() {
            let fault = held.classes.fault(held.bound_ms);
            ensure(fault.is_none(), 3, || format!("allocation {}: {}", held.id, fault.unwrap_or_default()))?;
            let asked = self.jobs.get(&held.job).map(|job| job.spec.topology.to_require());
            // Nothing was recorded below level 3.
            let recorded = held.topology == RequiredTopology::default() || asked == Some(held.topology);
            ensure(recorded, 3, || {
                format!("allocation {} is recorded to require {:?}, its job asks for {asked:?}", held.id, held.topology)
            })?;
        }
        for job in self.jobs.values() {
            for record in &job.attempts {
                let fault = record.classes.fault(record.bound_ms);
                ensure(fault.is_none(), 3, || {
                    format!("attempt {} of job {}: {}", record.attempt, job.id, fault.unwrap_or_default())
                })?;
            }
        }
        Ok(())
    }

    /// Law 10: from level 3 on each tenant's history ends with what the tenant is, and that of a removed one with its end. A copy of the state for
    /// plans and forecasts is sent without histories.
    pub(crate) fn check_tenant_histories(&self) -> Result<(), Broken> {
        if !level::has(self, level::QUOTAS) {
            return ensure(self.tenant_histories.is_empty(), 10, || {
                "histories of tenants are kept below feature level 3".to_owned()
            });
        }
        for (id, history) in &self.tenant_histories {
            let fault = history.fault(self.tenants.get(id));
            ensure(fault.is_none(), 10, || format!("the history of tenant {id}: {}", fault.unwrap_or_default()))?;
        }
        Ok(())
    }

    /// Whether burst that is new since `before` has left free what tenants outside of its own line are guaranteed and do not lend. An entry that changed
    /// tenants or nodes too is not judged: what was there at the binding is not known any more.
    ///
    /// # Errors
    /// Law 4: what is kept of a floor was used by burst of another tenant.
    pub fn check_lending(&self, before: &State) -> Result<(), Broken> {
        let nodes =
            self.nodes.values().zip(before.nodes.values()).all(|(now, then)| healthy_of(now) == healthy_of(then));
        if !level::has(before, level::QUOTAS)
            || self.tenants != before.tenants
            || !nodes
            || self.nodes.len() != before.nodes.len()
        {
            return Ok(());
        }
        let new = self.allocations.values().filter(|held| held.id >= before.meta.next_allocation);
        let new = new.filter(|held| held.state == AllocationState::Active && held.account().is_none());
        let claimed = self.jobs.values().filter_map(|job| Some((job.tenant, job.claim.as_deref()?)));
        let claimed =
            claimed.filter(|(_, claim)| claim.allocation >= before.meta.next_allocation && claim.account.is_none());
        let burst =
            new.map(|held| (held.tenant, held.charge)).chain(claimed.map(|(tenant, claim)| (tenant, claim.charge)));
        let burst: Vec<(TenantId, ResourceVec)> = burst.collect();
        if burst.is_empty() || self.tenants.values().all(lends_all) {
            return Ok(());
        }
        let mut used: BTreeMap<TenantId, ResourceVec> = BTreeMap::new();
        let mut free = self.nodes.values().fold(ResourceVec::default(), |sum, node| sum.plus(&healthy_of(node)));
        for (tenant, charge, _) in self.payers() {
            self.line(tenant).for_each(|id| used.entry(id).or_default().add(charge));
            free = free.less(charge);
        }
        for (taker, charge) in burst {
            for (resource, _) in charge.nonzero().filter(|(resource, _)| self.counts(*resource)) {
                let kept: u64 = self.kept_from(taker, resource, &used);
                ensure(kept <= free.get(resource), 4, || {
                    format!(
                        "burst of tenant {taker} leaves {} of {resource} free, and {kept} are kept",
                        free.get(resource)
                    )
                })?;
            }
        }
        Ok(())
    }

    /// Idle guarantees of one resource that tenants outside of the line of `taker` do not lend; the part of a tenant counts with the highest above it that keeps.
    fn kept_from(
        &self,
        taker: TenantId,
        resource: muster_model::resources::Resource,
        used: &BTreeMap<TenantId, ResourceVec>,
    ) -> u64 {
        let mine: Vec<TenantId> = self.line(taker).collect();
        let keeps = |tenant: &Tenant| !tenant.lends(resource) && !mine.contains(&tenant.id);
        let tops = self
            .tenants
            .values()
            .filter(|tenant| keeps(tenant))
            .filter(|tenant| !self.line(tenant.id).skip(1).filter_map(|id| self.tenants.get(&id)).any(keeps));
        tops.map(|tenant| {
            let used = used.get(&tenant.id).map_or(0, |used| used.get(resource));
            tenant.guarantee.get(resource).saturating_sub(used)
        })
        .sum()
    }
}

fn lends_all(tenant: &Tenant) -> bool {
    tenant.lend && tenant.lends.values().all(|lent| *lent)
}
