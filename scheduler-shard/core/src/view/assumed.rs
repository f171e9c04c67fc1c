//! Proposals that are under way: charged like allocations, undone when they come to nothing.
//!
//! What must stay true: the assumed allocation for a proposal never outlives its outcome, and never makes a committed allocation's charge
//! fail: where the two meet, the proposal gives way.

use super::{Known, RESERVATIONS_MAX, View, nodes_of};
use crate::job_class::JobClass;
use muster_model::Binding;
use muster_model::{Allocation, AllocationId, Attempt, CellId, Epoch, GpuModel, JobId, NodeId};
use std::sync::Arc;

/// Assumed allocations take ids from here on, which the replicated state's counter does not reach.
const ASSUMED_FIRST: u64 = 1 << 63;

/// One proposal under way.
#[derive(Clone, Debug)]
pub(super) struct Assumed {
    attempt: Attempt,
    /// The charge in the capacity ledger; none once a committed allocation has taken its place.
    allocation: Option<Arc<Allocation>>,
}

impl Assumed {
    /// What it has charged.
    pub(super) fn charged(&self) -> Option<&Arc<Allocation>> {
        self.allocation.as_ref()
    }
}

impl View {
    /// Charges a proved proposal to the view, so that the next one sees it. Its job leaves the queue.
    pub(crate) fn assume(&mut self, job: &Known, class: &Arc<JobClass>, binding: &Binding, cell: CellId, now_ms: u64) {
        let assumed = Arc::new(self.assumed_allocation(job, class, binding, cell, now_ms));
        self.apply_reservation(job.id, false);
        self.unqueue(job);
        self.charge(&assumed);
        let queue = self.queues.entry(cell).or_default();
        queue.count_bound(binding.model, class.cards());
        queue.restart_counts(job.tenant, class);
        queue.wake_other_limit(job.tenant, class);
        self.assumed.insert(job.id, Assumed { attempt: binding.attempt, allocation: Some(assumed) });
    }

    pub(super) fn assumed_allocation(
        &mut self,
        job: &Known,
        class: &JobClass,
        binding: &Binding,
        cell: CellId,
        now_ms: u64,
    ) -> Allocation {
        self.proposals_made += 1;
        let charge = class.charge_on(binding.model);
        let mut assumed = Allocation {
            attempt: binding.attempt,
            cell,
            cell_epoch: Epoch(0),
            model: binding.model,
            cpu_milli: class.request.cpu_milli,
            memory_mib: class.request.memory_mib,
            charge,
            task_states: Vec::new(),
            bound_ms: now_ms,
            priority: job.queue_key.priority(),
            ..Allocation::usual(
                AllocationId(ASSUMED_FIRST + self.proposals_made),
                job.id,
                job.tenant,
                binding.tasks.clone(),
            )
        };
        assumed.set_class(self.fleet.capacity.account_for(job.tenant, &charge).into(), now_ms);
        assumed
    }

    /// Whether a binding of `job` is proposed: it stands in the view as if it had started.
    pub(crate) fn is_assumed(&self, job: JobId) -> bool {
        self.assumed.contains_key(&job)
    }

    /// The model on which `job` is assumed to have started.
    pub(crate) fn assumed_model(&self, job: JobId) -> Option<GpuModel> {
        self.assumed.get(&job)?.allocation.as_ref()?.model
    }

    /// Proposals under way.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.assumed.len()
    }

    /// The proposal for `job` came to nothing, or nobody knows what became of it: its charge is undone, and the job backs off, longer each
    /// time. The watch brings meanwhile what the view has missed.
    pub fn refused(&mut self, job: JobId, now_ms: u64) {
        if self.elastic_refused(job, now_ms) {
            return;
        }
        self.forget_assumed(job);
        self.forget_preemption(job);
        if let Some(there) = self.jobs.get(job.0).cloned() {
            self.unqueue(&there);
            self.backoff.refused(job, now_ms);
        }
    }

    /// Nobody answered the proposal for `job`: its charge is undone and it backs off for a moment. Should it
    /// have been committed after all, its allocation comes by the watch.
    pub fn unanswered(&mut self, job: JobId, now_ms: u64) {
        if self.elastic_refused(job, now_ms) {
            return;
        }
        self.forget_assumed(job);
        self.forget_preemption(job);
        if let Some(there) = self.jobs.get(job.0).cloned() {
            self.unqueue(&there);
            self.backoff.unanswered(job, now_ms);
        }
    }

    /// No other cell can take `job` now: it is not offered again before `until_ms`.
    pub fn not_offered_before(&mut self, job: JobId, until_ms: u64) {
        if self.jobs.get(job.0).is_some() {
            self.not_offered_until.insert(job, until_ms);
        }
    }

    /// Lets the jobs be planned again whose backoff is over.
    pub(crate) fn end_backoffs(&mut self, now_ms: u64) {
        while let Some(id) = self.backoff.end_one(now_ms) {
            if let Some(job) = self.jobs.get(id.0).cloned() {
                self.enqueue(&job);
            }
        }
    }

    /// When a pass is due although nothing else happens: a backoff ends, or a gang may get a reservation.
    #[must_use]
    pub fn next_wake_ms(&self) -> Option<u64> {
        let sought = self.searches.iter().filter_map(|(cell, search)| {
            let gangs_found = self.queues.get(cell).filter(|queue| queue.len() > 0)?.gangs_found;
            let open = search.began_for_fewer_than(gangs_found) && self.reserved_in(*cell) < RESERVATIONS_MAX;
            open.then(|| search.next_ms(gangs_found))
        });
        self.backoff
            .next_end_ms()
            .into_iter()
            .chain(sought)
            .chain(self.next_reclaim_ms())
            .chain(self.next_elastic_ms())
            .min()
    }

    /// Undoes the charge of a proposal; its job goes back to the queue if it still waits.
    pub(super) fn forget_assumed(&mut self, job: JobId) {
        let Some(proposed) = self.assumed.remove(&job) else { return };
        if let Some(assumed) = proposed.allocation {
            self.release(&assumed);
        }
        self.apply_reservation(job, true);
        if let Some(kept) = self.reserved.get_mut(&job) {
            kept.may_be_tried();
        }
        if let Some(job) = self.jobs.get(job.0).cloned() {
            self.enqueue(&job);
        }
    }

    /// The job has changed hands, phase or attempt: whatever was tried with it before says nothing any more.
    pub(super) fn forget_efforts(&mut self, job: JobId) {
        let committed = self.assumed.get(&job).is_some_and(|proposed| {
            // A binding's own change of the job may come before its allocation; the assumed allocation waits for that.
            let bound =
                |now: &Arc<Known>| !now.waits() && now.attempt == proposed.attempt && now.phase.allocation().is_some();
            self.jobs.get(job.0).is_some_and(bound)
        });
        if !committed {
            self.forget_assumed(job);
        }
        self.forget_preemption(job);
        self.backoff.forget(job);
        self.not_offered_until.remove(&job);
    }

    /// Charges what the control plane has committed. Its own assumed allocation is swapped for it; other assumed allocations in its way give way.
    pub(super) fn confirm(&mut self, allocation: &Arc<Allocation>) {
        if allocation.is_growth {
            if !self.confirm_growth(allocation) {
                nodes_of(allocation).into_iter().for_each(|node| self.give_up_on_node(node));
                self.charge(allocation);
            }
            return;
        }
        let own = self.assumed.remove(&allocation.job).and_then(|proposed| proposed.allocation);
        if let Some(own) = &own
            && holds_the_same(own, allocation)
        {
            self.fleet.capacity.rename(own, allocation.id);
            self.fleet.capacity.recharge(own, allocation);
            self.paid_otherwise(own, allocation);
            return;
        }
        if let Some(own) = own {
            self.release(&own);
        }
        for node in nodes_of(allocation) {
            self.give_up_on_node(node);
        }
        self.charge(allocation);
    }

    /// Undoes every proposal that touches `node`: something was committed there that this view had not foreseen.
    pub(super) fn give_up_on_node(&mut self, node: NodeId) {
        let touches = |proposed: &Assumed| {
            proposed.allocation.as_ref().is_some_and(|held| held.tasks.iter().any(|task| task.node == node))
        };
        // Their outcome is still to come: the jobs stay out of the queue until then.
        let given_up: Vec<Arc<Allocation>> = self
            .assumed
            .values_mut()
            .filter(|proposed| touches(proposed))
            .filter_map(|proposed| proposed.allocation.take())
            .collect();
        for assumed in given_up {
            self.release(&assumed);
        }
        self.give_up_growth_on(node);
    }

    /// Takes over a fresh snapshot, keeping the proposals that are still under way and still fit it.
    pub fn replace(&mut self, fresh: View) {
        let old = std::mem::replace(self, fresh);
        self.proposals_made = old.proposals_made;
        // A snapshot knows who waits, not who came.
        self.fleet.go_on_from(old.fleet);
        for (id, proposed) in old.assumed {
            let Some(job) = self.jobs.get(id.0).cloned() else { continue };
            if !job.waits() || job.attempt.next() != proposed.attempt {
                continue;
            }
            let fits = |held: &Arc<Allocation>| {
                self.fleet
                    .capacity
                    .prove(held.tenant, &held.tasks, held.cpu_milli, held.memory_mib, &held.charge)
                    .is_ok()
            };
            let assumed = proposed.allocation.filter(fits);
            if let Some(assumed) = &assumed {
                self.charge(assumed);
            }
            self.unqueue(&job);
            self.apply_reservation(id, false);
            self.assumed.insert(id, Assumed { attempt: proposed.attempt, allocation: assumed });
        }
        for (id, until_ms) in old.backoff.all() {
            if let Some(job) = self.jobs.get(id.0).cloned().filter(|job| job.waits()) {
                self.unqueue(&job);
                self.backoff.begin(id, until_ms);
            }
        }
        self.not_offered_until =
            old.not_offered_until.into_iter().filter(|(id, _)| self.jobs.get(id.0).is_some()).collect();
    }
}

/// Whether what was proposed is what was committed, so that nothing in the capacity ledger changes but the name.
fn holds_the_same(own: &Allocation, committed: &Allocation) -> bool {
    own.tasks == committed.tasks
        && own.tenant == committed.tenant
        && own.cell == committed.cell
        && own.charge == committed.charge
        && (own.cpu_milli, own.memory_mib) == (committed.cpu_milli, committed.memory_mib)
}
