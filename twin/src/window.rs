//! Which part of a trace is replayed, and what already runs when it begins.
//!
//! Days count from midnight of the day of the trace's first submission, on the trace's own clock. Durations are never
//! stretched and times never scaled.

use crate::import::TraceJob;
use serde::{Deserialize, Serialize};

/// Seconds of a day.
pub const DAY_S: u64 = 86_400;

/// What to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowChoice {
    /// The whole trace.
    Whole,
    /// These days.
    Days {
        /// The first, from 0.
        from: u32,
        /// How many.
        days: u32,
    },
    /// The run of this many days whose submissions bring the most GPU-time; of equal ones the first.
    Busiest {
        /// How many.
        days: u32,
    },
}

/// A chosen window, on the trace's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Its first day, from 0.
    pub from_day: u32,
    /// Its first second on the trace's clock.
    pub from_s: u64,
    /// The second after its last.
    pub to_s: u64,
}

impl Window {
    /// Its length.
    #[must_use]
    pub const fn length_s(&self) -> u64 {
        self.to_s - self.from_s
    }

    /// Finds the window in `jobs`, which are ordered by submission; none when there are no jobs.
    #[must_use]
    pub fn choose(jobs: &[TraceJob], choice: WindowChoice) -> Option<Self> {
        let (first, last) = (jobs.first()?.submit_s, jobs.last()?.submit_s);
        let day_0 = first / DAY_S;
        let days_all = (last / DAY_S - day_0) as u32 + 1;
        let (from_day, days) = match choice {
            WindowChoice::Whole => (0, days_all),
            WindowChoice::Days { from, days } => (from, days.max(1)),
            WindowChoice::Busiest { days } => (busiest(jobs, day_0, days_all, days.max(1)), days.max(1)),
        };
        let from_s = (day_0 + u64::from(from_day)) * DAY_S;
        Some(Window { from_day, from_s, to_s: from_s + u64::from(days) * DAY_S })
    }

    /// Splits off what belongs to the window: jobs submitted in it, and (for a warm start) jobs submitted before it that
    /// would still run at its beginning if each had started when it was submitted, with what is left of them.
    #[must_use]
    pub fn cut(&self, jobs: &[TraceJob]) -> (Vec<TraceJob>, Vec<TraceJob>) {
        let mut running = Vec::new();
        let mut submitted = Vec::new();
        for job in jobs {
            let began_s = job.submit_s + job.recorded_wait_s.unwrap_or(0);
            let ended_s = began_s + job.duration_s;
            if (self.from_s..self.to_s).contains(&job.submit_s) {
                submitted.push(job.clone());
            } else if job.submit_s < self.from_s && ended_s > self.from_s {
                let gone_s = self.from_s.saturating_sub(began_s);
                let rest = |s: u64| s.saturating_sub(gone_s).max(1);
                running.push(TraceJob {
                    submit_s: self.from_s,
                    duration_s: rest(job.duration_s),
                    time_limit_s: job.time_limit_s.map(rest),
                    recorded_wait_s: None,
                    ..job.clone()
                });
            }
        }
        (running, submitted)
    }
}

fn busiest(jobs: &[TraceJob], day_0: u64, days_all: u32, days: u32) -> u32 {
    let mut demand = vec![0u128; days_all as usize];
    for job in jobs {
        demand[(job.submit_s / DAY_S - day_0) as usize] += u128::from(job.gpu_milli()) * u128::from(job.duration_s);
    }
    let mut best = (0u128, 0u32);
    for from in 0..=days_all.saturating_sub(days) {
        let sum = demand.iter().skip(from as usize).take(days as usize).sum();
        if sum > best.0 {
            best = (sum, from);
        }
    }
    best.1
}
