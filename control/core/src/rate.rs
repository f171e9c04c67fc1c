//! How often somebody may call: a bucket of tokens for each caller, filled at a rate.
//!
//! What must stay true: a caller who stays below the rate is never refused; the table is bounded, and a full one forgets those who would be full anyway,
//! then those who were seen longest ago; nothing here knows a clock.

use std::collections::BTreeMap;

/// How often, and how many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Calls a second.
    pub per_s: u32,
    /// Calls that may come at once.
    pub burst: u32,
}

impl Rate {
    /// So many a second, and four times as many at once.
    #[must_use]
    pub const fn per_second(per_s: u32) -> Self {
        Rate { per_s, burst: per_s.saturating_mul(4) }
    }
}

/// Tokens of one caller, in thousandths of a call.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    milli: u64,
    at_ms: u64,
}

/// The buckets of all callers.
#[derive(Debug)]
pub struct Buckets<K> {
    buckets: BTreeMap<K, Bucket>,
    callers_max: usize,
}

impl<K: Ord + Clone> Buckets<K> {
    /// For at most so many callers at a time.
    #[must_use]
    pub fn new(callers_max: usize) -> Self {
        Buckets { buckets: BTreeMap::new(), callers_max }
    }

    /// Takes a token of `caller`.
    ///
    /// # Errors
    /// In how many milliseconds there is one, when there is none.
    pub fn take(&mut self, caller: &K, now_ms: u64, rate: Rate) -> Result<(), u64> {
        if !self.buckets.contains_key(caller) && self.buckets.len() >= self.callers_max {
            self.make_room(now_ms, rate);
        }
        let full = u64::from(rate.burst) * 1_000;
        let bucket = self.buckets.entry(caller.clone()).or_insert(Bucket { milli: full, at_ms: now_ms });
        let passed_ms = now_ms.saturating_sub(bucket.at_ms);
        bucket.milli = bucket.milli.saturating_add(passed_ms.saturating_mul(u64::from(rate.per_s))).min(full);
        bucket.at_ms = bucket.at_ms.max(now_ms);
        match bucket.milli.checked_sub(1_000) {
            Some(left) => {
                bucket.milli = left;
                Ok(())
            }
            None => Err((1_000 - bucket.milli).div_ceil(u64::from(rate.per_s.max(1)))),
        }
    }

    fn make_room(&mut self, now_ms: u64, rate: Rate) {
        let full = u64::from(rate.burst) * 1_000;
        let fills = |bucket: &Bucket| {
            bucket.milli.saturating_add(now_ms.saturating_sub(bucket.at_ms).saturating_mul(u64::from(rate.per_s)))
        };
        self.buckets.retain(|_, bucket| fills(bucket) < full);
        if self.buckets.len() >= self.callers_max
            && let Some(oldest) = self.buckets.iter().min_by_key(|(_, bucket)| bucket.at_ms).map(|(key, _)| key.clone())
        {
            self.buckets.remove(&oldest);
        }
    }

    /// Callers that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Whether nobody is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Rate = Rate { per_s: 10, burst: 20 };

    #[test]
    fn a_caller_below_the_rate_is_never_refused() {
        let mut buckets = Buckets::new(4);
        for call in 0..1_000 {
            assert_eq!(buckets.take(&"a", call * 100, TEN), Ok(()));
        }
    }

    #[test]
    fn a_burst_is_taken_and_more_waits_as_long_as_is_said() {
        let mut buckets = Buckets::new(4);
        (0..20).for_each(|_| assert_eq!(buckets.take(&"a", 0, TEN), Ok(())));
        let wait_ms = buckets.take(&"a", 0, TEN).expect_err("there are no more");
        assert_eq!(wait_ms, 100);
        assert_eq!(buckets.take(&"a", wait_ms, TEN), Ok(()));
        assert!(buckets.take(&"a", wait_ms, TEN).is_err());
        assert_eq!(buckets.take(&"b", wait_ms, TEN), Ok(()), "others are not affected");
    }

    #[test]
    fn the_table_is_bounded_and_a_flood_of_names_does_not_fill_it() {
        let mut buckets = Buckets::new(8);
        for caller in 0..1_000_u64 {
            let _ = buckets.take(&caller, caller, TEN);
            assert!(buckets.len() <= 8);
        }
    }
}
