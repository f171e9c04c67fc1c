//! Both directions of an agent's stream, and why a session on it ends.
//!
//! What must stay true: nothing waits for the agent to read. What is sent is tried, and a full queue ends the session.

use muster_proto::v1;
use tokio::sync::mpsc;
use tonic::Status;
use v1::control_message::Message as ToAgent;

/// What an agent sends.
pub(super) type Inbound = tonic::Streaming<v1::AgentMessage>;
/// What it is sent.
pub(super) type Out = mpsc::Sender<Result<v1::ControlMessage, Status>>;

/// Why a session ends.
#[derive(Debug)]
pub(super) enum Over {
    /// The agent has closed the stream, or it broke.
    Gone,
    /// It does not read what it is sent.
    Slow,
    /// Nothing was heard of it for too long.
    Idle,
    /// Another session of the same node has begun.
    Replaced,
    /// It is told why, and joins again.
    Refused(String),
    /// It sent what no agent sends.
    Bad(Status),
}

/// Sends if there is room.
pub(super) fn send(out: &Out, message: ToAgent) -> Result<(), Over> {
    let message = v1::ControlMessage { message: Some(message) };
    out.try_send(Ok(message)).map_err(|error| match error {
        mpsc::error::TrySendError::Full(_) => Over::Slow,
        mpsc::error::TrySendError::Closed(_) => Over::Gone,
    })
}
