//! What a stopped process costs the others: SIGSTOP of one agent, one shard, one follower, each beside an undisturbed run.
//!
//! Measured for every job: submission to acknowledgement, and submission to running. Jobs that landed on nodes of the stopped agent
//! are counted apart: they wait for the fence by design.

use crate::cluster::{self, Cluster, Size};
use crate::table::{self, Row, Table};
use anyhow::{Context, Result};
use muster_proto::v1;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// What one phase found, in microseconds, sorted.
struct Phase {
    acknowledged: Vec<u64>,
    running: Vec<u64>,
    not_started: usize,
}

/// Runs the phases and gives the table.
pub async fn run(muster: &Path, under: &Path, jobs_each: u32) -> Result<Vec<Table>> {
    let size = Size { voters: 3, shards: 2, nodes: 16, gpus_per_node: 8, agents: 16, virtual_tasks: true };
    let fleet = Cluster::start(muster, under, &size).await?;
    cluster::apply_tenants(fleet.channel_to_any()?, &["bench"]).await?;
    let (leader, _) = fleet.leader().await?.context("no leader")?;
    let endpoint = fleet.dev()?.endpoints[leader].clone();
    let channel = cluster::channel(&endpoint)?;
    let mut rows = Vec::new();
    phase(&channel, "warm", jobs_each / 4).await?;
    let quiet = phase(&channel, "quiet", jobs_each).await?;
    rows.push(row("nothing stopped", &quiet, "-"));
    for role in ["control", "shard", "agent"] {
        let dev = fleet.dev()?;
        let stopped = dev
            .roles
            .iter()
            .find(|r| r.role == role && r.endpoint.as_deref() != Some(endpoint.as_str()))
            .with_context(|| format!("no {role} to stop"))?;
        kill(Pid::from_raw(stopped.pid), Signal::SIGSTOP)?;
        let what = if role == "control" { "follower" } else { role };
        // A stopped shard's cell is taken over after its lease; a stopped agent's node turns silent: let both happen inside.
        let found = phase(&channel, role, jobs_each).await;
        kill(Pid::from_raw(stopped.pid), Signal::SIGCONT)?;
        rows.push(row(&format!("SIGSTOP of one {what}"), &found?, "Spur: one stopped agent froze all scheduling"));
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    Ok(vec![Table::new("Delay of jobs while one process is stopped", rows)])
}

fn row(what: &str, phase: &Phase, anchor: &str) -> Row {
    let words = |times: &[u64]| {
        let at = |share| table::time(table::percentile(times, share));
        format!("p50 {}, p99 {}", at(0.5), at(0.99))
    };
    let measured = format!(
        "ack {}; running {} ({} started, {} not within 2 s)",
        words(&phase.acknowledged),
        words(&phase.running),
        phase.running.len(),
        phase.not_started
    );
    Row::new(what, measured, anchor, "as without a stop, except for jobs on the stopped process")
}

async fn phase(channel: &Channel, name: &str, jobs: u32) -> Result<Phase> {
    let mut calls = tokio::task::JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    for number in 0..jobs {
        ticks.tick().await;
        let channel = channel.clone();
        let id = format!("stall-{name}-{number}");
        calls.spawn(async move { one_job(channel, id).await });
    }
    let mut phase = Phase { acknowledged: Vec::new(), running: Vec::new(), not_started: 0 };
    while let Some(done) = calls.join_next().await {
        let (acknowledged, running) = done??;
        phase.acknowledged.push(acknowledged);
        match running {
            Some(time) => phase.running.push(time),
            None => phase.not_started += 1,
        }
    }
    phase.acknowledged.sort_unstable();
    phase.running.sort_unstable();
    Ok(phase)
}

async fn one_job(channel: Channel, id: String) -> Result<(u64, Option<u64>)> {
    let mut jobs = v1::jobs_client::JobsClient::new(channel);
    let job = cluster::for_ms(cluster::small_job("bench", id.clone(), &["true"]), 300);
    let sent = Instant::now();
    let reply = jobs.submit(cluster::submission(id, vec![job])).await?.into_inner();
    let acknowledged = sent.elapsed().as_micros() as u64;
    let request = v1::WatchJobsRequest { job_id: reply.job_ids[0], ..Default::default() };
    let mut events = jobs.watch(request).await?.into_inner();
    let follow = async {
        while let Ok(Some(event)) = events.message().await {
            if let Some(v1::job_event::Event::Job(job)) = event.event
                && !matches!(job.phase(), v1::JobPhase::Pending | v1::JobPhase::Starting)
            {
                return Some(sent.elapsed().as_micros() as u64);
            }
        }
        None
    };
    let running = tokio::time::timeout(Duration::from_secs(2), follow).await.unwrap_or(None);
    Ok((acknowledged, running))
}
