//! Submissions that depend on jobs which are over: how those ended is on disk alone, so it is read here and travels in the command.
//!
//! What must stay true: the state machine says which ends it misses, so a job that ends between the look and the decision is looked for
//! again, and a repeated submission is answered as before although a job that it depends on has been forgotten meanwhile.

use super::allow_ended;
use crate::api::refusal;
use crate::consensus::ProposeError;
use crate::services::App;
use muster_control_core::{Command, Done, Reject};
use muster_model::identity::Author;
use muster_model::{EndedJob, JobId, Revision, Rpc, ValidJobSpec};
use muster_proto::v1;
use std::collections::BTreeSet;
use tonic::Status;

/// How often ends are looked for: a job on which a submission depends ends only once.
const LOOKS_MAX: usize = 8;

/// What was decided of a submission, with the ends that it needs.
pub(super) async fn proposed(
    app: &App,
    author: &Author,
    specs: Vec<ValidJobSpec>,
    submit: impl Fn(Vec<ValidJobSpec>, Vec<EndedJob>) -> Command,
) -> Result<(Result<Done, Reject>, Revision), Status> {
    let named: BTreeSet<JobId> = specs.iter().flat_map(|spec| &spec.start.dependencies).map(|on| on.job).collect();
    let mut ended = if named.is_empty() { Vec::new() } else { ends(app, author, &named).await? };
    for _ in 0..LOOKS_MAX {
        let (decided, revision) = propose(app, author, submit(specs.clone(), ended.clone())).await?;
        let Err(Reject::EndUnknown { jobs }) = &decided else { return Ok((decided, revision)) };
        let missing: BTreeSet<JobId> = jobs.iter().copied().collect();
        let found = ends(app, author, &missing).await?;
        let is_found = |job: &JobId| found.iter().any(|one| one.job == *job);
        if let Some(job) = missing.iter().find(|job| !is_found(job)) {
            return Err(dependency_unknown(&specs, *job));
        }
        ended.extend(found);
    }
    Err(refusal::unavailable("the jobs on which the submission depends end too fast; try again"))
}

async fn propose(app: &App, author: &Author, command: Command) -> Result<(Result<Done, Reject>, Revision), Status> {
    let proposed = app.propose(author, command).await?.map_err(|error| match error {
        ProposeError::TooLarge { limit, got, .. } => {
            let problem = format!("have {got} bytes, but a submission may have at most {limit}");
            refusal::field("jobs", problem, "submit them in several calls, each with its own request id")
        }
        other => refusal::propose(&other),
    })?;
    let decided = proposed.decided.into_iter().next();
    Ok((decided.ok_or_else(|| Status::internal("the log gave no answer"))?, proposed.revision))
}

/// How those of `jobs` ended that are over. A job that leaves memory is in the history at the same moment.
async fn ends(app: &App, author: &Author, jobs: &BTreeSet<JobId>) -> Result<Vec<EndedJob>, Status> {
    app.catch_up(v1::Consistency::Linearizable.into()).await?;
    let over: Vec<JobId> = app.consensus.read(|state, _| {
        jobs.iter().copied().filter(|job| *job < state.meta.next_job && !state.jobs.contains_key(job)).collect()
    });
    let mut ended = Vec::with_capacity(over.len());
    for job in over {
        let found = app.consensus.finished_job(job).map_err(|error| refusal::disk(&error))?;
        // What the caller may not see is as if it had never been.
        let found = found.filter(|found| allow_ended(app, author, Rpc::JobsGet, found).is_ok());
        ended.extend(found.as_ref().map(EndedJob::of));
    }
    Ok(ended)
}

/// A job on which a submission depends is not kept any more.
fn dependency_unknown(specs: &[ValidJobSpec], job: JobId) -> Status {
    let place = specs.iter().enumerate().find_map(|(index, spec)| {
        let on = spec.start.dependencies.iter().position(|on| on.job == job)?;
        Some(format!("jobs[{index}].start.dependencies[{on}].job_id"))
    });
    let problem = format!("names a job whose end is not known: {}", refusal::not_found("job", job).message());
    refusal::field(&place.unwrap_or_default(), problem, "leave that dependency out, or name another job")
}
