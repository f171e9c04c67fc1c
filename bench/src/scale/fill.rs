//! Brings the fleet into its state: tenants, jobs that have ended, jobs that run on every card, jobs that wait.

use super::{Fleet, wait_until};
use crate::cluster::{self, Cluster};
use anyhow::{Context, Result};
use muster_proto::v1;
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// Tenants of one call.
const TENANTS: usize = 2_000;
/// Jobs of one submission, and submissions under way at a time.
const BATCH: usize = 500;
const CALLS: usize = 8;
/// While finished jobs are made, no more than this wait: the time of a job is that of its life, not of its place in a queue.
const WAITING_MAX: u64 = 10_000;
/// What runs stays until the end.
const LONG_MS: u64 = 36_000_000;
/// A fleet is filled, or a submission is taken again and again, for at most this time.
const WITHIN: Duration = Duration::from_secs(900);

/// The users under whom jobs are submitted.
pub(super) struct Tenants(Vec<String>);

impl Tenants {
    /// Makes the tree: an organisation, teams, users.
    pub(super) async fn apply(cluster: &Cluster, teams: u32, users: u32) -> Result<Self> {
        let users: Vec<String> =
            (0..users).map(|user| format!("bench/team-{:03}/user-{user:04}", user % teams)).collect();
        let mut paths = vec!["bench".to_owned()];
        paths.extend((0..teams).map(|team| format!("bench/team-{team:03}")));
        paths.extend(users.iter().cloned());
        for some in paths.chunks(TENANTS) {
            cluster::apply_tenants(cluster.channel_to_any()?, some).await.context("making the tenants")?;
        }
        Ok(Tenants(users))
    }

    fn of(&self, number: u64) -> &str {
        &self.0[number as usize % self.0.len()]
    }
}

/// Numbers of jobs and of submissions, each used once, and the jobs of one card that run.
#[derive(Default)]
pub(super) struct Numbers {
    jobs: u64,
    calls: u64,
    running: Vec<u64>,
}

impl Numbers {
    /// A job of so many tasks with so many cards each that runs for `run_ms`, under the next user.
    fn job(&mut self, tenants: &Tenants, tasks: u32, cards: u32, run_ms: u64) -> v1::JobSpec {
        let job = cluster::small_job(tenants.of(self.jobs), format!("scale-{}", self.jobs), &["true"]);
        self.jobs += 1;
        v1::JobSpec { tasks, ..cluster::for_ms(cluster::with_cards(job, cards), run_ms) }
    }

    fn request(&mut self, jobs: Vec<v1::JobSpec>) -> v1::SubmitRequest {
        self.calls += 1;
        cluster::submission(format!("scale-{}", self.calls), jobs)
    }

    /// A job of one card that runs, to end it; each is given once.
    pub(super) fn one_running(&mut self) -> Result<u64> {
        self.running.pop().context("no job of one card runs any more")
    }

    /// One job of one card that waits, to see that submissions are taken.
    pub(super) fn probe(&mut self, tenants: &Tenants) -> v1::SubmitRequest {
        let job = self.job(tenants, 1, 1, LONG_MS);
        self.request(vec![job])
    }
}

/// Submits until it is taken; the request's id makes sure that it is taken once.
async fn submit(channel: Channel, request: v1::SubmitRequest) -> Result<Vec<u64>> {
    let mut jobs = v1::jobs_client::JobsClient::new(channel);
    let until = Instant::now() + WITHIN;
    loop {
        match jobs.submit(request.clone()).await {
            Ok(reply) => return Ok(reply.into_inner().job_ids),
            Err(status) if muster_proto::status::may_retry(&status) && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(status) => return Err(status).context("submitting the fleet's jobs"),
        }
    }
}

/// Submits `count` jobs in batches, several at a time, and gives their ids.
async fn submit_all(
    cluster: &Cluster,
    numbers: &mut Numbers,
    count: usize,
    mut job: impl FnMut(&mut Numbers, usize) -> v1::JobSpec,
) -> Result<Vec<u64>> {
    let channel = cluster.channel_to_any()?;
    let mut calls = tokio::task::JoinSet::new();
    let mut ids = Vec::new();
    for first in (0..count).step_by(BATCH) {
        let jobs = (first..count.min(first + BATCH)).map(|at| job(numbers, at)).collect();
        let request = numbers.request(jobs);
        if calls.len() >= CALLS {
            ids.extend(calls.join_next().await.context("a call is under way")???);
        }
        calls.spawn(submit(channel.clone(), request));
    }
    while let Some(done) = calls.join_next().await {
        ids.extend(done??);
    }
    Ok(ids)
}

/// Jobs that run for a millisecond and end.
pub(super) async fn finished(
    cluster: &Cluster,
    tenants: &Tenants,
    count: u32,
    numbers: &mut Numbers,
) -> Result<Duration> {
    let begin = Instant::now();
    let mut left = count as usize;
    while left > 0 {
        let some = left.min(BATCH * CALLS);
        submit_all(cluster, numbers, some, |numbers, _| numbers.job(tenants, 1, 1, 1)).await?;
        left -= some;
        wait_until(cluster, WITHIN, "jobs end", |fleet| fleet.waiting < WAITING_MAX).await?;
    }
    wait_until(cluster, WITHIN, "all jobs end", |fleet| fleet.waiting + fleet.running == 0).await?;
    Ok(begin.elapsed())
}

/// Jobs that fill every card: on each five nodes three of four cards, seven of two and fourteen of one, the larger ones first.
pub(super) async fn running(
    cluster: &Cluster,
    tenants: &Tenants,
    nodes: u32,
    numbers: &mut Numbers,
) -> Result<Duration> {
    let begin = Instant::now();
    let mut total = 0;
    for (on_five, cards) in [(3, 4), (7, 2), (14, 1)] {
        let count = nodes / 5 * on_five;
        let job = |numbers: &mut Numbers, _| numbers.job(tenants, 1, cards, LONG_MS);
        numbers.running = submit_all(cluster, numbers, count as usize, job).await?;
        total += u64::from(count);
        wait_until(cluster, WITHIN, "the fleet fills", |fleet| fleet.running >= total).await?;
    }
    Ok(begin.elapsed())
}

/// Jobs for which there is no room: of one card, of a node, of four nodes.
pub(super) async fn waiting(
    cluster: &Cluster,
    tenants: &Tenants,
    count: u32,
    numbers: &mut Numbers,
) -> Result<Duration> {
    let begin = Instant::now();
    let sizes = [(1, 1), (1, 8), (1, 1), (1, 8), (4, 8)];
    let job = |numbers: &mut Numbers, at: usize| {
        let (tasks, cards) = sizes[at % sizes.len()];
        numbers.job(tenants, tasks, cards, LONG_MS)
    };
    submit_all(cluster, numbers, count as usize, job).await?;
    let all_wait = |fleet: &Fleet| fleet.waiting >= u64::from(count);
    wait_until(cluster, WITHIN, "jobs wait", all_wait).await?;
    Ok(begin.elapsed())
}
