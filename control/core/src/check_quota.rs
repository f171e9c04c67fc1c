//! Looks for broken laws of quota in a state: who pays for what, counted again from allocations and claims.
//!
//! What must stay true: nothing here trusts the capacity ledger; sizes of accounts and what is charged to them are counted from the objects.

use crate::level;
use crate::state::State;
use muster_model::ids::{AllocationId, JobId, NodeId, TenantId};
use muster_model::laws::{Broken, Law};
use muster_model::resources::Resource;
use muster_model::{Allocation, Claim, JobPhase, ResourceVec, TaskPlacement};
use std::collections::BTreeMap;

fn ensure(holds: bool, law: u8, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { law: Law(law), what: what() }) }
}

impl State {
    /// Everything that pays: its tenant, its charge, the account.
    pub(crate) fn payers(&self) -> impl Iterator<Item = (TenantId, &ResourceVec, Option<TenantId>)> + '_ {
        let held = self.allocations.values().filter(|held| held.pays());
        let claims = self.jobs.values().filter_map(|job| Some((job.tenant, job.claim.as_deref()?)));
        let held = held.map(|held| (held.tenant, &held.charge, held.account()));
        held.chain(claims.map(|(tenant, claim): (TenantId, &Claim)| (tenant, &claim.charge, claim.account)))
    }

    pub(crate) fn line(&self, tenant: TenantId) -> impl Iterator<Item = TenantId> + '_ {
        std::iter::successors(Some(tenant), |id| self.tenants.get(id)?.parent)
    }

    /// Whether a resource counts for floors: GPUs always, CPU and memory where an organisation guarantees them.
    pub(crate) fn counts(&self, resource: Resource) -> bool {
        let organisations = || self.tenants.values().filter(|tenant| tenant.parent.is_none());
        matches!(resource, Resource::Gpu(_)) || organisations().any(|tenant| tenant.guarantee.get(resource) > 0)
    }

    /// Floor accounts: none is charged more than it holds, each payer's account is on its path, and no burst allocation is left that an account
    /// covers (promotion is complete). A claim stands for victims that are ending, of a waiting job.
    ///
    /// # Errors
    /// The first law found broken.
    pub(crate) fn check_floors(&self) -> Result<(), Broken> {
        if !level::has(self, level::QUOTAS) {
            return Ok(());
        }
        let mut left: BTreeMap<TenantId, ResourceVec> =
            self.tenants.values().map(|tenant| (tenant.id, tenant.guarantee)).collect();
        for tenant in self.tenants.values() {
            if let Some(account) = tenant.parent.and_then(|parent| left.get_mut(&parent)) {
                account.sub(&tenant.guarantee);
            }
        }
        for (tenant, charge, account) in self.payers() {
            let Some(account) = account else { continue };
            ensure(self.line(tenant).any(|id| id == account), 4, || {
                format!("tenant {tenant} charges the account of {account}, which is not above it")
            })?;
            let Some(account_left) = left.get_mut(&account) else { continue };
            for (resource, amount) in charge.nonzero().filter(|(resource, _)| self.counts(*resource)) {
                let there = account_left.get(resource);
                ensure(amount <= there, 4, || {
                    format!("the account of tenant {account} lacks {resource}: {there} left, {amount} charged")
                })?;
            }
            *account_left = account_left.less(charge);
        }
        // What lost hardware leaves unmet may be charged already, and covers nothing more.
        for (id, unmet) in self.capacity().unmet_floors() {
            if let Some(account_left) = left.get_mut(id) {
                *account_left = account_left.less(unmet);
            }
        }
        for held in self.allocations.values().filter(|held| held.pays() && held.account().is_none() && !held.is_growth)
        {
            let asked = || held.charge.nonzero().filter(|(resource, _)| self.counts(*resource));
            let covers = |id: &TenantId| {
                let fits = |(resource, amount)| left.get(id).is_some_and(|left| amount <= left.get(resource));
                asked().next().is_some() && asked().all(fits)
            };
            let account = self.line(held.tenant).find(covers);
            ensure(account.is_none(), 4, || {
                format!("allocation {} is burst, but the account of tenant {account:?} covers it", held.id)
            })?;
        }
        self.check_claims()
    }

    fn check_claims(&self) -> Result<(), Broken> {
        // What is to leave, and what comes: a claimed node holds both in turn, never more.
        let (mut leaving, mut coming): (BTreeMap<AllocationId, &Allocation>, Vec<Allocation>) = Default::default();
        let mut claimed: BTreeMap<NodeId, (JobId, Option<AllocationId>)> = BTreeMap::new();
        for job in self.jobs.values() {
            let Some(claim) = &job.claim else { continue };
            let moved = job.moving.filter(|id| *id != claim.allocation);
            let stopping =
                matches!(job.phase, JobPhase::Stopping(id) if moved.is_some() && claim.victims.contains(&id));
            ensure((job.phase == JobPhase::Queued || stopping) && !claim.victims.is_empty(), 2, || {
                format!("job {} is {:?} and claims what {:?} leave", job.id, job.phase, claim.victims)
            })?;
            let made_by = moved.or_else(|| self.moves.contains_key(&claim.allocation).then_some(claim.allocation));
            for node in claim.nodes() {
                let (other, by) = *claimed.entry(node).or_insert((job.id, made_by));
                // Only the claims of one move share a node: they were proved together.
                ensure(other == job.id || (by.is_some() && by == made_by), 1, || {
                    format!("jobs {other} and {} claim node {node}", job.id)
                })?;
            }
            for victim in &claim.victims {
                let held = self.allocations.get(victim).filter(|held| !held.pays());
                ensure(held.is_some(), 2, || {
                    format!("job {} waits for allocation {victim}, which is not being preempted", job.id)
                })?;
                leaving.extend(held.map(|held| (*victim, &**held)));
            }
            // A node that has left and come back may be smaller: the claim is given up when it is its turn.
            let there = |(node, epoch): (&NodeId, &_)| self.nodes.get(node).is_some_and(|node| node.epoch == *epoch);
            // So may one whose agent has started again.
            let cards = |task: &TaskPlacement| {
                let node = self.nodes.get(&task.node);
                task.devices.iter().all(|hold| node.is_some_and(|node| usize::from(hold.gpu) < node.spec.gpus.len()))
            };
            if !claim.node_epochs.iter().all(there) || !claim.tasks.iter().all(cards) {
                continue;
            }
            let request = &job.spec.request;
            coming.push(Allocation {
                cpu_milli: request.cpu_milli,
                memory_mib: request.memory_mib,
                ..Allocation::usual(claim.allocation, job.id, job.tenant, claim.tasks.clone())
            });
        }
        let leaving: Vec<&Allocation> = leaving.into_values().collect();
        let coming: Vec<&Allocation> = coming.iter().collect();
        let taken = self.capacity().devices_without(&leaving, &coming);
        ensure(taken.is_ok(), 1, || format!("what is claimed is not there: {taken:?}"))
    }

    /// Law 10: where past use counts, each tenant's record says what is in use now; elsewhere there are no records.
    pub(super) fn check_use_histories(&self) -> Result<(), Broken> {
        let half_life_s = self.meta.half_life_s;
        ensure(half_life_s > 0 || self.use_histories.is_empty(), 10, || {
            "use is recorded, but no half-life is set".to_owned()
        })?;
        for (id, at) in self.capacity().tenants().iter().filter(|_| half_life_s > 0) {
            let (burst, own) = (at.burst(), at.own);
            let record = self.use_histories.get(id);
            let recorded = record.map(|record| (record.burst.since, record.own.since)).unwrap_or_default();
            ensure(recorded == (burst, own), 10, || {
                format!("tenant {} uses {burst:?} ({own:?} its own), its history says {recorded:?}", at.path)
            })?;
            ensure(record.is_none_or(|record| record.half_life_s == half_life_s), 10, || {
                format!("the history of tenant {} goes by another half-life than {half_life_s} s", at.path)
            })?;
        }
        let gone = self.use_histories.keys().find(|id| !self.tenants.contains_key(id));
        ensure(gone.is_none(), 10, || format!("use of tenant {gone:?} is recorded, which does not exist"))
    }
}
