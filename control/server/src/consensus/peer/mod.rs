//! Other control nodes: who they are, channels to them, and what is said over them.
//!
//! What must stay true: every message names its cluster, its sender and its receiver with their disks, and is refused where any of
//! them does not fit; so a wiped node, a node of another cluster, or a removed one takes no part, and says so in the log.

mod announce;
mod appends;
mod envelope;
mod network;
#[cfg(test)]
mod tests;
mod timing;

pub(crate) use envelope::{Envelope, Heartbeat, HeartbeatAnswer, Identified, PreVote, PreVoteAnswer, Raftward};
pub(crate) use network::Links;

use crate::consensus::config::{ConsensusConfig, PlantedBug};
use crate::consensus::error::PeerRefusal;
use crate::consensus::log::{Identity, Log};
use crate::consensus::replica::Replica;
use crate::consensus::stop::Stop;
use crate::consensus::stored;
use crate::consensus::types::Member;
use muster_proto::v1::Payload;
use muster_proto::v1::peer_client::PeerClient;
use muster_runtime::{Channel, DiskError, Host, NetError, Transport};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use timing::Timing;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;

/// Messages larger than this are not taken: the largest entry with room, and far above any frame of a snapshot.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// A refused peer is named in the log so often.
const REPEAT_WARNING: Duration = Duration::from_secs(10);

/// Messages to one peer travel on three connections, so that small urgent ones do not queue behind large ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Heartbeats, votes, read indexes.
    Urgent,
    /// Appends.
    Append,
    /// Snapshots, forwarded proposals, and whatever else the services say to each other.
    Bulk,
}

const LANES: usize = 3;

/// Why a call came to nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The peer does not take messages from this node, or not this message.
    #[error(transparent)]
    Refused(PeerRefusal),
    /// No answer; it may or may not have been received.
    #[error("no answer from node {to} at {address}: {why}")]
    Lost {
        /// Whom.
        to: u64,
        /// Where.
        address: String,
        /// Why.
        why: String,
    },
}

impl CallError {
    fn lost(to: u64, member: &Member, why: impl ToString) -> Self {
        CallError::Lost { to, address: member.address.clone(), why: why.to_string() }
    }
}

/// What this node knows about itself and how it reaches others.
pub(crate) struct Peers {
    host: Host,
    me: Mutex<Identity>,
    log: Log,
    pub(crate) replica: Arc<Replica>,
    pub(crate) stop: Stop,
    planted: Option<PlantedBug>,
    /// The longest round trip between two voters.
    round_trip: Duration,
    timing: Timing,
    transport: Transport,
    /// By the address, and the node that is expected there.
    channels: Mutex<BTreeMap<(String, u64), [Channel; LANES]>>,
    warned: Mutex<BTreeMap<u64, Instant>>,
}

impl Peers {
    pub(crate) fn new(
        host: Host,
        me: Identity,
        log: Log,
        replica: Arc<Replica>,
        stop: Stop,
        config: &ConsensusConfig,
    ) -> Self {
        let (planted, round_trip) = (config.planted, Duration::from_millis(config.round_trip_ms));
        let (timing, transport) = (Timing::new(config), config.transport);
        let (me, channels, warned) = (Mutex::new(me), Mutex::default(), Mutex::default());
        Peers { host, me, log, replica, stop, planted, round_trip, timing, transport, channels, warned }
    }

    /// This node.
    pub(crate) fn me(&self) -> Identity {
        self.me.lock().clone()
    }

    /// Becomes part of a cluster in memory; [`Peers::save`] makes it durable.
    pub(crate) fn join(&self, cluster: u64) {
        self.me.lock().cluster = Some(cluster);
    }

    /// Makes durable which cluster this node is part of.
    pub(crate) async fn save(&self) -> Result<(), DiskError> {
        let me = self.me();
        self.log.save_identity(&me).await
    }

    /// A heartbeat of node `leader` came with these headers: they say whether it measures time as this node does.
    pub(crate) fn compare_timing(&self, leader: u64, headers: &MetadataMap) {
        self.timing.compare(leader, headers);
    }

    /// The channel to node `to`, which is reached at an address.
    pub(crate) fn channel(&self, to: u64, address: &str, lane: Lane) -> Result<Channel, NetError> {
        let mut channels = self.channels.lock();
        let key = (address.to_owned(), to);
        let of_peer = match channels.get(&key) {
            Some(known) => known,
            None => {
                let dial = || self.host.net.dial(address, self.transport.member(to));
                let new: [Channel; LANES] = [dial()?, dial()?, dial()?];
                channels.entry(key).or_insert(new)
            }
        };
        let [urgent, append, bulk] = of_peer;
        Ok(match lane {
            Lane::Urgent => urgent.clone(),
            Lane::Append => append.clone(),
            Lane::Bulk => bulk.clone(),
        })
    }

    /// Lets go of channels to addresses at which no member is any more.
    pub(crate) fn keep_channels(&self, addresses: &[&str]) {
        self.channels.lock().retain(|(address, _), _| addresses.contains(&address.as_str()));
    }

    fn envelope(&self, to: u64, member: &Member) -> Envelope {
        let me = self.me.lock();
        Envelope { cluster: me.cluster.unwrap_or(0), from: me.id, from_disk: me.disk, to, to_disk: member.disk }
    }

    /// Calls a member and waits for its answer, not longer than `deadline`.
    pub(crate) async fn call<T, R>(
        &self,
        to: u64,
        member: &Member,
        what: Raftward,
        body: &T,
        deadline: Duration,
    ) -> Result<R, CallError>
    where
        T: Serialize + Sync,
        R: DeserializeOwned,
    {
        self.call_encoded(to, member, what, self.message(to, member, body), deadline).await
    }

    /// A message to a member, as it is sent.
    fn message<T: Serialize>(&self, to: u64, member: &Member, body: &T) -> Vec<u8> {
        stored::encode_raised(self.log.form().get(), &(self.envelope(to, member), body))
    }

    /// [`Peers::call`] with a message made by [`Peers::message`].
    async fn call_encoded<R: DeserializeOwned>(
        &self,
        to: u64,
        member: &Member,
        what: Raftward,
        data: Vec<u8>,
        deadline: Duration,
    ) -> Result<R, CallError> {
        let payload = Payload { data };
        let channel =
            self.channel(to, &member.address, what.lane()).map_err(|error| CallError::lost(to, member, error))?;
        let mut client = client(channel);
        let answered = async {
            match what {
                Raftward::Append | Raftward::Probe => client.append_entries(payload).await,
                Raftward::Heartbeat => client.heartbeat(self.timing.with(payload)).await,
                Raftward::PreVote => client.pre_vote(payload).await,
                Raftward::Vote => client.vote(payload).await,
                Raftward::Forward => client.forward(payload).await,
                Raftward::ReadIndex => client.read_index(payload).await,
                Raftward::Identify => client.identify(payload).await,
            }
        };
        let answer = match tokio::time::timeout(deadline, answered).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return Err(CallError::lost(to, member, status)),
            Err(_late) => {
                return Err(CallError::lost(to, member, format_args!("none within {} ms", deadline.as_millis())));
            }
        };
        self.answer(to, member, &answer.data)
    }

    /// Reads an answer; a refusal is said in the log.
    fn answer<R: DeserializeOwned>(&self, to: u64, member: &Member, data: &[u8]) -> Result<R, CallError> {
        match stored::decode::<Result<R, PeerRefusal>>(data) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refusal)) => {
                self.warn(to, &refusal, "refuses this node's messages");
                Err(CallError::Refused(refusal))
            }
            Err(unreadable) => {
                Err(CallError::lost(to, member, format_args!("its answer cannot be read: {unreadable}")))
            }
        }
    }

    /// Says in the log that messages to or from a peer are refused, not more often than needed.
    fn warn(&self, peer: u64, refusal: &PeerRefusal, what: &'static str) {
        let mut warned = self.warned.lock();
        let now = Instant::now();
        if warned.get(&peer).is_none_or(|last| now.duration_since(*last) >= REPEAT_WARNING) {
            warned.insert(peer, now);
            tracing::error!(peer, %refusal, "{what}");
        }
    }

    /// Whether a message may be taken: it is for this node on this disk, of this cluster, and from who it says it is.
    ///
    /// A node that belongs to no cluster yet joins that of the first message that names its disk.
    pub(crate) async fn admit(
        &self,
        envelope: &Envelope,
        certified: Option<u64>,
        taken_from_removed: bool,
    ) -> Result<(), PeerRefusal> {
        let checked = match certified {
            Some(id) if id != envelope.from => Err(PeerRefusal::Malformed {
                why: format!(
                    "it says that it is from control node {}, but its sender is control node {id}",
                    envelope.from
                ),
            }),
            _ => self.check(envelope, taken_from_removed),
        };
        if let Err(refusal) = &checked {
            self.warn(envelope.from, refusal, "a message is refused");
        }
        if checked? {
            self.join(envelope.cluster);
            self.save().await.map_err(|error| {
                self.stop.failed("saving the identity", &error);
                PeerRefusal::Stopped { why: error.to_string() }
            })?;
        }
        Ok(())
    }

    /// Whether the message makes this node join.
    fn check(&self, envelope: &Envelope, taken_from_removed: bool) -> Result<bool, PeerRefusal> {
        let me = self.me.lock();
        if (envelope.to, envelope.to_disk) != (me.id, me.disk) {
            return Err(PeerRefusal::NotMe { to: envelope.to, id: me.id, expected: me.disk, got: envelope.to_disk });
        }
        if let Some(expected) = me.cluster
            && expected != envelope.cluster
        {
            return Err(PeerRefusal::OtherCluster { expected, got: envelope.cluster });
        }
        self.replica.with_membership(|membership, used| match used.get(&envelope.from) {
            Some(&expected) if expected != envelope.from_disk => {
                Err(PeerRefusal::Impostor { id: envelope.from, expected, got: envelope.from_disk })
            }
            Some(_) if !taken_from_removed && membership.membership().get_node(&envelope.from).is_none() => {
                Err(PeerRefusal::Removed { id: envelope.from })
            }
            _ => Ok(()),
        })?;
        Ok(me.cluster.is_none())
    }
}

/// A client of the Peer service.
pub(crate) fn client(channel: Channel) -> PeerClient<Channel> {
    PeerClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES)
}
