//! Estimated starts, as `muster explain` gives them, beside the starts that followed.
//!
//! What must stay true: a job is asked about once, a minute after its submission, by what the shard knows then; each basis that gives a time is judged by
//! itself; a job that had not started when the replay stopped counts as having started then.

use crate::report::{EstimateRow, Percentiles};
use crate::reservations::lateness;
use std::collections::BTreeMap;

/// A job is asked about this long after its submission, if it still waits.
pub(crate) const ASKED_AFTER_MS: u64 = 60_000;

/// What was said of one job. Milliseconds from the window's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Estimated {
    pub(crate) asked_ms: u64,
    /// What each basis said; empty: nothing gave a time.
    pub(crate) starts_ms: Vec<(&'static str, u64)>,
}

/// What nothing gave a time for.
const NONE: &str = "none";

/// What one basis said of one job, and what followed.
#[derive(Clone, Copy, Debug)]
struct Said {
    asked_ms: u64,
    start_ms: u64,
    bound_ms: Option<u64>,
}

impl Said {
    /// Whether its wait from then on was at least half and at most twice what was said. Under a minute everything is near.
    fn is_near(&self) -> bool {
        let wait = |at_ms: u64| at_ms.saturating_sub(self.asked_ms).max(60_000);
        self.bound_ms.is_some_and(|bound_ms| {
            let (said, was) = (wait(self.start_ms), wait(bound_ms));
            said.max(was) <= 2 * said.min(was)
        })
    }
}

/// The errors by basis, of what was said of each job and when it began, if it did.
pub(crate) fn rows<'a>(jobs: impl Iterator<Item = (&'a Estimated, Option<u64>)>, stopped_ms: u64) -> Vec<EstimateRow> {
    let mut all: BTreeMap<&str, Vec<Said>> = BTreeMap::new();
    for (estimated, bound_ms) in jobs {
        let asked_ms = estimated.asked_ms;
        if estimated.starts_ms.is_empty() {
            all.entry(NONE).or_default().push(Said { asked_ms, start_ms: asked_ms, bound_ms });
        }
        for (basis, start_ms) in &estimated.starts_ms {
            all.entry(basis).or_default().push(Said { asked_ms, start_ms: *start_ms, bound_ms });
        }
    }
    all.into_iter().map(|(basis, said)| row(basis, &said, stopped_ms)).collect()
}

fn row(basis: &str, said: &[Said], stopped_ms: u64) -> EstimateRow {
    let error = |said: &Said| said.bound_ms.unwrap_or(stopped_ms) as i64 - said.start_ms as i64;
    EstimateRow {
        basis: basis.to_owned(),
        asked: said.len() as u64,
        never_started: said.iter().filter(|said| said.bound_ms.is_none()).count() as u64,
        within_factor_2: said.iter().filter(|said| said.is_near()).count() as u64,
        ahead_s: Percentiles::of_ms(said.iter().map(|said| said.start_ms.saturating_sub(said.asked_ms)).collect()),
        error: lateness(said.iter().map(error).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_basis_is_judged_by_itself() {
        let of = |starts_ms: &[(&'static str, u64)]| Estimated { asked_ms: 0, starts_ms: starts_ms.to_vec() };
        let jobs = [
            (of(&[("predicted", 100_000), ("time limits", 400_000)]), Some(150_000)),
            (of(&[("predicted", 100_000)]), Some(300_000)),
            (of(&[("predicted", 100_000)]), None),
            (of(&[]), Some(70_000)),
        ];
        let rows = rows(jobs.iter().map(|(said, bound_ms)| (said, *bound_ms)), 900_000);
        let found: Vec<_> =
            rows.iter().map(|row| (row.basis.as_str(), row.asked, row.never_started, row.within_factor_2)).collect();
        assert_eq!(found, [("none", 1, 0, 1), ("predicted", 3, 1, 1), ("time limits", 1, 0, 0)]);
        assert_eq!((rows[1].error.p50_s, rows[1].error.worst_s, rows[2].error.p50_s), (200.0, 800.0, -250.0));
    }
}
