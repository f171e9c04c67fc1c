//! Which pending jobs are eligible to start, and when time next decides something about a job.
//!
//! What must stay true: everything else asks here; a pending job that is not eligible says why.

use super::{Job, JobPhase, JobSpec, Outcome};
use crate::ids::JobId;
use crate::start::{Dependency, DependencyKind, EndedJob, NotEligible, Unmet, Verdict};

impl EndedJob {
    /// Of a job that is over.
    #[must_use]
    pub fn of(job: &Job) -> Self {
        EndedJob {
            job: job.id,
            completed: matches!(job.phase, JobPhase::Finished(Outcome::Completed)),
            started_ms: job.started_ms,
            ended_ms: job.finished_ms.unwrap_or_default(),
            array_completed: job.array.as_ref().map(|array| array.completed.clone()),
        }
    }
}

impl Dependency {
    /// Decides it for a job that is live.
    #[must_use]
    pub fn on_live(&self, job: &Job) -> Verdict {
        match (self.kind, job.started_ms) {
            (DependencyKind::After, Some(started_ms)) => Verdict::Met(started_ms),
            _ => Verdict::Waits,
        }
    }
}

impl JobSpec {
    /// The last moment at which it may start and still end by its deadline; none without a deadline.
    #[must_use]
    pub fn latest_start_ms(&self) -> Option<u64> {
        let limit_ms = self.time_limit_s.unwrap_or(0).saturating_mul(1_000);
        self.start.deadline_ms.map(|deadline_ms| deadline_ms.saturating_sub(limit_ms))
    }
}

impl Job {
    /// Whether it is pending and may start: only such a job is in a queue, has reservations or is handed over.
    #[must_use]
    pub fn is_eligible(&self) -> bool {
        self.phase == JobPhase::Queued && !self.cancelled && self.unmet.is_empty() && self.array.is_none()
    }

    /// Whether tasks of this array may get jobs. That some of them can never start keeps the others from nothing.
    #[must_use]
    pub fn array_may_start(&self) -> bool {
        let corr = self.unmet.never.is_none() || self.never_is_of_some_tasks();
        let rest = Unmet { never: None, ..self.unmet.clone() };
        self.array.is_some() && !self.cancelled && corr && rest.is_empty()
    }

    /// Whether what can never be met concerns some tasks of this array and not all.
    #[must_use]
    pub fn never_is_of_some_tasks(&self) -> bool {
        let same = |job: JobId| self.array.iter().flat_map(|array| &array.with_same_index).any(|on| on.array == job);
        self.unmet.never.is_some_and(|never| same(never.job))
    }

    /// Whether its user asked that it be cancelled now that it can never start.
    #[must_use]
    pub fn is_to_be_killed(&self) -> bool {
        self.unmet.never.is_some() && self.spec.start.kill_on_invalid_dependency
    }

    /// When time next decides something about it: its begin time, or the moment from which on its deadline cannot be kept.
    #[must_use]
    pub fn due_ms(&self) -> Option<u64> {
        match self.phase {
            JobPhase::Queued if self.array.as_ref().is_some_and(|array| array.left.is_empty()) => None,
            JobPhase::Queued if self.is_to_be_killed() => Some(0),
            JobPhase::Queued => {
                let late_ms = self.spec.latest_start_ms().map(|latest_ms| latest_ms.saturating_add(1));
                self.unmet.begin_ms.into_iter().chain(late_ms).min()
            }
            JobPhase::Starting(_) | JobPhase::Running(_) => self.spec.start.deadline_ms,
            JobPhase::Stopping(_) | JobPhase::Finished(_) => None,
        }
    }

    /// Why it is not eligible, the first reason first; empty when it is, or when it is not pending.
    #[must_use]
    pub fn not_eligible(&self) -> Vec<NotEligible> {
        if self.phase != JobPhase::Queued {
            return Vec::new();
        }
        let mut reasons = NotEligible::all(&self.unmet);
        reasons.extend(self.array.as_deref().map(NotEligible::of_array));
        reasons
    }
}
