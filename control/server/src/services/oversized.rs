//! A message that is too large is refused with what to do about it.
//!
//! Tonic refuses it before any handler sees the call, with its size and the limit alone. What must stay true: every other answer passes
//! as it is.

use crate::api::MESSAGE_BYTES_MAX;
use axum::body::Body;
use muster_model::FieldError;
use tonic::codegen::http;
use tonic::{Code, Status};

/// How tonic begins what it says of such a message.
const TOO_LARGE: &str = "Error, decoded message length too large: ";

/// The answer, with the remedy where the message was too large.
pub(super) fn with_remedy(answer: http::Response<Body>) -> http::Response<Body> {
    let Some(status) = Status::from_header_map(answer.headers()) else { return answer };
    if status.code() != Code::OutOfRange || !status.message().starts_with(TOO_LARGE) {
        return answer;
    }
    let problem = format!("is larger than {MESSAGE_BYTES_MAX} bytes");
    muster_proto::status::invalid(&[FieldError::new("message", problem, "send it in several calls")]).into_http()
}
