//! What a plan says: typed, with its figures; words are made where it is shown.

use muster_model::movable::Loss;
use muster_model::request::SharingMode;
use muster_model::{AllocationId, GpuModel, GpuUnits, JobId, NodeId, TaskPlacement, TopologyLevel};

/// What could be moved and converted in one cell, and what that would bring. Moves are in the order in which they can be made:
/// openings first, then packings, each in the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovePlan {
    /// Jobs that run and may be moved.
    pub movable_jobs: u64,
    /// What they hold.
    pub movable: GpuUnits,
    /// The share of it that may be moved, in percent.
    pub share_percent: u8,
    /// What the plan moves: never more than that share.
    pub moved: GpuUnits,
    /// Places opened for gangs that wait.
    pub openings: Vec<Opening>,
    /// Cards emptied by packing what shares them.
    pub packings: Vec<Packing>,
    /// Empty cards that change how they are driven.
    pub conversions: Vec<Conversion>,
    /// Free slices of cards that are cut already, which nothing that waits can use.
    pub unmatched: Vec<Unmatched>,
    /// What waits and is not helped, the next in turn first.
    pub unhelped: Vec<Unhelped>,
    /// Jobs that have a place as things stand.
    pub starting: Vec<JobId>,
    /// Whether everything was looked at; otherwise a bound was reached.
    pub complete: bool,
    /// Nodes, states and sets looked at.
    pub steps: u64,
}

/// A job that stops here and starts there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The job.
    pub job: JobId,
    /// What it holds now.
    pub allocation: AllocationId,
    /// The model of its cards, which it keeps.
    pub model: GpuModel,
    /// What it holds, in all.
    pub units: GpuUnits,
    /// Rank by rank, now.
    pub from: Vec<TaskPlacement>,
    /// Rank by rank, then: never further apart than now.
    pub to: Vec<TaskPlacement>,
    /// What it loses at most.
    pub loss: Loss,
}

/// A place opened for a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The gang.
    pub job: JobId,
    /// On this model.
    pub model: GpuModel,
    /// Its cards, which become usable.
    pub cards: u64,
    /// Inside one of these.
    pub level: TopologyLevel,
    /// Islands that moved work stood on and the gang then stands on.
    pub islands: u64,
    /// In the order in which they can be made.
    pub moves: Vec<Move>,
    /// Where the gang stands then, rank by rank.
    pub tasks: Vec<TaskPlacement>,
    /// No set of movable jobs of one island or node opens it for less, as long as each moved job goes where there is room already.
    pub cheapest: bool,
}

/// Cards emptied by moving what shares them to other cards that are shared already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// The model.
    pub model: GpuModel,
    /// The emptied cards.
    pub cards: Vec<(NodeId, u16)>,
    /// In the order in which they can be made.
    pub moves: Vec<Move>,
}

/// Empty cards of one pool and model that would be driven otherwise; none where a rule's end alone would start the jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Their pool.
    pub pool: String,
    /// Their model.
    pub model: GpuModel,
    /// What they become.
    pub to: SharingMode,
    /// The pool's rules do not allow that yet: the mode, or another layout.
    pub needs_rule: bool,
    /// The layout that the pool keeps on them, which would have to go.
    pub pinned: Option<String>,
    /// Each card with what would stand on it, in words: `3 x 1g.10gb`.
    pub cards: Vec<(NodeId, u16, String)>,
    /// The jobs that would start.
    pub jobs: Vec<JobId>,
    /// How long all cards together cannot be used for it, in seconds of one card.
    pub card_seconds: u64,
}

/// Free slices that nothing matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// The pool.
    pub pool: String,
    /// The model.
    pub model: GpuModel,
    /// The largest profile that stands in the free slices; none: slices in which no profile can stand.
    pub profile: Option<String>,
    /// How many of them; slices where there is no profile.
    pub count: u64,
    /// On so many cards.
    pub cards: u64,
    /// Jobs that hold such a profile now: whether it is asked for at other times.
    pub running: u64,
}

/// A gang that waits for closeness and that no plan helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhelped {
    /// The gang.
    pub job: JobId,
    /// Why.
    pub why: NoPlan,
}

/// Why there is no plan; the last comes closest to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoPlan {
    /// Too few cards are free in all: moves free none.
    TooFewFree {
        /// Free in the cell, where it may go.
        free: u64,
        /// Needed.
        needed: u64,
    },
    /// In every place too much stands that may not be moved.
    TooLittleMovable,
    /// A bound was reached before it was looked at.
    NotLookedAt,
    /// Places could be opened, but the moved work would have none.
    NoPlaceForMoved,
    /// Every set of moves that opens a place is larger than the share.
    BeyondShare {
        /// At least this much of the movable work would have to move, in percent.
        percent: u64,
    },
}

impl NoPlan {
    /// The stable word.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            NoPlan::TooFewFree { .. } => "too_few_free",
            NoPlan::BeyondShare { .. } => "beyond_share",
            NoPlan::NoPlaceForMoved => "no_place_for_moved",
            NoPlan::TooLittleMovable => "too_little_movable",
            NoPlan::NotLookedAt => "not_looked_at",
        }
    }

    /// For people.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            NoPlan::TooFewFree { free, needed } => {
                format!("{free} GPUs are free for it, {needed} needed: moves do not add free GPUs")
            }
            NoPlan::BeyondShare { percent } => {
                format!("needs moves of at least {percent} % of the GPUs of movable jobs, more than the limit")
            }
            NoPlan::NoPlaceForMoved => "the jobs to move have no other place with the same topology".to_owned(),
            NoPlan::TooLittleMovable => "jobs that are not movable are in every possible place".to_owned(),
            NoPlan::NotLookedAt => "the search reached its limit before it came to this job".to_owned(),
        }
    }
}
