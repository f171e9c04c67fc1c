//! The system's clocks.

use crate::clock::Clock;
use nix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// Wall time from the system, boot time from CLOCK_BOOTTIME.
pub(super) struct SystemClock;

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        // A clock before 1970 is a clock that was never set; it decides nothing, so zero will do.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn boottime_ns(&self) -> u64 {
        // CLOCK_BOOTTIME exists since Linux 2.6.39 and the call has no other way to fail with a valid pointer.
        let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME can be read");
        u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
    }
}
