//! The shard of a replay: one, holding every cell, with the scheduler's own view and plan.

use crate::proposals;
use muster_control_core::{Command, Reject, State};
use muster_model::{CellId, Change, JobId};
use muster_scheduler_core::explain::Estimate;
use muster_scheduler_core::{Bounds, PlacementPolicy, View, plan};

/// In a fleet of several cells a shard looks this often whether a job that waits should go elsewhere.
const LOOK_MS: u64 = 5_000;

/// What passes came to, for the report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Effort {
    pub(crate) passes: u64,
    pub(crate) decisions: u64,
    pub(crate) steps: u64,
}

/// The one shard.
pub(crate) struct Shard {
    view: View,
    cells: Vec<CellId>,
    bounds: Bounds,
    pub(crate) effort: Effort,
}

impl Shard {
    /// Holds every cell of `state`.
    pub(crate) fn new(state: &State, policy: PlacementPolicy) -> Self {
        let mut view = View::from_objects(state.objects());
        view.choose_by(policy);
        Shard {
            view,
            cells: state.cells.keys().copied().collect(),
            bounds: Bounds::default(),
            effort: Effort::default(),
        }
    }

    /// What it knows.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// When a job would start, by each basis that gives a time.
    pub(crate) fn estimates(&self, job: JobId, now_ms: u64) -> Vec<Estimate> {
        muster_scheduler_core::explain::estimates(&self.view, job, now_ms)
    }

    /// Takes over a change.
    pub(crate) fn apply(&mut self, change: &Change) {
        self.view.apply(change);
    }

    /// One pass over every cell in which something waits. Says whether there is more to plan at once.
    pub(crate) fn pass(&mut self, now_ms: u64) -> (Vec<Command>, bool) {
        let (mut commands, mut more) = (Vec::new(), false);
        let rested = self.view.next_wake_ms().is_some_and(|at_ms| at_ms <= now_ms);
        for &cell in &self.cells {
            if self.view.waiting(cell) == 0 && !rested {
                continue;
            }
            let plan = plan(&mut self.view, cell, &self.bounds, now_ms);
            self.effort.passes += 1;
            self.effort.decisions += plan.decisions;
            self.effort.steps += plan.steps;
            more |= plan.more;
            let epoch = self.view.cells().get(&cell).map(|cell| cell.epoch).unwrap_or_default();
            commands.extend(plan.proposals.into_iter().map(|proposal| proposals::command(cell, epoch, proposal)));
        }
        (commands, more)
    }

    /// One of its proposals was refused.
    pub(crate) fn refused(&mut self, command: &Command, why: &Reject, now_ms: u64) {
        proposals::refused(&mut self.view, command, why, now_ms);
    }

    /// When the shard wants to look again although nothing happens.
    pub(crate) fn next_look_ms(&self, now_ms: u64) -> Option<u64> {
        let waits = self.cells.len() > 1 && self.cells.iter().any(|cell| self.view.waiting(*cell) > 0);
        let look = waits.then_some(now_ms + LOOK_MS);
        [self.view.next_wake_ms(), look].into_iter().flatten().min()
    }
}
