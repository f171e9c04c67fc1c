//! Elastic gangs in the view: who may grow, what growth there is, and what is proposed of both.
//!
//! What must stay true: proposed growth is charged like an allocation until it is committed, refused, or its gang has stopped; growth that is
//! proposed to be taken back is shown as ending, and as it was when the proposal comes to nothing; a fleet without elastic gangs pays nothing.

use super::{Known, View};
use crate::job_class::JobClass;
use muster_model::{
    Allocation, AllocationId, AllocationState, Attempt, Binding, CellId, EndCause, GpuModel, JobId, JobPhase, NodeId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// After a proposal to grow was refused, or no place was found, a gang is left alone for so long.
const GROW_AGAIN_MS: u64 = 5_000;

/// Everything of elastic gangs that the view keeps.
#[derive(Clone, Debug, Default)]
pub(super) struct Elastics {
    /// Gangs that may grow.
    growers: BTreeSet<JobId>,
    /// Until when one is left alone.
    not_before: BTreeMap<JobId, u64>,
    /// Growth that is committed, the ending included.
    parts: BTreeSet<AllocationId>,
    /// Growth that is proposed.
    pub(super) proposed: BTreeMap<JobId, Proposed>,
    /// Growth that is proposed to be taken back, by the job that waits: as it was, and as it is assumed to be.
    shrinking: BTreeMap<JobId, Vec<Shrinking>>,
    /// Waiting jobs for which nothing was found to take back, and when they are tried again.
    pub(super) tried_until: BTreeMap<JobId, u64>,
}

/// A part as it was, and as it is assumed to be.
type Shrinking = (Arc<Allocation>, Arc<Allocation>);

/// Growth of one gang that is proposed, part by part.
#[derive(Clone, Debug)]
pub(super) struct Proposed {
    attempt: Attempt,
    pub(super) parts: Vec<Arc<Allocation>>,
}

impl View {
    /// Gangs that may grow at this time, if there is room: those of `cell` on which no proposal is under way.
    pub(crate) fn growers(&self, cell: CellId, now_ms: u64) -> Vec<Arc<Known>> {
        let elastics = &self.elastics;
        let rests = |id: &JobId| {
            elastics.proposed.contains_key(id) || elastics.not_before.get(id).is_some_and(|until| *until > now_ms)
        };
        let jobs = elastics.growers.iter().filter(|id| !rests(id)).filter_map(|id| self.jobs.get(id.0));
        let due = jobs.filter(|job| {
            job.may_grow.as_ref().is_some_and(|grow| {
                let minimum = self.allocations.get(grow.minimum.0);
                let runs = |held: &&Arc<Allocation>| held.cell == cell && held.state == AllocationState::Active;
                grow.next_ms <= now_ms && minimum.filter(runs).is_some()
            })
        });
        due.cloned().collect()
    }

    /// The next time at which a gang may grow, or a waiting job is tried again for growth that could be taken back.
    pub(super) fn next_elastic_ms(&self) -> Option<u64> {
        let elastics = &self.elastics;
        let grows = elastics.growers.iter().filter(|id| !elastics.proposed.contains_key(id)).filter_map(|id| {
            let next_ms = self.jobs.get(id.0)?.may_grow.as_ref()?.next_ms;
            Some(next_ms.max(elastics.not_before.get(id).copied().unwrap_or(0)))
        });
        let tried = elastics.tried_until.iter().filter(|(id, _)| self.jobs.get(id.0).is_some_and(|job| job.waits()));
        // What has passed is looked at in any pass, and wakes nobody.
        grows.chain(tried.map(|(_, until)| *until)).filter(|at| *at > self.last_pass_ms).min()
    }

    /// No place was found for more of a gang.
    pub(crate) fn cannot_grow(&mut self, job: JobId, now_ms: u64) {
        self.elastics.not_before.insert(job, now_ms.saturating_add(GROW_AGAIN_MS));
    }

    /// Growth in the cell, the ending included.
    pub(crate) fn growth_in(&self, cell: CellId) -> impl Iterator<Item = &Arc<Allocation>> + '_ {
        self.elastics.parts.iter().filter_map(|id| self.allocations.get(id.0)).filter(move |part| part.cell == cell)
    }

    /// Growth of one gang that runs.
    pub(crate) fn growth_of(&self, job: JobId) -> impl Iterator<Item = &Arc<Allocation>> + '_ {
        let of_job = move |part: &&Arc<Allocation>| part.job == job && part.state == AllocationState::Active;
        self.elastics.parts.iter().filter_map(|id| self.allocations.get(id.0)).filter(of_job)
    }

    /// Growth that is ending for a job that waits.
    pub(crate) fn ending_for(&self, job: &Known) -> impl Iterator<Item = &Arc<Allocation>> + '_ {
        let ends = AllocationState::Stopping(EndCause::Shrunk { by: Some(job.id) });
        let growth = job.cell.into_iter().flat_map(|cell| self.growth_in(cell));
        growth.filter(move |part| part.state == ends)
    }

    pub(crate) fn has_growth(&self) -> bool {
        !self.elastics.parts.is_empty()
    }

    /// Charges proposed growth to the view, part by part.
    pub(crate) fn assume_growth(
        &mut self,
        job: &Known,
        class: &JobClass,
        binding: &Binding,
        cell: CellId,
        now_ms: u64,
    ) {
        let mut parts = Vec::new();
        for tasks in binding.tasks.chunks(class.tasks.max(1) as usize) {
            let found = Binding { tasks: tasks.to_vec(), ..binding.clone() };
            let mut part = self.assumed_allocation(job, class, &found, cell, now_ms);
            part.is_growth = true;
            part.classes = Default::default();
            part.set_class(None.into(), now_ms);
            self.charge(&part);
            parts.push(Arc::new(part));
        }
        self.elastics.proposed.insert(job.id, Proposed { attempt: binding.attempt, parts });
    }

    /// What was proposed for this job came to nothing, or nobody knows what became of it. Answers whether that was growth of a gang that runs: its
    /// charge is undone. Growth that was to be taken back for it is as it was, unless it has been committed.
    pub(super) fn elastic_refused(&mut self, job: JobId, now_ms: u64) -> bool {
        if self.elastics.proposed.contains_key(&job) {
            self.forget_growth(job);
            self.cannot_grow(job, now_ms);
            return true;
        }
        for (before, after) in self.elastics.shrinking.remove(&job).unwrap_or_default() {
            if self.allocations.get(before.id.0).is_some_and(|now| Arc::ptr_eq(now, &after)) {
                self.replace_allocation(&after, before);
            }
        }
        false
    }

    fn forget_growth(&mut self, job: JobId) {
        let proposed = self.elastics.proposed.remove(&job);
        proposed.into_iter().flat_map(|proposed| proposed.parts).for_each(|part| self.release(&part));
    }

    /// Committed growth takes the place of what was proposed; answers whether it was foreseen.
    pub(super) fn confirm_growth(&mut self, part: &Allocation) -> bool {
        let Some(proposed) = self.elastics.proposed.get_mut(&part.job) else { return false };
        let same = |own: &Arc<Allocation>| own.tasks == part.tasks && own.charge == part.charge;
        let Some(at) = proposed.parts.iter().position(same) else { return false };
        let own = proposed.parts.remove(at);
        if proposed.parts.is_empty() {
            self.elastics.proposed.remove(&part.job);
        }
        self.fleet.capacity.rename(&own, part.id);
        self.fleet.capacity.recharge(&own, part);
        self.paid_otherwise(&own, part);
        true
    }

    /// Undoes proposed growth that touches `node`.
    pub(super) fn give_up_growth_on(&mut self, node: NodeId) {
        let mut given_up = Vec::new();
        for proposed in self.elastics.proposed.values_mut() {
            let (there, kept) = std::mem::take(&mut proposed.parts)
                .into_iter()
                .partition(|part| part.tasks.iter().any(|task| task.node == node));
            let there: Vec<Arc<Allocation>> = there;
            proposed.parts = kept;
            given_up.extend(there);
        }
        given_up.iter().for_each(|part| self.release(part));
    }

    /// A job has changed, or is gone.
    pub(super) fn elastic_changed(&mut self, id: JobId, now: Option<&Known>) {
        if now.is_some_and(|job| job.may_grow.is_some()) {
            self.elastics.growers.insert(id);
        } else {
            self.elastics.growers.remove(&id);
            self.elastics.not_before.remove(&id);
        }
        let attempt = now.filter(|job| matches!(job.phase, JobPhase::Running(_))).map(|job| job.attempt);
        if self.elastics.proposed.get(&id).is_some_and(|proposed| Some(proposed.attempt) != attempt) {
            self.forget_growth(id);
        }
        if now.is_none_or(|job| !job.waits()) {
            self.elastics.tried_until.remove(&id);
            self.elastics.shrinking.remove(&id);
        }
    }

    pub(super) fn note_part(&mut self, part: &Allocation) {
        if part.is_growth {
            self.elastics.parts.insert(part.id);
        }
    }

    pub(super) fn part_gone(&mut self, id: AllocationId) {
        self.elastics.parts.remove(&id);
    }

    /// Whether growth on this model is being given back for a waiting job: what gets free belongs to the queue.
    pub(crate) fn gives_back(&self, cell: CellId, model: Option<GpuModel>) -> bool {
        let for_a_job = |part: &Allocation| {
            let waits = |by: &JobId| self.jobs.get(by.0).is_some_and(|job| job.waits());
            matches!(&part.state, AllocationState::Stopping(EndCause::Shrunk { by: Some(by) }) if waits(by))
        };
        self.growth_in(cell).any(|part| part.model == model && for_a_job(part))
    }

    /// Whether a waiting job was tried a moment ago, and nothing could be taken back for it.
    pub(crate) fn shrink_rests(&self, job: JobId, now_ms: u64) -> bool {
        self.elastics.tried_until.get(&job).is_some_and(|until| *until > now_ms)
    }

    pub(crate) fn shrink_in_vain(&mut self, job: JobId, until_ms: u64) {
        self.elastics.tried_until.insert(job, until_ms);
    }

    /// Shows growth as ending for a waiting job.
    pub(crate) fn assume_shrink(&mut self, job: JobId, parts: &[AllocationId]) {
        let mut changed = Vec::new();
        for before in parts.iter().filter_map(|id| self.allocations.get(id.0).cloned()).collect::<Vec<_>>() {
            let state = AllocationState::Stopping(EndCause::Shrunk { by: Some(job) });
            if before.state == AllocationState::Active {
                let after = Arc::new(Allocation { state, ..Allocation::clone(&before) });
                self.replace_allocation(&before, after.clone());
                changed.push((before, after));
            }
        }
        self.elastics.shrinking.entry(job).or_default().extend(changed);
    }
}
