//! The cluster's time is right: it never goes back, and as long as fewer than half of the voters' clocks are wrong, it is never far ahead.

use super::{Findings, Violation};
use crate::history::History;

/// How far the state's time may be ahead of the right time: what a clock that is kept well differs by, and what a leader's own clock may
/// differ from the others' before it is not believed.
pub(super) const AHEAD_MS_MAX: u64 = crate::nemesis::KEPT_CLOCK_MS_MAX + 1_100;

/// Reports every revision whose time is far ahead, or goes back.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("time");
    let mut last_ms = 0;
    for (revision, (now_ms, wall_ms)) in &history.times {
        findings.add_if(*now_ms > wall_ms + AHEAD_MS_MAX, || {
            format!("revision {revision} is {} ms ahead of the right time", now_ms - wall_ms)
        });
        findings.add_if(*now_ms < last_ms, || format!("revision {revision} goes back by {} ms", last_ms - now_ms));
        last_ms = *now_ms;
    }
    findings.found
}
