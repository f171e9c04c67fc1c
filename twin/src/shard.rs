//! The shard of a replay: one, holding every cell, with the scheduler's own view and plan.

use muster_control_core::{LeasedBinding, Reject, State};
use muster_model::{AllocationId, CellId, Change, Epoch, JobId, PlannedMove, Reservation};
use muster_scheduler_core::{Bounds, HAND_OVER_ROUND_MS, PlacementPolicy, Proposal, View, plan};

/// In a fleet of several cells a shard looks this often whether a job that waits should go elsewhere.
const LOOK_MS: u64 = 5_000;

/// What the shard asks of the state machine.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// To bind a gang.
    Bind(LeasedBinding),
    /// To end attempts for a gang.
    Preempt {
        /// Where the gang will run.
        binding: LeasedBinding,
        /// Whose attempts end.
        victims: Vec<AllocationId>,
    },
    /// To start running jobs elsewhere for a gang.
    Move {
        /// Where the gang will run.
        binding: LeasedBinding,
        /// The jobs that are moved.
        moves: Vec<PlannedMove>,
    },
    /// To give a gang that runs more tasks.
    Grow(LeasedBinding),
    /// To take growth back for a gang that waits.
    Shrink {
        /// Where the gang fits then.
        binding: LeasedBinding,
        /// What ends.
        parts: Vec<AllocationId>,
    },
    /// To hand a job to another cell.
    HandOver {
        /// From this cell.
        cell: CellId,
        /// Under this lease.
        epoch: Epoch,
        /// The job.
        job: JobId,
    },
    /// To keep nodes for a waiting gang, or none any more.
    Reserve {
        /// In this cell.
        cell: CellId,
        /// Under this lease.
        epoch: Epoch,
        /// The job.
        job: JobId,
        /// What is kept.
        reserved: Option<Reservation>,
    },
    /// To record how much has started past a waiting gang.
    RecordBypass {
        /// In this cell.
        cell: CellId,
        /// Under this lease.
        epoch: Epoch,
        /// The gang.
        job: JobId,
        /// Cards in all.
        cards: u64,
    },
}

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

    /// Takes over a change.
    pub(crate) fn apply(&mut self, change: &Change) {
        self.view.apply(change);
    }

    /// One pass over every cell in which something waits. Says whether there is more to plan at once.
    pub(crate) fn pass(&mut self, now_ms: u64) -> (Vec<Step>, bool) {
        let (mut steps, mut more) = (Vec::new(), false);
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
            steps.extend(plan.proposals.into_iter().map(|proposal| match proposal {
                Proposal::Bind(found) => Step::Bind(LeasedBinding::under(cell, epoch, found)),
                Proposal::Preempt { binding, victims } => {
                    Step::Preempt { binding: LeasedBinding::under(cell, epoch, binding), victims }
                }
                Proposal::Move { binding, moves } => {
                    Step::Move { binding: LeasedBinding::under(cell, epoch, binding), moves }
                }
                Proposal::Grow(found) => Step::Grow(LeasedBinding::under(cell, epoch, found)),
                Proposal::Shrink { binding, parts } => {
                    Step::Shrink { binding: LeasedBinding::under(cell, epoch, binding), parts }
                }
                Proposal::HandOver(job) => Step::HandOver { cell, epoch, job },
                Proposal::Reserve { job, reserved } => {
                    Step::Reserve { cell, epoch, job, reserved: reserved.as_deref().cloned() }
                }
                Proposal::RecordBypass { job, cards } => Step::RecordBypass { cell, epoch, job, cards },
            }));
        }
        (steps, more)
    }

    /// A proposal was refused.
    pub(crate) fn refused(&mut self, job: JobId, why: &Reject, now_ms: u64) {
        match why {
            Reject::NowhereElse { .. } => self.view.not_offered_before(job, now_ms + HAND_OVER_ROUND_MS),
            _ => self.view.refused(job, now_ms),
        }
    }

    /// A reservation was refused.
    pub(crate) fn not_reserved(&mut self, job: JobId, now_ms: u64) {
        self.view.not_reserved(job, now_ms);
    }

    /// When the shard wants to look again although nothing happens.
    pub(crate) fn next_look_ms(&self, now_ms: u64) -> Option<u64> {
        let waits = self.cells.len() > 1 && self.cells.iter().any(|cell| self.view.waiting(*cell) > 0);
        let look = waits.then_some(now_ms + LOOK_MS);
        [self.view.next_wake_ms(), look].into_iter().flatten().min()
    }
}
