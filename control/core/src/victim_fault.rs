//! Why an allocation may not be preempted for a job.

use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum VictimFault {
    /// It is over, it is ending, or it is not another job's in that cell.
    #[error("it does not run for another job in that cell any more")]
    Ended,
    /// A floor account pays for it.
    #[error("it is guaranteed: only a job of the same tenant with a higher priority may preempt it")]
    Guaranteed,
    /// No floor account covers the job.
    #[error("no floor account covers the job, and the priority of its tenant's running job is not lower")]
    NotCovered,
    /// Its tenant, or the ancestor below the common one, uses no more than its guarantee.
    #[error("its side of the quota tree is within its guarantee")]
    WithinGuarantee,
    /// It has not run long enough.
    #[error("it may not be preempted before {until_ms} ms since the Unix epoch (cool-down of its pool)")]
    CoolDown {
        /// Until when.
        until_ms: u64,
    },
    /// As much floor-covered use would end as begin.
    #[error("the preemption would not raise the use that floors cover")]
    NothingGained,
    /// It has been preempted as often as its pool allows.
    #[error("its job has been preempted {most} times, the most that its pool allows")]
    TooOften {
        /// The bound.
        most: u32,
    },
    /// Attempts of the job that preempted others have failed too often.
    #[error("the job may not preempt any more: {failures} of its attempts that preempted others have failed")]
    Barred {
        /// How many.
        failures: u32,
    },
    /// Its job does not say that it may be moved.
    #[error("its job is not movable")]
    NotMovable,
    /// The pool that it stands in has no budget for moves.
    #[error("its pool moves no jobs: set `moves-per-hour` and `moves-lost-gpu-hours-per-day` of the pool")]
    MovesOff,
    /// It, or another job of the same move, stands in another pool.
    #[error("it does not stand in one pool with the other jobs of the move")]
    OtherPool,
    /// Its pool has moved as many jobs in this hour as it may.
    #[error("its pool may move {left} more jobs in this hour, and {asked} are asked for")]
    MovesSpent {
        /// Jobs.
        left: u64,
        /// Jobs.
        asked: u64,
    },
    /// The moves of its pool have cost as much in this day as they may.
    #[error("moves may cost its pool {left_gpu_s} more GPU-seconds in this day, and {asked_gpu_s} are asked for")]
    LossSpent {
        /// In seconds of one card.
        left_gpu_s: u64,
        /// In seconds of one card.
        asked_gpu_s: u64,
    },
    /// It would stand where it stands.
    #[error("it would not be moved: its new place is the present one")]
    SamePlace,
}
