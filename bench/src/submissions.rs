//! S5: acknowledged durable submissions, three replicas with fsync, beside etcd's puts in the same run.

use crate::cluster::{self, Cluster, Size};
use crate::etcd::{self, Etcd};
use crate::load::{self, Load};
use crate::table::{self, Row, Table};
use anyhow::{Context, Result, bail};
use muster_proto::v1;
use std::path::Path;
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Client counts of the single submissions.
    pub clients: Vec<u64>,
    /// Seconds of each load.
    pub seconds: f64,
    /// Jobs in a batch.
    pub batch: u32,
}

/// Channels that the clients share: HTTP/2 multiplexes, and a few connections keep one from being the limit.
const CHANNELS: usize = 8;

/// How long batches are submitted at most: all tenants together may have a million jobs waiting.
const BATCH_SECONDS_MAX: f64 = 4.0;
/// Jobs that a tenant may have waiting.
const WAITING_PER_TENANT: u64 = 10_000;

/// Runs all loads and gives the table.
pub async fn run(muster: &Path, under: &Path, options: &Options) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    let etcd_loads = if etcd::is_installed() { etcd_puts(under, options).await? } else { Vec::new() };
    let size = Size { voters: 3, shards: 1, nodes: 2, gpus_per_node: 8, agents: 1, virtual_tasks: true };
    let fleet = Cluster::start(muster, under, &size).await?;
    let leader = fleet.leader().await?.map_or(0, |(at, _)| at);
    let endpoint = fleet.dev()?.endpoints[leader].clone();
    let channels: Vec<Channel> = (0..CHANNELS).map(|_| cluster::channel(&endpoint)).collect::<Result<_>>()?;
    cluster::apply_tenants(channels[0].clone(), &["bench"]).await?;
    hold_all_cards(&channels[0]).await?;
    // Tenants bound their waiting jobs: each round has its own tenants.
    let mut round = 0;
    for (at, &clients) in options.clients.iter().enumerate() {
        round += 1;
        let load = submit_load(&channels, clients, options.seconds, 1, round).await?;
        let anchor = match etcd_loads.get(at) {
            Some(etcd) => format!("etcd puts, same run: {}", words(etcd)),
            None => "etcd is not installed here".to_owned(),
        };
        let target = match etcd_loads.get(at) {
            Some(etcd) => format!(">= 1.5x etcd; here {:.2}x", load.per_second / etcd.per_second),
            None => ">= 1.5x etcd".to_owned(),
        };
        rows.push(Row::new(format!("S5 single submissions, {clients} clients"), words(&load), anchor, target));
    }
    let load = submit_load(&channels, 32, options.seconds.min(BATCH_SECONDS_MAX), options.batch, round + 1).await?;
    let jobs = load.per_second * f64::from(options.batch);
    rows.push(Row::new(
        format!("S5 submissions of {} jobs, 32 clients", options.batch),
        format!("{jobs:.0} jobs/s; {}", words(&load)),
        "openraft with a coalescing proposer on RocksDB, no RPC: 197,000 entries/s",
        ">= 50,000 jobs/s",
    ));
    Ok(vec![Table::new(format!("Acknowledged durable submissions, 3 replicas, fsync ({})", etcd::version()), rows)])
}

/// A job on every card of the fleet.
pub(crate) fn of_all_cards(tenant: &str, command: &[&str]) -> v1::JobSpec {
    let job = cluster::with_cards(cluster::small_job(tenant, "s5".to_owned(), command), 8);
    v1::JobSpec { tasks: 2, ..job }
}

/// Starts a job on all cards that never ends: what is submitted waits, as keys that are put into etcd only lie there, and no entry is written
/// but the submissions.
pub(crate) async fn hold_all_cards(channel: &Channel) -> Result<()> {
    let mut jobs = v1::jobs_client::JobsClient::new(channel.clone());
    let request = cluster::submission("hold".to_owned(), vec![of_all_cards("bench", &["sleep", "infinity"])]);
    let job = jobs.submit(request).await?.into_inner().job_ids.first().copied().context("no job id")?;
    let until = Instant::now() + Duration::from_secs(30);
    while Instant::now() < until {
        let got = jobs.get(v1::GetJobRequest { job_id: job, ..Default::default() }).await?.into_inner();
        if got.job.is_some_and(|job| job.phase == v1::JobPhase::Running as i32) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the job that is to hold all cards did not start within 30 s")
}

fn words(load: &Load) -> String {
    let at = |share| table::time(table::percentile(&load.latencies_us, share));
    format!("{:.0}/s, p50 {}, p99 {}, {} errors", load.per_second, at(0.5), at(0.99), load.errors)
}

async fn etcd_puts(under: &Path, options: &Options) -> Result<Vec<Load>> {
    let etcd = Etcd::start(under, false).await?;
    let leader = etcd.leader().await.unwrap_or(0);
    let mut out = Vec::new();
    for &clients in &options.clients {
        let channels: Vec<Channel> = (0..CHANNELS).map(|_| etcd.channel(leader)).collect::<Result<_>>()?;
        let call = move |client: u64, number: u64| {
            let channel = channels[client as usize % CHANNELS].clone();
            // As many bytes as a submission carries.
            async move { etcd::put(channel, format!("{client}/{number}").into_bytes(), vec![7; 256]).await.is_ok() }
        };
        out.push(load::closed_loop(clients, options.seconds, call).await);
    }
    Ok(out)
}

async fn submit_load(channels: &[Channel], clients: u64, seconds: f64, batch: u32, round: u64) -> Result<Load> {
    // A client of batches takes another tenant when one may be full.
    let tenants = if batch > 1 { 8 } else { 1 };
    let path = move |client, tenant| format!("bench/r{round}-c{client}-{tenant}");
    let paths: Vec<String> =
        (0..clients).flat_map(|client| (0..tenants).map(move |tenant| path(client, tenant))).collect();
    cluster::apply_tenants(channels[0].clone(), &paths).await?;
    let channels = channels.to_vec();
    let call = move |client: u64, number: u64| {
        let channel = channels[client as usize % CHANNELS].clone();
        let tenant = path(client, number * u64::from(batch) / WAITING_PER_TENANT % tenants);
        async move {
            let job = of_all_cards(&tenant, &["true"]);
            let request = cluster::submission(format!("{round}-{client}-{number}"), vec![job; batch as usize]);
            v1::jobs_client::JobsClient::new(channel).submit(request).await.is_ok()
        }
    };
    Ok(load::closed_loop(clients, seconds, call).await)
}
