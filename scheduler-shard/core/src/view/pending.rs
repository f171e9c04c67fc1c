//! Proposals that are under way: charged like allocations, undone when they come to nothing.
//!
//! What must stay true: the stand-in for a proposal never outlives its outcome, and never makes a committed allocation's charge
//! fail: where the two meet, the proposal gives way.

use super::{Known, RESERVATIONS_MAX, View, nodes_of};
use crate::job_class::JobClass;
use crate::proposal::Binding;
use muster_model::{Allocation, AllocationId, AllocationState, Attempt, CellId, Epoch, GpuModel, JobId, NodeId};
use std::sync::Arc;

/// Stand-ins take ids from here on, which the replicated state's counter does not reach.
const STAND_IN_FIRST: u64 = 1 << 63;

/// First and longest rest of a job whose proposal was refused, doubling in between: long enough for the watch to bring what the
/// view has missed, short enough not to be noticed in a queue.
const REST_FIRST_MS: u64 = 100;
const REST_MAX_MS: u64 = 10_000;
/// Rest of a job whose proposal nobody answered: a small part of a leader election.
const UNANSWERED_REST_MS: u64 = 200;

/// One proposal under way.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    attempt: Attempt,
    /// The charge in the books; none once a committed allocation has taken its place.
    stand_in: Option<Arc<Allocation>>,
}

impl Pending {
    /// What it has charged.
    pub(super) fn charged(&self) -> Option<&Arc<Allocation>> {
        self.stand_in.as_ref()
    }
}

impl View {
    /// Charges a proved proposal to the view, so that the next one sees it. Its job leaves the queue.
    pub(crate) fn begin(&mut self, job: &Known, class: &Arc<JobClass>, binding: &Binding, cell: CellId, now_ms: u64) {
        let stand_in = Arc::new(self.stand_in(job, class, binding, cell, now_ms));
        self.stand_apart(job.id, false);
        self.unqueue(job);
        self.charge(&stand_in);
        let queue = self.queues.entry(cell).or_default();
        queue.count_bound(binding.model, class.cards());
        queue.restart_counts(job.tenant, class);
        queue.wake_sibling(job.tenant, class);
        self.pending.insert(job.id, Pending { attempt: binding.attempt, stand_in: Some(stand_in) });
    }

    fn stand_in(&mut self, job: &Known, class: &JobClass, binding: &Binding, cell: CellId, now_ms: u64) -> Allocation {
        self.proposals_made += 1;
        Allocation {
            id: AllocationId(STAND_IN_FIRST + self.proposals_made),
            job: job.id,
            attempt: binding.attempt,
            tenant: job.tenant,
            cell,
            cell_epoch: Epoch(0),
            model: binding.model,
            cpu_milli: class.request.cpu_milli,
            memory_mib: class.request.memory_mib,
            charge: class.charge_on(binding.model),
            tasks: binding.tasks.clone(),
            task_states: Vec::new(),
            node_epochs: std::collections::BTreeMap::new(),
            state: AllocationState::Active,
            bound_ms: now_ms,
            failures: Vec::new(),
        }
    }

    /// Whether a binding of `job` is proposed: it stands in the view as if it had started.
    pub(crate) fn is_assumed(&self, job: JobId) -> bool {
        self.pending.contains_key(&job)
    }

    /// The model on which `job` is assumed to have started.
    pub(crate) fn assumed_model(&self, job: JobId) -> Option<GpuModel> {
        self.pending.get(&job)?.stand_in.as_ref()?.model
    }

    /// Proposals under way.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The proposal for `job` came to nothing, or nobody knows what became of it: its charge is undone, and the job rests a
    /// little longer each time before it is planned again. A stale view mends itself by the watch meanwhile.
    pub fn refused(&mut self, job: JobId, now_ms: u64) {
        self.undo(job);
        if let Some(there) = self.jobs.get(job.0).cloned() {
            let refusals = self.refusals.entry(job).or_default();
            let rest_ms = (REST_FIRST_MS << (*refusals).min(16)).min(REST_MAX_MS);
            *refusals += 1;
            self.unqueue(&there);
            self.rest(job, now_ms + rest_ms);
        }
    }

    /// Nobody answered the proposal for `job`: its charge is undone and it rests for a moment, without growing impatient. Should it
    /// have been committed after all, its allocation comes by the watch.
    pub fn unanswered(&mut self, job: JobId, now_ms: u64) {
        self.undo(job);
        if let Some(there) = self.jobs.get(job.0).cloned() {
            self.unqueue(&there);
            self.rest(job, now_ms + UNANSWERED_REST_MS);
        }
    }

    /// No other cell can take `job` now: it is not offered again before `until_ms`.
    pub fn stays(&mut self, job: JobId, until_ms: u64) {
        if self.jobs.get(job.0).is_some() {
            self.stays_until.insert(job, until_ms);
        }
    }

    fn rest(&mut self, job: JobId, until_ms: u64) {
        if let Some(old) = self.rest_until.insert(job, until_ms) {
            self.resting.remove(&(old, job));
        }
        self.resting.insert((until_ms, job));
    }

    /// Lets the jobs be planned again whose rest is over.
    pub(crate) fn wake_rested(&mut self, now_ms: u64) {
        while let Some(&(until_ms, id)) = self.resting.first()
            && until_ms <= now_ms
        {
            self.resting.pop_first();
            self.rest_until.remove(&id);
            if let Some(job) = self.jobs.get(id.0).cloned() {
                self.enqueue(&job);
            }
        }
    }

    /// When a pass is due although nothing else happens: a rest ends, or a gang may be promised a time.
    #[must_use]
    pub fn next_wake_ms(&self) -> Option<u64> {
        let rested = self.resting.first().map(|(until_ms, _)| *until_ms);
        let sought = self.searches.iter().filter_map(|(cell, search)| {
            let gangs_found = self.queues.get(cell).filter(|queue| queue.len() > 0)?.gangs_found;
            let open = search.began_for_fewer_than(gangs_found) && self.reserved_in(*cell) < RESERVATIONS_MAX;
            open.then(|| search.next_ms(gangs_found))
        });
        rested.into_iter().chain(sought).min()
    }

    /// Undoes the charge of a proposal; its job goes back to the queue if it still waits.
    pub(super) fn undo(&mut self, job: JobId) {
        let Some(pending) = self.pending.remove(&job) else { return };
        if let Some(stand_in) = pending.stand_in {
            self.release(&stand_in);
        }
        self.stand_apart(job, true);
        if let Some(kept) = self.reserved.get_mut(&job) {
            kept.may_be_tried();
        }
        if let Some(job) = self.jobs.get(job.0).cloned() {
            self.enqueue(&job);
        }
    }

    /// The job has changed hands, phase or attempt: whatever was tried with it before says nothing any more.
    pub(super) fn forget_efforts(&mut self, job: JobId) {
        let committed = self.pending.get(&job).is_some_and(|pending| {
            // A binding's own change of the job may come before its allocation; the stand-in waits for that.
            let bound =
                |now: &Arc<Known>| !now.waits() && now.attempt == pending.attempt && now.phase.allocation().is_some();
            self.jobs.get(job.0).is_some_and(bound)
        });
        if !committed {
            self.undo(job);
        }
        if let Some(until_ms) = self.rest_until.remove(&job) {
            self.resting.remove(&(until_ms, job));
        }
        self.refusals.remove(&job);
        self.stays_until.remove(&job);
    }

    /// Charges what the control plane has committed. Its own stand-in is swapped for it; other stand-ins in its way give way.
    pub(super) fn settle(&mut self, allocation: &Arc<Allocation>) {
        let own = self.pending.remove(&allocation.job).and_then(|pending| pending.stand_in);
        if let Some(own) = &own
            && holds_the_same(own, allocation)
        {
            self.fleet.capacity.rename(own, allocation.id);
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
        let touches = |pending: &Pending| {
            pending.stand_in.as_ref().is_some_and(|held| held.tasks.iter().any(|task| task.node == node))
        };
        // Their outcome is still to come: the jobs stay out of the queue until then.
        let given_up: Vec<Arc<Allocation>> = self
            .pending
            .values_mut()
            .filter(|pending| touches(pending))
            .filter_map(|pending| pending.stand_in.take())
            .collect();
        for stand_in in given_up {
            self.release(&stand_in);
        }
    }

    /// Takes over a fresh snapshot, keeping the proposals that are still under way and still fit it.
    pub fn replace(&mut self, fresh: View) {
        let old = std::mem::replace(self, fresh);
        self.proposals_made = old.proposals_made;
        // A snapshot knows who waits, not who came.
        self.fleet.go_on_from(old.fleet);
        for (id, pending) in old.pending {
            let Some(job) = self.jobs.get(id.0).cloned() else { continue };
            if !job.waits() || job.attempt.next() != pending.attempt {
                continue;
            }
            let fits = |held: &Arc<Allocation>| {
                self.fleet
                    .capacity
                    .prove(held.tenant, &held.tasks, held.cpu_milli, held.memory_mib, &held.charge)
                    .is_ok()
            };
            let stand_in = pending.stand_in.filter(fits);
            if let Some(stand_in) = &stand_in {
                self.charge(stand_in);
            }
            self.unqueue(&job);
            self.stand_apart(id, false);
            self.pending.insert(id, Pending { attempt: pending.attempt, stand_in });
        }
        for (id, until_ms) in old.rest_until {
            if let Some(job) = self.jobs.get(id.0).cloned().filter(|job| job.waits()) {
                self.unqueue(&job);
                self.rest(id, until_ms);
            }
        }
        self.stays_until = old.stays_until.into_iter().filter(|(id, _)| self.jobs.get(id.0).is_some()).collect();
    }
}

/// Whether what was proposed is what was committed, so that nothing in the books changes but the name.
fn holds_the_same(own: &Allocation, committed: &Allocation) -> bool {
    own.tasks == committed.tasks
        && own.tenant == committed.tenant
        && own.cell == committed.cell
        && own.charge == committed.charge
        && (own.cpu_milli, own.memory_mib) == (committed.cpu_milli, committed.memory_mib)
}
