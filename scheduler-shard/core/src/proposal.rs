//! What a pass may look for, and what it proposes.

use crate::search::Steps;
use muster_model::{AllocationId, Binding, JobId, PlannedMove, Reservation};
use std::sync::Arc;

/// What to ask of the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// Start this gang there; already charged to the view.
    Bind(Binding),
    /// End these attempts for this gang, which gets their devices; assumed in the view already.
    Preempt {
        /// Where the gang will run.
        binding: Binding,
        /// The attempts that end, in the order in which they are judged.
        victims: Vec<AllocationId>,
    },
    /// Start these jobs elsewhere so that this gang fits; assumed in the view already.
    Move {
        /// Where the gang will run.
        binding: Binding,
        /// The jobs that are moved, in the order in which they are judged.
        moves: Vec<PlannedMove>,
    },
    /// Give a gang that runs these tasks beside those it has; already charged to the view. The attempt is its present one.
    Grow(Binding),
    /// End this growth of elastic gangs for a waiting gang, which then fits as it says; shown as ending in the view already.
    Shrink {
        /// Where the waiting gang fits.
        binding: Binding,
        /// What ends.
        parts: Vec<AllocationId>,
    },
    /// Let another cell try.
    HandOver(JobId),
    /// Keep these nodes for a waiting gang, or none any more; they stand apart in the view already.
    Reserve {
        /// For whom.
        job: JobId,
        /// What is kept from now on.
        reserved: Option<Arc<Reservation>>,
    },
    /// Record that jobs behind a waiting gang have started on so many cards in all.
    RecordBypass {
        /// The gang.
        job: JobId,
        /// In all, what was recorded before included.
        cards: u64,
    },
}

impl Proposal {
    /// Whom it is about.
    #[must_use]
    pub fn job(&self) -> JobId {
        match self {
            Proposal::Bind(binding)
            | Proposal::Preempt { binding, .. }
            | Proposal::Move { binding, .. }
            | Proposal::Grow(binding)
            | Proposal::Shrink { binding, .. } => binding.job,
            Proposal::HandOver(job) | Proposal::Reserve { job, .. } | Proposal::RecordBypass { job, .. } => *job,
        }
    }
}

/// Beyond the first gang at most one in so many of a cell's nodes is reserved, so that most of the cell takes anything at any time: jobs of one
/// card get no reservations, and would otherwise wait for those who do.
pub const RESERVED_PART: usize = 8;

/// Bounds of one pass.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Proposals of one pass; the caller's batch.
    pub proposals_max: usize,
    /// Nodes, groups and cards looked at; checked between two decisions.
    pub steps_max: u64,
    /// Beyond the first gang at most one in so many of the cell's nodes is kept for gangs that wait; [`RESERVED_PART`] in production.
    pub reserved_part: usize,
    /// Waiting jobs for which one pass looks for attempts to preempt; 0: it preempts nothing.
    pub preemptions_max: usize,
    /// Waiting gangs for which one pass looks for moves, which is a search over the cell; 0: it moves nothing.
    pub moves_max: usize,
}

impl Default for Bounds {
    /// 64 proposals are one batch on the wire; 200,000 steps are some milliseconds, so that a pass never delays what waits for it.
    fn default() -> Self {
        Bounds { proposals_max: 64, steps_max: 200_000, reserved_part: RESERVED_PART, preemptions_max: 8, moves_max: 1 }
    }
}

/// What a pass came to.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In order; bindings are charged to the view already.
    pub proposals: Vec<Proposal>,
    /// A bound was reached: there is more to plan at once.
    pub more: bool,
    /// Nodes, groups and cards looked at.
    pub steps: u64,
    /// Decisions taken, fruitless ones included.
    pub decisions: u64,
    /// Gangs that may start later than their reservation says: nodes were lost, or something ran over its time.
    pub reservations_broken: u64,
}

impl Plan {
    /// Whether no more may be looked for in this pass; there is more to plan then.
    pub(crate) fn at_a_bound(&mut self, bounds: &Bounds, steps: Steps) -> bool {
        self.more |= self.proposals.len() >= bounds.proposals_max || steps.0 >= bounds.steps_max;
        self.more
    }
}
