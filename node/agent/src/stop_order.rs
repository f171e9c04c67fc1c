//! How the agent tells a shim in what way to stop its task: one number, which travels with the signal.
//!
//! What must stay true: a number of zero, which is what a signal without one carries, is no order, so that any agent and any shim
//! understand each other: the shim then sends SIGTERM and keeps the grace of the task's record.

use muster_model::{Stop, StopSignal};

/// Bits of the signal's number; the grace in seconds is above them.
const SIGNAL_BITS: u32 = 7;
/// The longest grace that the number can hold: two years of seconds, far beyond what a job may ask for.
const GRACE_S_MAX: i32 = i32::MAX >> SIGNAL_BITS;

/// The number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StopOrder(pub(crate) i32);

impl StopOrder {
    /// Says this; a longer grace is cut.
    pub(crate) fn of(how: Stop) -> Self {
        let grace_s = i32::try_from(how.grace_s).unwrap_or(GRACE_S_MAX).min(GRACE_S_MAX);
        StopOrder(grace_s << SIGNAL_BITS | how.signal.number())
    }

    /// What it says, if it is an order.
    pub(crate) fn how(self) -> Option<Stop> {
        let signal = StopSignal::of_number(self.0 & ((1 << SIGNAL_BITS) - 1))?;
        let grace_s = u64::try_from(self.0 >> SIGNAL_BITS).ok()?;
        Some(Stop { signal, grace_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_given() {
        for signal in StopSignal::ALL {
            for grace_s in [0, 1, 30, 3_600, 43_200, GRACE_S_MAX as u64] {
                let how = Stop { signal, grace_s };
                assert_eq!(StopOrder::of(how).how(), Some(how));
            }
        }
        let long = Stop::term(u64::MAX);
        assert_eq!(StopOrder::of(long).how(), Some(Stop::term(GRACE_S_MAX as u64)));
        assert_eq!(StopOrder(0).how(), None, "a signal without a number");
        assert_eq!(StopOrder(9).how(), None, "SIGKILL is no such signal");
        assert_eq!(StopOrder(-1).how(), None);
    }
}
