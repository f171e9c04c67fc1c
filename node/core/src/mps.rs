//! What the MPS server of a card is to be: how much each client may have at the most, and whose clients it takes.
//!
//! What must stay true: a client that removes every limit from its environment has no more than the largest share of those that hold the card,
//! which the server grants; a task starts only when the server grants its whole share.

use muster_model::GpuModel;
use muster_model::capacity::shares;
use muster_model::task::HoldMode;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a server grants each of its clients at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MpsLimits {
    /// Of the card's threads, in percent.
    pub percent: u8,
    /// Of the card's memory, in MiB: the client's share and its context.
    pub memory_mib: u64,
}

impl MpsLimits {
    /// What a client with this hold on a card is to have; none where it is no share under MPS.
    #[must_use]
    pub const fn of(model: GpuModel, mode: HoldMode) -> Option<Self> {
        match mode {
            HoldMode::Mps { percent, memory_mib } => {
                Some(MpsLimits { percent, memory_mib: shares::mps_limit_mib(model, memory_mib) })
            }
            HoldMode::Whole | HoldMode::Mig(_) | HoldMode::TimeSlice { .. } => None,
        }
    }

    /// The larger of each.
    pub(crate) fn or_more(self, other: Self) -> Self {
        MpsLimits { percent: self.percent.max(other.percent), memory_mib: self.memory_mib.max(other.memory_mib) }
    }

    /// Whether a server with these grants all of `other`.
    pub(crate) const fn grant(self, other: Self) -> bool {
        self.percent >= other.percent && self.memory_mib >= other.memory_mib
    }
}

impl fmt::Display for MpsLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} % and {} MiB", self.percent, self.memory_mib)
    }
}

/// A server that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MpsSetting {
    /// What it grants, as far as this agent has set it.
    pub limits: Option<MpsLimits>,
    /// The only user whose clients it takes; none: it takes those of every user that the node's tasks have.
    pub only_user: Option<u32>,
}

impl MpsSetting {
    /// Whether it takes clients of this user; none: the agent's own, for which alone it was started then.
    pub(crate) fn takes(&self, user: Option<u32>) -> bool {
        self.only_user.is_none() || user.is_none() || self.only_user == user
    }
}

/// How a server is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MpsStart {
    /// What it grants.
    pub limits: MpsLimits,
    /// Whose clients it is started for; none: the agent's own user's.
    pub user: Option<u32>,
    /// Clients of other users may come while it runs. Where the driver cannot do that, it takes clients of the user above alone.
    pub for_all: bool,
}
