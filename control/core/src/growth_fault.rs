//! Why a gang cannot grow by what was proposed, or be shrunk for another.

use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum GrowthFault {
    /// Only a gang that runs grows.
    #[error("it is {phase}, or that attempt of it is over")]
    NotRunning {
        /// Where it stands.
        phase: String,
    },
    /// It would have more tasks than it can use, or a part of a segment.
    #[error("it has {now} tasks and would get {more} more, of at most {max}")]
    TooLarge {
        /// Now.
        now: u64,
        /// More.
        more: u64,
        /// At most.
        max: u64,
    },
    /// Too many parts have ended by themselves.
    #[error("{ends} parts of its growth have ended by themselves in this attempt")]
    Ended {
        /// How many.
        ends: u32,
    },
    /// The place is in another cell, or on another model, than its minimum.
    #[error("the place is in another cell or on another GPU model than its minimum")]
    Elsewhere,
    /// What is to be taken back is no growth that runs.
    #[error("what is to be taken back is not growth that runs in that cell")]
    NoParts,
}
