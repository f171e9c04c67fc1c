//! Entries on their way to one member: one message after another on one stream, several under way at once.
//!
//! The next message does not wait for the answer to the one before it, so that a commit takes one round trip however far the member is and
//! however many entries follow each other. What must stay true:
//! - the messages under way are of one vote, and each begins in the log where the one before it ends;
//! - answers come in the order of the messages; after any answer but success, and after any failure, nothing that is under way is waited
//!   for and the stream is never used again;
//! - what is under way is bounded in messages and bytes;
//! - giving up the wait for an answer loses nothing;
//! - a member whose version does not know the stream is sent single calls, one at a time.

use super::{CallError, Peers, Raftward, client};
use crate::consensus::peer::Lane;
use crate::consensus::types::{LogId, Member, Types, Vote};
use futures::FutureExt;
use futures::future::BoxFuture;
use muster_proto::v1::Payload;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// How long an append may take beside what its size and the distance need: a slow sync at the other node, packets that are lost and sent
/// again.
const WITHIN: Duration = Duration::from_secs(3);
/// A connection that was idle sends ten packets first and twice as many after each round trip: 1 MB takes about six of them.
const ROUND_TRIPS: u32 = 8;
/// The slowest link between voters, in bytes a second: 10 Mbit/s. Links should have 100 Mbit/s or more.
const LINK_BYTES_PER_S: u64 = 10_000_000 / 8;
/// Messages under way: as many as the proposer has entries under way at the longest distance.
const MESSAGES_MAX: usize = 64;
/// And their bytes, beside the one that is always sent: some of the largest appends.
const BYTES_MAX: usize = 8 << 20;

/// Why nothing more is read from a stream.
const ENDED: &str = "the stream has ended";

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    vote: Vote,
    /// After which entry it begins.
    prev: Option<LogId>,
    /// With which entry it ends.
    pub(super) last: LogId,
    /// The commit index that goes with it.
    pub(super) commit: Option<LogId>,
    bytes: usize,
    until: Instant,
}

/// See the module.
pub(super) struct Appends {
    peers: Arc<Peers>,
    target: u64,
    member: Member,
    /// In a lock only because openraft wants to share links between threads, which futures do not allow.
    way: Mutex<Way>,
    under_way: VecDeque<UnderWay>,
}

#[derive(Default)]
enum Way {
    #[default]
    None,
    Stream(Open),
    /// The member does not know the stream: the call that is under way.
    Single(Option<BoxFuture<'static, Result<AppendEntriesResponse<u64>, CallError>>>),
}

struct Open {
    messages: mpsc::Sender<Payload>,
    answers: Answers,
}

enum Answers {
    Asked(BoxFuture<'static, Result<Streaming<Payload>, Status>>),
    Coming(Box<Streaming<Payload>>),
}

/// Why no answer came.
enum Missing {
    /// The member does not know the stream.
    Unknown,
    Failed(CallError),
}

impl Appends {
    pub(super) fn new(peers: Arc<Peers>, target: u64, member: Member) -> Self {
        Appends { peers, target, member, way: Mutex::default(), under_way: VecDeque::new() }
    }

    /// Forgets what is under way, unless it begins after `prev` under `vote`: when the member has got a snapshot meanwhile, a refusal of what was
    /// sent before it would make openraft believe that the member has lost what it had.
    pub(super) fn keep_for(&mut self, vote: Vote, prev: Option<LogId>) {
        let keeps = self.under_way.front().is_some_and(|first| first.vote == vote && first.prev == prev);
        if !keeps && !self.under_way.is_empty() {
            self.end();
        }
    }

    /// The last entry that is under way.
    pub(super) fn last(&self) -> Option<LogId> {
        self.under_way.back().map(|last| last.last)
    }

    /// Whether another message may be sent while one is under way.
    pub(super) fn has_room(&mut self) -> bool {
        let room = self.under_way.len() < MESSAGES_MAX && self.bytes() < BYTES_MAX;
        room && !matches!(self.way.get_mut(), Way::Single(_))
    }

    /// Bytes under way.
    fn bytes(&self) -> usize {
        self.under_way.iter().map(|sent| sent.bytes).sum()
    }

    /// Sends entries, which must follow those under way.
    pub(super) fn send(&mut self, rpc: &AppendEntriesRequest<Types>) {
        let Some(last) = rpc.entries.last().map(|entry| entry.log_id) else { return };
        let data = self.peers.message(self.target, &self.member, rpc);
        let bytes = data.len();
        let within = WITHIN
            + self.peers.round_trip * ROUND_TRIPS
            + Duration::from_millis((self.bytes() + bytes) as u64 * 1_000 / LINK_BYTES_PER_S);
        let message = Payload { data };
        let way = self.way.get_mut();
        if let Way::Single(call) = way {
            let (peers, to, member) = (self.peers.clone(), self.target, self.member.clone());
            let calling = async move { peers.call_encoded(to, &member, Raftward::Append, message.data, within).await };
            *call = Some(calling.boxed());
        } else if let Err(unsent) = try_send(way, message) {
            // The stream has ended, or there was none. If anything is under way on it, that fails when its answer is read.
            if self.under_way.is_empty() {
                *way = Way::Stream(open(self.peers.clone(), self.target, self.member.clone(), unsent));
            }
        }
        let (vote, prev, commit) = (rpc.vote, rpc.prev_log_id, rpc.leader_commit);
        self.under_way.push_back(UnderWay { vote, prev, last, commit, bytes, until: Instant::now() + within });
    }

    /// Waits for the answer to the first message under way. `None`: what was under way must be sent again, as single calls.
    pub(super) async fn answer(&mut self) -> Result<Option<(UnderWay, AppendEntriesResponse<u64>)>, CallError> {
        let Some(first) = self.under_way.front().copied() else {
            return Err(CallError::lost(self.target, &self.member, "nothing is under way"));
        };
        let answered = match timeout_at(first.until, self.next()).await {
            Ok(answered) => answered,
            Err(_late) => Err(Missing::Failed(CallError::lost(self.target, &self.member, "it came too late"))),
        };
        match answered {
            Ok(AppendEntriesResponse::Success) => {
                self.under_way.pop_front();
                Ok(Some((first, AppendEntriesResponse::Success)))
            }
            Ok(refused) => {
                self.end();
                Ok(Some((first, refused)))
            }
            Err(Missing::Unknown) => {
                self.end();
                *self.way.get_mut() = Way::Single(None);
                Ok(None)
            }
            Err(Missing::Failed(error)) => {
                self.end();
                Err(error)
            }
        }
    }

    async fn next(&mut self) -> Result<AppendEntriesResponse<u64>, Missing> {
        let lost = |why: &str| Missing::Failed(CallError::lost(self.target, &self.member, why));
        match self.way.get_mut() {
            Way::None => Err(lost(ENDED)),
            Way::Single(call) => match call {
                Some(calling) => {
                    let answered = calling.await;
                    *call = None;
                    answered.map_err(Missing::Failed)
                }
                None => Err(lost("nothing was called")),
            },
            Way::Stream(open) => {
                let data = open.next().await.map_err(|status| match status.code() {
                    Code::Unimplemented => Missing::Unknown,
                    _ => lost(&status.to_string()),
                })?;
                self.peers.answer(self.target, &self.member, &data).map_err(Missing::Failed)
            }
        }
    }

    /// Ends the stream with all that is under way on it.
    fn end(&mut self) {
        self.under_way.clear();
        let way = self.way.get_mut();
        *way = if matches!(way, Way::Single(_)) { Way::Single(None) } else { Way::None };
    }
}

fn try_send(way: &Way, message: Payload) -> Result<(), Payload> {
    match way {
        Way::Stream(open) => open.messages.try_send(message).map_err(|unsent| unsent.into_inner()),
        Way::None | Way::Single(_) => Err(message),
    }
}

fn open(peers: Arc<Peers>, to: u64, member: Member, first: Payload) -> Open {
    let (messages, sent) = mpsc::channel(MESSAGES_MAX);
    // On its way before the stream is answered, so that the first message costs no round trip more than the others. There is room.
    let _ = messages.try_send(first);
    let asking = async move {
        let channel = peers.channel(to, &member.address, Lane::Append);
        let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(client(channel).appends(ReceiverStream::new(sent)).await?.into_inner())
    };
    Open { messages, answers: Answers::Asked(asking.boxed()) }
}

impl Open {
    async fn next(&mut self) -> Result<Vec<u8>, Status> {
        if let Answers::Asked(asking) = &mut self.answers {
            let coming = asking.await?;
            self.answers = Answers::Coming(Box::new(coming));
        }
        let ended = || Status::unavailable(ENDED);
        match &mut self.answers {
            Answers::Coming(answers) => Ok(answers.message().await?.ok_or_else(ended)?.data),
            Answers::Asked(_) => Err(ended()),
        }
    }
}
