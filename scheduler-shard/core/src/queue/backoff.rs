//! Jobs that are left alone for a while after their proposals came to nothing.
//!
//! What must stay true: each refusal of a job doubles its backoff, up to a bound, until the job changes; a job that nobody answered for waits a moment
//! and no longer each time; who ends when is found without looking at all.

use muster_model::JobId;
use std::collections::{BTreeMap, BTreeSet};

/// First and longest backoff of a job whose proposal was refused, doubling in between: long enough for the watch to bring what the
/// view has missed, short enough not to be noticed in a queue.
const FIRST_MS: u64 = 100;
const MAX_MS: u64 = 10_000;
/// Backoff of a job whose proposal nobody answered: a small part of a leader election.
const UNANSWERED_MS: u64 = 200;

/// See the module. Times are of the caller's clock, in ms.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoff {
    until: BTreeMap<JobId, u64>,
    by_end: BTreeSet<(u64, JobId)>,
    refusals: BTreeMap<JobId, u32>,
}

impl Backoff {
    /// Whether the job is left alone now.
    pub(crate) fn holds(&self, job: JobId) -> bool {
        self.until.contains_key(&job)
    }

    /// A proposal for the job was refused.
    pub(crate) fn refused(&mut self, job: JobId, now_ms: u64) {
        let refusals = self.refusals.entry(job).or_default();
        let backoff_ms = (FIRST_MS << (*refusals).min(16)).min(MAX_MS);
        *refusals += 1;
        self.begin(job, now_ms + backoff_ms);
    }

    /// Nobody answered a proposal for the job.
    pub(crate) fn unanswered(&mut self, job: JobId, now_ms: u64) {
        self.begin(job, now_ms + UNANSWERED_MS);
    }

    /// Leaves the job alone until then.
    pub(crate) fn begin(&mut self, job: JobId, until_ms: u64) {
        if let Some(old) = self.until.insert(job, until_ms) {
            self.by_end.remove(&(old, job));
        }
        self.by_end.insert((until_ms, job));
    }

    /// A job whose backoff is over by `now_ms`, which ends with this; none when there is none.
    pub(crate) fn end_one(&mut self, now_ms: u64) -> Option<JobId> {
        let (_, job) = self.by_end.first().filter(|(until_ms, _)| *until_ms <= now_ms).copied()?;
        self.by_end.pop_first();
        self.until.remove(&job);
        Some(job)
    }

    /// The job has changed: whatever was tried with it before says nothing any more.
    pub(crate) fn forget(&mut self, job: JobId) {
        if let Some(until_ms) = self.until.remove(&job) {
            self.by_end.remove(&(until_ms, job));
        }
        self.refusals.remove(&job);
    }

    /// When the next backoff ends.
    pub(crate) fn next_end_ms(&self) -> Option<u64> {
        self.by_end.first().map(|(until_ms, _)| *until_ms)
    }

    /// All jobs that are left alone, with the time until which they are.
    pub(crate) fn all(&self) -> impl Iterator<Item = (JobId, u64)> + '_ {
        self.until.iter().map(|(job, until_ms)| (*job, *until_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_double_up_to_the_bound_and_a_change_begins_anew() {
        let (mut backoff, job) = (Backoff::default(), JobId(7));
        let mut ends = Vec::new();
        for _ in 0..9 {
            backoff.refused(job, 1_000);
            ends.extend(backoff.next_end_ms().map(|end| end - 1_000));
        }
        assert_eq!(ends, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        backoff.unanswered(job, 1_000);
        assert_eq!(backoff.next_end_ms(), Some(1_200), "the last word holds");
        backoff.forget(job);
        assert!(!backoff.holds(job) && backoff.next_end_ms().is_none());
        backoff.refused(job, 1_000);
        assert_eq!(backoff.next_end_ms(), Some(1_100));
    }

    #[test]
    fn they_end_in_the_order_of_time() {
        let mut backoff = Backoff::default();
        for (job, until_ms) in [(1, 30), (2, 10), (3, 20)] {
            backoff.begin(JobId(job), until_ms);
        }
        let ended: Vec<_> = std::iter::from_fn(|| backoff.end_one(25)).collect();
        assert_eq!(ended, [JobId(2), JobId(3)]);
        assert_eq!(backoff.all().collect::<Vec<_>>(), [(JobId(1), 30)]);
        assert!(backoff.holds(JobId(1)) && !backoff.holds(JobId(2)));
    }
}
