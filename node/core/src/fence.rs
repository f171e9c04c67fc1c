//! Leases and fences: until when a task may run without word from the control plane.
//!
//! The agent notes when it sent each heartbeat; a leader that a quorum has just confirmed acknowledges it by number. What must stay
//! true: a fence stands at the *send* time of an acknowledged heartbeat plus the job's disconnect grace, which is never later
//! than the time at which the control plane gives the devices away (its receive time plus grace plus margin); it never moves
//! back; and an acknowledgement of another session proves nothing.

use std::collections::BTreeMap;

/// Heartbeats that wait for an acknowledgement: at one a second this is four minutes, far beyond the life of a session that
/// answers nothing.
const IN_FLIGHT_MAX: usize = 256;

/// Nanoseconds in a second.
pub const NS_PER_S: u64 = 1_000_000_000;

/// Heartbeats of the present session and the newest send time that was acknowledged in any. Times are CLOCK_BOOTTIME.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    next_seq: u64,
    sent_ns: BTreeMap<u64, u64>,
    confirmed_ns: Option<u64>,
}

impl Leases {
    /// A new session counts anew: what was sent in the last one can no longer be acknowledged.
    pub fn new_session(&mut self) {
        self.sent_ns.clear();
        self.next_seq = 0;
    }

    /// A heartbeat is about to be sent; gives its number.
    pub fn send(&mut self, now_ns: u64) -> u64 {
        self.next_seq += 1;
        self.sent_ns.insert(self.next_seq, now_ns);
        while self.sent_ns.len() > IN_FLIGHT_MAX {
            self.sent_ns.pop_first();
        }
        self.next_seq
    }

    /// Heartbeat `seq` was acknowledged; gives the new confirmed send time if that moved.
    pub fn acknowledged(&mut self, seq: u64) -> Option<u64> {
        let sent_ns = *self.sent_ns.get(&seq)?;
        self.sent_ns = self.sent_ns.split_off(&(seq + 1));
        if self.confirmed_ns.is_some_and(|confirmed| confirmed >= sent_ns) {
            return None;
        }
        self.confirmed_ns = Some(sent_ns);
        self.confirmed_ns
    }

    /// The newest send time that was acknowledged.
    #[must_use]
    pub const fn confirmed_ns(&self) -> Option<u64> {
        self.confirmed_ns
    }
}

/// When a task with this grace must be dead unless it hears more. Saturates: a grace of centuries is no fence.
#[must_use]
pub const fn deadline_ns(confirmed_ns: u64, disconnect_grace_s: u64) -> u64 {
    confirmed_ns.saturating_add(disconnect_grace_s.saturating_mul(NS_PER_S))
}

/// When a task's time limit passes; `None` without one.
#[must_use]
pub fn time_limit_ns(started_ns: u64, time_limit_s: Option<u64>) -> Option<u64> {
    time_limit_s.map(|limit| started_ns.saturating_add(limit.saturating_mul(NS_PER_S)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_confirms_the_send_time_and_never_moves_back() {
        let mut leases = Leases::default();
        let first = leases.send(10);
        let second = leases.send(20);
        assert_eq!(leases.acknowledged(second), Some(20));
        assert_eq!(leases.acknowledged(first), None, "an earlier heartbeat was overtaken");
        assert_eq!(leases.confirmed_ns(), Some(20));
    }

    #[test]
    fn an_acknowledgement_of_another_session_proves_nothing() {
        let mut leases = Leases::default();
        let old = leases.send(10);
        leases.new_session();
        assert_eq!(leases.acknowledged(old), None);
        assert_eq!(leases.confirmed_ns(), None);
        let new = leases.send(30);
        assert_eq!(leases.acknowledged(new + 1), None, "a number that was never sent");
        assert_eq!(leases.acknowledged(new), Some(30));
    }

    #[test]
    fn what_waits_for_an_acknowledgement_is_bounded() {
        let mut leases = Leases::default();
        for now in 0..10_000 {
            leases.send(now);
        }
        assert_eq!(leases.sent_ns.len(), IN_FLIGHT_MAX);
    }

    #[test]
    fn deadlines_saturate() {
        assert_eq!(deadline_ns(5, 2), 5 + 2 * NS_PER_S);
        assert_eq!(deadline_ns(u64::MAX - 1, 600), u64::MAX);
        assert_eq!(time_limit_ns(7, None), None);
        assert_eq!(time_limit_ns(7, Some(u64::MAX)), Some(u64::MAX));
    }
}
