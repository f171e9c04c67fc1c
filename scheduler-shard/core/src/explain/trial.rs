//! A copy of the view on which the shard's passes are played, to see whether a job starts: as things stand, and after a change.
//!
//! What must stay true: it is the same code that starts jobs in a shard, with the jobs that wait beside this one, so a change that is said
//! to start the job leaves nobody who would take the place first; the copy is never seen by anybody else; its work is bounded by steps.

use crate::job_class::{JobClass, Offer};
use crate::policy::gate::{self, Gate, Pass};
use crate::policy::guard;
use crate::policy::reclaim::reclaim;
use crate::policy::start::start_waiting;
use crate::proposal::{Bounds, Plan, Proposal};
use crate::search::{Ask, Steps};
use crate::view::{Known, View, in_turn_at};
use muster_model::{CellId, GpuModel, JobId, TaskPlacement};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Jobs that wait beside the explained one on the copy: up to so many all that wait in the cell, otherwise so many of those that go before
/// it. A question to a queue of ten thousand must not cost as much as planning it.
const BESIDE_MAX: usize = 2_000;
/// Steps of all passes that one explanation plays: some tenths of a second.
const STEPS_MAX: u64 = 4_000_000;
/// Steps of the passes that are played for a list of jobs: about what two of a shard's own take.
const PLAYED_STEPS_MAX: u64 = 400_000;
/// Bindings of one round; the job that is asked about ends a round as well.
const BINDINGS_MAX: usize = 4_096;

/// Passes that are played until the job is among those that preempt: each takes a few of those who go before it.
const PREEMPTING_ROUNDS_MAX: usize = 16;

/// See the module.
#[derive(Clone)]
pub(super) struct Trial {
    pub(super) view: View,
    pub(super) cell: CellId,
    pub(super) id: JobId,
    pub(super) now_ms: u64,
    steps: Steps,
    steps_max: u64,
    /// Who waits on the copy is all that matters: nobody was left out who goes before the job.
    pub(super) complete: bool,
}

impl Trial {
    /// A copy for one waiting job of `cell`.
    pub(super) fn of(view: &View, job: &Known, cell: CellId, now_ms: u64) -> Self {
        let (waiting, complete) = beside(view, cell, job.id, now_ms);
        let copy = view.copy_with_queue(cell, &waiting);
        Trial { view: copy, cell, id: job.id, now_ms, steps: Steps::default(), steps_max: STEPS_MAX, complete }
    }

    /// A copy for several jobs that wait in `cell`, one after the other: [`Trial::id`] is the one that is asked about.
    pub(super) fn of_cell(view: &View, cell: CellId, waiting: &BTreeSet<JobId>, now_ms: u64) -> Self {
        let copy = view.copy_with_queue(cell, waiting);
        Trial { view: copy, cell, id: JobId(0), now_ms, steps: Steps::default(), steps_max: STEPS_MAX, complete: true }
    }

    /// Starts all that the shard would start, within [`PLAYED_STEPS_MAX`]; answers the gangs that cards are held back for then.
    pub(super) fn play(&mut self) -> BTreeSet<JobId> {
        let bounds = Bounds { proposals_max: usize::MAX, steps_max: PLAYED_STEPS_MAX, ..Bounds::default() };
        loop {
            self.view.look_around(self.cell, self.now_ms);
            let mut pass = self.pass();
            let mut plan = Plan::default();
            start_waiting(&mut self.view, &mut pass, &bounds, &mut self.steps, &mut plan);
            if plan.proposals.is_empty() || plan.more {
                return pass.guards.values().map(|guard| guard.gang).collect();
            }
        }
    }

    /// The job as it stands on the copy.
    pub(super) fn job(&self) -> Option<(Arc<Known>, Arc<JobClass>)> {
        let job = self.view.jobs.get(self.id.0)?;
        Some((job.clone(), job.class.clone()?))
    }

    pub(super) fn pass(&self) -> Pass {
        Pass { cell: self.cell, now_ms: self.now_ms, guards: guard::guards(&self.view, self.cell) }
    }

    /// Whether the job starts when the shard plans as things stand on the copy. The copy is then as at that moment, or as after all that
    /// starts instead. False where the bound on steps was reached.
    pub(super) fn starts(&mut self) -> bool {
        loop {
            if self.view.is_assumed(self.id) {
                return true;
            }
            let bounds = Bounds { proposals_max: 1, steps_max: u64::MAX, ..Bounds::default() };
            self.view.look_around(self.cell, self.now_ms);
            let mut pass = self.pass();
            // One binding at a time: the copy is to be as it is when the job starts, not when others have started behind it.
            let mut found = 0;
            loop {
                let mut plan = Plan::default();
                start_waiting(&mut self.view, &mut pass, &bounds, &mut self.steps, &mut plan);
                found += plan.proposals.len();
                if plan.proposals.is_empty()
                    || self.view.is_assumed(self.id)
                    || self.exhausted()
                    || found >= BINDINGS_MAX
                {
                    break;
                }
            }
            if self.exhausted() {
                return false;
            }
            if found == 0 {
                return false;
            }
        }
    }

    /// The same where the job may also start by preempting others: it counts as started when they are told to go for it.
    pub(super) fn starts_or_preempts(&mut self) -> bool {
        for _ in 0..PREEMPTING_ROUNDS_MAX {
            if self.starts() || self.exhausted() {
                return self.view.is_assumed(self.id);
            }
            let mut plan = Plan::default();
            reclaim(&mut self.view, self.cell, &Bounds::default(), self.now_ms, &mut self.steps, &mut plan);
            if plan.proposals.iter().any(|proposal| self.is_of_the_job(proposal)) {
                return true;
            }
            if plan.proposals.is_empty() {
                return false;
            }
        }
        false
    }

    fn is_of_the_job(&self, proposal: &Proposal) -> bool {
        match proposal {
            Proposal::Bind(binding) | Proposal::Preempt { binding, .. } => binding.job == self.id,
            _ => false,
        }
    }

    /// No more passes are played: nothing can be said any more of what a change would bring.
    pub(super) fn exhausted(&self) -> bool {
        self.steps.0 >= self.steps_max
    }

    /// Nobody who waits on the copy has been tried yet.
    pub(super) fn all_untried(&mut self) {
        let waiting: BTreeSet<JobId> = self.view.waiting_in(self.cell).collect();
        self.view = self.view.copy_with_queue(self.cell, &waiting);
    }

    /// Counts steps anew, up to a bound of its own.
    pub(super) fn begin_again(&mut self, steps_max: u64) {
        (self.steps, self.steps_max) = (Steps::default(), steps_max);
    }

    /// Takes over what another copy has cost.
    pub(super) fn spent(&mut self, other: &Trial) {
        self.steps = self.steps.max(other.steps);
    }

    /// The first closed gate on one model, or a place.
    pub(super) fn gate(&mut self, offer: &Offer) -> Result<Vec<TaskPlacement>, Gate> {
        let Some((job, class)) = self.job() else { return Err(Gate::NoPlace(offer.model)) };
        let pass = self.pass();
        self.with_own_nodes(|view, steps| gate::pass(view, &pass, &job, &class, offer, steps))
    }

    /// Whether the search finds a place for jobs of this class on one model, whatever the gates before it.
    pub(super) fn fits(&mut self, class: &JobClass, model: Option<GpuModel>) -> bool {
        self.fits_until(class, model, None)
    }

    /// The same if it were over by `over_ms`.
    pub(super) fn fits_until(&mut self, class: &JobClass, model: Option<GpuModel>, over_ms: Option<u64>) -> bool {
        let Some((job, _)) = self.job() else { return false };
        let ask = self.ask(&job, class, model);
        let ask = Ask { over_ms: over_ms.unwrap_or(ask.over_ms), ..ask };
        self.with_own_nodes(|view, steps| gate::find_place(view, &ask, steps).is_some())
    }

    /// What the job asks of the view on one model.
    pub(super) fn ask<'a>(&self, job: &Known, class: &'a JobClass, model: Option<GpuModel>) -> Ask<'a> {
        job.ask(class, (self.cell, model), self.now_ms)
    }

    /// Looks while what is reserved for the job is among what it may use, as a pass does.
    pub(super) fn with_own_nodes<R>(&mut self, look: impl FnOnce(&mut View, &mut Steps) -> R) -> R {
        self.view.apply_reservation(self.id, false);
        let found = look(&mut self.view, &mut self.steps);
        self.view.apply_reservation(self.id, true);
        found
    }
}

/// Who is to wait on the copy beside `id`, itself among them, and whether that is everybody who could come before it.
fn beside(view: &View, cell: CellId, id: JobId, now_ms: u64) -> (BTreeSet<JobId>, bool) {
    let mut waiting: BTreeSet<JobId> = view.waiting_in(cell).take(BESIDE_MAX + 1).collect();
    let few = waiting.len() <= BESIDE_MAX;
    if !few {
        waiting.clear();
        in_turn_at(view, cell, now_ms, |job| {
            waiting.insert(job);
            if job == id || waiting.len() == BESIDE_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        // Reserved nodes and the starvation guard are theirs, wherever they stand in the queue.
        waiting.extend(view.reserved_jobs(cell).chain(view.bypassed_enough(cell)));
    }
    let complete = few || waiting.contains(&id);
    waiting.insert(id);
    (waiting, complete)
}
