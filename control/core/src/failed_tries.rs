//! How often somebody may try to prove who they are and fail: a few times freely, then with a delay that doubles.
//!
//! What must stay true: whoever does not fail is never held up; a delay has an end, and a quiet minute after it all is forgotten; the table is bounded, and a
//! full one forgets those who failed longest ago; nothing here knows a clock.

use std::collections::BTreeMap;

/// Failures without a delay.
const FREE_TRIES: u32 = 5;
/// The first delay, in ms; each further failure doubles it.
const FIRST_DELAY_MS: u64 = 1_000;
/// No delay is longer.
const DELAY_MS_MAX: u64 = 60_000;
/// After so long without a failure nothing is known of it any more.
const FORGOTTEN_AFTER_MS: u64 = 60_000;

/// The failures of one caller.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// Until when nothing is taken.
    until_ms: u64,
    last_ms: u64,
}

impl Failures {
    fn counts_at(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.last_ms.max(self.until_ms)) < FORGOTTEN_AFTER_MS
    }
}

/// The failures of all callers.
#[derive(Debug)]
pub struct FailedTries<K> {
    failures: BTreeMap<K, Failures>,
    callers_max: usize,
}

impl<K: Ord + Clone> FailedTries<K> {
    /// For at most so many callers at a time.
    #[must_use]
    pub fn new(callers_max: usize) -> Self {
        FailedTries { failures: BTreeMap::new(), callers_max }
    }

    /// Whether `caller` may try now.
    ///
    /// # Errors
    /// In how many milliseconds, if not.
    pub fn may(&self, caller: &K, now_ms: u64) -> Result<(), u64> {
        match self.failures.get(caller).and_then(|failures| failures.until_ms.checked_sub(now_ms)) {
            None | Some(0) => Ok(()),
            Some(wait_ms) => Err(wait_ms.min(DELAY_MS_MAX)),
        }
    }

    /// `caller` has tried, and failed.
    pub fn failed(&mut self, caller: &K, now_ms: u64) {
        if !self.failures.contains_key(caller) && self.failures.len() >= self.callers_max {
            self.make_room(now_ms);
        }
        let fresh = Failures { count: 0, until_ms: 0, last_ms: now_ms };
        let failures = self.failures.entry(caller.clone()).or_insert(fresh);
        if !failures.counts_at(now_ms) {
            *failures = fresh;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last_ms = now_ms;
        if let Some(over) = failures.count.checked_sub(FREE_TRIES).filter(|over| *over > 0) {
            let doubled = 1_u64.checked_shl(over - 1).unwrap_or(u64::MAX);
            failures.until_ms = now_ms.saturating_add(FIRST_DELAY_MS.saturating_mul(doubled).min(DELAY_MS_MAX));
        }
    }

    /// `caller` has tried, and did not fail.
    pub fn succeeded(&mut self, caller: &K) {
        self.failures.remove(caller);
    }

    fn make_room(&mut self, now_ms: u64) {
        self.failures.retain(|_, failures| failures.counts_at(now_ms));
        let oldest =
            self.failures.iter().min_by_key(|(_, failures)| failures.last_ms).map(|(caller, _)| caller.clone());
        if let Some(oldest) = oldest.filter(|_| self.failures.len() >= self.callers_max) {
            self.failures.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_are_free_and_then_the_delay_doubles() {
        let (mut tries, mut now_ms) = (FailedTries::new(4), 1_000);
        let mut delays = Vec::new();
        for _ in 0..14 {
            assert_eq!(tries.may(&"a", now_ms), Ok(()));
            tries.failed(&"a", now_ms);
            let wait_ms = tries.may(&"a", now_ms).err().unwrap_or_default();
            delays.push(wait_ms);
            now_ms += wait_ms;
        }
        assert_eq!(delays[..8], [0, 0, 0, 0, 0, 1_000, 2_000, 4_000]);
        assert_eq!(delays[11..], [60_000; 3]);
        assert_eq!(tries.may(&"b", now_ms), Ok(()), "others are not held up");
    }

    #[test]
    fn a_success_or_a_quiet_minute_forgets() {
        let mut tries = FailedTries::new(4);
        for _ in 0..6 {
            tries.failed(&"a", 0);
            tries.failed(&"b", 0);
        }
        assert!(tries.may(&"a", 999).is_err() && tries.may(&"a", 1_000).is_ok());
        tries.succeeded(&"a");
        tries.failed(&"a", 1_000);
        assert_eq!(tries.may(&"a", 1_000), Ok(()));
        tries.failed(&"b", 61_000);
        assert_eq!(tries.may(&"b", 61_000), Ok(()), "a minute after its delay");
        // Within the minute it goes on where it was.
        let mut tries = FailedTries::new(4);
        for _ in 0..6 {
            tries.failed(&"c", 0);
        }
        tries.failed(&"c", 60_999);
        assert_eq!(tries.may(&"c", 60_999), Err(2_000));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut tries = FailedTries::new(3);
        for caller in 0..100 {
            tries.failed(&caller, 1_000 + caller);
            assert!(tries.failures.len() <= 3);
        }
        assert!(tries.failures.contains_key(&99));
    }
}
