//! Work that may be moved: stopped where it runs and started again elsewhere in its cell. What a move loses.
//!
//! A tenant says of a job that it is movable; nothing else is ever moved. What must stay true: the loss that is told is never less
//! than what a job that keeps its word loses, and it is a function of the job and of the time it has run alone.

use crate::resources::GpuUnits;
use serde::{Deserialize, Serialize};

/// From a start to useful work where the job does not say, in seconds. An assumption, not a measurement: pulling an image, starting
/// the ranks and loading a checkpoint take minutes. A job that knows better says so.
pub const RESTART_S_DEFAULT: u64 = 300;

/// How a movable job keeps its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Movable {
    /// It saves its progress at least this often, in seconds; none: a move loses everything since its start.
    pub checkpoint_every_s: Option<u64>,
    /// From a start until it does useful work again, in seconds.
    pub restart_s: u64,
}

impl Default for Movable {
    /// Loses everything since its start, and the usual time to start.
    fn default() -> Self {
        Movable { checkpoint_every_s: None, restart_s: RESTART_S_DEFAULT }
    }
}

/// What a move loses at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// Work since the start or since the last checkpoint, in seconds of all its cards.
    pub unsaved_s: u64,
    /// From the new start to useful work, in seconds of all its cards.
    pub restart_s: u64,
    /// Both times the GPU units of the whole job, in unit-seconds (a card has 7,000 units).
    pub unit_seconds: u64,
}

impl Loss {
    /// In seconds of one card, rounded up.
    #[must_use]
    pub const fn card_seconds(&self) -> u64 {
        self.unit_seconds.div_ceil(GpuUnits::CARD.0)
    }
}

impl Movable {
    /// What a move of a job that holds `units` and has run for `ran_s` loses at most:
    ///
    /// `units × (min(ran, checkpoint interval) + restart)`.
    ///
    /// It is the loss that SCHEDULING's rule for victims names ("GPU-hours since the last checkpoint plus restart cost"). When the
    /// last checkpoint was is not told yet, so the whole interval counts: a bound, twice the mean.
    #[must_use]
    pub fn loss(&self, units: GpuUnits, ran_s: u64) -> Loss {
        let unsaved_s = self.checkpoint_every_s.map_or(ran_s, |every| every.min(ran_s));
        let seconds = unsaved_s.saturating_add(self.restart_s);
        Loss { unsaved_s, restart_s: self.restart_s, unit_seconds: units.0.saturating_mul(seconds) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(checkpoint_every_s: Option<u64>, restart_s: u64, cards: u64, ran_s: u64, card_seconds: u64) {
        let loss = Movable { checkpoint_every_s, restart_s }.loss(GpuUnits::cards(cards), ran_s);
        assert_eq!(loss.card_seconds(), card_seconds);
    }

    #[test]
    fn the_loss_is_what_was_not_saved_and_the_start() {
        check(Some(1_800), 120, 8, 36_000, 8 * 1_920);
        check(Some(1_800), 120, 8, 60, 8 * 180);
        check(None, 300, 1, 36_000, 36_300);
        check(Some(600), 0, 2, 0, 0);
        let slice = Movable::default().loss(GpuUnits(1_000), 50);
        assert_eq!((slice.unit_seconds, slice.card_seconds()), (350_000, 50));
    }
}
