//! Why one job may end another's attempt.

use crate::words::words;
use serde::{Deserialize, Serialize};

/// By which rule an attempt was preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PreemptReason {
    /// It was burst, and a request that a floor account covers needed its devices.
    Reclaim,
    /// A job of the same tenant has a higher priority.
    Priority,
    /// A job of a priority class that may preempt its class.
    Class,
    /// It is moved to another place.
    Move,
}

words!(PreemptReason, "reason",
    PreemptReason::Reclaim => "reclaim", PreemptReason::Priority => "priority", PreemptReason::Class => "class", PreemptReason::Move => "move");
