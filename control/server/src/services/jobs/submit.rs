//! Submission: checked here, decided by the state machine, acknowledged when a quorum has it.
//!
//! What must stay true: all or none; every wrong field of every job is named at once, as `jobs[3].request.mig.profile`; the hash of
//! a submission depends on its content alone, so that a retry through any node, before or after a restart, is recognised.

use super::dependencies;
use crate::api::refusal;
use crate::services::App;
use fnv::FnvHasher;
use muster_control_core::{Command, Done, Reject};
use muster_model::identity::{AccessMode, Author};
use muster_model::validate::{bounds, warnings};
use muster_model::{FieldError, JobSpec, ValidJobSpec};
use muster_proto::v1;
use muster_runtime::timeline;
use std::hash::Hasher as _;
use tonic::Status;

/// Warnings of one answer: a thousand jobs with the same one need not repeat it a thousand times.
const WARNINGS_MAX: usize = 50;

pub(super) async fn submit(app: &App, author: &Author, request: v1::SubmitRequest) -> Result<v1::SubmitReply, Status> {
    app.consensus.room_for_clients().map_err(|busy| refusal::propose(&busy))?;
    let v1::SubmitRequest { request_id, issued_ms, jobs } = request;
    tracing::trace!(target: timeline::TARGET, step = "submit_received", request = request_id);
    let closed = app.consensus.read(|state, _| state.meta.access == AccessMode::Closed);
    let jobs = if closed { named(author, jobs) } else { jobs };
    let specs = check(&request_id, jobs).map_err(|faults| refusal::fields(&faults))?;
    // A time that is filled in here would be a new one at every retry, and none would ever be too old to be known.
    let issued_ms = issued_ms.ok_or_else(|| {
        let fix = "send the time of the first call in ms since 1970, and the same time with every retry";
        refusal::field("issued_ms", "is missing", fix)
    })?;
    let payload_hash = hash(&specs)?;
    let count = specs.len();
    let warned: Vec<FieldError> = specs
        .iter()
        .enumerate()
        .flat_map(|(index, spec)| warnings(spec).into_iter().map(move |one| one.under(&format!("jobs[{index}]"))))
        .collect();
    let submit =
        |specs, ended| Command::Submit { request_id: request_id.clone(), issued_ms, payload_hash, specs, ended };
    let (decided, revision) = dependencies::proposed(app, author, specs, submit).await?;
    tracing::trace!(target: timeline::TARGET, step = "submit_answered", request = request_id, revision = revision.0);
    let done = decided.map_err(refused)?;
    let Done::Submitted { first, count: accepted } = done else {
        return Err(Status::internal(format!("a submission was answered {done:?}")));
    };
    let mut warnings: Vec<String> = warned.iter().map(ToString::to_string).take(WARNINGS_MAX).collect();
    if warned.len() > WARNINGS_MAX {
        warnings.push(muster_proto::status::and_more((warned.len() - WARNINGS_MAX) as u64));
    }
    metrics::counter!("muster_jobs_submitted_total").increment(count as u64);
    tracing::debug!(request_id, job = %first, count = accepted, %revision, "submitted");
    let job_ids = (first.0..first.0 + u64::from(accepted)).collect();
    Ok(v1::SubmitReply { job_ids, revision: revision.0, warnings })
}

/// In a closed cluster jobs are listed under the name of who submits them.
fn named(author: &Author, mut jobs: Vec<v1::JobSpec>) -> Vec<v1::JobSpec> {
    if let Some(user) = author.principal.job_user() {
        jobs.iter_mut().for_each(|job| user.clone_into(&mut job.user));
    }
    jobs
}

fn check(request_id: &str, jobs: Vec<v1::JobSpec>) -> Result<Vec<ValidJobSpec>, Vec<FieldError>> {
    let mut faults = Vec::new();
    if request_id.is_empty()
        || request_id.len() > bounds::REQUEST_ID_BYTES_MAX
        || request_id.chars().any(char::is_control)
    {
        let problem = format!("has {} bytes, or control characters", request_id.len());
        let fix = "use 1 to 128 printable bytes, and a new id for each submission";
        faults.push(FieldError::new("request_id", problem, fix));
    }
    if jobs.is_empty() || jobs.len() > bounds::JOBS_PER_SUBMIT_MAX {
        let problem = format!("has {} jobs", jobs.len());
        faults.push(FieldError::new("jobs", problem, "submit 1 to 1,000 jobs in one call"));
        return Err(faults);
    }
    let mut specs = Vec::with_capacity(jobs.len());
    for (index, wire) in jobs.into_iter().enumerate() {
        let prefix = format!("jobs[{index}]");
        match JobSpec::try_from(wire).map_err(|error| vec![error]).and_then(JobSpec::validate) {
            Ok(spec) => specs.push(spec),
            Err(errors) => faults.extend(errors.into_iter().map(|error| error.under(&prefix))),
        }
    }
    if faults.is_empty() { Ok(specs) } else { Err(faults) }
}

/// The state machine names fields of a single job without its place in the list; here they always have it.
fn refused(reject: Reject) -> Status {
    let Reject::Invalid(errors) = reject else { return refusal::reject(&reject) };
    let of_call = |field: &str| field.starts_with("jobs") || matches!(field, "request_id" | "issued_ms");
    let placed = |error: FieldError| if of_call(&error.field) { error } else { error.under("jobs[0]") };
    refusal::fields(&errors.into_iter().map(placed).collect::<Vec<_>>())
}

/// FNV-1a over the stored form, which is the same on every node: collections in it are ordered.
fn hash(specs: &[ValidJobSpec]) -> Result<u64, Status> {
    let bytes =
        postcard::to_stdvec(specs).map_err(|error| Status::internal(format!("hashing a submission: {error}")))?;
    let mut hash = FnvHasher::default();
    hash.write(&bytes);
    Ok(hash.finish())
}
