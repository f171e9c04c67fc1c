//! Quantities that change in steps, averaged exactly over equal bins of virtual time.

use serde::{Deserialize, Serialize};

/// The bins of a replay's window. Times are milliseconds from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bins {
    /// Length of one.
    pub bin_ms: u64,
    /// How many.
    pub count: usize,
}

/// Bins of one plot: more would not be seen on a screen, and the page stays small.
const BINS_MAX: u64 = 400;

/// Lengths that people read easily, in seconds.
const NICE_S: [u64; 14] = [1, 5, 10, 30, 60, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400];

impl Bins {
    /// Bins of a readable length for a window.
    #[must_use]
    pub fn over(window_ms: u64) -> Self {
        let fits = |s: &&u64| window_ms.div_ceil(**s * 1000) <= BINS_MAX;
        let nice_ms = NICE_S.iter().find(fits).map_or_else(|| window_ms.div_ceil(BINS_MAX), |s| s * 1000);
        let bin_ms = nice_ms.max(1);
        Bins { bin_ms, count: window_ms.div_ceil(bin_ms).max(1) as usize }
    }

    /// The end of the last bin.
    #[must_use]
    pub const fn end_ms(&self) -> u64 {
        self.bin_ms * self.count as u64
    }
}

/// One quantity.
#[derive(Clone, Debug)]
pub(crate) struct Gauge {
    bins: Bins,
    /// Value × milliseconds of each bin.
    sums: Vec<u128>,
    since_ms: u64,
    value: u64,
    most: u64,
}

impl Gauge {
    pub(crate) fn new(bins: Bins) -> Self {
        Gauge { bins, sums: vec![0; bins.count], since_ms: 0, value: 0, most: 0 }
    }

    /// Adds `amount` from `now_ms` on.
    pub(crate) fn add(&mut self, now_ms: u64, amount: u64) {
        self.settle(now_ms);
        self.value += amount;
    }

    /// Takes `amount` away from `now_ms` on.
    ///
    /// # Panics
    /// When there is less: something was counted down that was never counted up.
    pub(crate) fn sub(&mut self, now_ms: u64, amount: u64) {
        self.settle(now_ms);
        self.value = self.value.checked_sub(amount).expect("a gauge goes down by what it went up");
    }

    /// What it stands at.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    /// Brings the sums up to `now_ms`.
    pub(crate) fn settle(&mut self, now_ms: u64) {
        let end_ms = self.bins.end_ms();
        let now_ms = now_ms.min(end_ms);
        if now_ms <= self.since_ms {
            return; // several changes at one time: only the last value lasts
        }
        self.most = self.most.max(self.value);
        let value = u128::from(self.value);
        while value > 0 && self.since_ms < now_ms {
            let bin = self.since_ms / self.bins.bin_ms;
            let until_ms = ((bin + 1) * self.bins.bin_ms).min(now_ms);
            self.sums[bin as usize] += value * u128::from(until_ms - self.since_ms);
            self.since_ms = until_ms;
        }
        self.since_ms = now_ms;
    }

    /// The mean of each bin in `unit`s, to a thousandth: more digits would only swell the report.
    pub(crate) fn means(&self, unit: u64) -> Vec<f64> {
        let mean = |sum: &u128| *sum as f64 / self.bins.bin_ms as f64 / unit as f64;
        self.sums.iter().map(|sum| (mean(sum) * 1000.0).round() / 1000.0).collect()
    }

    /// Value × milliseconds over the whole window.
    pub(crate) fn integral(&self) -> u128 {
        self.sums.iter().sum()
    }

    /// The largest value that lasted.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::{Bins, Gauge};

    #[test]
    fn a_gauge_keeps_every_millisecond() {
        let mut gauge = Gauge::new(Bins { bin_ms: 10, count: 3 });
        gauge.add(5, 4);
        gauge.add(5, 2);
        gauge.sub(12, 5);
        gauge.sub(40, 1);
        assert_eq!(gauge.means(1), vec![3.0, (2.0 * 6.0 + 8.0) / 10.0, 1.0]);
        assert_eq!((gauge.integral(), gauge.most()), (7 * 6 + 18, 6));
    }

    #[test]
    fn bins_cover_the_window_and_stay_few() {
        for days in [1u64, 7, 31, 75, 366, 4000] {
            let window_ms = days * 86_400_000;
            let bins = Bins::over(window_ms);
            assert!(
                bins.end_ms() >= window_ms && bins.end_ms() < window_ms + bins.bin_ms && bins.count <= 400,
                "{days}"
            );
        }
    }
}
