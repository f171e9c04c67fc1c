//! `muster hold` and `muster release`.

use crate::args::jobs::Hold;
use crate::commands::Context;
use crate::failure::Failure;
use crate::output::note;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;

/// Holds each; goes on after one that is refused and fails at the end.
///
/// # Errors
/// The first refusal.
pub async fn hold(context: &Context, args: &Hold) -> Result<(), Failure> {
    let mut first = Ok(());
    for job_id in args.ids.iter().copied() {
        let request = v1::HoldRequest { job_id, by_admin: args.admin };
        let hold = |channel| async move { JobsClient::new(channel).hold(request).await };
        let held = context.client.call("hold", hold).await;
        first = first.and(told(context, args, held.map(|_| format!("job {job_id} is held")))?);
    }
    first
}

/// Releases each.
///
/// # Errors
/// The first refusal.
pub async fn release(context: &Context, args: &Hold) -> Result<(), Failure> {
    let mut first = Ok(());
    for job_id in args.ids.iter().copied() {
        let request = v1::ReleaseJobRequest { job_id, by_admin: args.admin };
        let release = |channel| async move { JobsClient::new(channel).release(request).await };
        let released = context.client.call("release", release).await;
        first = first.and(told(context, args, released.map(|_| format!("job {job_id} is released")))?);
    }
    first
}

/// Prints what has happened; of several jobs, a refusal is noted and kept for the end.
fn told(context: &Context, args: &Hold, done: Result<String, Failure>) -> Result<Result<(), Failure>, Failure> {
    match done {
        Ok(line) => context.out.line(&line).map(Ok),
        Err(failure) if args.ids.len() == 1 => Err(failure),
        Err(failure) => {
            note(&format!("error: {failure}"));
            Ok(Err(failure))
        }
    }
}
