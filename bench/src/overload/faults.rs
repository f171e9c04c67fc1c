//! One fault at a time beside a steady load: watchers that do not read, a follower that stands still, one tenant that floods.

use super::load::{self, Found, Running, Work};
use super::{Options, Target};
use crate::cluster::{self, Cluster};
use crate::process::{self, Used};
use crate::table::{self, Row, Table};
use anyhow::{Context, Result};
use muster_proto::v1;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};

/// Clients of the steady load.
const STEADY: u64 = 32;
/// Watches of all jobs that nobody reads.
const WATCHERS: usize = 64;
/// Bytes that a watch's connection takes unread: the least that HTTP/2 begins with.
const WINDOW_BYTES: u32 = 65_535;
/// Clients of the tenant that floods.
const FLOOD: u64 = 512;
/// The slow tenant submits this often.
const SLOW: Duration = Duration::from_millis(50);
/// A stopped follower catches up within this time, or the table says that it did not.
const CATCH_UP: Duration = Duration::from_secs(60);
/// What a watcher is told when it reads again comes within this time.
const DRAIN: Duration = Duration::from_secs(20);

pub(super) async fn run(fleet: &Cluster, target: &Target, options: &Options) -> Result<Table> {
    let over = Duration::from_secs_f64(options.fault_seconds);
    let mut rows = vec![quiet(target, over).await?];
    rows.push(slow_watchers(target, over).await?);
    rows.push(slow_follower(fleet, target, over).await?);
    rows.extend(flood(target, over).await?);
    let title = format!(
        "Faults under load ({STEADY} clients, {} s each); a full disk: make chaos CHAOS=disk-full",
        over.as_secs()
    );
    Ok(Table::new(title, rows).with_columns([
        "fault",
        "the others",
        "what it is told, what it costs",
        "leader's memory",
    ]))
}

fn memory(target: &Target) -> Result<u64> {
    Ok(Used::of(target.pid)?.rss_kib)
}

fn from_to(before: u64, after: u64) -> String {
    format!("{} -> {}", process::memory(before), process::memory(after))
}

fn others(found: &Found) -> String {
    format!("{:.0}/s, {}; refused: {}", found.per_second(), found.latency(), found.refusals())
}

async fn steady(target: &Target, name: &str) -> Result<Running> {
    let work = Work { tenants: target.tenants(name).await?, jobs: 1, pause: Duration::ZERO, obeys: true };
    Ok(Running::start(&target.channels(STEADY)?, STEADY, &work))
}

async fn quiet(target: &Target, over: Duration) -> Result<Row> {
    let before = memory(target)?;
    let running = steady(target, "quiet").await?;
    tokio::time::sleep(over).await;
    let found = running.finish().await;
    Ok(Row::new("none", others(&found), "-", from_to(before, memory(target)?)))
}

async fn slow_watchers(target: &Target, over: Duration) -> Result<Row> {
    let before = memory(target)?;
    let mut watches = Vec::new();
    for _ in 0..WATCHERS {
        // A connection each: a reader that stands still holds up what shares its connection.
        let mut jobs = v1::jobs_client::JobsClient::new(narrow_channel(&target.endpoint)?);
        watches.push(jobs.watch(v1::WatchJobsRequest::default()).await?.into_inner());
    }
    let running = steady(target, "watchers").await?;
    tokio::time::sleep(over).await;
    let found = running.finish().await;
    let after = memory(target)?;
    let begin = Instant::now();
    let (mut events, mut told) = (0_u64, Vec::new());
    for mut watch in watches {
        loop {
            let left = DRAIN.saturating_sub(begin.elapsed());
            match tokio::time::timeout(left, watch.message()).await {
                Ok(Ok(Some(event))) => {
                    events += 1;
                    // A new snapshot, complete: this watch is up to date again.
                    if matches!(event.event, Some(v1::job_event::Event::SnapshotEnd(_))) && events > 1 {
                        break;
                    }
                }
                Ok(Err(status)) => {
                    told.push(load::words(&status));
                    break;
                }
                Ok(Ok(None)) | Err(_) => break,
            }
        }
    }
    let ended = told.len();
    told.dedup();
    let cost = format!(
        "read again: {events} events, {ended} ended{}",
        told.first().map_or(String::new(), |words| format!(": {words}"))
    );
    let what = format!("{WATCHERS} watches of all jobs that nobody reads");
    Ok(Row::new(what, others(&found), cost, from_to(before, after)))
}

/// A channel that takes little beyond what is read of it: the usual one would take some ten thousand events before it holds the server up.
fn narrow_channel(endpoint: &str) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?;
    Ok(endpoint.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES).connect_lazy())
}

async fn slow_follower(fleet: &Cluster, target: &Target, over: Duration) -> Result<Row> {
    let before = memory(target)?;
    let roles = fleet.dev()?.roles;
    let stopped = roles.iter().find(|role| role.role == "control" && role.pid != target.pid).context("no follower")?;
    let endpoint = stopped.endpoint.clone().context("the follower has no endpoint")?;
    let running = steady(target, "follower").await?;
    kill(Pid::from_raw(stopped.pid), Signal::SIGSTOP)?;
    tokio::time::sleep(over).await;
    let after = memory(target);
    kill(Pid::from_raw(stopped.pid), Signal::SIGCONT)?;
    let goes_on = Instant::now();
    // It catches up while the load goes on.
    let behind = loop {
        let (leads, follows) = (applied(&target.endpoint).await, applied(&endpoint).await);
        if let (Some(leads), Some(follows)) = (leads, follows)
            && follows >= leads
        {
            break format!(
                "caught up {} after SIGCONT, under the same load",
                table::time(goes_on.elapsed().as_micros() as u64)
            );
        }
        if goes_on.elapsed() > CATCH_UP {
            break format!("not caught up {} s after SIGCONT: {follows:?} of {leads:?}", CATCH_UP.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let found = running.finish().await;
    Ok(Row::new("SIGSTOP of a follower", others(&found), behind, from_to(before, after?)))
}

/// What this node has applied; the leader is asked first, so a follower that has as much is not behind.
async fn applied(endpoint: &str) -> Option<u64> {
    cluster::raft_status(endpoint).await.map(|status| status.applied)
}

/// A tenant that floods, beside one that submits now and then: first while there is room for its jobs, then beyond its bound.
async fn flood(target: &Target, over: Duration) -> Result<Vec<Row>> {
    let channel = cluster::channel(&target.endpoint)?;
    cluster::apply_tenants(channel.clone(), &["bench/slow", "bench/flood"]).await?;
    let slow = || {
        let work = Work { tenants: vec!["bench/slow".to_owned()], jobs: 1, pause: SLOW, obeys: true };
        Running::start(std::slice::from_ref(&channel), 1, &work)
    };
    let mut rows = Vec::new();
    let alone = slow();
    tokio::time::sleep(over).await;
    let memory_before = memory(target)?;
    let found = alone.finish().await;
    rows.push(Row::new(
        "a tenant that submits 20 a second, alone",
        others(&found),
        "-",
        process::memory(memory_before),
    ));
    for (obeys, what) in [(true, "waits as it is told"), (false, "calls again at once")] {
        let before = memory(target)?;
        let flooding = flood_clients(target, obeys)?;
        let slow = slow();
        tokio::time::sleep(over).await;
        let (slow, flooding) = (slow.finish().await, flooding.finish().await);
        let cost =
            format!("{:.0}/s accepted, refused: {}: {}", flooding.per_second(), flooding.refusals(), flooding.told());
        let what = format!("the same with {FLOOD} clients of one other tenant; when refused, it {what}");
        rows.push(Row::new(what, others(&slow), cost, from_to(before, memory(target)?)));
    }
    Ok(rows)
}

fn flood_clients(target: &Target, obeys: bool) -> Result<Running> {
    let channels: Vec<Channel> = target.channels(FLOOD)?;
    let work = Work { tenants: vec!["bench/flood".to_owned()], jobs: 1, pause: Duration::ZERO, obeys };
    Ok(Running::start(&channels, FLOOD, &work))
}
