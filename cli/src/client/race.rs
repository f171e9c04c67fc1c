//! Which endpoint to ask: the first that shows that it is alive.
//!
//! A control node that was stopped, or hangs, still has its connections accepted by the kernel, so a connection proves nothing: each
//! endpoint is asked for its own state, which it answers by itself and at once. What must stay true: no call is sent to an endpoint
//! that has not answered while another one has; a healthy first endpoint costs one short question.

use super::Channel;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use muster_proto::v1;
use muster_proto::v1::admin_client::AdminClient;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tonic::Code;

/// What each endpoint is given before the next one is asked as well: many times what a healthy one takes, and hardly noticed by a
/// person.
const HEAD_START: Duration = Duration::from_millis(250);
/// An endpoint that has not answered by then is taken for dead.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// What an endpoint said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// It is alive and knows who leads.
    Led,
    /// It is alive and knows no leader.
    Unled,
    /// It did not answer.
    Silent,
}

type Question<'a> = Pin<Box<dyn Future<Output = (usize, Health)> + Send + 'a>>;

/// The endpoint to ask, of those in the order given; the first of them when none is alive.
pub(super) async fn first_alive(channels: &[(usize, Channel)]) -> usize {
    let first = channels.first().map_or(0, |(index, _)| *index);
    let mut waiting = channels.iter();
    let mut asked: FuturesUnordered<Question<'_>> = FuturesUnordered::new();
    let mut unled = None;
    loop {
        let next = waiting.next();
        if let Some((index, channel)) = next {
            asked.push(Box::pin(async move { (*index, health(channel.clone()).await) }));
        } else if asked.is_empty() {
            return unled.unwrap_or(first);
        }
        let head_start = async {
            if waiting.len() == 0 { std::future::pending().await } else { tokio::time::sleep(HEAD_START).await }
        };
        tokio::select! {
            answer = asked.next() => match answer {
                Some((index, Health::Led)) => return index,
                Some((index, Health::Unled)) => unled = unled.or(Some(index)),
                Some((_, Health::Silent)) | None => {}
            },
            () = head_start => {}
        }
    }
}

async fn health(channel: Channel) -> Health {
    let mut admin = AdminClient::new(channel);
    match tokio::time::timeout(ANSWER_MAX, admin.raft_status(v1::RaftStatusRequest {})).await {
        Ok(Ok(status)) if status.get_ref().leader.is_some() => Health::Led,
        Ok(Ok(_)) => Health::Unled,
        // It is there, and judges its callers by a state that it has.
        Ok(Err(status)) if matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated) => Health::Led,
        Ok(Err(_)) | Err(_) => Health::Silent,
    }
}
