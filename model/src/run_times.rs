//! How long the jobs of a tenant ran: a bounded record from which run times of its other jobs are predicted, with the error seen so far.
//!
//! An attempt that came to its own end is counted in two histograms of the class of its size: its run time as a part of its time limit, where it
//! has one, and its run time in powers of two. A prediction is the median of what ran longer than the job has run already. Before an attempt is
//! counted it is compared with what would have been predicted for it, so the record knows how wrong it is. What must stay true: integers alone, so that
//! every replica counts the same; the size is bounded whatever runs; old attempts count less and less; a prediction is an estimate for people
//! and is never used to decide who starts.

use crate::ids::TenantId;
use serde::{Deserialize, Serialize};

/// Parts of a time limit that are counted apart: twentieths.
const PARTS: usize = 20;
/// Powers of two of seconds that are counted apart: up to 97 days.
const OCTAVES: usize = 24;
/// Classes by the size of the gang.
const SIZES: usize = 5;
/// When so many attempts are counted in a histogram, all counts are halved.
const COUNTED_MAX: u32 = 256;
/// Fewer attempts than this predict nothing.
pub const SEEN_MIN: u32 = 8;
/// How far off predictions were: the larger of predicted and real over the smaller, in percent, at most; more is counted in a last place.
const ERRORS_PERCENT: [u64; 7] = [110, 125, 150, 200, 300, 500, 1_000];

/// Attempts of one size of gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeRunTimes {
    /// By the part of the time limit that they used, in twentieths.
    pub of_limit: Vec<u32>,
    /// By the power of two of their seconds.
    pub octaves: Vec<u32>,
    /// By the error of what was predicted for them.
    pub errors: Vec<u32>,
}

/// The record of a tenant's own jobs, not its children's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTimes {
    /// Whose.
    pub tenant: TenantId,
    /// By size: no GPU, one, up to 8, up to 64, more.
    pub sizes: Vec<SizeRunTimes>,
}

/// A predicted run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prediction {
    /// From the start of the tasks to their end, in milliseconds.
    pub run_ms: u64,
    /// How many attempts it is made from.
    pub attempts: u32,
    /// Half of the earlier predictions were off by at most this factor, in percent: 150 is half as long again, or two thirds. None: not known yet.
    pub error_half_percent: Option<u64>,
    /// Nine in ten were.
    pub error_most_percent: Option<u64>,
}

/// The class of a gang of so many GPUs.
fn size_of(gpus: u64) -> usize {
    match gpus {
        0 => 0,
        1 => 1,
        2..=8 => 2,
        9..=64 => 3,
        _ => 4,
    }
}

/// Counts one more, and lets older ones fade.
fn count(counts: &mut Vec<u32>, place: usize) {
    if counts.len() <= place {
        counts.resize(place + 1, 0);
    }
    counts[place] += 1;
    if counts.iter().sum::<u32>() >= COUNTED_MAX {
        counts.iter_mut().for_each(|count| *count /= 2);
    }
}

/// The first place with at least `percent` of all counts from `from` on at or before it, if there are enough of them.
fn quantile(counts: &[u32], from: usize, percent: u64) -> Option<(usize, u32)> {
    let rest = counts.get(from..).unwrap_or_default();
    let all: u32 = rest.iter().sum();
    if all < SEEN_MIN {
        return None;
    }
    let mut seen = 0;
    let place = rest.iter().position(|count| {
        seen += count;
        u64::from(seen) * 100 >= u64::from(all) * percent
    })?;
    Some((from + place, all))
}

fn octave(ms: u64) -> usize {
    ((ms / 1_000).max(1).ilog2() as usize).min(OCTAVES - 1)
}

fn part_of(ran_ms: u64, limit_ms: u64) -> usize {
    let parts = u128::from(ran_ms) * PARTS as u128 / u128::from(limit_ms.max(1));
    (parts as usize).min(PARTS - 1)
}

impl SizeRunTimes {
    fn predict(&self, limit_s: Option<u64>, elapsed_ms: u64) -> Option<Prediction> {
        let of_limit = || {
            let limit_ms = 1_000 * limit_s?;
            let (place, attempts) = quantile(&self.of_limit, part_of(elapsed_ms, limit_ms), 50)?;
            // The upper end of the twentieth.
            Some((limit_ms / PARTS as u64 * (place as u64 + 1), attempts))
        };
        let by_octave = || {
            let (place, attempts) = quantile(&self.octaves, octave(elapsed_ms), 50)?;
            // In the middle of the octave, as far as a factor goes: 1.5 is about the root of 1 times 2.
            Some((1_500 << place, attempts))
        };
        // What has run longer than any other says nothing but that its limit is near.
        let (run_ms, attempts) = match self.of_limit.iter().sum::<u32>() >= SEEN_MIN && limit_s.is_some() {
            true => of_limit()?,
            false => by_octave()?,
        };
        let run_ms = run_ms.max(elapsed_ms).min(limit_s.map_or(u64::MAX, |limit_s| 1_000 * limit_s));
        let error =
            |percent| Some(ERRORS_PERCENT.get(quantile(&self.errors, 0, percent)?.0).copied().unwrap_or(u64::MAX));
        Some(Prediction { run_ms, attempts, error_half_percent: error(50), error_most_percent: error(90) })
    }
}

impl RunTimes {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(tenant: TenantId) -> Self {
        RunTimes { tenant, sizes: Vec::new() }
    }

    /// An attempt of a gang of so many GPUs came to its own end after `ran_ms`.
    pub fn note(&mut self, gpus: u64, limit_s: Option<u64>, ran_ms: u64) {
        let size = size_of(gpus);
        if self.sizes.len() <= size {
            self.sizes.resize(SIZES.min(size + 1), SizeRunTimes::default());
        }
        let of = &mut self.sizes[size];
        if let Some(predicted) = of.predict(limit_s, 0) {
            let (longer, shorter) = (predicted.run_ms.max(ran_ms), predicted.run_ms.min(ran_ms));
            let percent = u128::from(longer) * 100 / u128::from(shorter.max(1));
            let place = ERRORS_PERCENT.iter().position(|most| percent <= u128::from(*most));
            count(&mut of.errors, place.unwrap_or(ERRORS_PERCENT.len()));
        }
        if let Some(limit_s) = limit_s {
            count(&mut of.of_limit, part_of(ran_ms, 1_000 * limit_s));
        }
        count(&mut of.octaves, octave(ran_ms));
    }

    /// How long a job of so many GPUs will have run, if it has run for `elapsed_ms` already; none when too little is known.
    #[must_use]
    pub fn predict(&self, gpus: u64, limit_s: Option<u64>, elapsed_ms: u64) -> Option<Prediction> {
        self.sizes.get(size_of(gpus))?.predict(limit_s, elapsed_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR_MS: u64 = 3_600_000;

    fn seen(runs: &[(u64, Option<u64>, u64)]) -> RunTimes {
        let mut record = RunTimes::new(TenantId(1));
        runs.iter().for_each(|(gpus, limit_s, ran_ms)| record.note(*gpus, *limit_s, *ran_ms));
        record
    }

    #[test]
    fn the_median_part_of_the_limit_predicts_and_the_error_is_known() {
        // Jobs of 8 GPUs with a limit of ten hours run for three.
        let record = seen(&[(8, Some(36_000), 3 * HOUR_MS); 40]);
        let found = record.predict(4, Some(7_200), 0).expect("the same size");
        // Three tenths of the limit, up to the end of the twentieth.
        assert_eq!(found.run_ms, 2 * HOUR_MS / 20 * 7);
        assert_eq!((found.attempts, found.error_half_percent, found.error_most_percent), (40, Some(125), Some(125)));
        assert_eq!(record.predict(1, Some(7_200), 0), None, "another size");
        assert_eq!(seen(&[(8, None, HOUR_MS); 7]).predict(8, None, 0), None, "too few");
    }

    #[test]
    fn without_a_limit_the_seconds_predict() {
        let record = seen(&[(0, None, 100_000); 8]);
        assert_eq!(record.predict(0, None, 0).map(|found| found.run_ms), Some(96_000));
        assert_eq!(record.predict(0, Some(60), 0).map(|found| found.run_ms), Some(60_000), "no longer than its limit");
    }

    #[test]
    fn what_has_run_longer_than_most_is_compared_with_the_rest() {
        let (short, long) = ([(1, Some(1_000), 60_000); 30], [(1, Some(1_000), 920_000); 10]);
        let record = seen(&[&short[..], &long[..]].concat());
        assert_eq!(record.predict(1, Some(1_000), 0).map(|found| found.run_ms), Some(100_000));
        assert_eq!(record.predict(1, Some(1_000), 200_000).map(|found| found.run_ms), Some(950_000));
        assert_eq!(record.predict(1, Some(1_000), 990_000).map(|found| found.run_ms), None, "nobody ran that long");
    }

    proptest! {
        /// Bounded whatever runs, and a prediction is neither before what has run nor past the limit.
        #[test]
        fn it_is_bounded(runs in prop::collection::vec((0..200_u64, prop::option::of(0..u64::MAX / 2_000), any::<u64>()), 0..600), elapsed in any::<u64>()) {
            let record = seen(&runs);
            prop_assert!(record.sizes.len() <= SIZES);
            for of in &record.sizes {
                prop_assert!(of.of_limit.len() <= PARTS && of.octaves.len() <= OCTAVES && of.errors.len() <= ERRORS_PERCENT.len() + 1);
                for counts in [&of.of_limit, &of.octaves, &of.errors] {
                    prop_assert!(counts.iter().sum::<u32>() < COUNTED_MAX);
                }
            }
            for (gpus, limit_s, _) in runs.iter().take(20) {
                if let Some(found) = record.predict(*gpus, *limit_s, elapsed) {
                    prop_assert!(limit_s.is_none_or(|limit_s| found.run_ms <= 1_000 * limit_s));
                    prop_assert!(found.run_ms >= elapsed.min(limit_s.map_or(u64::MAX, |limit_s| 1_000 * limit_s)));
                }
            }
        }
    }
}
