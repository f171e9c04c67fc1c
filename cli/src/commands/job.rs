//! `muster job`.

use crate::client::Client;
use crate::commands::{Context, now_ms};
use crate::failure::Failure;
use crate::view::detail::JobDetail;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;

/// Shows one.
///
/// # Errors
/// When there is no such job, or the cluster stays away.
pub async fn run(context: &Context, id: u64) -> Result<(), Failure> {
    let reply = get(&context.client, id, context.consistency).await?;
    let detail = JobDetail::new(&reply, now_ms());
    context.out.show(&detail, |_| detail.table())
}

/// The job as the API gives it.
///
/// # Errors
/// As [`run`].
pub async fn get(client: &Client, id: u64, consistency: v1::Consistency) -> Result<v1::GetJobReply, Failure> {
    let request = v1::GetJobRequest { job_id: id, consistency: consistency.into() };
    client.call("get job", |channel| async move { JobsClient::new(channel).get(request).await }).await
}
