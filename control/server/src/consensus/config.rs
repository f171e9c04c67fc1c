//! How a control node takes part in consensus: its settings and their usual values.

use crate::consensus::error::OpenError;

/// Settings of one node. Timeouts must be the same on all voters.
#[derive(Clone, Debug)]
pub struct ConsensusConfig {
    /// This node's id; never used again after the node was removed or wiped.
    pub id: u64,
    /// `host:port` at which other control nodes, shards, agents and clients reach this one.
    pub advertise: String,
    /// Heartbeat of the leader, in milliseconds; also the time a follower has to take and sync what it is sent, so it stays above
    /// the slowest sync that should not count as a failure.
    pub heartbeat_ms: u64,
    /// Election timeout, shortest and longest, in milliseconds. A failover takes about the longest (the lease of the lost leader) and
    /// one random timeout.
    pub election_ms: (u64, u64),
    /// A snapshot is made every so many entries.
    pub snapshot_every_entries: u64,
    /// So many entries are kept behind a snapshot, for followers that lag a little.
    pub keep_entries: u64,
}

impl ConsensusConfig {
    /// The usual settings: a lost leader is replaced in 0.65 to 0.95 seconds.
    pub fn new(id: u64, advertise: impl Into<String>) -> Self {
        ConsensusConfig {
            id,
            advertise: advertise.into(),
            heartbeat_ms: 80,
            election_ms: (250, 400),
            snapshot_every_entries: 20_000,
            keep_entries: 2_000,
        }
    }

    /// What the settings mean to openraft, where they mean something at all.
    pub(crate) fn raft(&self) -> Result<openraft::Config, OpenError> {
        let config = openraft::Config {
            cluster_name: "muster".to_owned(),
            heartbeat_interval: self.heartbeat_ms,
            election_timeout_min: self.election_ms.0,
            election_timeout_max: self.election_ms.1,
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
