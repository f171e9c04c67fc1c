//! The replicated state behind one handle: propose, read, follow.
//!
//! [`Consensus`] is what the services see. Behind it openraft keeps a log on a [`muster_runtime::Kv`], and the state machine of
//! `control/core` is applied to memory, to disk and to the watchers in one step. What must stay true:
//! - an acknowledged command is on the synced log of a quorum;
//! - memory, disk and watchers see the same changes, in the order of the log, without gaps;
//! - a node whose storage cannot be trusted, or that was wiped, does not vote under its old id;
//! - every queue is bounded; a full one answers [`ProposeError::Busy`].

pub mod config;
pub mod error;

pub use config::ConsensusConfig;
pub use error::{AdminError, Lagged, OpenError, PeerRefusal, ProposeError, TooOld};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use muster_control_core::{Command, Decided, State};
use muster_model::{Change, Job, JobId, Revision};
use muster_proto::v1;
use muster_runtime::{Channel, DiskError, Host};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// What became of proposed commands.
#[derive(Clone, Debug)]
pub struct Proposed {
    /// The entry's index.
    pub revision: Revision,
    /// Each command's answer, in order.
    pub decided: Decided,
}

/// The changes of one revision, as they were applied.
#[derive(Clone, Debug)]
pub struct Applied {
    /// Which.
    pub revision: Revision,
    /// The state's time.
    pub now_ms: u64,
    /// In order; empty when every command was refused.
    pub changes: Arc<Vec<Change>>,
}

/// Who leads, as this node knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader, if one is known.
    pub leader: Option<u64>,
    /// Where it is reached.
    pub address: Option<String>,
    /// The term; a new one at each election.
    pub term: u64,
    /// Whether this node leads.
    pub here: bool,
}

/// A member as the status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its id.
    pub id: u64,
    /// Where it is reached.
    pub address: String,
    /// Whether it votes.
    pub voter: bool,
    /// How far its log is known to agree; on the leader only.
    pub matched: Option<u64>,
}

/// Where this node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// This node.
    pub id: u64,
    /// Who leads.
    pub leader: Option<u64>,
    /// The term.
    pub term: u64,
    /// `leader`, `follower`, `candidate`, `learner`, `stopped`.
    pub role: &'static str,
    /// The last entry in the log.
    pub last_log: u64,
    /// The last entry applied.
    pub applied: u64,
    /// The last entry in the snapshot.
    pub snapshot: u64,
    /// The last entry purged.
    pub purged: u64,
    /// Members by id.
    pub members: Vec<MemberStatus>,
}

/// What other parts of the control node answer to their peers; registered with [`Consensus::peer_service`].
pub trait PeerServices: Send + Sync + 'static {
    /// Lease renewals that another node passes on to this one as the leader.
    fn renew_leases(&self, payload: Vec<u8>) -> BoxFuture<'static, Result<Vec<u8>, tonic::Status>>;

    /// A task's log, from the agent's session on this node.
    fn logs(&self, payload: Vec<u8>) -> BoxFuture<'static, Result<BoxStream<'static, Result<Vec<u8>, tonic::Status>>, tonic::Status>>;
}

/// Follows the changes from a revision on.
#[derive(Debug)]
pub struct Follower {}

impl Follower {
    /// The changes of the next revision, as soon as they are applied. Safe to drop and call again.
    ///
    /// # Errors
    /// [`Lagged`] when the follower was too slow or the node has stopped.
    pub async fn next(&mut self) -> Result<Applied, Lagged> {
        unimplemented!()
    }

    /// The last revision it has had.
    #[must_use]
    pub fn after(&self) -> Revision {
        unimplemented!()
    }
}

/// The replicated state machine of this node. Cheap to clone.
#[derive(Clone)]
pub struct Consensus {}

impl Consensus {
    /// Opens the stores of `host` and starts consensus. A node with an empty folder waits to be bootstrapped or added.
    ///
    /// # Errors
    /// [`OpenError`], above all when the stores cannot be trusted.
    pub async fn open(host: Host, config: ConsensusConfig) -> Result<Consensus, OpenError> {
        let _ = (host, config);
        unimplemented!()
    }

    /// Decides commands, on any node: a follower passes them on to the leader. All go into one entry.
    ///
    /// # Errors
    /// [`ProposeError`]; refusals of single commands are in [`Proposed::decided`].
    pub async fn propose(&self, commands: Vec<Command>) -> Result<Proposed, ProposeError> {
        let _ = commands;
        unimplemented!()
    }

    /// Makes a linearizable read possible: when this returns, [`Consensus::read`] sees everything acknowledged before the call.
    /// Concurrent calls share one round trip.
    ///
    /// # Errors
    /// [`ProposeError::NoLeader`] or [`ProposeError::Stopped`].
    pub async fn read_index(&self) -> Result<Revision, ProposeError> {
        unimplemented!()
    }

    /// On the leader: a quorum has confirmed, after this call began, that it still leads. Concurrent calls share one round trip.
    ///
    /// # Errors
    /// [`ProposeError::NoLeader`] when it does not, [`ProposeError::Stopped`].
    pub async fn confirm_leadership(&self) -> Result<(), ProposeError> {
        unimplemented!()
    }

    /// Looks at the state as applied here, which may lag. Keep it short: it holds back the next entry.
    pub fn read<R>(&self, look: impl FnOnce(&State, Revision) -> R) -> R {
        let _ = look;
        unimplemented!()
    }

    /// Waits until the entries up to `revision` are applied here.
    ///
    /// # Errors
    /// [`ProposeError::Stopped`].
    pub async fn wait_applied(&self, revision: Revision) -> Result<(), ProposeError> {
        let _ = revision;
        unimplemented!()
    }

    /// The changes after `after`, one revision at a time, without gaps.
    ///
    /// # Errors
    /// [`TooOld`]: read the whole state, then follow from its revision.
    pub fn follow(&self, after: Revision) -> Result<Follower, TooOld> {
        let _ = after;
        unimplemented!()
    }

    /// A finished job, from disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finished_job(&self, id: JobId) -> Result<Option<Job>, DiskError> {
        let _ = id;
        unimplemented!()
    }

    /// Finished jobs from disk, at most `limit`: after `from` ascending, or before it descending when `newest_first`.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finished_jobs(&self, from: Option<JobId>, newest_first: bool, limit: usize) -> Result<Vec<Job>, DiskError> {
        let _ = (from, newest_first, limit);
        unimplemented!()
    }

    /// The leader and its address, if one is known.
    #[must_use]
    pub fn leader(&self) -> Option<(u64, String)> {
        unimplemented!()
    }

    /// Whether this node believes that it leads; [`Consensus::confirm_leadership`] proves it.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        unimplemented!()
    }

    /// This node.
    #[must_use]
    pub fn id(&self) -> u64 {
        unimplemented!()
    }

    /// Changes of who leads.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        unimplemented!()
    }

    /// A channel to another member, kept open and shared; for calls of the Peer service or to pass a client's call on.
    #[must_use]
    pub fn channel_to(&self, id: u64) -> Option<Channel> {
        let _ = id;
        unimplemented!()
    }

    /// The service that other control nodes call.
    #[must_use]
    pub fn peer_service(
        &self,
        services: Arc<dyn PeerServices>,
    ) -> v1::peer_server::PeerServer<impl v1::peer_server::Peer + use<>> {
        let _ = services;
        v1::peer_server::PeerServer::new(Unbuilt)
    }

    /// Makes this empty node, and the other empty nodes that are named, a new cluster of voters.
    ///
    /// # Errors
    /// [`AdminError::AlreadyMember`] when this node's folder has ever been part of a cluster.
    pub async fn bootstrap(&self, members: BTreeMap<u64, String>) -> Result<(), AdminError> {
        let _ = members;
        unimplemented!()
    }

    /// On the leader: adds a node as a learner and waits until it has caught up.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn add_learner(&self, id: u64, address: String) -> Result<(), AdminError> {
        let _ = (id, address);
        unimplemented!()
    }

    /// On the leader: makes a learner a voter.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn promote(&self, id: u64) -> Result<(), AdminError> {
        let _ = id;
        unimplemented!()
    }

    /// On the leader: takes a member out; with `replace_with`, that learner becomes a voter in the same joint change.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn remove(&self, id: u64, replace_with: Option<u64>) -> Result<(), AdminError> {
        let _ = (id, replace_with);
        unimplemented!()
    }

    /// Where this node stands.
    #[must_use]
    pub fn status(&self) -> Status {
        unimplemented!()
    }

    /// Resolves with the reason when this node has stopped, by [`Consensus::shutdown`] or because its disk or core failed.
    pub async fn stopped(&self) -> String {
        unimplemented!()
    }

    /// Stops this node in order; what was acknowledged is already durable.
    pub async fn shutdown(&self) {
        unimplemented!()
    }
}

struct Unbuilt;

#[tonic::async_trait]
impl v1::peer_server::Peer for Unbuilt {
    async fn append_entries(&self, _: tonic::Request<v1::Payload>) -> Result<tonic::Response<v1::Payload>, tonic::Status> {
        unimplemented!()
    }
    async fn vote(&self, _: tonic::Request<v1::Payload>) -> Result<tonic::Response<v1::Payload>, tonic::Status> {
        unimplemented!()
    }
    async fn install_snapshot(
        &self,
        _: tonic::Request<tonic::Streaming<v1::Payload>>,
    ) -> Result<tonic::Response<v1::Payload>, tonic::Status> {
        unimplemented!()
    }
    async fn forward(&self, _: tonic::Request<v1::Payload>) -> Result<tonic::Response<v1::Payload>, tonic::Status> {
        unimplemented!()
    }
    async fn read_index(&self, _: tonic::Request<v1::Payload>) -> Result<tonic::Response<v1::Payload>, tonic::Status> {
        unimplemented!()
    }
    async fn renew_leases(&self, _: tonic::Request<v1::Payload>) -> Result<tonic::Response<v1::Payload>, tonic::Status> {
        unimplemented!()
    }
    type LogsStream = BoxStream<'static, Result<v1::Payload, tonic::Status>>;
    async fn logs(&self, _: tonic::Request<v1::Payload>) -> Result<tonic::Response<Self::LogsStream>, tonic::Status> {
        unimplemented!()
    }
}
