//! Moves that were executed: what each was to bring and to cost, what came of it, and what a pool's budget has left.
//!
//! What must stay true: a pool without a budget moves nothing, and that is the default; what counts against a budget is what was promised until the
//! loss itself is known; a record is bounded by the jobs of one command, and records by [`MOVES_KEPT_MAX`].

use crate::gpu::GpuModel;
use crate::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use crate::node::Pool;
use crate::resources::GpuUnits;
use crate::task::TaskPlacement;
use crate::words::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Jobs that a pool may move in an hour at most. More would be churn, and their records would not be bounded.
pub const MOVES_PER_HOUR_MAX: u32 = 60;
/// GPU-hours that moves may cost a pool in a day at most: more than a day of 40,000 cards.
pub const MOVES_LOST_GPU_HOURS_MAX: u32 = 1_000_000;
/// Jobs that one command moves at most: each is an interruption to somebody.
pub const MOVED_JOBS_MAX: usize = 64;
/// Records that are kept. The newest are shown; those of the last day are what budgets count.
pub const MOVES_KEPT_MAX: usize = 2_000;
/// The window of [`Pool::moves_per_hour`].
pub const HOUR_MS: u64 = 3_600_000;
/// The window of [`Pool::moves_lost_gpu_hours_per_day`].
pub const DAY_MS: u64 = 24 * HOUR_MS;

/// A running job that is to be stopped and started elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    /// What it holds now.
    pub allocation: AllocationId,
    /// Rank by rank, where it will run.
    pub tasks: Vec<TaskPlacement>,
}

/// What has become of a job that is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MoveFate {
    /// It has its grace.
    Stopping,
    /// Its tasks are gone; it has its new place, or gets it when others have left it.
    Starting,
    /// It runs at its new place.
    Resumed,
    /// It ended before it ran there.
    Ended,
    /// A node of its new place was lost, or it could not start there: it waits in the queue.
    Requeued,
}

words!(MoveFate, "state of a moved job",
    MoveFate::Stopping => "stopping",
    MoveFate::Starting => "starting",
    MoveFate::Resumed => "resumed",
    MoveFate::Ended => "ended",
    MoveFate::Requeued => "requeued",
);

/// One job of a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedJob {
    /// Which.
    pub job: JobId,
    /// What it held.
    pub from: AllocationId,
    /// What it gets.
    pub to: AllocationId,
    /// Its GPU units.
    pub units: GpuUnits,
    /// The nodes that it stood on.
    pub from_nodes: BTreeSet<NodeId>,
    /// The nodes that it was promised.
    pub to_nodes: BTreeSet<NodeId>,
    /// What it was said to lose at most, in unit-seconds.
    pub promised_unit_s: u64,
    /// What has become of it.
    pub fate: MoveFate,
    /// When its last task was gone.
    pub stopped_ms: Option<u64>,
    /// What it had not saved then, in milliseconds of the whole job.
    pub unsaved_ms: u64,
    /// When it ran again.
    pub resumed_ms: Option<u64>,
    /// What it lost, in unit-seconds: what it had not saved, and the time until it ran again.
    pub lost_unit_s: Option<u64>,
}

impl MovedJob {
    /// What counts against a budget.
    #[must_use]
    pub fn cost_unit_s(&self) -> u64 {
        self.lost_unit_s.unwrap_or(self.promised_unit_s)
    }

    /// What so many milliseconds of the whole job are worth, in unit-seconds, rounded up.
    #[must_use]
    pub const fn worth_unit_s(&self, ms: u64) -> u64 {
        self.units.0.saturating_mul(ms).div_ceil(1_000)
    }
}

/// One command that moved jobs for a gang: what was promised, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRecord {
    /// The allocation that the gang gets, which names the record.
    pub id: AllocationId,
    /// In which cell.
    pub cell: CellId,
    /// When, in milliseconds since the Unix epoch.
    pub made_ms: u64,
    /// Whose budget pays: the pool that the moved jobs stood in.
    pub pool: String,
    /// For which gang.
    pub job: JobId,
    /// Whose.
    pub tenant: TenantId,
    /// On which model.
    pub model: Option<GpuModel>,
    /// What the gang gets.
    pub units: GpuUnits,
    /// Where.
    pub nodes: BTreeSet<NodeId>,
    /// Cards of that place that are in another sharing mode now, and are converted when they are empty.
    pub converted_cards: u32,
    /// Until when it gets it at the latest, by the graces of the moved jobs.
    pub due_ms: u64,
    /// When it got it.
    pub started_ms: Option<u64>,
    /// When that came to nothing: the gang was cancelled, or a node of its place was lost.
    pub given_up_ms: Option<u64>,
    /// In the order in which they were judged.
    pub moved: Vec<MovedJob>,
}

impl MoveRecord {
    /// Whether nothing more can come of it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let told = |moved: &MovedJob| moved.lost_unit_s.is_some();
        (self.started_ms.is_some() || self.given_up_ms.is_some()) && self.moved.iter().all(told)
    }

    /// What was promised to be lost at most, in unit-seconds.
    #[must_use]
    pub fn promised_unit_s(&self) -> u64 {
        self.moved.iter().map(|moved| moved.promised_unit_s).sum()
    }

    /// What was lost; none while something is still under way.
    #[must_use]
    pub fn lost_unit_s(&self) -> Option<u64> {
        self.moved.iter().map(|moved| moved.lost_unit_s).sum()
    }
}

/// What of a budget is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Jobs moved within the last hour.
    pub moves: u64,
    /// Unit-seconds lost, or promised to be lost, by the moves of the last day.
    pub unit_s: u64,
}

/// What of a budget is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Jobs.
    pub moves: u64,
    /// Unit-seconds.
    pub unit_s: u64,
}

/// What the pool's moves have used at `now_ms`.
pub fn spent<'a>(records: impl IntoIterator<Item = &'a MoveRecord>, pool: &str, now_ms: u64) -> Spent {
    let mut spent = Spent::default();
    for record in records.into_iter().filter(|record| record.pool == pool) {
        let within = |window_ms| record.made_ms.saturating_add(window_ms) > now_ms;
        if within(HOUR_MS) {
            spent.moves += record.moved.len() as u64;
        }
        if within(DAY_MS) {
            spent.unit_s = record.moved.iter().fold(spent.unit_s, |sum, one| sum.saturating_add(one.cost_unit_s()));
        }
    }
    spent
}

impl Pool {
    /// Whether running jobs may be moved here.
    #[must_use]
    pub const fn moves_jobs(&self) -> bool {
        self.moves_per_hour > 0 && self.moves_lost_gpu_hours_per_day > 0
    }

    /// What its moves may cost in a day, in unit-seconds.
    #[must_use]
    pub const fn moves_lost_unit_s_max(&self) -> u64 {
        self.moves_lost_gpu_hours_per_day as u64 * 3_600 * GpuUnits::CARD.0
    }

    /// What is left of its budget.
    #[must_use]
    pub fn moves_left(&self, spent: Spent) -> Left {
        if !self.moves_jobs() {
            return Left { moves: 0, unit_s: 0 };
        }
        Left {
            moves: u64::from(self.moves_per_hour).saturating_sub(spent.moves),
            unit_s: self.moves_lost_unit_s_max().saturating_sub(spent.unit_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(promised_unit_s: u64, lost_unit_s: Option<u64>) -> MovedJob {
        MovedJob {
            job: JobId(1),
            from: AllocationId(1),
            to: AllocationId(2),
            units: GpuUnits::CARD,
            from_nodes: BTreeSet::new(),
            to_nodes: BTreeSet::new(),
            promised_unit_s,
            fate: MoveFate::Stopping,
            stopped_ms: None,
            unsaved_ms: 0,
            resumed_ms: None,
            lost_unit_s,
        }
    }

    fn record(made_ms: u64, moved: Vec<MovedJob>) -> MoveRecord {
        MoveRecord {
            id: AllocationId(3),
            cell: CellId(1),
            made_ms,
            pool: "default".to_owned(),
            job: JobId(2),
            tenant: TenantId(1),
            model: None,
            units: GpuUnits::CARD,
            nodes: BTreeSet::new(),
            converted_cards: 0,
            due_ms: made_ms,
            started_ms: None,
            given_up_ms: None,
            moved,
        }
    }

    #[test]
    fn budgets_count_the_last_hour_and_the_last_day_and_prefer_what_is_known() {
        let records = [record(0, vec![moved(10, Some(4))]), record(DAY_MS - 1, vec![moved(5, None), moved(6, None)])];
        let at = |now_ms| spent(&records, "default", now_ms);
        assert_eq!(at(DAY_MS - 1), Spent { moves: 2, unit_s: 15 });
        assert_eq!(at(DAY_MS), Spent { moves: 2, unit_s: 11 });
        assert_eq!(at(DAY_MS + HOUR_MS), Spent { moves: 0, unit_s: 11 });
        assert_eq!(spent(&records, "other", DAY_MS), Spent::default());
    }

    #[test]
    fn a_pool_moves_nothing_unless_both_budgets_are_set() {
        let pool = |moves_per_hour, moves_lost_gpu_hours_per_day| Pool {
            moves_per_hour,
            moves_lost_gpu_hours_per_day,
            ..Pool::standard()
        };
        for off in [Pool::standard(), pool(0, 5), pool(5, 0)] {
            assert_eq!(off.moves_left(Spent::default()), Left { moves: 0, unit_s: 0 });
        }
        let left = pool(5, 1).moves_left(Spent { moves: 2, unit_s: 7_000 });
        assert_eq!(left, Left { moves: 3, unit_s: 3_599 * 7_000 });
    }
}
