//! S6: the whole life of a job — submitted, bound, started, finished — with three replicas and simulated agents.

use crate::cluster::{self, Cluster, Size};
use crate::table::{self, Row, Table};
use anyhow::Result;
use muster_proto::v1;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Simulated nodes of eight cards.
    pub nodes: u32,
    /// Jobs of the throughput run.
    pub jobs: u32,
    /// Submissions a second of the latency run.
    pub rate_per_s: u32,
    /// Seconds of the latency run.
    pub seconds: u32,
}

/// When a job was seen where.
#[derive(Clone, Copy, Debug)]
struct Seen {
    submitted: Instant,
    running: Option<Instant>,
    finished: Option<Instant>,
}

type Book = Arc<Mutex<BTreeMap<u64, Seen>>>;

/// Runs both parts and gives the table.
pub async fn run(muster: &Path, under: &Path, options: &Options) -> Result<Vec<Table>> {
    let size = Size { voters: 3, shards: 2, nodes: options.nodes, gpus_per_node: 8, agents: 2, virtual_tasks: true };
    let fleet = Cluster::start(muster, under, &size).await?;
    cluster::apply_tenants(fleet.channel_to_any()?, &["bench"]).await?;
    let mut rows = Vec::new();

    let (finished, elapsed) = throughput(&fleet, options.jobs).await?;
    rows.push(Row::new(
        format!("S6 from submission to end, {} jobs at once on {} nodes", options.jobs, options.nodes),
        format!("{:.0} jobs/s ({finished} finished in {:.1} s)", f64::from(finished) / elapsed, elapsed),
        "HyperQueue 400 tasks/s; Spur 167-215/s at 1,000 nodes; Slurm 22-28/s",
        ">= 3,000 jobs/s sustained",
    ));
    let latencies = latency(&fleet, options).await?;
    let at = |share| table::time(table::percentile(&latencies, share));
    rows.push(Row::new(
        format!("S6 submit to running at {} jobs/s", options.rate_per_s),
        format!("p50 {}, p90 {}, p99 {} ({} jobs)", at(0.5), at(0.9), at(0.99), latencies.len()),
        "-",
        "p50 <= 20 ms, p99 <= 100 ms at 300 jobs/s",
    ));
    Ok(vec![Table::new("Job life cycle, 3 replicas with fsync, 2 shards, simulated agents", rows)])
}

/// Follows every job event into the book until dropped.
async fn follow(fleet: &Cluster, book: Book) -> Result<tokio::task::JoinHandle<()>> {
    let mut jobs = v1::jobs_client::JobsClient::new(fleet.channel_to_any()?);
    let mut events = jobs.watch(v1::WatchJobsRequest::default()).await?.into_inner();
    Ok(tokio::spawn(async move {
        while let Ok(Some(event)) = events.message().await {
            let Some(v1::job_event::Event::Job(job)) = event.event else { continue };
            let now = Instant::now();
            let mut book = book.lock().await;
            let seen = book.entry(job.id).or_insert(Seen { submitted: now, running: None, finished: None });
            match job.phase() {
                v1::JobPhase::Running => _ = seen.running.get_or_insert(now),
                v1::JobPhase::Pending | v1::JobPhase::Starting | v1::JobPhase::Completing => {}
                _ => {
                    seen.running.get_or_insert(now);
                    seen.finished.get_or_insert(now);
                }
            }
        }
    }))
}

async fn submit(fleet: &Cluster, book: &Book, id: String, count: u32, run_ms: u64) -> Result<()> {
    let mut jobs = v1::jobs_client::JobsClient::new(fleet.channel_to_any()?);
    let job = cluster::for_ms(cluster::small_job("bench", "s6".to_owned(), &["true"]), run_ms);
    let sent = Instant::now();
    let request = cluster::submission(id, vec![job; count as usize]);
    let reply = jobs.submit(request).await?.into_inner();
    let mut book = book.lock().await;
    for id in reply.job_ids {
        let seen = book.entry(id).or_insert(Seen { submitted: sent, running: None, finished: None });
        seen.submitted = sent;
    }
    Ok(())
}

async fn throughput(fleet: &Cluster, jobs: u32) -> Result<(u32, f64)> {
    let book = Book::default();
    let follower = follow(fleet, book.clone()).await?;
    let begin = Instant::now();
    let mut left = jobs;
    let mut number = 0;
    while left > 0 {
        let count = left.min(100);
        // A tenant's waiting jobs are bounded: the submitter holds back while the bound is near.
        match submit(fleet, &book, format!("s6-{number}"), count, 1).await {
            Ok(()) => left -= count,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
        number += 1;
    }
    let until = begin + Duration::from_secs(300);
    let mut finished = 0;
    while Instant::now() < until {
        finished = book.lock().await.values().filter(|seen| seen.finished.is_some()).count() as u32;
        if finished >= jobs {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    follower.abort();
    Ok((finished, begin.elapsed().as_secs_f64()))
}

async fn latency(fleet: &Cluster, options: &Options) -> Result<Vec<u64>> {
    let book = Book::default();
    let follower = follow(fleet, book.clone()).await?;
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / f64::from(options.rate_per_s)));
    let channel = fleet.channel_to_any()?;
    let total = options.rate_per_s * options.seconds;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..total {
        ticks.tick().await;
        let (channel, book) = (channel.clone(), book.clone());
        calls.spawn(async move {
            let job = cluster::for_ms(cluster::small_job("bench", "s6".to_owned(), &["true"]), 200);
            let sent = Instant::now();
            let request = cluster::submission(format!("s6l-{number}"), vec![job]);
            let Ok(reply) = v1::jobs_client::JobsClient::new(channel).submit(request).await else { return };
            let mut book = book.lock().await;
            for id in reply.into_inner().job_ids {
                book.entry(id).or_insert(Seen { submitted: sent, running: None, finished: None }).submitted = sent;
            }
        });
    }
    while calls.join_next().await.is_some() {}
    tokio::time::sleep(Duration::from_secs(3)).await;
    follower.abort();
    let mut latencies: Vec<u64> = book
        .lock()
        .await
        .values()
        .filter_map(|seen| Some(seen.running?.saturating_duration_since(seen.submitted).as_micros() as u64))
        .collect();
    latencies.sort_unstable();
    Ok(latencies)
}
