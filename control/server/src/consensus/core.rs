//! What the parts of a node share: the raft core, the replica, the peers, and who leads.

use crate::consensus::clock::Stamp;
use crate::consensus::config::{ConsensusConfig, PlantedBug};
use crate::consensus::contact::Contact;
use crate::consensus::error::ProposeError;
use crate::consensus::log::Log;
use crate::consensus::peer::Peers;
use crate::consensus::quorum::Heartbeats;
use crate::consensus::replica::Replica;
use crate::consensus::stop::Stop;
use crate::consensus::turn::Turns;
use crate::consensus::types::{Member, Raft};
use crate::consensus::{Leadership, MemberStatus, Status};
use muster_runtime::Host;
use openraft::{RaftMetrics, ServerState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Shared by all parts of one node.
pub(crate) struct Core {
    pub(crate) host: Host,
    pub(crate) id: u64,
    pub(crate) raft: Raft,
    pub(crate) log: Log,
    pub(crate) replica: Arc<Replica>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) config: ConsensusConfig,
    /// When a leader was last heard of.
    pub(crate) contact: Contact,
    /// Whose turn it is to stand for election.
    pub(crate) turns: Turns,
    /// What this node learns by its heartbeats while it leads.
    pub(crate) heartbeats: Heartbeats,
    pub(crate) stop: Stop,
}

/// Bytes of log after which a snapshot is made, however few the entries: what a restart has to check.
const SNAPSHOT_LOG_BYTES: u64 = 256 << 20;
/// How often that is looked at.
const SNAPSHOT_LOOK: Duration = Duration::from_secs(1);
/// A leader that a quorum has not answered for so long may have been cut off, where voters share a machine room.
const QUORUM_SILENCE_MAX: Duration = Duration::from_secs(1);

impl Core {
    pub(crate) fn is_leader(&self) -> bool {
        self.leadership.borrow().here
    }

    /// Whether this node is a live part of the cluster: it knows the leader, or leads and was confirmed lately.
    pub(crate) fn hears_quorum(&self) -> bool {
        if !self.is_leader() {
            return self.leadership.borrow().leader.is_some();
        }
        // With itself as the only voter there is nobody to hear.
        let alone = self.raft.metrics().borrow().membership_config.membership().voter_ids().count() == 1;
        // What was heard last was sent up to a heartbeat and a round trip ago.
        let heartbeats = Duration::from_millis(self.config.heartbeat_ms) * 4;
        let silence_max = self.config.and_round_trips(QUORUM_SILENCE_MAX.max(heartbeats), 1);
        alone || self.heartbeats.quorum_heard().is_some_and(|heard| heard.elapsed() < silence_max)
    }

    /// Whether this node leads, was confirmed lately, and has applied whatever an earlier leader has acknowledged: an entry of its own term is applied.
    pub(crate) fn leads_up_to_date(&self) -> bool {
        let has_applied = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow();
            metrics.last_applied.is_some_and(|applied| applied.leader_id.term == metrics.current_term)
        };
        has_applied && self.is_leader() && self.hears_quorum()
    }

    /// The leader, when it is another node that this one can reach.
    pub(crate) fn other_leader(&self) -> Option<(u64, Member)> {
        let leader = self.leadership.borrow().leader.filter(|leader| *leader != self.id)?;
        Some((leader, self.member(leader)?))
    }

    /// A member by id, as this node's log has it.
    pub(crate) fn member(&self, id: u64) -> Option<Member> {
        self.raft.metrics().borrow().membership_config.membership().get_node(&id).cloned()
    }

    /// The error of a core that has stopped.
    pub(crate) fn stopped(&self, why: &dyn std::error::Error) -> ProposeError {
        ProposeError::Stopped { why: self.stop.reason().unwrap_or_else(|| why.to_string()) }
    }

    /// The level that the state has.
    pub(crate) fn feature_level(&self) -> u32 {
        self.replica.read(|state, _| state.meta.feature_level)
    }

    /// What an entry would be stamped with now; nothing before the clocks of a majority are known.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        let own_wall_ms = self.host.clock.wall_ms();
        if self.config.planted == Some(PlantedBug::ClockBelieved) {
            return Some(Stamp { now_ms: own_wall_ms, own_offset_ms: 0, believed: true });
        }
        let voters = self.raft.metrics().borrow().membership_config.membership().voter_ids().collect();
        self.heartbeats.clocks.lock().stamp(self.id, &voters, own_wall_ms, Instant::now())
    }

    /// How far the state's time is ahead.
    pub(crate) fn time_ahead_ms(&self, stamp: Stamp) -> i64 {
        self.replica.read(|state, _| state.meta.now_ms as i64 - stamp.now_ms as i64)
    }

    /// Where this node stands.
    pub(crate) fn status(&self) -> Status {
        // A copy, because a borrow held here would stop the node for good: what is asked below borrows the metrics again, waits for a
        // writer that came in between, and the writer waits for the first borrow.
        let metrics = self.raft.metrics().borrow().clone();
        let index = |log_id: Option<openraft::LogId<u64>>| log_id.map_or(0, |log_id| log_id.index);
        let membership = metrics.membership_config.membership();
        let voters: std::collections::BTreeSet<u64> = membership.voter_ids().collect();
        let matched = |id: &u64| {
            let matched = metrics.replication.as_ref()?.get(id)?;
            Some(index(*matched))
        };
        let own_wall_ms = self.host.clock.wall_ms();
        let clock_offset_ms = |id: u64| match metrics.state {
            ServerState::Leader if id == self.id => Some(0),
            ServerState::Leader => self.heartbeats.clock_offset_ms(id, own_wall_ms),
            _ => None,
        };
        let member = |(id, member): (&u64, &Member)| MemberStatus {
            id: *id,
            address: member.address.clone(),
            voter: voters.contains(id),
            matched: matched(id),
            clock_offset_ms: clock_offset_ms(*id),
        };
        Status {
            id: self.id,
            leader: metrics.current_leader,
            term: metrics.current_term,
            role: if self.stop.reason().is_some() { "stopped" } else { role(metrics.state) },
            last_log: metrics.last_log_index.unwrap_or(0),
            applied: index(metrics.last_applied),
            snapshot: index(metrics.snapshot),
            purged: index(metrics.purged),
            members: membership.nodes().map(member).collect(),
            knows_level: self.config.knows_level,
            time_ahead_ms: self.is_leader().then(|| self.stamp()).flatten().map(|stamp| self.time_ahead_ms(stamp)),
        }
    }
}

/// Makes a snapshot whenever the log has grown by so many bytes.
pub(crate) async fn snapshot_by_bytes(core: Arc<Core>) {
    let mut at_last = core.log.appended_bytes();
    loop {
        tokio::select! {
            () = tokio::time::sleep(SNAPSHOT_LOOK) => {}
            _why = core.stop.stopped() => return,
        }
        let now = core.log.appended_bytes();
        if now - at_last >= SNAPSHOT_LOG_BYTES {
            at_last = now;
            if core.raft.trigger().snapshot().await.is_err() {
                return;
            }
        }
    }
}

fn role(state: ServerState) -> &'static str {
    match state {
        ServerState::Leader => "leader",
        ServerState::Follower => "follower",
        ServerState::Candidate => "candidate",
        ServerState::Learner => "learner",
        ServerState::Shutdown => "stopped",
    }
}

/// Follows openraft's metrics: who leads, whether the core still runs, and which members there are. Ends with the core.
pub(crate) async fn watch_raft(
    mut metrics: watch::Receiver<RaftMetrics<u64, Member>>,
    leadership: watch::Sender<Leadership>,
    peers: Arc<Peers>,
    stop: Stop,
) {
    let mut members = Arc::default();
    loop {
        let now = metrics.borrow_and_update().clone();
        if let Err(fatal) = &now.running_state {
            tracing::error!(%fatal, "consensus has ended; this node stops");
            stop.because(format!("consensus has ended: {fatal}"));
        }
        if !Arc::ptr_eq(&members, &now.membership_config) {
            members = now.membership_config.clone();
            let addresses: Vec<&str> =
                members.membership().nodes().map(|(_, member)| member.address.as_str()).collect();
            peers.keep_channels(&addresses);
        }
        publish(&leadership, &now, stop.reason().is_some());
        tokio::select! {
            changed = metrics.changed() => {
                if changed.is_err() {
                    stop.because("consensus has ended");
                    publish(&leadership, &now, true);
                    return;
                }
            }
            _why = stop.stopped() => {
                publish(&leadership, &now, true);
                return;
            }
        }
    }
}

fn publish(leadership: &watch::Sender<Leadership>, now: &RaftMetrics<u64, Member>, stopped: bool) {
    let leader = now.current_leader.filter(|_| !stopped);
    let new = Leadership {
        leader,
        address: leader
            .and_then(|leader| now.membership_config.membership().get_node(&leader))
            .map(|member| member.address.clone()),
        term: now.current_term,
        here: leader == Some(now.id) && now.state == ServerState::Leader,
    };
    metrics::gauge!("muster_raft_term").set(now.current_term as f64);
    metrics::gauge!("muster_raft_applied").set(now.last_applied.map_or(0, |applied| applied.index) as f64);
    metrics::gauge!("muster_raft_leads").set(f64::from(u8::from(new.here)));
    leadership.send_if_modified(|old| {
        let changed = *old != new;
        if changed {
            if (old.leader, old.term) != (new.leader, new.term) {
                tracing::info!(leader = new.leader, term = new.term, here = new.here, "the leader has changed");
            }
            if new.leader.is_some() && old.leader != new.leader {
                metrics::counter!("muster_raft_leader_changes_total").increment(1);
            }
            *old = new;
        }
        changed
    });
}
