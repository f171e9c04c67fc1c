//! Claims: what waiting jobs get when those that they preempt have ended, committed or proposed by this shard.
//!
//! What must stay true: the nodes of a claim are marked for its job alone, and its charge is in the capacity ledger; the victims of a proposed claim
//! hold their devices and pay no quota; when the proposal comes to nothing everything is as before.

use super::{Known, View};
use crate::fleet::index::Hold;
use crate::job_class::JobClass;
use crate::queue::Freed;
use muster_model::{
    Allocation, AllocationId, AllocationState, CellId, Claim, EndCause, JobId, PreemptReason, TenantId,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Jobs of one tenant that wait in one cell and differ in their time limit alone: cell, tenant, what they ask for without it.
pub(crate) type ReclaimFamily = (CellId, TenantId, Arc<JobClass>);

/// When a family was last tried in vain, and when it is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReclaimTried {
    pub(crate) tried_ms: u64,
    pub(crate) wait_ms: u64,
    pub(crate) again_ms: u64,
    /// Which blocking of its queue its first group was left alone by then.
    pub(crate) blocked_at: Option<u64>,
    /// Something that may help it has become free since.
    pub(crate) freed: bool,
}

impl ReclaimTried {
    /// In vain at `now_ms`; again after `wait_ms`.
    pub(crate) fn in_vain(now_ms: u64, wait_ms: u64, blocked_at: Option<u64>) -> Self {
        let again_ms = now_ms.saturating_add(wait_ms);
        ReclaimTried { tried_ms: now_ms, wait_ms, again_ms, blocked_at, freed: false }
    }
}

/// A preemption that is proposed.
#[derive(Clone, Debug)]
pub(super) struct Preempting {
    tenant: TenantId,
    claim: Arc<Claim>,
    /// The victims as they were, and as they are assumed to be.
    victims: Vec<(Arc<Allocation>, Arc<Allocation>)>,
    /// The claims of victims that are moved.
    moved: Vec<(JobId, TenantId, Arc<Claim>)>,
}

/// How many allocations of each tenant have which priority, so that a pass need not look through them for one that a waiting job may preempt.
#[derive(Clone, Debug, Default)]
pub(super) struct RunningPriorities(BTreeMap<TenantId, BTreeMap<i32, u32>>);

impl RunningPriorities {
    pub(super) fn add(&mut self, held: &Allocation) {
        *self.0.entry(held.tenant).or_default().entry(held.priority).or_default() += 1;
    }

    pub(super) fn remove(&mut self, held: &Allocation) {
        let Some(of_tenant) = self.0.get_mut(&held.tenant) else { return };
        let Some(count) = of_tenant.get_mut(&held.priority) else { return };
        *count -= 1;
        if *count == 0 {
            of_tenant.remove(&held.priority);
        }
        if of_tenant.is_empty() {
            self.0.remove(&held.tenant);
        }
    }
}

impl View {
    /// Whether the tenant itself has something of a lower priority.
    pub(crate) fn runs_below(&self, tenant: TenantId, priority: i32) -> bool {
        let of_tenant = self.priorities.0.get(&tenant);
        of_tenant.and_then(|of_tenant| of_tenant.keys().next()).is_some_and(|least| *least < priority)
    }

    /// When a family for which no victims were found is due again.
    pub(super) fn next_reclaim_ms(&self) -> Option<u64> {
        let tried = self.reclaims_tried.values().chain(self.moves_tried.values()).map(|tried| tried.again_ms);
        tried.chain(self.storage_waits.values().copied()).min()
    }

    /// Shows a proposed preemption in the view, so that the next decision sees it. The beneficiary leaves the queue.
    pub(crate) fn assume_preemption(&mut self, job: &Known, claim: Claim, victims: &[AllocationId]) {
        self.assume_ended(job, claim, victims, PreemptReason::Reclaim);
    }

    /// Shows a proposed move in the view: as a preemption, with a claim for each moved job.
    pub(crate) fn assume_move(&mut self, job: &Known, claim: Claim, moved: Vec<(JobId, TenantId, Claim)>) {
        let victims: Vec<AllocationId> = claim.victims.iter().copied().collect();
        self.assume_ended(job, claim, &victims, PreemptReason::Move);
        let moved: Vec<_> = moved.into_iter().map(|(job, tenant, claim)| (job, tenant, Arc::new(claim))).collect();
        for (job, tenant, claim) in &moved {
            self.put_claim(*job, *tenant, claim);
        }
        if let Some(proposed) = self.preempting.get_mut(&job.id) {
            proposed.moved = moved;
        }
    }

    /// Whether a move is proposed: the budget that it would use is not in the view yet.
    pub(crate) fn is_moving(&self) -> bool {
        self.preempting.values().any(|proposed| !proposed.moved.is_empty())
    }

    fn assume_ended(&mut self, job: &Known, claim: Claim, victims: &[AllocationId], reason: PreemptReason) {
        self.unqueue(job);
        self.apply_reservation(job.id, false);
        let mut changed = Vec::new();
        for id in victims {
            let Some(before) = self.allocations.get(id.0).cloned() else { continue };
            let cause = EndCause::Preempted { by: Some(job.id), reason };
            let after = Allocation { state: AllocationState::Stopping(cause), ..Allocation::clone(&before) };
            let after = Arc::new(after);
            self.replace_allocation(&before, after.clone());
            changed.push((before, after));
        }
        let claim = Arc::new(claim);
        self.put_claim(job.id, job.tenant, &claim);
        self.preempting.insert(job.id, Preempting { tenant: job.tenant, claim, victims: changed, moved: Vec::new() });
    }

    /// The proposal is committed, has come to nothing, or its job is gone: what was assumed is undone, except what has been committed since.
    pub(super) fn forget_preemption(&mut self, job: JobId) {
        let Some(Preempting { tenant, claim, victims, moved }) = self.preempting.remove(&job) else { return };
        self.remove_claim(job, tenant, &claim);
        for (job, tenant, claim) in moved {
            self.remove_claim(job, tenant, &claim);
        }
        for (before, after) in victims {
            if self.allocations.get(before.id.0).is_some_and(|now| Arc::ptr_eq(now, &after)) {
                self.replace_allocation(&after, before);
            }
        }
        self.apply_reservation(job, true);
        if let Some(kept) = self.reserved.get_mut(&job) {
            kept.may_be_tried();
        }
        if let Some(job) = self.jobs.get(job.0).cloned() {
            self.enqueue(&job);
        }
    }

    /// The committed claim of a job has changed.
    pub(super) fn claim_changed(&mut self, old: Option<&Known>, new: Option<&Known>) {
        let claim = |job: Option<&Known>| job.and_then(|job| Some((job.id, job.tenant, job.claim.clone()?)));
        let (old, new) = (claim(old), claim(new));
        if old == new {
            return;
        }
        if let Some((job, tenant, claim)) = old {
            self.remove_claim(job, tenant, &claim);
        }
        if let Some((job, tenant, claim)) = new {
            self.forget_preemption(job);
            self.put_claim(job, tenant, &claim);
        }
    }

    /// The same allocation in another state, or paid for otherwise.
    pub(super) fn replace_allocation(&mut self, old: &Arc<Allocation>, new: Arc<Allocation>) {
        self.fleet.capacity.recharge(old, &new);
        let (paid, pays, tenant) = (old.pays(), new.pays(), new.tenant);
        let reclassed = old.account() != new.account();
        self.allocations.insert(new.id.0, new);
        if paid != pays || reclassed {
            self.quota_changed(tenant);
        }
    }

    /// The nodes of every claim, committed or proposed.
    #[cfg(test)]
    pub(super) fn claimed_nodes(&self) -> impl Iterator<Item = (muster_model::NodeId, Hold)> + '_ {
        let committed = self.jobs.values().filter_map(|job| Some((job.id, job.claim.as_deref()?)));
        let proposed = self.preempting.iter().flat_map(|(job, proposed)| {
            let moved = proposed.moved.iter().map(|(job, _, claim)| (*job, &**claim));
            moved.chain([(*job, &*proposed.claim)])
        });
        let held = |(job, claim): (JobId, &Claim)| {
            claim.nodes().into_iter().map(move |node| (node, Hold { until_ms: 0, job }))
        };
        committed.chain(proposed).flat_map(held)
    }

    /// More is free on a node: families that were tried in vain may find in it what they lack.
    pub(super) fn helps_tried(&mut self, cell: CellId, freed: &Freed) {
        for ((of, _, class), tried) in self.reclaims_tried.iter_mut().filter(|(_, tried)| !tried.freed) {
            let waits_for = || class.offers().iter().any(|offer| offer.model == freed.model);
            tried.freed = *of == cell && freed.may_help(class) && waits_for();
        }
    }

    fn put_claim(&mut self, job: JobId, tenant: TenantId, claim: &Claim) {
        self.fleet.capacity.put_claim(job, tenant, claim);
        for node in claim.nodes() {
            self.mark(node, Hold { until_ms: 0, job });
        }
        self.quota_changed(tenant);
    }

    fn remove_claim(&mut self, job: JobId, tenant: TenantId, claim: &Claim) {
        self.fleet.capacity.remove_claim(job, tenant, claim);
        for node in claim.nodes() {
            self.fleet.let_go(node, Hold { until_ms: 0, job });
            self.node_freed(node, claim.cell);
        }
        self.quota_changed(tenant);
    }
}
