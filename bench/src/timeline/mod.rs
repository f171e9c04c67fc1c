//! Where the time of one job goes, from the client's call to the moment a watcher sees it running, and that of one submission.
//!
//! Every process of the cluster writes stamps ([`stamp`]) with the clock of the host they share; afterwards they are joined ([`join`]). What must
//! stay true: the load is that of the life cycle's latency run, so that the tables explain its figures.

pub mod join;
pub mod stamp;

use crate::cluster::{self, Cluster, Setting, Size};
use crate::table::{self, Row, Table};
use anyhow::Result;
use join::{Asked, Steps};
use muster_proto::v1;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Simulated nodes of eight cards.
    pub nodes: u32,
    /// Rates in jobs a second, one after the other.
    pub rates_per_s: Vec<u32>,
    /// Seconds of each.
    pub seconds: u32,
}

/// Jobs that begin before everything is warm: left out.
const WARM_UP: Duration = Duration::from_secs(1);
/// Until the last jobs run and the last stamps are written.
const DRAIN: Duration = Duration::from_secs(3);

/// When the watch told that a job runs, and at which revision.
type Running = Arc<Mutex<BTreeMap<u64, (u64, u64)>>>;

/// Runs each rate on one cluster; two tables a rate.
pub async fn run(muster: &Path, under: &Path, options: &Options) -> Result<Vec<Table>> {
    let size = Size { voters: 3, shards: 2, nodes: options.nodes, gpus_per_node: 8, agents: 2, virtual_tasks: true };
    let folder = tempfile::tempdir_in(under)?;
    let stamps = folder.path().canonicalize()?;
    let setting = Setting { stamps: Some(stamps.clone()), ..Setting::default() };
    let fleet = Cluster::start_with(muster, under, &size, &setting).await?;
    cluster::apply_tenants(fleet.channel_to_any()?, &["bench"]).await?;
    let mut tables = Vec::new();
    for rate in &options.rates_per_s {
        let asked = load(&fleet, *rate, options.seconds).await?;
        let seen = join::Cluster::of(&stamp::read_all(&stamps)?);
        let (jobs, submissions) = (seen.jobs(&asked), seen.submissions(&asked));
        let of = |steps: &Steps| format!("{} of {}", steps[0].len(), asked.len());
        let title =
            format!("One job at {rate} jobs/s, 3 replicas with fsync, 2 shards, simulated agents ({} jobs)", of(&jobs));
        tables.push(table_of(title, &join::JOB, &jobs));
        let title = format!("One submission at {rate} jobs/s ({} submissions)", of(&submissions));
        tables.push(table_of(title, &join::SUBMISSION, &submissions));
    }
    Ok(tables)
}

/// A row a step.
fn table_of(title: String, names: &[&str], steps: &Steps) -> Table {
    let row = |(name, step): (&&str, &Vec<u64>)| {
        let at = |share| table::time(table::percentile(step, share));
        Row::new(*name, at(0.5), at(0.9), at(0.99))
    };
    Table::new(title, names.iter().zip(steps).map(row).collect()).with_columns(["step", "p50", "p90", "p99"])
}

/// Submits at a steady rate and follows what becomes of the jobs.
async fn load(fleet: &Cluster, rate_per_s: u32, seconds: u32) -> Result<Vec<Asked>> {
    let running = Running::default();
    let follower = follow(fleet, running.clone()).await?;
    let channel = fleet.channel_to_any()?;
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / f64::from(rate_per_s)));
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..rate_per_s * (seconds + WARM_UP.as_secs() as u32) {
        ticks.tick().await;
        let channel = channel.clone();
        calls.spawn(async move { submit(channel, format!("trace-{rate_per_s}-{number}")).await });
    }
    let mut asked: Vec<Asked> = calls.join_all().await.into_iter().flatten().collect();
    tokio::time::sleep(DRAIN).await;
    follower.abort();
    let warm_ns = asked.iter().map(|one| one.sent_ns).min().unwrap_or(0) + WARM_UP.as_nanos() as u64;
    asked.retain(|one| one.sent_ns >= warm_ns);
    let running = running.lock().await;
    for one in &mut asked {
        one.running = running.get(&one.job).copied();
    }
    Ok(asked)
}

async fn submit(channel: tonic::transport::Channel, request: String) -> Option<Asked> {
    let job = cluster::for_ms(cluster::small_job("bench", "trace".to_owned(), &["true"]), 200);
    let sent_ns = stamp::now_ns();
    let call = cluster::submission(request.clone(), vec![job]);
    let reply = v1::jobs_client::JobsClient::new(channel).submit(call).await.ok()?.into_inner();
    let answered_ns = stamp::now_ns();
    let job = *reply.job_ids.first()?;
    Some(Asked { request, job, revision: reply.revision, sent_ns, answered_ns, running: None })
}

/// Writes down when the watch first tells of each job that it runs, until dropped.
async fn follow(fleet: &Cluster, running: Running) -> Result<tokio::task::JoinHandle<()>> {
    let mut jobs = v1::jobs_client::JobsClient::new(fleet.channel_to_any()?);
    let mut events = jobs.watch(v1::WatchJobsRequest::default()).await?.into_inner();
    Ok(tokio::spawn(async move {
        while let Ok(Some(event)) = events.message().await {
            let Some(v1::job_event::Event::Job(job)) = event.event else { continue };
            if job.phase() == v1::JobPhase::Running {
                let seen = (stamp::now_ns(), event.revision);
                running.lock().await.entry(job.id).or_insert(seen);
            }
        }
    }))
}
