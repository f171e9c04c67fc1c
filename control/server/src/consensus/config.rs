//! How a control node takes part in consensus: its settings and their usual values.

use crate::consensus::error::OpenError;
use crate::consensus::forms::FEATURE_LEVEL_NEWEST;
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
    /// shortest is also the lease: so long after the last word of a leader no voter elects another. A failover takes about the longest.
    pub election_ms: (u64, u64),
    /// A snapshot is made every so many entries.
    pub snapshot_every_entries: u64,
    /// So many entries are kept behind a snapshot, for followers that lag a little.
    pub keep_entries: u64,
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
    /// The usual settings: a lost leader is replaced in 0.3 to 0.5 seconds.
    pub fn new(id: u64, advertise: impl Into<String>) -> Self {
        ConsensusConfig {
            id,
            advertise: advertise.into(),
            heartbeat_ms: 60,
            election_ms: (350, 450),
            snapshot_every_entries: 20_000,
            keep_entries: 2_000,
            knows_level: FEATURE_LEVEL_NEWEST,
            planted: None,
        }
    }

    /// How long after the last word of a leader no voter elects another.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.election_ms.0)
    }

    /// What the settings mean to openraft, where they mean something at all: `crate::consensus::election` decides who stands when, so of
    /// its election timeouts the longest is its lease and the shortest is how long it waits for an answer to a vote; its heartbeat is how
    /// long it waits for an answer to an append, which [`crate::consensus::peer`] goes on with for longer where the append is large.
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
            heartbeat_interval: (self.election_ms.0 / 2).max(1),
            election_timeout_min: self.election_ms.0.saturating_sub(1),
            election_timeout_max: self.election_ms.0,
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

/// A whole snapshot may take this long to send and install: 500 MB over a slow disk, with room.
pub(crate) const SNAPSHOT_TIMEOUT_MS: u64 = 600_000;

/// Entries of one append at most; its bytes are bounded as well, where the log is read.
const MAX_APPEND_ENTRIES: u64 = 256;

/// A learner closer than this counts as caught up, and a follower further behind may be sent a snapshot.
const LAG_ENTRIES: u64 = 1_000;
