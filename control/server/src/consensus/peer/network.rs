//! openraft's network: appends, votes and snapshots to other members.

use super::{CallError, Lane, Peers, Raftward, client};
use crate::consensus::error::PeerRefusal;
use crate::consensus::snapshot::{Frames, Frozen};
use crate::consensus::stored;
use crate::consensus::types::{Member, Types, Vote};
use futures::stream::{self, Stream};
use muster_proto::v1::Payload;
use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{OptionalSend, Snapshot};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// After a peer could not be reached, before it is tried again.
const BACKOFF: Duration = Duration::from_millis(200);

/// Makes links to members.
#[derive(Clone)]
pub(crate) struct Links(pub(crate) Arc<Peers>);

/// A link to one member. The channels behind it are shared by all links.
pub(crate) struct Link {
    peers: Arc<Peers>,
    target: u64,
    member: Member,
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &Member) -> Link {
        Link { peers: self.0.clone(), target, member: node.clone() }
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
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcError> {
        let call = self.peers.call(self.target, &self.member, Raftward::Append, &rpc, option.hard_ttl());
        call.await.map_err(|error| unreachable(&error))
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, option: RPCOption) -> Result<VoteResponse<u64>, RpcError> {
        let call = self.peers.call(self.target, &self.member, Raftward::Vote, &rpc, option.hard_ttl());
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
    fn lost(&self, why: String) -> CallError {
        CallError::Lost { to: self.target, address: self.member.address.clone(), why }
    }

    async fn send_snapshot(&self, vote: Vote, snapshot: Snapshot<Types>) -> Result<SnapshotResponse<u64>, CallError> {
        let view = match *snapshot.snapshot {
            Frozen::View(view) => view,
            Frozen::Received(incoming) => incoming.kv.checkpoint().map_err(|error| self.lost(error.to_string()))?,
        };
        let head = stored::encode(&(self.peers.envelope(self.target, &self.member), vote, snapshot.meta));
        let channel =
            self.peers.channel(&self.member.address, Lane::Bulk).map_err(|error| self.lost(error.to_string()))?;
        let answer = client(channel)
            .install_snapshot(payloads(head, Frames::new(view), self.peers.clone()))
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
fn payloads(head: Vec<u8>, frames: Frames, peers: Arc<Peers>) -> impl Stream<Item = Payload> + Send + 'static {
    stream::unfold((Some(head), frames, peers), |(head, mut frames, peers)| async move {
        let data = match head {
            Some(head) => head,
            None => match frames.next() {
                Ok(frame) => stored::encode(&frame?),
                Err(error) => {
                    peers.stop.failed("reading a snapshot", &error);
                    return None;
                }
            },
        };
        Some((Payload { data }, (None, frames, peers)))
    })
}
