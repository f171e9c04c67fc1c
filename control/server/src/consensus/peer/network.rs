//! openraft's network: appends, votes and snapshots to other members.
//!
//! openraft gives up an append after a fixed time and sends it again from the start, so an append that takes longer than that to arrive
//! would never arrive. What must stay true:
//! - an append goes on until it is answered or its own deadline, which follows its size, has passed; an append of the same entries that
//!   openraft asks for meanwhile joins it;
//! - nothing is reported to openraft that the other node did not confirm: while an append is on its way, an empty one asks whether the
//!   other node's log agrees up to where that one begins, and only this is reported; an empty append that would say nothing new is not
//!   sent, and what was confirmed before is reported again;
//! - the commit index goes with the next entries; when none come for a moment, in an append of its own (`announce.rs`).

use super::announce::Told;
use super::appends::Appends;
use super::{CallError, Lane, Peers, Raftward, client};
use crate::consensus::config::PlantedBug;
use crate::consensus::error::PeerRefusal;
use crate::consensus::snapshot::{Frames, Frozen};
use crate::consensus::spawn::stretched;
use crate::consensus::stored;
use crate::consensus::types::{LogId, Member, Types, Vote};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, Stream};
use muster_proto::v1::Payload;
use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{OptionalSend, Snapshot};
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// After a peer could not be reached, before it is tried again.
const BACKOFF: Duration = Duration::from_millis(200);
/// How long an append may take beside what its size and the distance need: a slow sync at the other node, packets that are lost and sent
/// again.
const APPEND_WITHIN: Duration = Duration::from_secs(3);
/// A connection that was idle sends ten packets first and twice as many after each round trip: 1 MB takes about six of them.
const APPEND_ROUND_TRIPS: u32 = 8;
/// The slowest link between voters, in bytes a second: 10 Mbit/s. Links should have 100 Mbit/s or more.
const LINK_BYTES_PER_S: u64 = 10_000_000 / 8;

/// Makes links to members.
#[derive(Clone)]
pub(crate) struct Links(pub(crate) Arc<Peers>);

/// A link to one member. The channels behind it are shared by all links.
pub(crate) struct Link {
    peers: Arc<Peers>,
    target: u64,
    member: Member,
    /// The append that is on its way.
    sending: Option<Sending>,
    told: Arc<Told>,
    appends: Arc<Appends>,
}

/// An append on its way.
struct Sending {
    vote: Vote,
    /// After which entry it begins, and with which it ends.
    prev: Option<LogId>,
    last: LogId,
    /// The commit index that goes with it.
    commit: Option<LogId>,
    /// In a lock only because openraft wants to share links between threads, which futures do not allow.
    answer: Mutex<BoxFuture<'static, Result<AppendEntriesResponse<u64>, CallError>>>,
}

impl Sending {
    /// Whether what openraft asks for begins like this one: then its answer counts for both.
    fn begins(&self, rpc: &AppendEntriesRequest<Types>) -> bool {
        let same_start = self.vote == rpc.vote && self.prev == rpc.prev_log_id;
        same_start && rpc.entries.iter().any(|entry| entry.log_id == self.last)
    }
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &Member) -> Link {
        let (told, appends) = (Arc::default(), Arc::default());
        Link { peers: self.0.clone(), target, member: node.clone(), sending: None, told, appends }
    }
}

type RpcError = RPCError<u64, Member, RaftError<u64>>;

/// Whatever the reason, openraft backs off from a peer it cannot use.
fn unreachable(error: &CallError) -> RpcError {
    RPCError::Unreachable(Unreachable::new(error))
}

impl RaftNetwork<Types> for Link {
    async fn append_entries(
        &mut self,
        mut rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcError> {
        let limit = stretched(option.hard_ttl());
        let Some(asked_last) = rpc.entries.last().map(|entry| entry.log_id) else {
            if self.told.confirms(&rpc) {
                self.announce(rpc.leader_commit);
                return Ok(AppendEntriesResponse::Success);
            }
            rpc.leader_commit = self.peers.log.may_show(rpc.leader_commit);
            return self.ask(rpc, limit).await;
        };
        rpc.leader_commit = self.peers.log.may_show(rpc.leader_commit);
        if self.peers.planted == Some(PlantedBug::AppendsGivenUp) {
            let call = self.peers.call(self.target, &self.member, Raftward::Append, &rpc, limit);
            return call.await.map_err(|error| unreachable(&error));
        }
        let (vote, prev_log_id, leader_commit) = (rpc.vote, rpc.prev_log_id, rpc.leader_commit);
        let mut sending = match self.sending.take().filter(|sending| sending.begins(&rpc)) {
            Some(under_way) => under_way,
            None => self.send(rpc, asked_last),
        };
        // Half of the time for the answer itself; then there is time left to ask whether the other node is still there.
        match tokio::time::timeout(limit / 2, sending.answer.get_mut()).await {
            Ok(Ok(AppendEntriesResponse::Success)) => {
                self.told.note(vote, sending.last, sending.commit);
                if sending.last < asked_last {
                    return Ok(AppendEntriesResponse::PartialSuccess(Some(sending.last)));
                }
                Ok(AppendEntriesResponse::Success)
            }
            Ok(answered) => answered.map_err(|error| unreachable(&error)),
            Err(_on_its_way) => {
                metrics::counter!("muster_raft_appends_awaited_total").increment(1);
                self.sending = Some(sending);
                let probe = AppendEntriesRequest { vote, prev_log_id, entries: Vec::new(), leader_commit };
                match self.ask(probe, limit / 3).await {
                    Ok(AppendEntriesResponse::Success) if prev_log_id.is_some() => {
                        Ok(AppendEntriesResponse::PartialSuccess(prev_log_id))
                    }
                    Ok(AppendEntriesResponse::Success) => {
                        Err(unreachable(&self.lost("the append is still on its way".to_owned())))
                    }
                    other => other,
                }
            }
        }
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, option: RPCOption) -> Result<VoteResponse<u64>, RpcError> {
        let call = self.peers.call(self.target, &self.member, Raftward::Vote, &rpc, stretched(option.hard_ttl()));
        call.await.map_err(|error| unreachable(&error))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        tracing::info!(node = self.target, snapshot = %snapshot.meta, "sending a snapshot");
        let sent = tokio::time::timeout(option.hard_ttl(), self.send_snapshot(vote, snapshot));
        let sent = tokio::select! {
            sent = sent => sent,
            closed = cancel => return Err(StreamingError::Closed(closed)),
        };
        let sent = sent.unwrap_or_else(|_late| Err(self.lost("the snapshot took too long".to_owned())));
        sent.map_err(|error| StreamingError::Unreachable(Unreachable::new(&error)))
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}

impl Link {
    /// Sends entries, in a future that does not end with openraft's patience.
    fn send(&self, rpc: AppendEntriesRequest<Types>, last: LogId) -> Sending {
        let (vote, prev, commit) = (rpc.vote, rpc.prev_log_id, rpc.leader_commit);
        let (peers, target, member) = (self.peers.clone(), self.target, self.member.clone());
        let appends = self.appends.clone();
        let answer = async move {
            let payload = peers.message(target, &member, &rpc);
            drop(rpc);
            let distance = peers.round_trip * APPEND_ROUND_TRIPS;
            let within =
                APPEND_WITHIN + distance + Duration::from_millis(payload.len() as u64 * 1_000 / LINK_BYTES_PER_S);
            appends.call(&peers, target, &member, payload, within).await
        };
        Sending { vote, prev, last, commit, answer: Mutex::new(answer.boxed()) }
    }

    /// Sees to it that the other node learns this commit index.
    fn announce(&self, commit: Option<LogId>) {
        if self.told.wants(commit) {
            let announcing = self.told.clone().announce(self.peers.clone(), self.target, self.member.clone());
            self.peers.host.spawn(announcing);
        }
    }

    /// Sends an append without entries: it asks whether the other node follows and its log agrees up to there.
    async fn ask(
        &self,
        rpc: AppendEntriesRequest<Types>,
        within: Duration,
    ) -> Result<AppendEntriesResponse<u64>, RpcError> {
        let call = self.peers.call(self.target, &self.member, Raftward::Probe, &rpc, within);
        call.await.map_err(|error| unreachable(&error))
    }

    fn lost(&self, why: String) -> CallError {
        CallError::Lost { to: self.target, address: self.member.address.clone(), why }
    }

    async fn send_snapshot(&self, vote: Vote, snapshot: Snapshot<Types>) -> Result<SnapshotResponse<u64>, CallError> {
        let view = match *snapshot.snapshot {
            Frozen::View(view) => view,
            Frozen::Received(incoming) => incoming.kv.checkpoint().map_err(|error| self.lost(error.to_string()))?,
        };
        let form = self.peers.log.form().get();
        let head = stored::encode(form, &(self.peers.envelope(self.target, &self.member), vote, snapshot.meta));
        let channel =
            self.peers.channel(&self.member.address, Lane::Bulk).map_err(|error| self.lost(error.to_string()))?;
        let answer = client(channel)
            .install_snapshot(payloads(form, head, Frames::new(view), self.peers.clone()))
            .await
            .map_err(|status| self.lost(status.to_string()))?;
        self.peers.answer(self.target, &answer.get_ref().data).map_err(|error: Result<PeerRefusal, String>| match error
        {
            Ok(refusal) => CallError::Refused(refusal),
            Err(why) => self.lost(why),
        })
    }
}

/// The head, then the frames. A disk that cannot be read ends the stream early, which the receiver notices, and this node.
fn payloads(
    form: u8,
    head: Vec<u8>,
    frames: Frames,
    peers: Arc<Peers>,
) -> impl Stream<Item = Payload> + Send + 'static {
    stream::unfold((Some(head), frames, peers), move |(head, mut frames, peers)| async move {
        let data = match head {
            Some(head) => head,
            None => match frames.next() {
                Ok(frame) => stored::encode(form, &frame?),
                Err(error) => {
                    peers.stop.failed("reading a snapshot", &error);
                    return None;
                }
            },
        };
        Some((Payload { data }, (None, frames, peers)))
    })
}
