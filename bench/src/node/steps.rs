//! When a task had passed which step: from what the client asked, what the agent stamped, and what the job watch told.
//!
//! What must stay true: a task counts only if every step of it is known, so that all rows of a table are of the same tasks; all times are of one clock
//! (CLOCK_MONOTONIC of the host).

use crate::timeline::stamp::{Stamp, now_ns};
use anyhow::{Context, Result};
use muster_proto::v1;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tonic::transport::Channel;

/// Nobody waits longer for jobs to run or to be released.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the client asked for, and when.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Start { job: u64, at_ns: u64 },
    Stop { job: u64, at_ns: u64 },
}

/// When a job was seen where by its watcher.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    allocation: Option<u64>,
    running_ns: Option<u64>,
    over_ns: Option<u64>,
}

type Seen = BTreeMap<u64, Watched>;

/// Times of a start, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Started {
    /// The agent has the desired state, until it reports that the task runs.
    pub(super) desired_us: u64,
    /// The agent has the desired state, until it orders the start: the MIG slice is made between the two.
    pub(super) ordered_us: u64,
    /// The agent has ordered the start, until then.
    pub(super) start_us: u64,
    /// The client's call, until its watcher sees the job running.
    pub(super) seen_us: u64,
}

/// Times of an end, from the client's call, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) stopped_us: u64,
    pub(super) clean_us: u64,
    pub(super) seen_us: u64,
}

/// Times of many tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) started: Vec<Started>,
    pub(super) ended: Vec<Ended>,
}

/// Follows the events of all jobs until it is dropped.
pub(super) struct Follower {
    seen: watch::Receiver<Arc<Seen>>,
    task: tokio::task::JoinHandle<()>,
}

impl Follower {
    pub(super) async fn start(channel: Channel) -> Result<Self> {
        let mut jobs = v1::jobs_client::JobsClient::new(channel);
        let mut events = jobs.watch(v1::WatchJobsRequest::default()).await?.into_inner();
        let (tell, seen) = watch::channel(Arc::new(Seen::new()));
        let task = tokio::spawn(async move {
            while let Ok(Some(event)) = events.message().await {
                let Some(v1::job_event::Event::Job(job)) = event.event else { continue };
                let at_ns = now_ns();
                tell.send_modify(|seen| take(Arc::make_mut(seen).entry(job.id).or_default(), &job, at_ns));
            }
        });
        Ok(Follower { seen, task })
    }

    pub(super) async fn until_running(&self, jobs: &[u64]) -> Result<()> {
        self.until(jobs, |job| job.running_ns.is_some()).await.context("not all jobs run")
    }

    pub(super) async fn until_over(&self, jobs: &[u64]) -> Result<()> {
        self.until(jobs, |job| job.over_ns.is_some()).await.context("not all jobs are released")
    }

    async fn until(&self, jobs: &[u64], is_so: impl Fn(&Watched) -> bool) -> Result<()> {
        let all = |seen: &Arc<Seen>| jobs.iter().all(|job| seen.get(job).is_some_and(&is_so));
        tokio::time::timeout(PATIENCE, self.seen.clone().wait_for(all)).await??;
        Ok(())
    }

    pub(super) async fn seen(&self) -> Arc<Seen> {
        self.seen.borrow().clone()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn take(known: &mut Watched, job: &v1::Job, at_ns: u64) {
    known.allocation = job.allocation.or(job.last_allocation).or(known.allocation);
    match job.phase() {
        v1::JobPhase::Pending | v1::JobPhase::Starting | v1::JobPhase::Completing => {}
        v1::JobPhase::Running => _ = known.running_ns.get_or_insert(at_ns),
        _ => _ = known.over_ns.get_or_insert(at_ns),
    }
}

/// What the agent stamped, by allocation, each step in the order of time.
pub(super) struct Stamps(BTreeMap<(String, u64), Vec<u64>>);

impl Stamps {
    pub(super) fn of(processes: &[Vec<Stamp>]) -> Self {
        let mut all: BTreeMap<(String, u64), Vec<u64>> = BTreeMap::new();
        for stamp in processes.iter().flatten() {
            if let Some(allocation) = stamp.allocation {
                all.entry((stamp.step.clone(), allocation)).or_default().push(stamp.at_ns);
            }
        }
        all.values_mut().for_each(|times| times.sort_unstable());
        Stamps(all)
    }

    fn all(&self, step: &str, allocation: u64) -> &[u64] {
        self.0.get(&(step.to_owned(), allocation)).map_or(&[], Vec::as_slice)
    }

    /// The times of all that was asked for and went through all its steps.
    pub(super) fn found(&self, asked: &[Asked], seen: &Seen) -> Found {
        let mut found = Found::default();
        for one in asked {
            match *one {
                Asked::Start { job, at_ns } => found.started.extend(self.start(seen.get(&job), at_ns)),
                Asked::Stop { job, at_ns } => found.ended.extend(self.end(seen.get(&job), at_ns)),
            }
        }
        found
    }

    fn start(&self, job: Option<&Watched>, asked_ns: u64) -> Option<Started> {
        let Watched { allocation, running_ns, .. } = *job?;
        let allocation = allocation?;
        let first = |step| self.all(step, allocation).first().copied();
        let (desired, started, reported) = (first("desired_received")?, first("started")?, first("report_sent")?);
        Some(Started {
            desired_us: between(desired, reported),
            ordered_us: between(desired, started),
            start_us: between(started, reported),
            seen_us: between(asked_ns, running_ns?),
        })
    }

    /// Of the reports after the call the first says that the task is over, and the last that its devices are clean.
    fn end(&self, job: Option<&Watched>, asked_ns: u64) -> Option<Ended> {
        let Watched { allocation, over_ns, .. } = *job?;
        let reports = self.all("report_sent", allocation?);
        let after = &reports[reports.partition_point(|at_ns| *at_ns <= asked_ns)..];
        Some(Ended {
            stopped_us: between(asked_ns, *after.first()?),
            clean_us: between(asked_ns, *after.last()?),
            seen_us: between(asked_ns, over_ns?),
        })
    }
}

const fn between(from_ns: u64, to_ns: u64) -> u64 {
    to_ns.saturating_sub(from_ns) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(at_us: u64, step: &str) -> Stamp {
        Stamp { at_ns: at_us * 1_000, step: step.to_owned(), allocation: Some(7), ..Stamp::default() }
    }

    #[test]
    fn the_steps_of_a_task_are_told_apart_by_what_was_asked_before() {
        let agent = [(20, "desired_received"), (22, "started"), (30, "report_sent"), (120, "desired_received")];
        let later = [(130, "report_sent"), (150, "report_sent")];
        let stamps = Stamps::of(&[agent.iter().chain(&later).map(|(at, step)| stamp(*at, step)).collect()]);
        let watched = Watched { allocation: Some(7), running_ns: Some(45_000), over_ns: Some(160_000) };
        let seen = Seen::from([(1, watched), (2, Watched::default())]);
        let asked = [
            Asked::Start { job: 1, at_ns: 10_000 },
            Asked::Stop { job: 1, at_ns: 110_000 },
            Asked::Start { job: 2, at_ns: 10_000 },
            Asked::Stop { job: 3, at_ns: 10_000 },
        ];
        let found = stamps.found(&asked, &seen);
        assert_eq!(found.started, [Started { desired_us: 10, ordered_us: 2, start_us: 8, seen_us: 35 }]);
        assert_eq!(found.ended, [Ended { stopped_us: 20, clean_us: 40, seen_us: 50 }]);
    }
}
