//! The samples of the last hour, for whoever sends them on.
//!
//! What must stay true: samples lie in the order of their times, so a reader goes on where it stopped; memory is bounded by number and by age, whatever
//! instances come and go; an instance is another one when its UUID is, though it may have the id of an earlier one.

use super::figure::Figures;
use crate::health::GpuUuid;
use std::collections::VecDeque;
use std::sync::Arc;

/// One hour.
pub const AGE_MAX_MS: u64 = 3_600_000;
/// One hour at a sample in 10 s of 8 cards and their 7 slices each: 23,040 samples. With 30 figures for a card and 12 for a slice they take 4.2 MB
/// (a test says so). A node with more cards keeps less than an hour.
pub const SAMPLES_MAX: usize = 8 * (1 + 7) * 360;

/// Whose figures they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series {
    /// The card.
    pub card: GpuUuid,
    /// GPU instance id and UUID of the MIG instance; `None` for the whole card.
    pub instance: Option<(u32, String)>,
}

/// The figures of one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When they were read, in ms of CLOCK_BOOTTIME.
    pub at_ms: u64,
    /// Whose they are.
    pub series: Arc<Series>,
    /// The figures.
    pub figures: Figures,
}

/// A bounded memory of samples.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    samples: VecDeque<Sample>,
}

impl Ring {
    /// Keeps a sample. Time does not go back: one that says so was read when the last one was.
    pub fn push(&mut self, at_ms: u64, series: &Arc<Series>, figures: Figures) {
        let at_ms = self.samples.back().map_or(at_ms, |last| at_ms.max(last.at_ms));
        while self.samples.len() >= SAMPLES_MAX
            || self.samples.front().is_some_and(|first| at_ms - first.at_ms > AGE_MAX_MS)
        {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { at_ms, series: series.clone(), figures: figures.packed() });
    }

    /// The samples later than `after_ms`, oldest first.
    pub fn since(&self, after_ms: u64) -> impl Iterator<Item = &Sample> {
        let first = self.samples.partition_point(|sample| sample.at_ms <= after_ms);
        self.samples.range(first..)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Bytes of memory, but for the names of series, of which there are few.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let figures: usize = self.samples.iter().map(|sample| sample.figures.heap_bytes()).sum();
        self.samples.capacity() * size_of::<Sample>() + figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Figure;

    fn series(instance: Option<(u32, &str)>) -> Arc<Series> {
        let instance = instance.map(|(id, uuid)| (id, uuid.to_owned()));
        Arc::new(Series { card: GpuUuid("GPU-1".to_owned()), instance })
    }

    fn figures(count: usize) -> Figures {
        let mut figures = Figures::default();
        Figure::ALL.iter().take(count).for_each(|figure| assert!(figures.put(*figure, 1.0)));
        figures
    }

    #[test]
    fn a_reader_goes_on_where_it_stopped() {
        let mut ring = Ring::default();
        let (old, new) = (series(Some((7, "MIG-a"))), series(Some((7, "MIG-b"))));
        ring.push(10, &old, figures(1));
        ring.push(20, &new, figures(1));
        // A clock that went back.
        ring.push(15, &new, figures(2));
        let read: Vec<_> = ring.since(10).map(|sample| (sample.at_ms, sample.series.instance.clone())).collect();
        assert_eq!(read, [(20, new.instance.clone()), (20, new.instance.clone())]);
        assert_eq!(ring.since(20).count(), 0);
        assert_eq!(ring.since(0).count(), 3);
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut ring = Ring::default();
        let card = series(None);
        for minute in 0..120 {
            ring.push(minute * 60_000, &card, figures(1));
        }
        assert_eq!(ring.len(), 61);
        assert_eq!(ring.since(0).next().map(|sample| sample.at_ms), Some(59 * 60_000));
    }

    #[test]
    fn a_full_node_takes_little_more_than_four_megabytes() {
        let mut ring = Ring::default();
        let (card, slice) = (series(None), series(Some((1, "MIG"))));
        for round in 0..400_u64 {
            for at in 0..64 {
                let is_card = at % 8 == 0;
                ring.push(round * 10_000, if is_card { &card } else { &slice }, figures(if is_card { 30 } else { 12 }));
            }
        }
        assert_eq!(ring.len(), SAMPLES_MAX);
        assert!(ring.bytes() < 4_300_000, "{} bytes", ring.bytes());
    }
}
