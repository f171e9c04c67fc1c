//! How a shard is set up.

use muster_runtime::{NetError, Transport};

/// A shard's settings. [`ShardConfig::new`] has the usual values.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// Beginning of its name; the rest makes it unique per start.
    pub name_prefix: String,
    /// Control nodes, `host:port`; any of them serves.
    pub endpoints: Vec<String>,
    /// How control nodes are talked with.
    pub transport: Transport,
    /// Cells it takes at most, whoever else lives.
    pub cells_max: usize,
    /// How many shards are meant to run: each takes its share at once, and more only from those that stay away.
    pub shards_expected: usize,
    /// How long a cell must have been without a holder before a shard takes it beyond its share.
    pub patience_ms: u64,
    /// Renewal interval: a quarter of the control plane's lease, so that three may be lost.
    pub renew_every_ms: u64,
    /// Deadline of one call.
    pub call_timeout_ms: u64,
    /// Plan moves and conversions in the background; none: only when somebody asks.
    pub moves: Option<MovesConfig>,
}

/// How moves are planned in the background. Plans are told in logs and metrics; nothing is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovesConfig {
    /// At most this share of the movable work, in percent.
    pub share_percent: u8,
    /// How often a cell is planned. A plan stands in the way of passes for as long as it takes: some hundred milliseconds where thousands
    /// of jobs wait on a full fleet.
    pub every_ms: u64,
}

impl ShardConfig {
    /// The usual settings.
    #[must_use]
    pub fn new(name_prefix: impl Into<String>, endpoints: Vec<String>) -> Self {
        ShardConfig {
            name_prefix: name_prefix.into(),
            endpoints,
            transport: Transport::Plain,
            cells_max: 64,
            shards_expected: 1,
            patience_ms: 500,
            renew_every_ms: 500,
            call_timeout_ms: 2_000,
            moves: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), StartError> {
        if self.endpoints.is_empty() {
            return Err(StartError::NoEndpoints);
        }
        let zero = [
            ("cells_max", self.cells_max as u64),
            ("renew_every_ms", self.renew_every_ms),
            ("call_timeout_ms", self.call_timeout_ms),
        ];
        if let Some(moves) = self.moves.filter(|moves| moves.share_percent > 100) {
            return Err(StartError::Share { percent: moves.share_percent });
        }
        let mut settings = zero.into_iter().chain(self.moves.map(|moves| ("moves.every_ms", moves.every_ms)));
        match settings.find(|(_, value)| *value == 0) {
            Some((setting, _)) => Err(StartError::Zero { setting }),
            None => Ok(()),
        }
    }
}

/// Why a shard cannot start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// Nothing to talk to.
    #[error("no control endpoint is given; give at least one HOST:PORT (--endpoints)")]
    NoEndpoints,
    /// A setting makes no sense.
    #[error("{setting} is 0; use at least 1")]
    Zero {
        /// Which.
        setting: &'static str,
    },
    /// A share that is none.
    #[error("the share of movable work is {percent} %; use at most 100")]
    Share {
        /// What was given.
        percent: u8,
    },
    /// An endpoint cannot be one, or the credentials cannot be used.
    #[error(transparent)]
    Net(#[from] NetError),
}
