//! The cluster's wall clock: what a majority of the voters' clocks say, as the leader measures them with its heartbeats.
//!
//! The time of a log entry enters replicated state and never goes back, so one wrong clock must not decide it. The leader keeps, of
//! each voter, what its clock said and when (on the leader's monotonic clock), and takes the latest time that a majority of the voters'
//! clocks have reached. What must stay true: while fewer than half of the voters' clocks are wrong, the stamp is no further ahead of the
//! right time than [`TOLERANCE_MS`] and the delay of a message; a jump of the leader's own clock counts as one wrong clock, at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// How far the leader's own clock may be from the majority's before it is not believed: far more than clocks that are kept by NTP differ
/// by, and far less than any horizon in the state.
pub(crate) const TOLERANCE_MS: u64 = 1_000;
/// A reading that took longer to come says too little.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(1);
/// A voter that has not been read for so long does not count: its clock may have been changed since.
const READING_AGE_MAX: Duration = Duration::from_secs(30);

/// What one voter's clock said.
#[derive(Clone, Copy, Debug)]
struct Reading {
    wall_ms: u64,
    /// When, on this node's monotonic clock: the middle of the round trip.
    at: Instant,
}

impl Reading {
    /// What that clock says now, if it runs as it should; nothing when it was read too long ago.
    fn extrapolated_ms(&self, now: Instant) -> Option<u64> {
        let age = now.saturating_duration_since(self.at);
        (age <= READING_AGE_MAX).then(|| self.wall_ms.saturating_add(age.as_millis() as u64))
    }
}

/// The clocks of the other voters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clocks {
    readings: BTreeMap<u64, Reading>,
}

impl Clocks {
    /// A voter's answer to a heartbeat said `wall_ms`.
    pub(crate) fn note(&mut self, voter: u64, sent: Instant, answered: Instant, wall_ms: u64) {
        let round_trip = answered.saturating_duration_since(sent);
        if round_trip <= ROUND_TRIP_MAX {
            self.readings.insert(voter, Reading { wall_ms, at: sent + round_trip / 2 });
        }
    }

    /// Forgets all readings.
    pub(crate) fn clear(&mut self) {
        self.readings.clear();
    }

    /// By how much a voter's clock is ahead of `own_wall_ms`.
    pub(crate) fn offset_ms(&self, voter: u64, own_wall_ms: u64, now: Instant) -> Option<i64> {
        let there_ms = self.readings.get(&voter)?.extrapolated_ms(now)?;
        Some(there_ms as i64 - own_wall_ms as i64)
    }

    /// The time of an entry that is written now by `me`, whose own clock says `own_wall_ms`; nothing before a majority of the voters have
    /// been read.
    pub(crate) fn stamp(&self, me: u64, voters: &BTreeSet<u64>, own_wall_ms: u64, now: Instant) -> Option<Stamp> {
        let there = |voter: &u64| match *voter {
            voter if voter == me => Some(own_wall_ms),
            voter => self.readings.get(&voter)?.extrapolated_ms(now),
        };
        let mut clocks_ms: Vec<u64> = voters.iter().filter_map(there).collect();
        clocks_ms.sort_unstable_by(|a, b| b.cmp(a));
        let majority_ms = *clocks_ms.get(voters.len() / 2)?;
        let own_offset_ms = own_wall_ms as i64 - majority_ms as i64;
        let believed = own_offset_ms.unsigned_abs() <= TOLERANCE_MS;
        Some(Stamp { now_ms: if believed { own_wall_ms } else { majority_ms }, own_offset_ms, believed })
    }
}

/// The time of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
    /// By how much the leader's own clock is ahead of the majority's.
    pub(crate) own_offset_ms: i64,
    /// Whether the leader's own clock is near enough to be used.
    pub(crate) believed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY_MS: i64 = 24 * 3_600 * 1_000;
    const TRUE_MS: u64 = 1_800_000_000_000;

    fn voters(count: u64) -> BTreeSet<u64> {
        (1..=count).collect()
    }

    fn wall(offset_ms: i64) -> u64 {
        TRUE_MS.saturating_add_signed(offset_ms)
    }

    #[test]
    fn a_leader_thirty_days_ahead_stamps_the_time_of_the_others() {
        let now = Instant::now();
        let mut clocks = Clocks::default();
        assert_eq!(clocks.stamp(1, &voters(3), wall(30 * DAY_MS), now), None, "before anybody was read");
        clocks.note(2, now, now, wall(3));
        let stamp = clocks.stamp(1, &voters(3), wall(30 * DAY_MS), now).expect("two of three");
        assert_eq!((stamp.now_ms, stamp.believed), (wall(3), false));
        clocks.note(3, now, now, wall(0));
        let stamp = clocks.stamp(1, &voters(3), wall(30 * DAY_MS), now).expect("all");
        assert_eq!((stamp.now_ms, stamp.own_offset_ms), (wall(3), 30 * DAY_MS - 3));
        let right = clocks.stamp(1, &voters(3), wall(200), now).expect("all");
        assert_eq!((right.now_ms, right.believed), (wall(200), true));
        let behind = clocks.stamp(1, &voters(3), wall(-30 * DAY_MS), now).expect("all");
        assert_eq!(behind.now_ms, wall(0), "nor does one that is behind hold time back");
    }

    #[test]
    fn readings_go_on_with_time_and_expire() {
        let read = Instant::now();
        let mut clocks = Clocks::default();
        clocks.note(2, read, read + ROUND_TRIP_MAX * 2, wall(0));
        assert_eq!(clocks.offset_ms(2, wall(0), read), None, "a reading that took too long");
        clocks.note(2, read, read, wall(0));
        let later = read + Duration::from_secs(10);
        assert_eq!(clocks.offset_ms(2, wall(10_000), later), Some(0));
        assert_eq!(clocks.offset_ms(2, wall(0), read + READING_AGE_MAX * 2), None);
    }

    proptest! {
        /// Whatever a minority of the clocks say, the stamp is near the right time once everybody was read, and never ahead of a
        /// majority before.
        #[test]
        fn a_minority_of_wrong_clocks_does_not_move_time(
            count in 1_u64..=7,
            wrong in proptest::collection::vec(-400 * DAY_MS..400 * DAY_MS, 3),
            right in proptest::collection::vec(-300_i64..300, 7),
            me in 1_u64..=7,
            silent in proptest::collection::btree_set(1_u64..=7, 0..4),
        ) {
            let voters = voters(count);
            let me = 1 + (me - 1) % count;
            let wrong_count = ((count - 1) / 2) as usize;
            let offset = |voter: u64| {
                // The wrong ones come first, and the leader is often among them.
                let place = (voter + count - me) % count;
                if (place as usize) < wrong_count { wrong[place as usize] } else { right[place as usize] }
            };
            let now = Instant::now();
            let mut clocks = Clocks::default();
            for voter in voters.iter().filter(|voter| **voter != me) {
                clocks.note(*voter, now, now, wall(offset(*voter)));
            }
            let stamp = clocks.stamp(me, &voters, wall(offset(me)), now).expect("all were read");
            let error_ms = stamp.now_ms as i64 - TRUE_MS as i64;
            prop_assert!(error_ms.abs() <= 300 + TOLERANCE_MS as i64, "{error_ms} ms");

            let mut some = Clocks::default();
            for voter in voters.iter().filter(|voter| **voter != me && !silent.contains(voter)) {
                some.note(*voter, now, now, wall(offset(*voter)));
            }
            if let Some(stamp) = some.stamp(me, &voters, wall(offset(me)), now) {
                let ahead_ms = stamp.now_ms as i64 - TRUE_MS as i64;
                prop_assert!(ahead_ms <= 300 + TOLERANCE_MS as i64, "{ahead_ms} ms ahead");
            }
        }
    }
}
