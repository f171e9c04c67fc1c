//! `muster cancel`.

use crate::args::jobs::Cancel;
use crate::commands::Context;
use crate::failure::Failure;
use crate::output::note;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;

/// Cancels each; goes on after one that is refused and fails at the end.
///
/// # Errors
/// The first refusal.
pub async fn run(context: &Context, args: &Cancel) -> Result<(), Failure> {
    let mut first = Ok(());
    let ids = &args.ids;
    if let Some(tasks) = &args.tasks {
        for job_id in ids.iter().copied() {
            array_tasks(context, job_id, tasks).await?;
        }
        return Ok(());
    }
    for job_id in ids.iter().copied() {
        let cancel = |channel| async move { JobsClient::new(channel).cancel(v1::CancelRequest { job_id }).await };
        match context.client.call("cancel", cancel).await {
            Ok(v1::CancelReply { .. }) => context.out.line(&format!("job {job_id} is being cancelled"))?,
            // What was asked for has happened: by an earlier command, or by an attempt of this one whose answer was lost.
            Err(Failure::JobEnded { state, .. }) if state == "cancelled" => {
                context.out.line(&format!("job {job_id} is already cancelled"))?;
            }
            Err(failure) if ids.len() == 1 => return Err(failure),
            Err(failure) => {
                note(&format!("error: {failure}"));
                first = first.and(Err(failure));
            }
        }
    }
    first
}

/// Some tasks of an array.
async fn array_tasks(context: &Context, job_id: u64, tasks: &str) -> Result<(), Failure> {
    let cancel = |channel| {
        let request = v1::CancelArrayTasksRequest { job_id, tasks: tasks.to_owned() };
        async move { JobsClient::new(channel).cancel_array_tasks(request).await }
    };
    context.client.call("cancel tasks of an array", cancel).await?;
    context.out.line(&format!("tasks {tasks} of array {job_id} are being cancelled"))
}
