//! Voters as they are shown.

use crate::output::{Block, Columns};
use muster_proto::v1;
use serde::Serialize;

/// What one control node says of itself.
#[derive(Clone, Debug, Serialize)]
pub struct PeerView {
    /// Its id; absent when it did not answer.
    pub id: Option<u64>,
    /// Where it was asked.
    pub address: String,
    /// leader, follower, candidate, learner, or `down` with the reason beside it.
    pub state: String,
    /// voter or learner, in the membership it knows.
    pub role: String,
    /// Its term.
    pub term: u64,
    /// Index of its last entry.
    pub last_log: u64,
    /// Index of the last entry it applied.
    pub applied: u64,
    /// Index of its last snapshot.
    pub snapshot: u64,
    /// Entries before this are gone.
    pub purged: u64,
    /// Identity of the cluster's history.
    pub incarnation: u64,
    /// What its rules may do.
    pub feature_level: u32,
    /// The newest feature level that it knows.
    pub knows_level: u32,
    /// By how many milliseconds its wall clock is ahead of the leader's; absent when the leader does not know it.
    pub clock_offset_ms: Option<i64>,
    /// On the leader: by how many milliseconds the cluster's time is ahead of the clocks of a majority of the voters.
    pub time_ahead_ms: Option<i64>,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl PeerView {
    /// One that answered.
    #[must_use]
    pub fn new(address: &str, reply: &v1::RaftStatusReply, clock_offset_ms: Option<i64>) -> Self {
        let member = reply.members.iter().find(|member| member.id == reply.id);
        PeerView {
            id: Some(reply.id),
            address: address.to_owned(),
            state: reply.state.to_lowercase(),
            role: match member {
                Some(member) if member.voter => "voter".to_owned(),
                Some(_) => "learner".to_owned(),
                None => "none".to_owned(),
            },
            term: reply.term,
            last_log: reply.last_log,
            applied: reply.applied,
            snapshot: reply.snapshot,
            purged: reply.purged,
            incarnation: reply.incarnation,
            feature_level: reply.feature_level,
            knows_level: reply.knows_level,
            clock_offset_ms,
            time_ahead_ms: reply.time_ahead_ms,
            error: String::new(),
        }
    }

    /// One that did not.
    #[must_use]
    pub fn down(id: Option<u64>, address: &str, error: String) -> Self {
        PeerView {
            id,
            address: address.to_owned(),
            state: "down".to_owned(),
            role: String::new(),
            term: 0,
            last_log: 0,
            applied: 0,
            snapshot: 0,
            purged: 0,
            incarnation: 0,
            feature_level: 0,
            knows_level: 0,
            clock_offset_ms: None,
            time_ahead_ms: None,
            error,
        }
    }
}

/// The table of voters.
#[must_use]
pub fn table(peers: &[PeerView]) -> Vec<Block> {
    let heads =
        ["ID", "ADDRESS", "STATE", "ROLE", "TERM", "LAST", "APPLIED", "SNAPSHOT", "PURGED", "LEVEL", "CLOCK", "ERROR"];
    let mut columns = Columns::new(&heads).right(&["ID", "TERM", "LAST", "APPLIED", "SNAPSHOT", "PURGED", "CLOCK"]);
    for peer in peers {
        columns.row(vec![
            peer.id.map_or_else(|| "?".to_owned(), |id| id.to_string()),
            peer.address.clone(),
            peer.state.clone(),
            peer.role.clone(),
            peer.term.to_string(),
            peer.last_log.to_string(),
            peer.applied.to_string(),
            peer.snapshot.to_string(),
            peer.purged.to_string(),
            level(peer),
            peer.clock_offset_ms.map_or_else(String::new, |ms| format!("{:+.3} s", ms as f64 / 1_000.0)),
            peer.error.clone(),
        ]);
    }
    let mut blocks = vec![columns.block()];
    let ahead_ms = peers.iter().filter_map(|peer| peer.time_ahead_ms).max().unwrap_or(0);
    if ahead_ms >= AHEAD_SHOWN_MS {
        let ahead = crate::units::show_seconds(ahead_ms as u64 / 1_000);
        blocks.push(Block::Text(format!(
            "the cluster's time is {ahead} ahead of the voters' clocks, so submissions are refused as too old; check the clocks, then run \
             `muster raft reset-clock`"
        )));
    }
    blocks
}

/// The feature level, with what this node knows beyond it: that waits for the other voters.
fn level(peer: &PeerView) -> String {
    match (peer.feature_level, peer.knows_level) {
        (0, _) => String::new(),
        (level, knows) if knows == level => level.to_string(),
        (level, knows) => format!("{level} (knows {knows})"),
    }
}

/// The cluster's time is usually behind the clocks, by what has passed since the last entry.
const AHEAD_SHOWN_MS: i64 = 60_000;

/// What setting the clock back came to.
#[derive(Clone, Debug, Serialize)]
pub struct ClockView {
    /// How far the cluster's time was ahead.
    pub ahead_ms: u64,
    /// Objects whose times were corrected.
    pub corrected: u64,
}

impl ClockView {
    /// As text.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let back = crate::units::show_seconds(self.ahead_ms / 1_000);
        vec![Block::Text(format!(
            "the cluster's time was set back by {back}; the times of {} objects were corrected",
            self.corrected
        ))]
    }
}

/// The members that a change of membership answered with.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView {
    /// Its id.
    pub id: u64,
    /// host:port.
    pub address: String,
    /// voter or learner.
    pub role: &'static str,
}

impl MemberView {
    /// From the message.
    #[must_use]
    pub fn new(member: &v1::RaftMember) -> Self {
        let role = if member.voter { "voter" } else { "learner" };
        MemberView { id: member.id, address: member.address.clone(), role }
    }
}

/// The table of members.
#[must_use]
pub fn members_table(members: &[MemberView]) -> Vec<Block> {
    let mut columns = Columns::new(&["ID", "ADDRESS", "ROLE"]).right(&["ID"]);
    for member in members {
        columns.row(vec![member.id.to_string(), member.address.clone(), member.role.to_owned()]);
    }
    vec![columns.block()]
}
