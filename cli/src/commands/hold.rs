//! `muster hold`, `muster release` and `muster array-limit`.

use crate::args::jobs::{ArrayLimit, Hold};
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

/// Changes how many tasks of an array are live at once.
///
/// # Errors
/// When it is no array, or nobody answers.
pub async fn array_limit(context: &Context, args: &ArrayLimit) -> Result<(), Failure> {
    let request =
        v1::SetArrayLimitRequest { job_id: args.id, max_running: Some(args.limit).filter(|limit| *limit > 0) };
    let set = |channel| async move { JobsClient::new(channel).set_array_limit(request).await };
    context.client.call("change the limit of an array", set).await?;
    let said = if args.limit == 0 { "no limit".to_owned() } else { format!("limit {}", args.limit) };
    context.out.line(&format!("array {} has {said} now", args.id))
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
