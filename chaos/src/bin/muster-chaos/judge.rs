//! Judges what clients wrote down, by the laws of the simulation: nothing acknowledged is lost, no id is used twice, and one order explains
//! every answer.

use crate::client::{Book, TENANT};
use crate::cluster::{Cluster, STANDSTILL, channel};
use crate::report::Findings;
use anyhow::{Context, Result, bail};
use muster_chaos::history::Call;
use muster_chaos::laws;
use muster_model::ids::{JobId, Revision};
use muster_model::{Job, Object};
use muster_proto::convert::job_from_control_plane;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

/// Jobs of one page.
const PAGE: u32 = 1_000;
/// How long one page may take.
const PAGE_MAX: Duration = Duration::from_secs(10);

/// Adds to the findings what the clients saw. The faults are over, and all voters that should run do.
///
/// # Errors
/// When the cluster answers nothing any more.
pub(crate) async fn judge(cluster: &Cluster, book: &Book, findings: &mut Findings) -> Result<()> {
    let acknowledged: BTreeSet<JobId> = book.acknowledged().iter().map(|one| one.job).collect();
    let mut found = all_jobs(cluster).await?;
    let missing: Vec<JobId> = acknowledged.iter().filter(|job| !found.contains_key(job)).copied().collect();
    for job in missing {
        found.extend(one_job(cluster, job).await?.map(|found| (job, found)));
    }
    let lost = acknowledged.iter().filter(|job| !found.contains_key(job)).count();
    let mut history = std::mem::take(&mut *book.history());
    history.base = found.into_values().map(Object::Job).collect();
    history.base_revision = Revision(0);
    let reads =
        history.operations.iter().filter(|one| matches!(one.call, Call::Get { .. }) && one.answer.is_some()).count();
    let unknown = history.submissions.iter().filter(|one| one.acknowledged.is_empty() && one.refused.is_none()).count();
    // The checker is busy for a while, and has no business on the threads of the clients.
    let violations = tokio::task::spawn_blocking(move || laws::check(&history)).await?;
    findings.see(format!(
        "{} acknowledged, {lost} lost, {reads} linearizable reads, {unknown} without an answer, {} violations",
        acknowledged.len(),
        violations.len()
    ));
    findings.broken.extend(violations.iter().map(ToString::to_string));
    findings.must(!acknowledged.is_empty(), || "nothing was acknowledged: the experiment shows nothing".to_owned());
    Ok(())
}

/// Every job, live and ended, by linearizable lists.
async fn all_jobs(cluster: &Cluster) -> Result<BTreeMap<JobId, Job>> {
    let mut jobs = BTreeMap::new();
    let mut token = String::new();
    loop {
        let page = page(cluster, token).await?;
        for job in page.jobs {
            let job = job_from_control_plane(job).map_err(|error| anyhow::anyhow!("a job cannot be read: {error}"))?;
            jobs.insert(job.id, job);
        }
        token = page.next_page_token;
        if token.is_empty() {
            return Ok(jobs);
        }
    }
}

async fn page(cluster: &Cluster, page_token: String) -> Result<v1::ListJobsReply> {
    let phases =
        (v1::JobPhase::Pending as i32..=v1::JobPhase::Timeout as i32).chain([v1::JobPhase::Deadline as i32]).collect();
    let call = v1::ListJobsRequest {
        tenant: TENANT.to_owned(),
        phases,
        page_size: PAGE,
        page_token,
        ..v1::ListJobsRequest::default()
    };
    let until = Instant::now() + STANDSTILL;
    let endpoints = cluster.endpoints();
    for endpoint in endpoints.iter().cycle() {
        let mut jobs = JobsClient::new(channel(endpoint)?).max_decoding_message_size(64 << 20);
        if let Ok(Ok(page)) = timeout(PAGE_MAX, jobs.list(call.clone())).await {
            return Ok(page.into_inner());
        }
        if Instant::now() >= until {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    bail!("no control node lists jobs after the faults: the cluster makes no progress")
}

/// One job, by a linearizable read.
async fn one_job(cluster: &Cluster, job: JobId) -> Result<Option<Job>> {
    let call = v1::GetJobRequest { job_id: job.0, ..v1::GetJobRequest::default() };
    let until = Instant::now() + STANDSTILL;
    let endpoints = cluster.endpoints();
    for endpoint in endpoints.iter().cycle() {
        match timeout(PAGE_MAX, JobsClient::new(channel(endpoint)?).get(call)).await {
            Ok(Ok(reply)) => {
                let job = reply.into_inner().job.context("a reply without its job")?;
                return job_from_control_plane(job)
                    .map(Some)
                    .map_err(|error| anyhow::anyhow!("a job cannot be read: {error}"));
            }
            Ok(Err(status)) if status.code() == Code::NotFound => return Ok(None),
            Ok(Err(_)) | Err(_) if Instant::now() >= until => break,
            Ok(Err(_)) | Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
    bail!("no control node answers for job {job} after the faults: the cluster makes no progress")
}
