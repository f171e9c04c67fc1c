//! R2: kill -9 of the leader until the next acknowledged write, beside etcd tuned to 50/500 ms in the same run.

use crate::cluster::{self, Cluster, Size};
use crate::etcd::{self, Etcd};
use crate::table::{self, Row, Table};
use anyhow::{Context, Result};
use muster_proto::v1;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one attempt of a write may take before the next is sent elsewhere. Both systems are asked alike.
const ATTEMPT: Duration = Duration::from_millis(100);
/// A failover that takes longer than this is counted as this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Kills the leader `rounds` times in each system and gives the table.
pub async fn run(muster: &Path, under: &Path, rounds: u32) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    let ours = muster_rounds(muster, under, rounds).await?;
    let theirs = if etcd::is_installed() { Some(etcd_rounds(under, rounds).await?) } else { None };
    let anchor = theirs
        .as_ref()
        .map_or("etcd is not installed here".to_owned(), |t| format!("etcd 50/500 ms, same run: {}", words(t)));
    rows.push(Row::new(
        format!("R2 kill -9 of the leader to the next acknowledged write, {rounds} rounds"),
        words(&ours),
        anchor,
        "median <= 0.4 x etcd tuned; p99 <= 400 ms",
    ));
    Ok(vec![Table::new("Failover", rows)])
}

fn words(times_us: &[u64]) -> String {
    let at = |share| table::time(table::percentile(times_us, share));
    format!("median {}, p90 {}, p99 {}", at(0.5), at(0.9), at(0.99))
}

async fn muster_rounds(muster: &Path, under: &Path, rounds: u32) -> Result<Vec<u64>> {
    let size = Size { voters: 3, shards: 1, nodes: 2, gpus_per_node: 8, agents: 1, virtual_tasks: true };
    let fleet = Cluster::start(muster, under, &size).await?;
    cluster::apply_tenants(fleet.channel_to_any()?, &["bench"]).await?;
    let mut times = Vec::new();
    for round in 0..rounds {
        let pid = wait_for_all(&fleet).await?;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)?;
        let killed = Instant::now();
        let endpoints = fleet.dev()?.endpoints;
        let mut number = 0;
        while killed.elapsed() < PATIENCE {
            let endpoint = &endpoints[number % endpoints.len()];
            number += 1;
            let mut jobs = v1::jobs_client::JobsClient::new(cluster::channel(endpoint)?);
            let job = cluster::small_job("bench", "r2".to_owned(), &["true"]);
            let request = cluster::submission(format!("r2-{round}-{number}"), vec![job]);
            match tokio::time::timeout(ATTEMPT, jobs.submit(request)).await {
                Ok(Ok(_)) => break,
                Ok(Err(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(_) => {}
            }
        }
        times.push(killed.elapsed().as_micros() as u64);
    }
    times.sort_unstable();
    Ok(times)
}

/// The leader's process, once all voters follow it. The supervisor brings a killed one back, after a pause if it is killed often, and two of
/// three elect nobody while the third is still away.
async fn wait_for_all(fleet: &Cluster) -> Result<i32> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some((_, pid)) = fleet.leader().await? {
            let endpoints = fleet.dev()?.endpoints;
            let asked =
                futures::future::join_all(endpoints.iter().map(|endpoint| cluster::raft_status(endpoint))).await;
            let leaders: Vec<_> = asked.into_iter().map(|status| status.and_then(|status| status.leader)).collect();
            if leaders.iter().all(|leader| leader.is_some() && *leader == leaders[0]) {
                return Ok(pid);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    anyhow::bail!("not all voters follow a leader within {} s", PATIENCE.as_secs())
}

async fn etcd_rounds(under: &Path, rounds: u32) -> Result<Vec<u64>> {
    let mut times = Vec::new();
    for round in 0..rounds {
        let mut etcd = Etcd::start(under, true).await?;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let leader = etcd.leader().await.context("etcd has no leader")?;
        etcd.kill(leader);
        let killed = Instant::now();
        let others: Vec<usize> = (0..3).filter(|&member| member != leader).collect();
        let mut number = 0;
        while killed.elapsed() < PATIENCE {
            let member = others[number % others.len()];
            number += 1;
            if etcd.put(member, format!("r2/{round}/{number}").as_bytes(), b"x", ATTEMPT).await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times.push(killed.elapsed().as_micros() as u64);
    }
    times.sort_unstable();
    Ok(times)
}
