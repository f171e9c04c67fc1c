//! Appends to one member, one after another on one stream: no headers, no new task and no trailers for each of them.
//!
//! What must stay true: each message is answered by one, in order, and there is one under way at a time; a stream on which an answer is missing
//! is never used again; a member whose version does not know the stream is sent single calls.

use super::{CallError, Peers, Raftward, client};
use crate::consensus::peer::Lane;
use crate::consensus::types::Member;
use muster_proto::v1::Payload;
use openraft::raft::AppendEntriesResponse;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// The stream to one member, as far as there is one.
#[derive(Debug, Default)]
pub(super) struct Appends(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// There is none, or it is in use.
    #[default]
    None,
    Idle(Box<Open>),
    /// The member does not know streams.
    Single,
}

#[derive(Debug)]
struct Open {
    messages: mpsc::Sender<Payload>,
    answers: Streaming<Payload>,
}

impl Appends {
    /// Sends a message made by [`Peers::message`] and waits for its answer, not longer than `within`.
    pub(super) async fn call(
        &self,
        peers: &Peers,
        to: u64,
        member: &Member,
        data: Vec<u8>,
        within: Duration,
    ) -> Result<AppendEntriesResponse<u64>, CallError> {
        let state = std::mem::take(&mut *self.0.lock());
        if !matches!(state, State::Single) {
            // Whatever ends this early drops the stream with its missing answer.
            let exchanged = tokio::time::timeout(within, exchange(state, peers, member, data.clone())).await;
            let lost = |why: String| CallError::Lost { to, address: member.address.clone(), why };
            match exchanged {
                Ok(Ok((open, answer))) => {
                    *self.0.lock() = State::Idle(open);
                    return peers.answer(to, &answer).map_err(|error| match error {
                        Err(why) => lost(why),
                        Ok(refusal) => CallError::Refused(refusal),
                    });
                }
                Ok(Err(status)) if status.code() == Code::Unimplemented => {}
                Ok(Err(status)) => return Err(lost(status.to_string())),
                Err(_late) => return Err(lost(format!("none within {} ms", within.as_millis()))),
            }
        }
        *self.0.lock() = State::Single;
        peers.call_encoded(to, member, Raftward::Append, data, within).await
    }
}

/// Sends one message and reads its answer, on the open stream or on a new one.
async fn exchange(state: State, peers: &Peers, member: &Member, data: Vec<u8>) -> Result<(Box<Open>, Vec<u8>), Status> {
    let message = Payload { data };
    let mut open = match state {
        State::Idle(open) => {
            open.messages.send(message).await.map_err(|_| ended())?;
            open
        }
        State::None | State::Single => {
            let (messages, sent) = mpsc::channel(1);
            // On its way before the stream is answered, so that the first message costs no round trip more than the others.
            messages.send(message).await.map_err(|_| ended())?;
            let channel =
                peers.channel(&member.address, Lane::Append).map_err(|error| Status::unavailable(error.to_string()))?;
            let answers = client(channel).appends(ReceiverStream::new(sent)).await?.into_inner();
            Box::new(Open { messages, answers })
        }
    };
    let answer = open.answers.message().await?.ok_or_else(ended)?;
    Ok((open, answer.data))
}

fn ended() -> Status {
    Status::unavailable("the stream has ended")
}
