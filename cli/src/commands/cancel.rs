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
    let array_tasks = args.tasks.as_deref().unwrap_or_default();
    for job_id in ids.iter().copied() {
        let request = v1::CancelRequest { job_id, array_tasks: array_tasks.to_owned() };
        let cancel = |channel| {
            let request = request.clone();
            async move { JobsClient::new(channel).cancel(request).await }
        };
        match context.client.call("cancel", cancel).await {
            Ok(v1::CancelReply { .. }) if args.tasks.is_some() => {
                context.out.line(&format!("tasks {array_tasks} of array {job_id} are being cancelled"))?;
            }
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
