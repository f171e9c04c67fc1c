//! The Peer service: what other control nodes ask of this one.

use crate::consensus::PeerServices;
use crate::consensus::core::Core;
use crate::consensus::error::{PeerRefusal, ProposeError};
use crate::consensus::frozen::{Frozen, Incoming};
use crate::consensus::peer::{Envelope, Heartbeat, HeartbeatAnswer, Identified, MAX_MESSAGE_BYTES, Peers, PreVote};
use crate::consensus::proposer::Proposer;
use crate::consensus::reader::Reader;
use crate::consensus::snapshot::{Frame, Unpacker};
use crate::consensus::stored;
use crate::consensus::types::{Member, Types, Vote};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use muster_control_core::{Command, Decided};
use muster_model::AccessMode;
use muster_proto::v1::Payload;
use muster_proto::v1::peer_server::{Peer, PeerServer};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{Snapshot, SnapshotMeta};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

/// A snapshot whose next frame does not come within this is given up.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers other control nodes.
pub(crate) struct PeerService {
    core: Arc<Core>,
    proposer: Proposer,
    reader: Reader,
    services: Arc<dyn PeerServices>,
    /// One snapshot is received at a time.
    receiving: tokio::sync::Mutex<()>,
}

impl PeerService {
    pub(crate) fn server(
        core: Arc<Core>,
        proposer: Proposer,
        reader: Reader,
        services: Arc<dyn PeerServices>,
    ) -> PeerServer<Self> {
        let service = PeerService { core, proposer, reader, services, receiving: tokio::sync::Mutex::default() };
        PeerServer::new(service)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    fn peers(&self) -> &Peers {
        &self.core.peers
    }

    /// Reads a message that removed members may not send.
    async fn open<T: DeserializeOwned>(&self, request: &Request<Payload>) -> Result<T, PeerRefusal> {
        open(&self.core, (&request.get_ref().data, certified(request)), false).await.map(|(_, body)| body)
    }

    fn reply<T: Serialize>(&self, answer: &T) -> Result<Response<Payload>, Status> {
        Ok(Response::new(reply(&self.core, answer)))
    }

    fn stopped(&self, error: &dyn std::error::Error) -> PeerRefusal {
        stopped(&self.core, error)
    }

    /// Votes. openraft's own lease is shorter than that of a leader, which is kept here.
    async fn voted(&self, rpc: VoteRequest<u64>) -> Result<VoteResponse<u64>, PeerRefusal> {
        let raft = &self.core.raft;
        if !self.core.is_bound() {
            return raft.vote(rpc).await.map_err(|fatal| self.stopped(&fatal));
        }
        let own = raft.with_raft_state(|state| *state.vote_ref()).await.map_err(|fatal| self.stopped(&fatal))?;
        Ok(VoteResponse { vote: own, vote_granted: false, last_log_id: self.core.log.last() })
    }

    async fn forwarded(&self, request: &Request<Payload>) -> Result<Result<(u64, Decided), ProposeError>, PeerRefusal> {
        let commands: Vec<Command> = self.open(request).await?;
        if !self.core.is_leader() {
            return Ok(Err(ProposeError::NoLeader));
        }
        // What the cluster does by itself is proposed by its leader alone; here everything is somebody's.
        let closed = self.core.replica.read(|state, _| state.meta.access == AccessMode::Closed);
        let of_nobody = |command: &Command| command.parts().0.is_none();
        if closed && commands.iter().any(of_nobody) {
            return Err(PeerRefusal::Malformed {
                why: "a command that was passed on does not say whose it is".to_owned(),
            });
        }
        let proposed = self.proposer.propose(commands, None, false).await;
        Ok(proposed.map(|proposed| (proposed.revision.0, proposed.decided)))
    }

    async fn read_index_asked(&self, request: &Request<Payload>) -> Result<Result<u64, ProposeError>, PeerRefusal> {
        let () = self.open(request).await?;
        Ok(self.reader.confirm_here().await)
    }

    async fn identify_asked(&self, payload: &[u8]) -> Result<Identified, PeerRefusal> {
        // Whoever asks does not know yet who is here, so the envelope is not checked.
        let (_, ()): (Envelope, ()) =
            stored::decode(payload).map_err(|why| PeerRefusal::Malformed { why: why.to_string() })?;
        let me = self.peers().me();
        Ok(Identified {
            id: me.id,
            disk: me.disk,
            cluster: me.cluster,
            pristine: self.core.log.is_pristine(),
            knows_level: self.core.config.knows_level,
        })
    }

    async fn receive(
        &self,
        mut frames: Streaming<Payload>,
        certified: Option<u64>,
    ) -> Result<Result<SnapshotResponse<u64>, PeerRefusal>, Status> {
        let head = next(&mut frames).await?;
        let (envelope, vote, meta): (Envelope, Vote, SnapshotMeta<u64, Member>) = match stored::decode(&head) {
            Ok(head) => head,
            Err(why) => return Ok(Err(PeerRefusal::Malformed { why: why.to_string() })),
        };
        if let Err(refusal) = self.peers().admit(&envelope, certified, true).await {
            return Ok(Err(refusal));
        }
        let Ok(_one_at_a_time) = self.receiving.try_lock() else {
            return Err(Status::resource_exhausted("another snapshot is being received"));
        };
        let raft = &self.core.raft;
        match raft.with_raft_state(|state| *state.vote_ref()).await {
            Ok(newer) if newer > vote => return Ok(Ok(SnapshotResponse::new(newer))),
            Ok(_) => {}
            Err(fatal) => return Ok(Err(self.stopped(&fatal))),
        }
        let incoming = match raft.begin_receiving_snapshot().await.map(|incoming| *incoming) {
            Ok(Frozen::Received(incoming)) => incoming,
            Ok(Frozen::View(_)) => return Err(Status::internal("no store to receive into")),
            Err(fatal) => return Ok(Err(self.stopped(&fatal))),
        };
        self.unpack(&mut frames, &incoming).await?;
        let snapshot: Snapshot<Types> = Snapshot { meta, snapshot: Box::new(Frozen::Received(incoming)) };
        let installed = raft.install_full_snapshot(vote, snapshot).await;
        Ok(installed.map_err(|fatal| self.stopped(&fatal)))
    }

    async fn unpack(&self, frames: &mut Streaming<Payload>, incoming: &Incoming) -> Result<(), Status> {
        let mut unpacker = Unpacker::new(incoming.kv.as_ref());
        loop {
            let frame: Frame =
                stored::decode(&next(frames).await?).map_err(|why| Status::data_loss(format!("a frame: {why}")))?;
            if unpacker.take(frame).map_err(|error| Status::data_loss(error.to_string()))? {
                break;
            }
            // Unpacking is work of the disk: the others run in between.
            tokio::task::yield_now().await;
        }
        incoming.kv.sync().await.map_err(|error| Status::internal(error.to_string()))
    }
}

/// The control node that the sender has proved to be, where it had to.
fn certified<T>(request: &Request<T>) -> Option<u64> {
    request.extensions().get::<muster_runtime::Peer>()?.identity.as_ref()?.name.control_id()
}

/// Reads a message and checks whether it may be taken.
async fn open<T: DeserializeOwned>(
    core: &Core,
    (payload, certified): (&[u8], Option<u64>),
    taken_from_removed: bool,
) -> Result<(u64, T), PeerRefusal> {
    let (envelope, body): (Envelope, T) =
        stored::decode(payload).map_err(|why| PeerRefusal::Malformed { why: why.to_string() })?;
    core.peers.admit(&envelope, certified, taken_from_removed).await?;
    Ok((envelope.from, body))
}

fn reply<T: Serialize>(core: &Core, answer: &T) -> Payload {
    Payload { data: stored::encode_raised(core.log.form().get(), answer) }
}

/// A core that has failed stops this node; the peer is told.
fn stopped(core: &Core, error: &dyn std::error::Error) -> PeerRefusal {
    PeerRefusal::Stopped { why: core.stop.reason().unwrap_or_else(|| error.to_string()) }
}

/// Takes entries, or a word that there are none. It counts as heard of at once, however long consensus is busy with what came before.
async fn append(core: &Core, rpc: AppendEntriesRequest<Types>) -> Result<AppendEntriesResponse<u64>, PeerRefusal> {
    core.contact.note(&rpc.vote, Instant::now());
    core.raft.append_entries(rpc).await.map_err(|fatal| stopped(core, &fatal))
}

async fn append_asked(core: &Core, message: (&[u8], Option<u64>)) -> Payload {
    let answer = match open::<AppendEntriesRequest<Types>>(core, message, true).await {
        Ok((_, rpc)) => append(core, rpc).await,
        Err(refusal) => Err(refusal),
    };
    reply(core, &answer)
}

async fn next(frames: &mut Streaming<Payload>) -> Result<Vec<u8>, Status> {
    match tokio::time::timeout(FRAME_TIMEOUT, frames.message()).await {
        Ok(Ok(Some(payload))) => Ok(payload.data),
        Ok(Ok(None)) => Err(Status::data_loss("the snapshot ends early")),
        Ok(Err(status)) => Err(status),
        Err(_late) => Err(Status::deadline_exceeded("the next frame did not come")),
    }
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn append_entries(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(append_asked(&self.core, (&request.get_ref().data, certified(&request))).await))
    }

    type AppendsStream = BoxStream<'static, Result<Payload, Status>>;

    async fn appends(&self, request: Request<Streaming<Payload>>) -> Result<Response<Self::AppendsStream>, Status> {
        let from = certified(&request);
        let answers =
            stream::unfold((self.core.clone(), request.into_inner()), move |(core, mut messages)| async move {
                let message = tokio::select! {
                    biased;
                    _why = core.stop.stopped() => return None,
                    // However it ends, the other side knows and begins another.
                    message = messages.message() => message.ok()??,
                };
                let answer = append_asked(&core, (&message.data, from)).await;
                Some((Ok(answer), (core, messages)))
            });
        Ok(Response::new(answers.boxed()))
    }

    async fn heartbeat(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        let answer = match open::<Heartbeat>(&self.core, (&request.get_ref().data, certified(&request)), true).await {
            Ok((from, Heartbeat { vote })) => {
                self.peers().compare_timing(from, request.metadata());
                // Without entries, and after nothing in particular: it says no more than who leads.
                let word = AppendEntriesRequest { vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
                let answer = append(&self.core, word).await;
                answer.map(|answer| HeartbeatAnswer {
                    answer,
                    wall_ms: self.core.host.clock.wall_ms(),
                    knows_level: self.core.config.knows_level,
                })
            }
            Err(refusal) => Err(refusal),
        };
        self.reply(&answer)
    }

    async fn pre_vote(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        let answer = match open::<PreVote>(&self.core, (&request.get_ref().data, certified(&request)), false).await {
            Ok((from, asked)) => Ok(self.core.pre_vote(from, asked).await),
            Err(refusal) => Err(refusal),
        };
        self.reply(&answer)
    }

    async fn vote(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        let answer = match self.open::<VoteRequest<u64>>(&request).await {
            Ok(rpc) => self.voted(rpc).await,
            Err(refusal) => Err(refusal),
        };
        self.reply(&answer)
    }

    async fn install_snapshot(&self, request: Request<Streaming<Payload>>) -> Result<Response<Payload>, Status> {
        let from = certified(&request);
        self.reply(&self.receive(request.into_inner(), from).await?)
    }

    async fn forward(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        self.reply(&self.forwarded(&request).await)
    }

    async fn read_index(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        self.reply(&self.read_index_asked(&request).await)
    }

    async fn identify(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        self.reply(&self.identify_asked(&request.get_ref().data).await)
    }

    async fn renew_leases(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        let answer = self.services.renew_leases(request.into_inner().data).await?;
        Ok(Response::new(Payload { data: answer }))
    }

    type LogsStream = BoxStream<'static, Result<Payload, Status>>;

    async fn logs(&self, request: Request<Payload>) -> Result<Response<Self::LogsStream>, Status> {
        let stream = self.services.logs(request.into_inner().data).await?;
        Ok(Response::new(stream.map(|data| data.map(|data| Payload { data })).boxed()))
    }
}
