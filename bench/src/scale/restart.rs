//! kill -9 of a control node, and of all of them, until they serve the whole state again. `muster dev` starts what died again at once.

use super::fill::{Numbers, Tenants};
use super::{Fleet, look, wait_until};
use crate::cluster::{self, Cluster, Role};
use crate::process;
use crate::table::{self, Row};
use anyhow::{Context, Result, ensure};
use muster_proto::v1;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// A call that is not answered in this time is made again.
const ATTEMPT: Duration = Duration::from_millis(1_000);
/// Between two calls.
const PAUSE: Duration = Duration::from_millis(10);
/// A restart that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(120);
/// The fleet is as it was before the next kill: agents have their sessions again.
const CALM: Duration = Duration::from_secs(3);
const ANCHOR: &str = "Volcano 8 min 17 s, restart to first bind, 5,000 nodes";
const TARGET: &str = "<= 2 s";

/// Kills and measures.
pub(super) async fn measure(
    cluster: &Cluster,
    rounds: u32,
    numbers: &mut Numbers,
    tenants: &Tenants,
) -> Result<Vec<Row>> {
    let (mut follower, mut all_read, mut all_write, mut all_bound, mut each) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let before = calm(cluster).await?;
        let (leader, _) = cluster.leader().await?.context("no leader")?;
        let controls = controls(cluster)?;
        let victim = &controls[(leader + 1) % controls.len()];
        kill(Pid::from_raw(victim.pid), Signal::SIGKILL)?;
        follower.push(serves(&endpoint(victim)?, Instant::now(), before).await?);
    }
    for _ in 0..rounds {
        let before = calm(cluster).await?;
        let controls = controls(cluster)?;
        // Room for one of those that wait, found only after the restart.
        let ends = numbers.one_running()?;
        for control in &controls {
            kill(Pid::from_raw(control.pid), Signal::SIGKILL)?;
        }
        let killed = Instant::now();
        let endpoints: Vec<String> = controls.iter().map(endpoint).collect::<Result<_>>()?;
        let mut readers = tokio::task::JoinSet::new();
        for endpoint in endpoints.clone() {
            readers.spawn(async move { serves(&endpoint, killed, before).await });
        }
        let (written, bound) = tokio::try_join!(
            writes(&endpoints, killed, numbers.probe(tenants)),
            binds(cluster, &endpoints, killed, ends),
        )?;
        all_write.push(written);
        all_bound.push(bound);
        let mut times = readers.join_all().await.into_iter().collect::<Result<Vec<u64>>>()?;
        times.sort_unstable();
        all_read.push(times[0]);
        each.push(times[times.len() - 1]);
    }
    let row = |what: &str, times: &mut Vec<u64>| {
        times.sort_unstable();
        let worst = times.last().copied().unwrap_or(0);
        let measured = format!("median {}, longest {}", table::time(table::percentile(times, 0.5)), table::time(worst));
        Row::new(what, measured, ANCHOR, TARGET)
    };
    Ok(vec![
        row("S9 one follower: it answers linearizable reads of the whole state", &mut follower),
        row("S9 all three at once: the first answers such reads", &mut all_read),
        row("all three at once: the last answers such reads", &mut each),
        row("S9 all three at once: a submission is acknowledged", &mut all_write),
        row("S9 all three at once: a waiting job is bound to a card that was freed after the restart", &mut all_bound),
    ])
}

fn controls(cluster: &Cluster) -> Result<Vec<Role>> {
    let controls: Vec<Role> = cluster.dev()?.roles.into_iter().filter(|role| role.role == "control").collect();
    ensure!(controls.len() == 3, "{} of 3 control nodes run", controls.len());
    Ok(controls)
}

fn endpoint(role: &Role) -> Result<String> {
    role.endpoint.clone().with_context(|| format!("{} has no endpoint", role.name))
}

/// Waits until all nodes are heard of and nothing moves.
async fn calm(cluster: &Cluster) -> Result<Fleet> {
    tokio::time::sleep(CALM).await;
    let mut before = wait_until(cluster, PATIENCE, "all nodes are ready", |fleet| fleet.ready == fleet.nodes).await?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = wait_until(cluster, PATIENCE, "all nodes are ready", |fleet| fleet.ready == fleet.nodes).await?;
        if now == before && controls(cluster).is_ok() {
            return Ok(now);
        }
        before = now;
    }
    anyhow::bail!("the fleet does not come to rest: {before:?}")
}

/// Until this node answers a linearizable read with every node and job that was there.
async fn serves(endpoint: &str, killed: Instant, before: Fleet) -> Result<u64> {
    while killed.elapsed() < PATIENCE {
        let asked = tokio::time::timeout(ATTEMPT, look(cluster::channel(endpoint)?)).await;
        // The probe of a submission may be one more.
        if let Ok(Ok(fleet)) = asked
            && fleet.nodes == before.nodes
            && fleet.running + fleet.waiting >= before.running + before.waiting - 1
        {
            return Ok(killed.elapsed().as_micros() as u64);
        }
        tokio::time::sleep(PAUSE).await;
    }
    anyhow::bail!("{endpoint} did not serve the state within {} s", PATIENCE.as_secs())
}

/// Until a submission is acknowledged.
async fn writes(endpoints: &[String], killed: Instant, request: v1::SubmitRequest) -> Result<u64> {
    for endpoint in endpoints.iter().cycle() {
        let mut jobs = v1::jobs_client::JobsClient::new(cluster::channel(endpoint)?);
        if let Ok(Ok(_)) = tokio::time::timeout(ATTEMPT, jobs.submit(request.clone())).await {
            return Ok(killed.elapsed().as_micros() as u64);
        }
        ensure!(killed.elapsed() < PATIENCE, "no submission was acknowledged within {} s", PATIENCE.as_secs());
        tokio::time::sleep(PAUSE).await;
    }
    anyhow::bail!("no control nodes")
}

/// Cancels the job `ends`, which runs, until that is acknowledged, and waits for the first binding after it.
async fn binds(cluster: &Cluster, endpoints: &[String], killed: Instant, ends: u64) -> Result<u64> {
    for endpoint in endpoints.iter().cycle() {
        let mut jobs = v1::jobs_client::JobsClient::new(cluster::channel(endpoint)?);
        let request = v1::CancelRequest { job_id: ends };
        match tokio::time::timeout(ATTEMPT, jobs.cancel(request)).await {
            Ok(Ok(_)) => break,
            // The answer of an earlier call was lost.
            Ok(Err(status)) if status.code() == tonic::Code::FailedPrecondition => break,
            _ => {}
        }
        ensure!(killed.elapsed() < PATIENCE, "no job was cancelled within {} s", PATIENCE.as_secs());
        tokio::time::sleep(PAUSE).await;
    }
    while killed.elapsed() < PATIENCE {
        // The counters of the new processes begin at 0.
        for role in cluster.dev()?.roles.iter().filter(|role| role.role == "control") {
            let Some(http) = &role.http else { continue };
            let page = process::metrics(http).await.unwrap_or_default();
            if process::metric(&page, "muster_bindings_total") > 0.5 {
                return Ok(killed.elapsed().as_micros() as u64);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    anyhow::bail!("nothing was bound within {} s", PATIENCE.as_secs())
}
