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

/// The errors by basis, of what was said of each job and when it began, if it did.
pub(crate) fn rows<'a>(jobs: impl Iterator<Item = (&'a Estimated, Option<u64>)>, stopped_ms: u64) -> Vec<EstimateRow> {
    let mut said: BTreeMap<&str, Vec<(u64, u64, Option<u64>)>> = BTreeMap::new();
    for (estimated, bound_ms) in jobs {
        let asked_ms = estimated.asked_ms;
        if estimated.starts_ms.is_empty() {
            said.entry(NONE).or_default().push((asked_ms, asked_ms, bound_ms));
        }
        for (basis, start_ms) in &estimated.starts_ms {
            said.entry(basis).or_default().push((asked_ms, *start_ms, bound_ms));
        }
    }
    let row = |(basis, all): (&str, Vec<(u64, u64, Option<u64>)>)| {
        let begun = |bound_ms: Option<u64>| bound_ms.unwrap_or(stopped_ms);
        let near = |(asked_ms, start_ms, bound_ms): &&(u64, u64, Option<u64>)| {
            // Under a minute everything is near.
            let wait = |at_ms: u64| at_ms.saturating_sub(*asked_ms).max(60_000);
            let (said, was) = (wait(*start_ms), wait(begun(*bound_ms)));
            bound_ms.is_some() && said.max(was) <= 2 * said.min(was)
        };
        let ahead = all.iter().map(|(asked_ms, start_ms, _)| start_ms.saturating_sub(*asked_ms)).collect();
        let errors = all.iter().map(|(_, start_ms, bound_ms)| begun(*bound_ms) as i64 - *start_ms as i64).collect();
        EstimateRow {
            basis: basis.to_owned(),
            asked: all.len() as u64,
            never_started: all.iter().filter(|(.., bound_ms)| bound_ms.is_none()).count() as u64,
            within_factor_2: all.iter().filter(near).count() as u64,
            ahead_s: Percentiles::of_ms(ahead),
            error: lateness(errors),
        }
    };
    said.into_iter().map(row).collect()
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
