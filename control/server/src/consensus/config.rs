//! How a control node takes part in consensus: its settings and their usual values.

use crate::consensus::error::OpenError;
use crate::consensus::forms::FEATURE_LEVEL_NEWEST;
use muster_runtime::Transport;
use std::time::Duration;

/// Settings of one node. Timeouts must be the same on all voters.
#[derive(Clone, Debug)]
pub struct ConsensusConfig {
    /// This node's id; never used again after the node was removed or wiped.
    pub id: u64,
    /// `host:port` at which other control nodes, shards, agents and clients reach this one.
    pub advertise: String,
    /// How often the leader makes itself heard, in milliseconds: several times in the shortest election timeout, so that one that is lost
    /// or late does not count.
    pub heartbeat_ms: u64,
    /// How long a voter that hears nothing of a leader waits before it stands for election, shortest and longest, in milliseconds. The
    /// shortest is also the lease: so long after the last word of a leader no voter elects another, unless the leader's process is known
    /// to have ended. The loss of the leader's host costs about the longest.
    pub election_ms: (u64, u64),
    /// The longest round trip between two voters, in milliseconds; 0 where they share a machine room. Whatever waits for another voter
    /// waits longer by it.
    pub round_trip_ms: u64,
    /// A snapshot is made every so many entries.
    pub snapshot_every_entries: u64,
    /// So many entries are kept behind a snapshot, for followers that lag a little.
    pub keep_entries: u64,
    /// How control nodes talk with each other: the same on all of them. `advertise` is then where machines are served.
    pub transport: Transport,
    /// The newest feature level that this node says it knows: that of this version, but in tests of upgrades.
    pub knows_level: u32,
    /// A bug, so that the checkers of the simulation can be seen to find it. Nothing else sets it.
    #[doc(hidden)]
    pub planted: Option<PlantedBug>,
}

/// Faults that were found and fixed once, to be brought back one at a time.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A leader that starts again leads on in its old term, by the commit mark on its disk.
    LeadershipResumed,
    /// The leader's own clock is believed, whatever the others say.
    ClockBelieved,
    /// An append that takes longer than openraft waits for it is ended, and begun again from the start.
    AppendsGivenUp,
    /// Whoever hears no leader for a while takes a new term without asking.
    PreVoteSkipped,
    /// A leader shows an entry as committed that a majority has synced but it has counted itself as synced before it was.
    ShownBeforeSync,
}

impl ConsensusConfig {
    /// The usual settings, for voters that share a machine room: a leader whose process ends is replaced within 0.2 s, one whose host is
    /// lost within 0.4 s.
    pub fn new(id: u64, advertise: impl Into<String>) -> Self {
        ConsensusConfig {
            id,
            advertise: advertise.into(),
            heartbeat_ms: HEARTBEAT_MS,
            election_ms: ELECTION_MS,
            round_trip_ms: 0,
            snapshot_every_entries: 20_000,
            keep_entries: 2_000,
            transport: Transport::Plain,
            knows_level: FEATURE_LEVEL_NEWEST,
            planted: None,
        }
    }

    /// The settings for voters of which two are so far from each other, with room for jitter and a slow sync: a heartbeat is two round
    /// trips and 70 ms, an election timeout three heartbeats to four and a half. On no round trip they are the usual ones.
    #[must_use]
    pub fn far(self, round_trip_ms: u64) -> Self {
        let heartbeat_ms = if round_trip_ms == 0 { HEARTBEAT_MS } else { 2 * round_trip_ms + 70 };
        let shortest = ELECTION_MS.0.max(3 * heartbeat_ms);
        let longest = if round_trip_ms == 0 { ELECTION_MS.1 } else { shortest * 3 / 2 };
        ConsensusConfig { heartbeat_ms, election_ms: (shortest, longest), round_trip_ms, ..self }
    }

    /// `at_home` and so many round trips between the voters that are farthest from each other.
    pub(crate) fn and_round_trips(&self, at_home: Duration, count: u32) -> Duration {
        at_home + Duration::from_millis(self.round_trip_ms) * count
    }

    /// How long after the last word of a leader no voter elects another.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.election_ms.0)
    }

    /// What the settings mean to openraft, where they mean something at all: `crate::consensus::election` decides who stands when, and
    /// keeps the leader's lease. Of openraft's timeouts the shortest is how long it waits for an answer to a vote, and its heartbeat is
    /// how long it waits for an answer to an append, which [`crate::consensus::peer`] goes on with for longer where the append is large.
    /// The longest is openraft's own lease, which may not outlast the silence after which a voter asks whether the leader's process has
    /// ended; openraft wants it longer than the others, so all are said in parts of [`STRETCH`], and waited for in full.
    pub(crate) fn raft(&self) -> Result<openraft::Config, OpenError> {
        if self.heartbeat_ms == 0
            || self.election_ms.0 < 3 * self.heartbeat_ms
            || self.election_ms.1 < self.election_ms.0
        {
            let why = format!(
                "election timeout {}-{} ms with a heartbeat of {} ms: use at least three heartbeats, the shorter timeout first",
                self.election_ms.0, self.election_ms.1, self.heartbeat_ms
            );
            return Err(OpenError::Config { why });
        }
        let config = openraft::Config {
            cluster_name: "muster".to_owned(),
            enable_elect: false,
            // `crate::consensus::heartbeat` tells it when.
            enable_heartbeat: false,
            heartbeat_interval: (self.election_ms.0 / STRETCH).max(1),
            election_timeout_min: (self.election_ms.0 / STRETCH).max(1) + 1,
            election_timeout_max: (self.election_ms.0 / STRETCH).max(1) + 2,
            install_snapshot_timeout: SNAPSHOT_TIMEOUT_MS,
            max_payload_entries: MAX_APPEND_ENTRIES,
            replication_lag_threshold: self.snapshot_every_entries.max(LAG_ENTRIES),
            snapshot_policy: openraft::SnapshotPolicy::LogsSinceLast(self.snapshot_every_entries.max(1)),
            max_in_snapshot_log_to_keep: self.keep_entries,
            purge_batch_size: (self.keep_entries / 8).clamp(1, 1_024),
            ..openraft::Config::default()
        };
        config.validate().map_err(|wrong| OpenError::Config { why: wrong.to_string() })
    }
}

/// How often the leader makes itself heard where voters share a machine room.
const HEARTBEAT_MS: u64 = 50;
/// Six heartbeats, as TCP loses several packets in a row rarely; the two other voters of three stand 25 ms apart, twice as long as an
/// election takes on a disk that syncs in some milliseconds.
const ELECTION_MS: (u64, u64) = (300, 350);

/// openraft waits so many times longer for answers to appends and votes than its settings say; its lease is as they say.
pub(crate) const STRETCH: u64 = 8;

/// A whole snapshot may take this long to send and install: 500 MB over a slow disk, with room.
pub(crate) const SNAPSHOT_TIMEOUT_MS: u64 = 600_000;

/// Entries of one append at most; its bytes are bounded as well, where the log is read.
const MAX_APPEND_ENTRIES: u64 = 256;

/// A learner closer than this counts as caught up, and a follower further behind may be sent a snapshot.
const LAG_ENTRIES: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_follow_the_round_trip() {
        let of = |round_trip_ms| {
            let config = ConsensusConfig::new(1, "a:1").far(round_trip_ms);
            config.raft().expect("openraft takes them");
            (config.heartbeat_ms, config.election_ms)
        };
        assert_eq!(of(0), (HEARTBEAT_MS, ELECTION_MS));
        assert_eq!(of(1), (72, (300, 450)));
        assert_eq!(of(40), (150, (450, 675)));
        assert_eq!(of(80), (230, (690, 1_035)));
        assert_eq!(of(150), (370, (1_110, 1_665)));
        assert_eq!(of(500), (1_070, (3_210, 4_815)));
    }

    #[test]
    fn openraft_has_no_lease_when_the_leaders_end_is_looked_for() {
        for round_trip_ms in [0, 1, 40, 150, 500] {
            let config = ConsensusConfig::new(1, "a:1").far(round_trip_ms);
            let lease_ms = config.raft().expect("openraft takes them").election_timeout_max;
            assert!(lease_ms < config.heartbeat_ms * 3 / 2, "{lease_ms} ms at a round trip of {round_trip_ms} ms");
        }
    }
}
