//! Waiting for what comes by itself.

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up; nothing is measured by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again until it holds.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
