//! When reservations are looked at again, and how far the search for gangs to reserve for has come.
//!
//! What must stay true: what is sought follows from the clock and from how many gangs have been found without room, so that a pass in which
//! nothing has changed seeks nothing.

use crate::job_class::JobClass;
use muster_model::TenantId;
use std::sync::Arc;

/// Gangs of one cell with a reservation: enough that the head of the queue is safe.
pub const RESERVATIONS_MAX: usize = 16;
/// How soon gangs without a time are looked at again when nothing speaks for it.
const AGAIN_MS: u64 = 60_000;
/// How soon they are when another gang has been found without room.
pub(crate) const NEW_GANG_MS: u64 = 1_000;
/// How soon a better time is sought for a gang that has one.
const BETTER_MS: u64 = 300_000;
/// A better time is better by this much; a gang that has not started this long after its time gets another.
pub(crate) const SLACK_MS: u64 = 60_000;

/// How far the search for gangs to reserve for has come in a cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReservationSearch {
    pub(crate) began_ms: u64,
    /// How many gangs had been found without room by then, ever.
    pub(crate) gangs_found: u64,
    /// Classes for which no time limit gives a time.
    pub(crate) in_vain: Vec<(TenantId, Arc<JobClass>)>,
    /// It stopped at a bound.
    pub(crate) unfinished: bool,
    /// Nothing that runs in the cell has a time limit.
    pub(crate) without_limits: bool,
}

impl ReservationSearch {
    /// When it is to begin again or go on, now that so many gangs have been found without room.
    pub(crate) fn next_ms(&self, gangs_found: u64) -> u64 {
        match self {
            ReservationSearch { unfinished: true, .. } => 0,
            ReservationSearch { without_limits: false, .. } if self.gangs_found != gangs_found => {
                self.began_ms + NEW_GANG_MS
            }
            _ => self.began_ms + AGAIN_MS,
        }
    }

    /// Whether gangs have been found without room since it began.
    pub(crate) fn began_for_fewer_than(&self, gangs_found: u64) -> bool {
        self.unfinished || !self.without_limits && self.gangs_found < gangs_found
    }

    /// Nothing is sought before the usual time.
    pub(crate) fn rests(now_ms: u64, gangs_found: u64) -> Self {
        ReservationSearch { began_ms: now_ms, gangs_found, ..ReservationSearch::default() }
    }
}

/// Whether a gang that was to start at `start_ms` is late.
pub(crate) fn is_late(start_ms: u64, now_ms: u64) -> bool {
    now_ms > start_ms.saturating_add(SLACK_MS)
}

/// Whether it is time to seek something better for a gang that was looked at last at `at_ms`.
pub(crate) fn is_due_again(at_ms: u64, now_ms: u64) -> bool {
    now_ms >= at_ms.saturating_add(BETTER_MS)
}

/// Whether it would be time before long: what is due at about the same time is looked at together.
pub(crate) fn is_soon_due(at_ms: u64, now_ms: u64) -> bool {
    now_ms >= at_ms.saturating_add(BETTER_MS / 2)
}
