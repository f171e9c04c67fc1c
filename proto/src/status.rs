//! Errors on the wire: gRPC codes with the standard details, made here by servers and read here by clients.
//!
//! What must stay true: a refused field is named in a `BadRequest` violation (`problem; fix`); whatever may be tried again
//! carries a `RetryInfo` with the delay.

use muster_model::FieldError;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

/// INVALID_ARGUMENT with every wrong field.
#[must_use]
pub fn invalid(errors: &[FieldError]) -> Status {
    let violations: Vec<FieldViolation> = errors
        .iter()
        .map(|error| FieldViolation::new(&error.field, format!("{}; {}", error.problem, error.fix)))
        .collect();
    let message = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    Status::with_error_details(Code::InvalidArgument, message, ErrorDetails::with_bad_request(violations))
}

/// INVALID_ARGUMENT with one wrong field; for `map_err` after a conversion.
#[must_use]
#[allow(clippy::needless_pass_by_value)] // by value so that it fits map_err
pub fn invalid_field(error: FieldError) -> Status {
    invalid(std::slice::from_ref(&error))
}

/// RESOURCE_EXHAUSTED: a bound is reached; worth another try after `delay_ms`.
#[must_use]
pub fn retry_later(message: impl Into<String>, delay_ms: u64) -> Status {
    with_retry(Code::ResourceExhausted, message, delay_ms)
}

/// UNAVAILABLE: nobody leads, or the leader cannot be reached; worth another try, also elsewhere, after `delay_ms`.
#[must_use]
pub fn unavailable(message: impl Into<String>, delay_ms: u64) -> Status {
    with_retry(Code::Unavailable, message, delay_ms)
}

fn with_retry(code: Code, message: impl Into<String>, delay_ms: u64) -> Status {
    let details = ErrorDetails::with_retry_info(Some(Duration::from_millis(delay_ms)));
    Status::with_error_details(code, message, details)
}

/// The refused fields that a status names.
#[must_use]
pub fn field_errors(status: &Status) -> Vec<FieldError> {
    let Some(bad) = status.get_details_bad_request() else { return Vec::new() };
    bad.field_violations
        .into_iter()
        .map(|violation| match violation.description.split_once("; ") {
            Some((problem, fix)) => FieldError::new(violation.field, problem, fix),
            None => FieldError::new(violation.field, violation.description, ""),
        })
        .collect()
}

/// How long the server asks to wait before the next try, if it says.
#[must_use]
pub fn retry_delay(status: &Status) -> Option<Duration> {
    status.get_details_retry_info().and_then(|info| info.retry_delay)
}

/// Whether the same call may succeed later or at another control node.
#[must_use]
pub fn may_retry(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded)
}
