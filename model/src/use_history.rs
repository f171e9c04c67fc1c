//! What a tenant has used above its guarantees, over time: the history by which siblings are ordered where a half-life is set.
//!
//! The average of use over the past counts what was used a half-life ago half as much as what is used now. A record holds that average as of a time, and
//! what has been in use since then, so that the average at every later time follows from the record alone. What must stay true:
//! - the average lies between the least and the most that was ever in use; while nothing is used it halves in each half-life;
//! - a record is brought up to its time before what is in use changes, so that each use counts for exactly as long as it lasted;
//! - integers only: every replica finds the same.

use crate::capacity::TenantUse;
use crate::decay::{left_after, part_of};
use crate::ids::TenantId;
use crate::resources::{Resource, ResourceVec};
use serde::{Deserialize, Serialize};

/// The shortest half-life but none, in seconds.
pub const HALF_LIFE_S_MIN: u64 = 1;
/// The longest half-life: a year. Beyond it the average hardly moves while anybody looks.
pub const HALF_LIFE_S_MAX: u64 = 366 * 86_400;

/// Averages are kept in 2^-28 of a unit: at a half-life of a week, a change is not lost to rounding even when the record is brought up to date
/// every millisecond; and the memory of the largest fleet fits (64 PiB).
const FRACTION_BITS: u32 = 28;

/// One use over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecayedUse {
    /// Its average as of the time of the record, in 2^-28 of each unit.
    pub average: ResourceVec,
    /// In use since then.
    pub since: ResourceVec,
}

/// What one tenant used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UseHistory {
    /// Whose.
    pub tenant: TenantId,
    /// In how many seconds use comes to count half.
    pub half_life_s: u64,
    /// As of when, in ms since the Unix epoch.
    pub at_ms: u64,
    /// Burst use, descendants included.
    pub burst: DecayedUse,
    /// Use of its own jobs, which compete with its children.
    pub own: DecayedUse,
}

impl DecayedUse {
    /// The average of one resource once `left` of the past is left, in 2^-28 of a unit.
    fn exactly(&self, resource: Resource, left: u64) -> u64 {
        let (average, since) = (self.average.get(resource), self.since.get(resource));
        let since = since.saturating_mul(1 << FRACTION_BITS);
        if average >= since { since + part_of(average - since, left) } else { since - part_of(since - average, left) }
    }

    fn resources(&self) -> impl Iterator<Item = Resource> + '_ {
        let begun = self.since.nonzero().filter(|(resource, _)| self.average.get(*resource) == 0);
        self.average.nonzero().chain(begun).map(|(resource, _)| resource)
    }

    fn bring_up(&mut self, left: u64) {
        let mut average = ResourceVec::default();
        for resource in self.resources() {
            average.set(resource, self.exactly(resource, left));
        }
        self.average = average;
    }

    /// The average of one resource in units, once `left` (of [`crate::decay::ONE`]) of the past is left.
    #[must_use]
    pub fn after(&self, resource: Resource, left: u64) -> u64 {
        let exactly = self.exactly(resource, left);
        (exactly >> FRACTION_BITS) + (exactly >> (FRACTION_BITS - 1) & 1)
    }
}

impl UseHistory {
    /// Nothing was used before.
    #[must_use]
    pub fn new(tenant: TenantId, half_life_s: u64, at_ms: u64) -> Self {
        UseHistory { tenant, half_life_s, at_ms, burst: DecayedUse::default(), own: DecayedUse::default() }
    }

    /// The part of the past that is left at `now_ms`, of [`crate::decay::ONE`]; all of it where the record is later.
    #[must_use]
    pub fn left_at(&self, now_ms: u64) -> u64 {
        left_after(now_ms.saturating_sub(self.at_ms), self.half_life_s.saturating_mul(1_000))
    }

    /// Average burst use at `now_ms`.
    #[must_use]
    pub fn burst_at(&self, now_ms: u64) -> ResourceVec {
        let left = self.left_at(now_ms);
        let mut burst = ResourceVec::default();
        for resource in self.burst.resources() {
            burst.set(resource, self.burst.after(resource, left));
        }
        burst
    }

    /// Brings the record up to `now_ms`.
    pub fn bring_up(&mut self, now_ms: u64) {
        let left = self.left_at(now_ms);
        self.burst.bring_up(left);
        self.own.bring_up(left);
        self.at_ms = now_ms;
    }

    /// From `now_ms` on this is in use. Answers whether that is a change.
    pub fn uses(&mut self, now_ms: u64, burst: ResourceVec, own: ResourceVec) -> bool {
        if self.burst.since == burst && self.own.since == own {
            return false;
        }
        self.bring_up(now_ms);
        (self.burst.since, self.own.since) = (burst, own);
        true
    }

    /// The record of a tenant once it uses what `at` says, from `now_ms` on; none where that is what it used before. `known`: the record so far.
    #[must_use]
    pub fn settled(
        known: Option<&Self>,
        (tenant, at): (TenantId, &TenantUse),
        half_life_s: u64,
        now_ms: u64,
    ) -> Option<Self> {
        let mut record = known.cloned().unwrap_or_else(|| UseHistory::new(tenant, half_life_s, now_ms));
        record.uses(now_ms, at.burst(), at.own).then_some(record)
    }

    /// From `now_ms` on the past counts by another half-life.
    pub fn set_half_life(&mut self, now_ms: u64, half_life_s: u64) {
        self.bring_up(now_ms);
        self.half_life_s = half_life_s;
    }
}

/// A half-life as people write it: `7d`, `1d12h`, `10s`; `off` for 0.
#[must_use]
pub fn half_life_in_words(half_life_s: u64) -> String {
    if half_life_s == 0 {
        return "off".to_owned();
    }
    let units = [("d", half_life_s / 86_400), ("h", half_life_s / 3_600 % 24), ("m", half_life_s / 60 % 60)];
    let units = units.into_iter().chain([("s", half_life_s % 60)]).filter(|(_, count)| *count > 0);
    units.map(|(unit, count)| format!("{count}{unit}")).collect()
}

/// What counts of one resource where a half-life is set: half what is in use now, half the average over the past, so that what is started counts at once
/// and what was used before still does. A use that never changed counts as itself.
#[must_use]
pub const fn counted(present: u64, past: u64) -> u64 {
    present.saturating_add(past).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuModel;
    use crate::resources::GpuUnits;
    use proptest::prelude::*;

    const WEEK_S: u64 = 7 * 86_400;
    const H100: Resource = Resource::Gpu(GpuModel::H100);

    fn cards(count: u64) -> ResourceVec {
        ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(count))
    }

    fn idle() -> ResourceVec {
        ResourceVec::default()
    }

    #[test]
    fn what_was_used_counts_half_after_a_half_life() {
        let mut record = UseHistory::new(TenantId(1), 10, 0);
        record.uses(0, cards(8), idle());
        assert_eq!(record.burst_at(0), idle());
        assert_eq!(record.burst_at(10_000), cards(4));
        assert_eq!(record.burst_at(20_000), cards(6));
        assert_eq!(record.burst_at(1_000_000), cards(8));
        record.uses(1_000_000, idle(), idle());
        assert_eq!(record.burst_at(1_010_000), cards(4));
        assert_eq!(record.burst_at(1_020_000), cards(2));
        record.set_half_life(1_020_000, 20);
        assert_eq!(record.burst_at(1_040_000), cards(1));
    }

    /// Use that lasts for a while each.
    fn uses() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0..5_000_000_u64, 0..2_000_u64), 1..60)
    }

    proptest! {
        #[test]
        fn the_average_lies_between_the_least_and_the_most(uses in uses(), half_life_s in 1..WEEK_S) {
            let (mut record, mut now_ms, mut most) = (UseHistory::new(TenantId(1), half_life_s, 0), 0, 0);
            for (lasts_ms, count) in uses {
                record.uses(now_ms, cards(count), idle());
                (now_ms, most) = (now_ms + lasts_ms, most.max(cards(count).get(H100)));
                prop_assert!(record.burst_at(now_ms).get(H100) <= most);
            }
        }

        #[test]
        fn the_average_is_that_of_floating_point(uses in uses(), half_life_s in 60..WEEK_S) {
            let mut record = UseHistory::new(TenantId(1), half_life_s, 0);
            let (mut now_ms, mut exact) = (0, 0_f64);
            for (lasts_ms, count) in uses {
                record.uses(now_ms, cards(count), cards(count));
                now_ms += lasts_ms;
                let use_now = cards(count).get(H100) as f64;
                exact = use_now + (exact - use_now) * (-(lasts_ms as f64) / (half_life_s * 1_000) as f64).exp2();
            }
            let found = record.burst_at(now_ms).get(H100) as f64;
            prop_assert!((found - exact).abs() <= 1.0, "{found} is not {exact}");
        }

        #[test]
        fn it_matters_little_how_often_a_record_is_brought_up(gaps in prop::collection::vec(1..3_u64, 1..2_000)) {
            let mut often = UseHistory::new(TenantId(1), WEEK_S, 0);
            often.uses(0, cards(50), idle());
            let once = often.clone();
            let mut now_ms = 0;
            for gap_ms in gaps {
                now_ms += gap_ms;
                often.bring_up(now_ms);
            }
            let (often, once) = (often.burst_at(now_ms).get(H100), once.burst_at(now_ms).get(H100));
            prop_assert!(often.abs_diff(once) <= 1, "{often} is not {once}");
        }
    }
}
