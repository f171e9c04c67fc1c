//! Arrays: one record for all tasks that have not started, and what each task that has its own job says of its array.
//!
//! What must stay true: an index is left, has a live job of its own, or has ended; sets of indices are kept as ranges, so that an array of
//! ten thousand is as small as one of ten.

use crate::field_error::FieldError;
use crate::ids::JobId;
use crate::validate::clipped;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Indices of one array, at most: what one tenant may have waiting.
pub const ARRAY_TASKS_MAX: u64 = 10_000;
/// The largest index: six digits, as in file names.
pub const ARRAY_INDEX_MAX: u32 = 999_999;
/// Ranges of one text or message: as many as there can be indices.
pub const ARRAY_RANGES_MAX: usize = ARRAY_TASKS_MAX as usize;
/// Bytes of a written set of indices: so many ranges of single indices.
pub const ARRAY_TEXT_BYTES_MAX: usize = 80_000;
/// Indices of one text, those that it repeats counted each time: reading it takes a step for each.
const ARRAY_WRITTEN_MAX: u64 = 10 * ARRAY_TASKS_MAX;
/// Bytes of a text that an error repeats.
const ARRAY_SHOWN_BYTES_MAX: usize = 64;

/// A set of indices, as ranges that neither touch nor overlap, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IndexSet(Vec<(u32, u32)>);

impl IndexSet {
    /// How many.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this one is in it.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= index);
        after > 0 && self.0[after - 1].1 >= index
    }

    /// All, the smallest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }

    /// Puts one in.
    pub fn insert(&mut self, index: u32) {
        if self.contains(index) {
            return;
        }
        let at = self.0.partition_point(|(first, _)| *first <= index);
        let joins_before = at > 0 && self.0[at - 1].1 + 1 == index;
        let joins_after = at < self.0.len() && self.0[at].0 == index + 1;
        match (joins_before, joins_after) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 = index,
            (false, true) => self.0[at].0 = index,
            (false, false) => self.0.insert(at, (index, index)),
        }
    }

    /// Takes one out. Says whether it was in it.
    pub fn remove(&mut self, index: u32) -> bool {
        if !self.contains(index) {
            return false;
        }
        let at = self.0.partition_point(|(first, _)| *first <= index) - 1;
        let (first, last) = self.0[at];
        match (first == index, last == index) {
            (true, true) => {
                self.0.remove(at);
            }
            (true, false) => self.0[at].0 = index + 1,
            (false, true) => self.0[at].1 = index - 1,
            (false, false) => {
                self.0[at].1 = index - 1;
                self.0.insert(at + 1, (index + 1, last));
            }
        }
        true
    }

    /// Whether the ranges are what a set keeps, which a message need not be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.0.iter().all(|(first, last)| first <= last && *last <= ARRAY_INDEX_MAX)
            && self.0.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0)
    }
}

impl FromIterator<u32> for IndexSet {
    fn from_iter<I: IntoIterator<Item = u32>>(indices: I) -> Self {
        let mut set = IndexSet::default();
        indices.into_iter().for_each(|index| set.insert(index));
        set
    }
}

impl fmt::Display for IndexSet {
    /// `0-3,7,9-12`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (first, last)) in self.0.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first}-{last}")? }
        }
        Ok(())
    }
}

impl FromStr for IndexSet {
    type Err = FieldError;

    /// `0-99`, `1,3,7-9`, `0-20:4` (every fourth).
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let fix = "write indices such as 0-99, 1,3,7-9 or 0-20:4; at most 10,000, each at most 999,999";
        let wrong = || {
            let shown = clipped(text.to_owned(), ARRAY_SHOWN_BYTES_MAX);
            FieldError::new("array", format!("{shown:?} is no set of indices"), fix)
        };
        let number = |text: &str| {
            let text = text.trim();
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u32>().ok())?.filter(|index| *index <= ARRAY_INDEX_MAX)
        };
        if text.len() > ARRAY_TEXT_BYTES_MAX {
            return Err(wrong());
        }
        let mut set = IndexSet::default();
        let mut written = 0;
        for part in text.split(',') {
            let (range, step) = part.split_once(':').map_or((part, Some(1)), |(range, step)| (range, number(step)));
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (Some(first), Some(last), Some(step)) = (number(first), number(last), step) else {
                return Err(wrong());
            };
            if first > last || step == 0 || u64::from((last - first) / step) >= ARRAY_TASKS_MAX {
                return Err(wrong());
            }
            written += u64::from((last - first) / step) + 1;
            if written > ARRAY_WRITTEN_MAX {
                return Err(wrong());
            }
            (first..=last).step_by(step as usize).for_each(|index| set.insert(index));
            if set.len() > ARRAY_TASKS_MAX {
                return Err(wrong());
            }
        }
        Ok(set)
    }
}

/// What a submission says of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArraySpec {
    /// Its indices.
    pub indices: IndexSet,
    /// So many tasks are live at once, at most.
    pub max_running: Option<u32>,
}

/// The record of an array: its tasks that have no job of their own yet, and how those ended that have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayState {
    /// Tasks that have not got a job yet.
    pub left: IndexSet,
    /// So many tasks have live jobs at once, at most.
    pub max_running: Option<u32>,
    /// Tasks that completed.
    pub completed: IndexSet,
    /// Tasks that ended otherwise, or never began and will not.
    pub failed: IndexSet,
    /// Arrays for whose tasks of the same index these tasks wait.
    pub with_same_index: Vec<SameIndex>,
}

/// Another array on which an array depends task by task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SameIndex {
    /// The other array.
    pub array: JobId,
    /// Its tasks that completed.
    pub completed: IndexSet,
    /// It is over: what has not completed never will.
    pub over: bool,
}

impl ArrayState {
    /// Of an array that was just submitted.
    #[must_use]
    pub fn of(spec: &ArraySpec) -> Self {
        ArrayState { left: spec.indices.clone(), max_running: spec.max_running, ..ArrayState::default() }
    }

    /// The tasks that may get a job next, as far as other arrays go, the smallest first.
    pub fn ready(&self) -> impl Iterator<Item = u32> + '_ {
        self.left.iter().filter(|index| self.with_same_index.iter().all(|on| on.completed.contains(*index)))
    }

    /// A task that is left and can never get a job, with the array that it waits for.
    #[must_use]
    pub fn stuck(&self) -> Option<(u32, JobId)> {
        let mut over = self.with_same_index.iter().filter(|on| on.over);
        over.find_map(|on| Some((self.left.iter().find(|index| !on.completed.contains(*index))?, on.array)))
    }
}

/// The place of a job in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ArrayTask {
    /// The array, by the id of its record.
    pub array: JobId,
    /// The task's index.
    pub index: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn sets_are_written_as_people_write_them() {
        let check = |text: &str, expected: &str| {
            assert_eq!(text.parse::<IndexSet>().expect("indices").to_string(), expected, "{text}");
        };
        check("0-9", "0-9");
        check("7,1,3,2", "1-3,7");
        check("0-20:4", "0,4,8,12,16,20");
        check("0-9,0-9,5", "0-9");
        let (repeated, long) = (["0-9999"; 11].join(","), " ".repeat(ARRAY_TEXT_BYTES_MAX) + "1");
        for wrong in [
            repeated.as_str(),
            long.as_str(),
            "+1",
            "1-+3",
            "",
            "x",
            "3-1",
            "0-9:0",
            "0-1000000",
            "0-10000",
            "0-9999,20000",
        ] {
            assert!(wrong.parse::<IndexSet>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_set_is_a_set(edits in proptest::collection::vec((0..40_u32, any::<bool>()), 0..80)) {
            let (mut set, mut plain) = (IndexSet::default(), BTreeSet::new());
            for (index, put) in edits {
                if put {
                    set.insert(index);
                    plain.insert(index);
                } else {
                    prop_assert_eq!(set.remove(index), plain.remove(&index));
                }
                prop_assert!(set.is_sound());
                prop_assert_eq!(set.len(), plain.len() as u64);
            }
            prop_assert!(set.iter().eq(plain.iter().copied()));
            prop_assert!((0..41).all(|index| set.contains(index) == plain.contains(&index)));
            prop_assert_eq!(plain.is_empty() || set.to_string().parse::<IndexSet>() == Ok(set.clone()), true);
        }
    }
}
