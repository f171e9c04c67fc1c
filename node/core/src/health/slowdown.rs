//! Clocks lowered for heat or power: seen in six of ten minutes it is a fault, in none of ten it is over.
//!
//! What must stay true: a minute counts once however often it is told; minutes that nobody sampled count for neither side; at most ten are
//! kept. The rule of six in ten is gpud's.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Minutes that are looked at.
pub const MINUTES: u64 = 10;
/// Slow minutes among them that make a fault.
pub const SLOW_MIN: usize = 6;

const MS_PER_MINUTE: u64 = 60_000;

/// What the samples say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A fault.
    Slow,
    /// It is over.
    Cool,
    /// Neither: what held goes on.
    Undecided,
}

/// The last ten minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Samples(BTreeMap<u64, bool>);

impl Samples {
    pub(crate) fn add(&mut self, is_slow: bool, now_ms: u64) -> Said {
        let minute = now_ms / MS_PER_MINUTE;
        *self.0.entry(minute).or_default() |= is_slow;
        // What lies ahead was sampled before the wall clock went back.
        self.0.retain(|then, _| *then <= minute && minute - *then < MINUTES);
        let slow = self.0.values().filter(|is_slow| **is_slow).count();
        if slow >= SLOW_MIN {
            Said::Slow
        } else if slow == 0 && self.0.len() as u64 == MINUTES {
            Said::Cool
        } else {
            Said::Undecided
        }
    }

    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}
