//! openraft's network: appends, votes and snapshots to other members.
//!
//! openraft 0.9 waits for the answer to one append before it asks for the next, and gives up an append after a fixed time and sends it again
//! from the start. Here entries are sent as soon as the log has them, while those before them are on their way, and go on until they are
//! answered or their own deadline, which follows their size, has passed. What must stay true:
//! - only what this node has in its log as the leader of a vote is sent under that vote;
//! - nothing is reported to openraft that the other node did not confirm: while an append is on its way, an empty one asks whether the
//!   other node's log agrees up to where that one begins, and only this is reported; an empty append that would say nothing new is not
//!   sent, and what was confirmed before is reported again;
//! - the commit index goes with the next entries; when none come for a moment, in an append of its own (`announce.rs`).

use super::announce::Told;
use super::appends::Appends;
use super::{CallError, Lane, Peers, Raftward, client};
use crate::consensus::config::PlantedBug;
use crate::consensus::frozen::Frozen;
use crate::consensus::snapshot::Frames;
use crate::consensus::spawn::stretched;
use crate::consensus::stored;
use crate::consensus::types::{LogEntry, LogId, Member, Types, Vote};
use futures::stream::{self, Stream};
use muster_proto::v1::Payload;
use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{OptionalSend, Snapshot};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// After a peer could not be reached, before it is tried again.
const BACKOFF: Duration = Duration::from_millis(200);
/// Bytes of entries that are sent at once while others are on their way: what a follower syncs together.
const AHEAD_BYTES: usize = 1 << 20;

/// Makes links to members.
#[derive(Clone)]
pub(crate) struct Links(pub(crate) Arc<Peers>);

/// A link to one member. The channels behind it are shared by all links.
pub(crate) struct Link {
    peers: Arc<Peers>,
    target: u64,
    member: Member,
    told: Arc<Told>,
    appends: Appends,
    /// The index of the last entry in this node's log.
    appended: watch::Receiver<u64>,
    /// The commit index, as openraft said it last.
    commit: Option<LogId>,
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &Member) -> Link {
        let (peers, member) = (self.0.clone(), node.clone());
        let appends = Appends::new(peers.clone(), target, member.clone());
        let appended = peers.log.appended();
        Link { peers, target, member, told: Arc::default(), appends, appended, commit: None }
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
        self.commit = self.commit.max(rpc.leader_commit);
        let Some(asked_last) = rpc.entries.last().map(|entry| entry.log_id) else {
            if self.told.confirms(rpc.vote, rpc.prev_log_id) {
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
        // Half of the time for the answer itself; then there is time left to ask whether the other node is still there.
        match tokio::time::timeout(limit / 2, self.first_answer(&rpc)).await {
            Ok(Ok(AppendEntriesResponse::Success)) => {
                let confirmed = self.told.confirmed(rpc.vote).filter(|last| *last < asked_last);
                Ok(confirmed
                    .map_or(AppendEntriesResponse::Success, |last| AppendEntriesResponse::PartialSuccess(Some(last))))
            }
            Ok(answered) => answered.map_err(|error| unreachable(&error)),
            Err(_on_its_way) => {
                metrics::counter!("muster_raft_appends_awaited_total").increment(1);
                rpc.entries.clear();
                let prev_log_id = rpc.prev_log_id;
                match self.ask(rpc, limit / 3).await {
                    Ok(AppendEntriesResponse::Success) if prev_log_id.is_some() => {
                        Ok(AppendEntriesResponse::PartialSuccess(prev_log_id))
                    }
                    Ok(AppendEntriesResponse::Success) => {
                        Err(unreachable(&self.lost("the append is still on its way")))
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
        let sent = sent.unwrap_or_else(|_late| Err(self.lost("the snapshot took too long")));
        sent.map_err(|error| StreamingError::Unreachable(Unreachable::new(&error)))
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}

impl Link {
    /// Waits until the other node has confirmed an entry of `rpc`, or has refused one, and sends what the log gets meanwhile. Giving up loses
    /// nothing: what is under way stays so.
    async fn first_answer(
        &mut self,
        rpc: &AppendEntriesRequest<Types>,
    ) -> Result<AppendEntriesResponse<u64>, CallError> {
        if self.told.confirmed(rpc.vote) > rpc.prev_log_id {
            return Ok(AppendEntriesResponse::Success);
        }
        self.appends.keep_for(rpc.vote, rpc.prev_log_id);
        self.send_rest(rpc);
        loop {
            self.appended.mark_unchanged();
            self.send_ahead(rpc.vote);
            let answered = tokio::select! {
                biased;
                answered = self.appends.answer() => answered?,
                // The sender lives as long as the log.
                _ = self.appended.changed() => continue,
            };
            match answered {
                None => self.send_rest(rpc),
                Some((sent, AppendEntriesResponse::Success)) => {
                    self.told.note(rpc.vote, sent.last, sent.commit);
                    if Some(sent.last) > rpc.prev_log_id {
                        return Ok(AppendEntriesResponse::Success);
                    }
                }
                Some((_, refused)) => return Ok(refused),
            }
        }
    }

    /// Sends the entries of `rpc` that are not under way.
    fn send_rest(&mut self, rpc: &AppendEntriesRequest<Types>) {
        let Some(after) = self.appends.last() else { return self.appends.send(rpc) };
        let entries: Vec<_> = rpc.entries.iter().filter(|entry| entry.log_id > after).cloned().collect();
        if !entries.is_empty() && self.appends.has_room() {
            self.send_entries(rpc.vote, after, entries);
        }
    }

    /// Sends what this node's log has beyond what is under way, as long as it leads under `vote`.
    fn send_ahead(&mut self, vote: Vote) {
        while self.appends.has_room() {
            let Some(after) = self.appends.last() else { return };
            let entries = self.peers.log.following(vote, after, AHEAD_BYTES);
            if entries.is_empty() {
                return;
            }
            self.send_entries(vote, after, entries);
        }
    }

    fn send_entries(&mut self, vote: Vote, after: LogId, entries: Vec<LogEntry>) {
        let leader_commit = self.peers.log.may_show(self.commit);
        self.appends.send(&AppendEntriesRequest { vote, prev_log_id: Some(after), entries, leader_commit });
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

    fn lost(&self, why: impl ToString) -> CallError {
        CallError::lost(self.target, &self.member, why)
    }

    async fn send_snapshot(&self, vote: Vote, snapshot: Snapshot<Types>) -> Result<SnapshotResponse<u64>, CallError> {
        let view = match *snapshot.snapshot {
            Frozen::View(view) => view,
            Frozen::Received(incoming) => incoming.kv.checkpoint().map_err(|error| self.lost(error))?,
        };
        let form = self.peers.log.form().get();
        let head = stored::encode(form, &(self.peers.envelope(self.target, &self.member), vote, snapshot.meta));
        let channel =
            self.peers.channel(self.target, &self.member.address, Lane::Bulk).map_err(|error| self.lost(error))?;
        let answer = client(channel)
            .install_snapshot(payloads(form, head, Frames::new(view), self.peers.clone()))
            .await
            .map_err(|status| self.lost(status))?;
        self.peers.answer(self.target, &self.member, &answer.get_ref().data)
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
