//! Submissions as large as they may be: nearly 4 MB.

use crate::client::{job, now_ms};
use crate::cluster::{Cluster, STANDSTILL, channel};
use anyhow::{Result, bail, ensure};
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Jobs of one submission; with what each carries they stay below the 4 MiB of a message.
const JOBS: usize = 125;
/// Bytes of each job's command: near the bound.
const COMMAND_BYTES: usize = 31_000;
/// How long one may take before it is sent again.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Submits once, again under the same id until it is acknowledged, and cancels what came of it.
///
/// # Errors
/// When it is refused, or not acknowledged at all.
pub(crate) async fn submit_large(cluster: &Cluster, number: u32) -> Result<()> {
    let command = vec!["true".to_owned(), "x".repeat(COMMAND_BYTES)];
    let one = |name: String| v1::JobSpec { command: command.clone(), ..job(&name) };
    let jobs = (0..JOBS).map(|at| one(format!("large-{number}-{at}"))).collect();
    let call = v1::SubmitRequest { request_id: format!("large-{number}"), issued_ms: Some(now_ms()), jobs };
    let until = Instant::now() + STANDSTILL;
    loop {
        let leader = cluster.leader_within(STANDSTILL).await?;
        let mut jobs = JobsClient::new(channel(&cluster.endpoint(leader))?);
        match timeout(ANSWER_MAX, jobs.submit(call.clone())).await {
            Ok(Ok(reply)) => {
                let cancel = |job_id| {
                    let mut jobs = jobs.clone();
                    async move { timeout(ANSWER_MAX, jobs.cancel(v1::CancelRequest { job_id })).await }
                };
                // One that is not cancelled only takes room.
                let _ = futures::future::join_all(reply.into_inner().job_ids.into_iter().map(cancel)).await;
                return Ok(());
            }
            Ok(Err(status)) if status.code() == tonic::Code::InvalidArgument => {
                bail!("a submission of 4 MB is refused: {}", status.message())
            }
            Ok(Err(_)) | Err(_) => ensure!(
                Instant::now() < until,
                "a submission of 4 MB is not acknowledged within {} s",
                STANDSTILL.as_secs()
            ),
        }
    }
}
