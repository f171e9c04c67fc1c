//! Refusals as gRPC statuses: the one place where errors of the inside become codes of the outside.
//!
//! What must stay true: wrong fields carry their paths and fixes (`BadRequest`), every other refusal a stable word
//! (`ErrorInfo.reason`); whatever is worth trying again says when (`RetryInfo`), and nothing else does; a refusal that repeats what
//! was sent is cut to what fits the headers of a reply.

use crate::consensus::{AdminError, ProposeError};
use muster_control_core::Reject;
use muster_control_core::authz::Denied;
use muster_model::{FieldError, JobId, Outcome, Principal, Revision};
use muster_proto::status::{DOMAIN, MESSAGE_BYTES_MAX, clipped};
use muster_runtime::DiskError;
use std::collections::HashMap;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Elections take about this long; asking sooner only makes noise.
const RETRY_LEADER: Duration = Duration::from_millis(300);
/// A full queue drains in some tens of milliseconds.
const RETRY_BUSY: Duration = Duration::from_millis(100);
/// A search takes some tenths of a second, and others are before it.
const RETRY_SEARCH: Duration = Duration::from_secs(1);
/// What a tenant's limits refuse changes when its jobs end: seconds, not milliseconds.
const RETRY_FULL: Duration = Duration::from_secs(5);
/// Bytes of a name in the details of a refusal.
const NAME_BYTES_MAX: usize = 256;

/// A refusal of which every part is cut to its bound.
fn status(code: Code, text: &str, details: ErrorDetails) -> Status {
    Status::with_error_details(code, clipped(text, MESSAGE_BYTES_MAX), details)
}

fn details(reason: &str) -> ErrorDetails {
    ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new())
}

fn with_retry(reason: &str, delay: Duration) -> ErrorDetails {
    let mut details = details(reason);
    details.set_retry_info(Some(delay));
    details
}

/// Wrong fields.
pub(crate) fn fields(errors: &[FieldError]) -> Status {
    muster_proto::status::invalid(errors)
}

/// One wrong field.
pub(crate) fn field(field: &str, problem: impl Into<String>, fix: &str) -> Status {
    fields(&[FieldError::new(field, problem, fix)])
}

/// Something that is not there.
pub(crate) fn not_found(what: &str, id: impl ToString) -> Status {
    reject(&Reject::not_found(what, id))
}

/// A job that ended so long ago that it is not kept any more.
pub(crate) fn forgotten(job: JobId, kept: &str) -> Status {
    let info = HashMap::from([("what".to_owned(), "job".to_owned()), ("id".to_owned(), job.to_string())]);
    let details = ErrorDetails::with_error_info("FORGOTTEN", DOMAIN, info);
    status(Code::NotFound, &format!("job {job} has ended and its record was deleted: {kept}"), details)
}

/// A job that cannot be cancelled any more.
pub(crate) fn ended(job: JobId, outcome: &Outcome) -> Status {
    let why = match outcome {
        Outcome::Failed { reason } => format!("failed ({reason})"),
        other => other.word().to_owned(),
    };
    let state = HashMap::from([("state".to_owned(), outcome.word().to_owned())]);
    let details = ErrorDetails::with_error_info("JOB_ENDED", DOMAIN, state);
    status(Code::FailedPrecondition, &format!("job {job} has ended: {why}"), details)
}

/// A removal of voter `id` of `voters` after which the cluster goes on with `after` of them lost instead of `before`.
pub(crate) fn lower_tolerance(id: u64, voters: usize, before: usize, after: usize) -> Status {
    let text = format!(
        "without node {id} the cluster has {} voters and survives the loss of {after}; now it has {voters} voters and survives the \
         loss of {before}. Promote another node in the same change, or confirm the removal",
        voters - 1
    );
    status(Code::FailedPrecondition, &text, details("LOWER_TOLERANCE"))
}

/// An address from which too many logins or enrolments have failed.
pub(crate) fn failed_too_often(from: &str, wait_ms: u64) -> Status {
    let text = format!("too many logins or enrolments from {from} have failed; the next one is taken in {wait_ms} ms");
    Status::with_error_details(Code::ResourceExhausted, text, with_retry("TOO_OFTEN", Duration::from_millis(wait_ms)))
}

/// A caller who calls too often.
pub(crate) fn too_often(principal: &Principal, wait_ms: u64) -> Status {
    let text = format!("{principal} calls too often; the next call is taken in {wait_ms} ms");
    Status::with_error_details(Code::ResourceExhausted, text, with_retry("TOO_OFTEN", Duration::from_millis(wait_ms)))
}

/// A bound of this node is reached.
pub(crate) fn busy(what: &str, limit: usize) -> Status {
    let text = format!(
        "{what} has reached its limit of {limit} on this control node; try again in {} ms",
        RETRY_BUSY.as_millis()
    );
    status(Code::ResourceExhausted, &text, with_retry("BUSY", RETRY_BUSY))
}

/// Too many searches are under way on this node: others are done in seconds.
pub(crate) fn searching(limit: usize) -> Status {
    let text = format!(
        "this control node already computes {limit} explanations and plans; try again later, or call another control node"
    );
    Status::with_error_details(Code::ResourceExhausted, text, with_retry("BUSY", RETRY_SEARCH))
}

/// A watch that was ended because it read too slowly.
pub(crate) fn fell_behind(bytes: usize, all_max: usize) -> Status {
    let (kib, mib) = (bytes / 1_024, all_max / (1_024 * 1_024));
    let text = format!(
        "this watch was ended because it was too slow: {kib} KiB of its events were unread, and all watches of this control node together \
         may have {mib} MiB; watch again from the last revision you have seen, or watch fewer jobs"
    );
    Status::with_error_details(Code::ResourceExhausted, text, with_retry("FELL_BEHIND", RETRY_SEARCH))
}

/// Changes that this node does not have any more.
pub(crate) fn history_gone(after: Revision, oldest: Revision) -> Status {
    let text = format!(
        "the history of this control node does not reach back to revision {after}, but to revision {oldest}: it keeps the last changes, and none          from before its start. Begin at a later revision, or ask another control node"
    );
    status(Code::OutOfRange, &text, details("HISTORY_GONE"))
}

/// A revision that is yet to come.
pub(crate) fn not_reached(after: Revision, last: Revision) -> Status {
    let text = format!(
        "revision {after} has not been reached: the last is {last}. After a restore from a backup the revisions of a cluster begin anew"
    );
    status(Code::OutOfRange, &text, details("NOT_REACHED"))
}

/// Something that comes back by itself.
pub(crate) fn unavailable(text: impl Into<String>) -> Status {
    status(Code::Unavailable, &text.into(), with_retry("UNAVAILABLE", RETRY_LEADER))
}

/// What the state machine refused.
pub(crate) fn reject(reject: &Reject) -> Status {
    let text = reject.to_string();
    let (code, details) = match reject {
        Reject::Invalid(errors) => return fields(errors),
        Reject::Denied(denied) => return self::denied(denied),
        Reject::RequestReused { id } => {
            let problem = format!("{id:?} was already used for other jobs");
            return field("request_id", problem, "use a new id for new jobs");
        }
        Reject::RequestTooOld { age_ms, horizon_ms, .. } => {
            let (age_s, horizon_s) = (age_ms / 1_000, horizon_ms / 1_000);
            let problem = format!("is {age_s} s old, but request ids of this tenant are kept for {horizon_s} s only");
            return field(
                "issued_ms",
                problem,
                "list your jobs to see whether it was accepted, then submit under a new id",
            );
        }
        Reject::NotFound { what, id } => {
            let mut details = details("NOT_FOUND");
            details.set_resource_info(what.clone(), clipped(id, NAME_BYTES_MAX), "", "");
            (Code::NotFound, details)
        }
        Reject::InUse { what, id, why } => {
            let mut details = details("IN_USE");
            let (subject, why) = (clipped(&format!("{what}/{id}"), NAME_BYTES_MAX), clipped(why, MESSAGE_BYTES_MAX));
            details.add_precondition_failure_violation("IN_USE", subject, why);
            (Code::FailedPrecondition, details)
        }
        Reject::StaleEpoch { .. } => (Code::Aborted, details("STALE_EPOCH")),
        Reject::Held { .. } => (Code::FailedPrecondition, details("HELD")),
        Reject::NotWaiting { .. } => (Code::FailedPrecondition, details("NOT_WAITING")),
        Reject::DoesNotFit { over_max: true, .. } => (Code::FailedPrecondition, details("OVER_MAX")),
        Reject::DoesNotFit { .. } => (Code::FailedPrecondition, details("DOES_NOT_FIT")),
        Reject::WrongShape { .. } => (Code::FailedPrecondition, details("WRONG_SHAPE")),
        Reject::NowhereElse { .. } => (Code::FailedPrecondition, details("NOWHERE_ELSE")),
        Reject::Full { .. } => (Code::ResourceExhausted, with_retry("FULL", RETRY_FULL)),
        Reject::UsageGap { .. } => (Code::FailedPrecondition, details("USAGE_GAP")),
        Reject::NotPreemptible { .. } => (Code::FailedPrecondition, details("NOT_PREEMPTIBLE")),
        Reject::CannotGrow { .. } => (Code::FailedPrecondition, details("CANNOT_GROW")),
        Reject::NotSilent { .. } => (Code::FailedPrecondition, details("NOT_SILENT")),
        Reject::EndUnknown { .. } => (Code::FailedPrecondition, details("END_UNKNOWN")),
    };
    status(code, &text, details)
}

/// A call that its caller may not make. What they may not see is refused as if it did not exist.
pub(crate) fn denied(denied: &Denied) -> Status {
    match denied {
        Denied::NotFound { what, id } => not_found(what, id),
        Denied::Unauthenticated { .. } => {
            status(Code::Unauthenticated, &denied.to_string(), details("UNAUTHENTICATED"))
        }
        Denied::Forbidden { .. } => status(Code::PermissionDenied, &denied.to_string(), details("FORBIDDEN")),
    }
}

/// A proposal or read without an answer.
pub(crate) fn propose(error: &ProposeError) -> Status {
    let text = match error {
        ProposeError::Busy { .. } => format!("{error}; try again in {} ms", RETRY_BUSY.as_millis()),
        other => other.to_string(),
    };
    let (code, details) = match error {
        ProposeError::NoLeader => (Code::Unavailable, with_retry("NO_LEADER", RETRY_LEADER)),
        ProposeError::Busy { .. } => (Code::ResourceExhausted, with_retry("BUSY", RETRY_BUSY)),
        ProposeError::TooLarge { .. } => (Code::InvalidArgument, details("TOO_LARGE")),
        ProposeError::Level { .. } => (Code::FailedPrecondition, details("FEATURE_LEVEL")),
        ProposeError::Unknown { .. } => (Code::Unavailable, with_retry("OUTCOME_UNKNOWN", RETRY_LEADER)),
        ProposeError::Stopped { .. } => (Code::Unavailable, with_retry("STOPPED", RETRY_LEADER)),
    };
    status(code, &text, details)
}

/// The disk of this node failed a read.
pub(crate) fn disk(error: &DiskError) -> Status {
    tracing::error!(%error, "a read of the history failed");
    status(Code::Internal, &error.to_string(), details("DISK"))
}

/// A change of the membership that did not happen.
pub(crate) fn admin(error: &AdminError) -> Status {
    let text = error.to_string();
    let (code, details) = match error {
        AdminError::NotLeader { .. } => (Code::Unavailable, with_retry("NOT_LEADER", RETRY_LEADER)),
        AdminError::AlreadyMember { .. } => (Code::FailedPrecondition, details("ALREADY_MEMBER")),
        AdminError::IdUsed { .. } => (Code::FailedPrecondition, details("ID_USED")),
        AdminError::NotA { .. } => (Code::NotFound, details("NOT_A_MEMBER")),
        AdminError::LastVoter { .. } => (Code::FailedPrecondition, details("LAST_VOTER")),
        AdminError::Peer { .. } => (Code::FailedPrecondition, details("PEER")),
        AdminError::Failed { .. } => (Code::Unavailable, with_retry("NOT_CHANGED", RETRY_FULL)),
        AdminError::Stopped { .. } => (Code::Unavailable, with_retry("STOPPED", RETRY_LEADER)),
    };
    status(code, &text, details)
}
