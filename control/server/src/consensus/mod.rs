//! The replicated state behind one handle: propose, read, follow.
//!
//! [`Consensus`] is what the services see. Behind it openraft keeps a log on a [`muster_runtime::Kv`], and the state machine of
//! `control/core` is applied to memory, to disk and to the watchers in one step. What must stay true:
//! - an acknowledged command is on the synced log of a quorum;
//! - memory, disk and watchers see the same changes, in the order of the log, without gaps;
//! - a node whose storage cannot be trusted, or that was wiped, does not vote under its old id;
//! - every queue is bounded; a full one answers [`ProposeError::Busy`].

mod clock;
pub mod config;
mod contact;
pub mod copied;
mod core;
mod election;
pub mod error;
mod feature_level;
mod forms;
mod frozen;
#[doc(hidden)]
pub mod fuzzing;
mod heartbeat;
mod hub;
mod log;
mod membership;
mod peer;
mod peer_service;
mod proposer;
mod quorum;
mod reader;
mod replica;
mod snapshot;
mod spawn;
mod start;
mod stop;
mod stored;
mod turn;
mod types;

#[cfg(test)]
pub(crate) mod tests;

pub use config::{ConsensusConfig, PlantedBug};
pub use error::{AdminError, Lagged, OpenError, PeerRefusal, ProposeError, TooOld};
pub use forms::FEATURE_LEVEL_NEWEST;
pub(crate) use forms::form_of;
pub use hub::Reach;
pub(crate) use log::{Identity, begin_after, is_in_use};
pub(crate) use replica::backup::{self as restored, BackupFrames};
pub(crate) use snapshot::Frame;
pub(crate) use types::Member;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use muster_control_core::{Command, Decided, State};
use muster_model::object::FinishedJob;
use muster_model::{AuditRecord, Change, Job, JobId, Revision};
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
    /// By how many milliseconds its wall clock is ahead of the leader's; on the leader only, of voters that answer.
    pub clock_offset_ms: Option<i64>,
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
    /// The newest feature level that this node knows.
    pub knows_level: u32,
    /// How far the state's time is ahead of a majority of the voters' clocks, in milliseconds; on the leader only.
    pub time_ahead_ms: Option<i64>,
}

/// A task's log, piece by piece.
pub type LogPieces = BoxStream<'static, Result<Vec<u8>, tonic::Status>>;

/// What other parts of the control node answer to their peers; registered with [`Consensus::peer_service`].
pub trait PeerServices: Send + Sync + 'static {
    /// Lease renewals that another node passes on to this one as the leader.
    fn renew_leases(&self, payload: Vec<u8>) -> BoxFuture<'static, Result<Vec<u8>, tonic::Status>>;

    /// A task's log, from the agent's session on this node.
    fn logs(&self, payload: Vec<u8>) -> BoxFuture<'static, Result<LogPieces, tonic::Status>>;
}

/// Follows the changes from a revision on.
#[derive(Debug)]
pub struct Follower {
    hub: Arc<hub::Hub>,
    after: u64,
    wake: watch::Receiver<u64>,
}

/// The replicated state machine of this node. Cheap to clone.
#[derive(Clone)]
pub struct Consensus {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<core::Core>,
    proposer: proposer::Proposer,
    reader: reader::Reader,
    /// One change of the membership at a time.
    changing: tokio::sync::Mutex<()>,
}

impl Consensus {
    /// Opens the stores of `host` and starts consensus. A node with an empty folder waits to be bootstrapped or added.
    ///
    /// # Errors
    /// [`OpenError`], above all when the stores cannot be trusted.
    pub async fn open(host: Host, config: ConsensusConfig) -> Result<Consensus, OpenError> {
        start::open(host, config).await
    }

    /// Decides commands, on any node: a follower passes them on to the leader. All go into one entry.
    ///
    /// # Errors
    /// [`ProposeError`]; refusals of single commands are in [`Proposed::decided`].
    pub async fn propose(&self, commands: Vec<Command>) -> Result<Proposed, ProposeError> {
        self.inner.proposer.propose(commands, None, true).await
    }

    /// Whether this node takes another submission of a client now.
    ///
    /// # Errors
    /// [`ProposeError::Busy`] when it does not.
    pub fn room_for_clients(&self) -> Result<(), ProposeError> {
        self.inner.proposer.room_for_clients()
    }

    /// Like [`Consensus::propose`], but only while this node leads in exactly `term`, and never passed on: what a deposed leader found
    /// due (a fence) must not reach the next one, which may have acknowledged the node since (law 6).
    ///
    /// # Errors
    /// [`ProposeError::NoLeader`] when this node does not lead in `term`; as [`Consensus::propose`] otherwise.
    pub async fn propose_here(&self, term: u64, commands: Vec<Command>) -> Result<Proposed, ProposeError> {
        self.inner.proposer.propose(commands, Some(term), false).await
    }

    /// Makes a linearizable read possible: when this returns, [`Consensus::read`] sees everything acknowledged before the call.
    /// Concurrent calls share one round trip.
    ///
    /// # Errors
    /// [`ProposeError::NoLeader`] or [`ProposeError::Stopped`].
    pub async fn read_index(&self) -> Result<Revision, ProposeError> {
        let index = self.inner.reader.index().await?;
        self.wait_applied(Revision(index)).await?;
        Ok(Revision(index))
    }

    /// On the leader: a quorum has confirmed, after this call began, that it still leads, and everything committed before the call is
    /// applied here. Concurrent calls share one round trip.
    ///
    /// # Errors
    /// [`ProposeError::NoLeader`] when it does not, [`ProposeError::Stopped`].
    pub async fn confirm_leadership(&self) -> Result<(), ProposeError> {
        let index = self.inner.reader.confirm_here().await?;
        self.wait_applied(Revision(index)).await
    }

    /// Looks at the state as applied here, which may lag. Keep it short: it holds back the next entry. Not to be nested.
    pub fn read<R>(&self, look: impl FnOnce(&State, Revision) -> R) -> R {
        self.core().replica.read(look)
    }

    /// The cluster's time now, in milliseconds since the Unix epoch: the state's own, moved on by what has passed since it was set.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.core().replica.now_ms()
    }

    /// Freezes what is applied here, for a backup.
    pub(crate) fn freeze(&self) -> Result<restored::FrozenState, DiskError> {
        self.core().replica.freeze()
    }

    /// Waits until the entries up to `revision` are applied here.
    ///
    /// # Errors
    /// [`ProposeError::Stopped`].
    pub async fn wait_applied(&self, revision: Revision) -> Result<(), ProposeError> {
        let applied = self.core().replica.hub.wait_for(revision.0).await;
        applied.map_err(|why| ProposeError::Stopped { why })
    }

    /// The changes after `after`, one revision at a time, without gaps.
    ///
    /// # Errors
    /// [`TooOld`]: read the whole state, then follow from its revision.
    pub fn follow(&self, after: Revision) -> Result<Follower, TooOld> {
        self.core().replica.hub.follow(after)
    }

    /// How far back [`Consensus::follow`] reaches.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.core().replica.hub.reach()
    }

    /// A finished job, from disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finished_job(&self, id: JobId) -> Result<Option<Job>, DiskError> {
        self.core().replica.finished_job(id)
    }

    /// Finished jobs as they ended, after `after`: at most `limit`.
    pub(crate) fn first_to_end(&self, after: Option<FinishedJob>, limit: usize) -> Result<Vec<FinishedJob>, DiskError> {
        self.core().replica.first_to_end(after, limit)
    }

    /// Finished jobs from disk, at most `limit`: after `from` ascending, or before it descending when `newest_first`.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finished_jobs(&self, from: Option<JobId>, newest_first: bool, limit: usize) -> Result<Vec<Job>, DiskError> {
        self.core().replica.finished_jobs(from, newest_first, limit)
    }

    /// Records of the audit from disk, at most `limit`: from number `from` up, or from below it down when `newest_first`.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn audit_records(
        &self,
        from: Option<u64>,
        newest_first: bool,
        limit: usize,
    ) -> Result<Vec<AuditRecord>, DiskError> {
        self.core().replica.audit_records(from, newest_first, limit)
    }

    /// The leader and its address, if one is known.
    #[must_use]
    pub fn leader(&self) -> Option<(u64, String)> {
        let leadership = self.core().leadership.borrow();
        leadership.leader.zip(leadership.address.clone())
    }

    /// Whether this node believes that it leads; [`Consensus::confirm_leadership`] proves it.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.core().is_leader()
    }

    /// Whether this node leads and has applied whatever was acknowledged before.
    #[must_use]
    pub fn leads_up_to_date(&self) -> bool {
        self.core().leads_up_to_date()
    }

    /// Whether this node is a live part of the cluster, as far as it knows: what it has applied is then not far behind.
    #[must_use]
    pub fn hears_quorum(&self) -> bool {
        self.core().hears_quorum()
    }

    /// This node.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.core().id
    }

    /// Changes of who leads.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.core().leadership.clone()
    }

    /// A channel to another member, kept open and shared; for calls of the Peer service or to pass a client's call on.
    #[must_use]
    pub fn channel_to(&self, id: u64) -> Option<Channel> {
        let member = self.core().member(id)?;
        self.core().peers.channel(id, &member.address, peer::Lane::Bulk).ok()
    }

    /// The service that other control nodes call.
    #[must_use]
    pub fn peer_service(
        &self,
        services: Arc<dyn PeerServices>,
    ) -> v1::peer_server::PeerServer<impl v1::peer_server::Peer + use<>> {
        let Inner { core, proposer, reader, .. } = &*self.inner;
        peer_service::PeerService::server(core.clone(), proposer.clone(), reader.clone(), services)
    }

    /// Makes this empty node, and the other empty nodes that are named, a new cluster of voters.
    ///
    /// # Errors
    /// [`AdminError::AlreadyMember`] when this node's folder has ever been part of a cluster.
    pub async fn bootstrap(&self, members: BTreeMap<u64, String>) -> Result<(), AdminError> {
        let _one_at_a_time = self.inner.changing.lock().await;
        self.core().bootstrap(members).await
    }

    /// On the leader: adds a node as a learner and waits until it has caught up.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn add_learner(&self, id: u64, address: String) -> Result<(), AdminError> {
        let _one_at_a_time = self.inner.changing.lock().await;
        self.core().add_learner(id, address).await
    }

    /// On the leader: makes a learner a voter.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn promote(&self, id: u64) -> Result<(), AdminError> {
        let _one_at_a_time = self.inner.changing.lock().await;
        self.core().promote(id).await
    }

    /// On the leader: takes a member out; with `replace_with`, that learner becomes a voter in the same joint change.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn remove(&self, id: u64, replace_with: Option<u64>) -> Result<(), AdminError> {
        let _one_at_a_time = self.inner.changing.lock().await;
        self.core().remove(id, replace_with).await
    }

    /// Whether control node `id` is a member, as far as this node knows.
    #[must_use]
    pub fn is_member(&self, id: u64) -> bool {
        self.core().replica.with_membership(|members, _| members.membership().get_node(&id).is_some())
    }

    /// Where this node stands.
    #[must_use]
    pub fn status(&self) -> Status {
        self.core().status()
    }

    /// Resolves with the reason when this node has stopped, by [`Consensus::shutdown`] or because its disk or core failed.
    pub async fn stopped(&self) -> String {
        self.core().stop.stopped().await
    }

    /// Stops this node because of a fault: nothing more is served, and [`Consensus::stopped`] says why.
    pub async fn fail(&self, why: impl Into<String>) {
        self.core().stop.because(why);
        self.shutdown().await;
    }

    /// Stops this node in order; what was acknowledged is already durable.
    pub async fn shutdown(&self) {
        if let Err(lost) = self.core().raft.shutdown().await {
            tracing::warn!(%lost, "consensus did not end in order");
        }
        self.core().stop.because("it was shut down");
    }

    fn core(&self) -> &core::Core {
        &self.inner.core
    }
}
