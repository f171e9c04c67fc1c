//! Wrong clocks: a leader that jumps 30 days ahead, a follower 30 days ahead and behind, and a cluster whose time a wrong clock has moved
//! ahead, which an operator repairs.

use crate::client::{Load, job, make_tenant, now_ms};
use crate::cluster::{Cluster, STANDSTILL, Setup, VOTERS, channel};
use crate::judge::judge;
use crate::lab::Lab;
use crate::report::Findings;
use anyhow::Result;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Thirty days.
const FAR_S: i64 = 30 * 86_400;
/// What the cluster's time may be off: voters' clocks are compared with each heartbeat, and times are told in milliseconds.
const OFF_MAX_MS: u64 = 60_000;
/// How long a wrong clock is left wrong.
const WRONG_FOR: Duration = Duration::from_secs(3);

pub(super) async fn run(lab: &Lab) -> Result<Findings> {
    run_with(lab, None).await
}

/// The same with a planted bug, if one is named.
pub(super) async fn run_with(lab: &Lab, planted: Option<&'static str>) -> Result<Findings> {
    let mut findings = Findings::of(
        "one voter's clock 30 days off: leader ahead, follower ahead, follower behind; then all ahead, corrected, and `muster raft reset-clock`",
    );
    one_wrong(lab, planted, &mut findings).await?;
    if planted.is_none() {
        all_wrong(lab, &mut findings).await?;
    }
    Ok(findings)
}

async fn one_wrong(lab: &Lab, planted: Option<&'static str>, findings: &mut Findings) -> Result<()> {
    let setup = Setup { clock_ahead_s: Some(0), planted, ..Setup::default() };
    let mut cluster = Cluster::start(lab, "clocks", &setup).await?;
    let load = Load::start(&cluster.endpoints()).await?;
    for (who, ahead_s) in [("leader", FAR_S), ("follower", FAR_S), ("follower", -FAR_S)] {
        let leader = cluster.leader_within(STANDSTILL).await?;
        let wrong = if who == "leader" { leader } else { leader % 3 + 1 };
        cluster.set_clock(wrong, ahead_s)?;
        sleep(WRONG_FOR).await;
        if !load.book.refused().is_empty() {
            break;
        }
        load.book.more(20, STANDSTILL).await?;
        // The next leader may be the one that is wrong.
        cluster.kill(leader).await?;
        cluster.start_voter(leader)?;
        sleep(WRONG_FOR / 3).await;
        load.book.more(20, STANDSTILL).await?;
        let off_ms = off_ms(&cluster).await?;
        findings.must(off_ms < OFF_MAX_MS, || format!("{who} {ahead_s:+} s: the cluster's time is {off_ms} ms off"));
        cluster.set_clock(wrong, 0)?;
        sleep(WRONG_FOR / 2).await;
        load.book.more(20, STANDSTILL).await?;
    }
    let book = load.stop().await;
    let refused = book.refused().clone();
    findings.see(format!("one clock wrong: {} submissions refused, time of new jobs right within 60 s", refused.len()));
    findings.must(refused.is_empty(), || format!("submissions were refused while one clock was wrong: {}", refused[0]));
    judge(&cluster, &book, findings).await
}

/// How far the time of a job that is submitted now is off.
async fn off_ms(cluster: &Cluster) -> Result<u64> {
    let id = submit_until(cluster, &format!("time-{}", now_ms())).await?;
    let leader = cluster.leader_within(STANDSTILL).await?;
    let call = v1::GetJobRequest { job_id: id, ..v1::GetJobRequest::default() };
    let job =
        JobsClient::new(channel(&cluster.endpoint(leader))?).get(call).await?.into_inner().job.unwrap_or_default();
    Ok(job.submitted_ms.abs_diff(now_ms()))
}

async fn submit_until(cluster: &Cluster, name: &str) -> Result<u64> {
    let until = Instant::now() + STANDSTILL;
    loop {
        let leader = cluster.leader_within(STANDSTILL).await?;
        match submit(cluster, leader, name).await {
            Ok(id) => return Ok(id),
            Err(why) => {
                anyhow::ensure!(Instant::now() < until, "a submission is refused for {} s: {why}", STANDSTILL.as_secs())
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn submit(cluster: &Cluster, to: u8, name: &str) -> Result<u64, String> {
    let call = v1::SubmitRequest { request_id: name.to_owned(), issued_ms: Some(now_ms()), jobs: vec![job(name)] };
    let mut jobs = JobsClient::new(channel(&cluster.endpoint(to)).map_err(|error| error.to_string())?);
    match timeout(Duration::from_secs(4), jobs.submit(call)).await {
        Ok(Ok(reply)) => Ok(reply.into_inner().job_ids.first().copied().unwrap_or_default()),
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// No majority is right, so the cluster's time follows; when the clocks are right again, an operator sets it back.
async fn all_wrong(lab: &Lab, findings: &mut Findings) -> Result<()> {
    let setup = Setup { clock_ahead_s: Some(FAR_S), ..Setup::default() };
    let mut cluster = Cluster::start(lab, "clocks-all", &setup).await?;
    make_tenant(&cluster.endpoints()).await?;
    for id in VOTERS {
        cluster.kill(id).await?;
        cluster.set_clock(id, 0)?;
        cluster.start_voter(id)?;
    }
    let leader = cluster.leader_within(STANDSTILL).await?;
    let refused = submit(&cluster, leader, "poisoned").await;
    findings.must(refused.is_err(), || "time 30 days ahead refuses nothing: the experiment shows nothing".to_owned());
    findings.see(format!("time moved ahead: {}", refused.err().unwrap_or_default()));
    let said = cluster.muster(&["raft", "reset-clock"]).await?;
    findings.see(format!("reset-clock: {}", said.trim().lines().next().unwrap_or_default()));
    let off_ms = off_ms(&cluster).await?;
    findings.must(off_ms < OFF_MAX_MS, || format!("after reset-clock the cluster's time is {off_ms} ms off"));
    Ok(())
}
