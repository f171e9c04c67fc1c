//! A host's clocks on virtual time: wall time with a skew that a scenario may change at any moment, boot time that never jumps.

use crate::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::time::Instant;

/// Wall time at the start of every run: 2026-01-01, so that times in a trace read as dates.
pub(super) const START_WALL_MS: u64 = 1_767_225_600_000;

pub(super) struct SimClock {
    pub(super) start: Instant,
    /// Shared with the world, which shifts it.
    pub(super) skew_ms: Arc<AtomicI64>,
    /// Boot time at the start of the run: hosts were not all booted at once.
    pub(super) booted_before_ns: u64,
}

impl Clock for SimClock {
    fn wall_ms(&self) -> u64 {
        let elapsed = self.start.elapsed().as_millis() as u64;
        (START_WALL_MS + elapsed).saturating_add_signed(self.skew_ms.load(Ordering::Relaxed))
    }

    fn boottime_ns(&self) -> u64 {
        self.booted_before_ns + self.start.elapsed().as_nanos() as u64
    }
}
