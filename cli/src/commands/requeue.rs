//! `muster requeue` and `muster update`.

use crate::args::jobs::Update;
use crate::commands::Context;
use crate::failure::Failure;
use crate::output::note;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;

/// Requeues each; goes on after one that is refused and fails at the end.
///
/// # Errors
/// The first refusal.
pub async fn requeue(context: &Context, ids: &[u64]) -> Result<(), Failure> {
    let mut first = Ok(());
    for job_id in ids.iter().copied() {
        let requeue = |channel| async move { JobsClient::new(channel).requeue(v1::RequeueRequest { job_id }).await };
        match context.client.call("requeue", requeue).await {
            Ok(v1::RequeueReply { .. }) => context.out.line(&format!("job {job_id} is being requeued"))?,
            Err(failure) if ids.len() == 1 => return Err(failure),
            Err(failure) => {
                note(&format!("error: job {job_id}: {failure}"));
                first = first.and(Err(failure));
            }
        }
    }
    first
}

/// Changes one job.
///
/// # Errors
/// What was refused.
pub async fn update(context: &Context, args: &Update) -> Result<(), Failure> {
    let request = v1::UpdateJobRequest {
        job_id: args.id,
        time_limit_s: args.time.map(|time| time.0),
        no_time_limit: args.no_time_limit,
        priority: args.priority,
        tenant: args.tenant.clone(),
        name: args.name.clone(),
        comment: args.comment.clone(),
    };
    let update = |channel| {
        let request = request.clone();
        async move { JobsClient::new(channel).update(request).await }
    };
    context.client.call("update", update).await?;
    context.out.line(&format!("job {} was changed", args.id))
}
