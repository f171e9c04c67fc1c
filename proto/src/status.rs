//! Errors on the wire: gRPC codes with the standard details, made here by servers and read here by clients.
//!
//! What must stay true: a refused field is named in a `BadRequest` violation (`problem; fix`); whatever may be tried again
//! carries a `RetryInfo` with the delay; a refusal fits the headers that every client takes, and says how much it leaves out.

use muster_model::FieldError;
use std::collections::HashMap;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

/// Bytes of a refusal's text. A status travels as headers, of which clients take 16 KiB in all. The text is sent twice: escaped,
/// with up to three bytes for each, and in the details as base64 with four bytes for three.
pub const MESSAGE_BYTES_MAX: usize = 1_024;
/// Bytes of all named fields together, before base64.
const VIOLATIONS_BYTES_MAX: usize = 6 * 1_024;
/// Bytes of one part of one named field: a path, what is wrong, or what to do.
const PART_BYTES_MAX: usize = 512;
/// The word and the figure for what a refusal leaves out.
const INVALID: (&str, &str) = ("INVALID", "left_out");
/// The owner of the reason words.
pub const DOMAIN: &str = "muster";

/// INVALID_ARGUMENT with the wrong fields: as many as fit, and the number of the others.
#[must_use]
pub fn invalid(errors: &[FieldError]) -> Status {
    let mut violations = Vec::new();
    let (mut lines, mut bytes) = (String::new(), 0);
    for error in errors {
        let field = clipped(&error.field, PART_BYTES_MAX);
        let (problem, fix) = (clipped(&error.problem, PART_BYTES_MAX), clipped(&error.fix, PART_BYTES_MAX));
        bytes += field.len() + problem.len() + fix.len();
        if bytes > VIOLATIONS_BYTES_MAX && !violations.is_empty() {
            break;
        }
        if !lines.is_empty() {
            lines.push('\n');
        }
        lines.push_str(&format!("{field}: {problem}; {fix}"));
        violations.push(FieldViolation::new(field, format!("{problem}; {fix}")));
    }
    let left_out = errors.len() - violations.len();
    let mut details = ErrorDetails::with_bad_request(violations);
    if left_out > 0 {
        let figure = HashMap::from([(INVALID.1.to_owned(), left_out.to_string())]);
        details.set_error_info(INVALID.0, DOMAIN, figure);
        lines = format!("{}\n{}", clipped(&lines, MESSAGE_BYTES_MAX - 64), and_more(left_out as u64));
    }
    Status::with_error_details(Code::InvalidArgument, clipped(&lines, MESSAGE_BYTES_MAX), details)
}

/// How a refusal says that it names only some of the wrong fields.
#[must_use]
pub fn and_more(left_out: u64) -> String {
    format!("and {left_out} more")
}

/// The beginning of a text that is too long for its place, marked as such.
#[must_use]
pub fn clipped(text: &str, bytes_max: usize) -> String {
    const MARK: &str = "...";
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes_max.saturating_sub(MARK.len()));
    format!("{}{MARK}", &text[..end])
}

/// INVALID_ARGUMENT with one wrong field; for `map_err` after a conversion.
#[must_use]
#[allow(clippy::needless_pass_by_value)] // by value so that it fits map_err
pub fn invalid_field(error: FieldError) -> Status {
    invalid(std::slice::from_ref(&error))
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

/// How many wrong fields a status leaves out.
#[must_use]
pub fn left_out(status: &Status) -> u64 {
    let info = status.get_details_error_info().filter(|info| info.reason == INVALID.0);
    info.and_then(|info| info.metadata.get(INVALID.1)?.parse().ok()).unwrap_or(0)
}

/// The reason word of a refusal, such as `BUSY`.
#[must_use]
pub fn reason(status: &Status) -> Option<String> {
    status.get_details_error_info().map(|info| info.reason)
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
