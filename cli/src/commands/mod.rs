//! The clients' and operators' commands, one family to a file.
//!
//! What must stay true: a command asks the API and prints; it decides nothing that the fleet decides. What-if and replays decide for fleets that are
//! not there, with the fleet's own cores.

pub mod access;
pub mod audit;
pub mod backup;
pub mod bench;
pub mod ca;
pub mod cancel;
pub mod checkpoint;
pub mod classes;
pub mod completions;
pub mod events;
pub mod explain;
pub mod fleet;
pub mod hold;
pub mod input;
pub mod job;
pub mod jobs;
pub mod login;
pub mod logs;
pub mod machine;
pub mod moves;
pub mod plan;
pub mod priority_classes;
pub mod raft;
pub mod replay;
pub mod replay_live;
pub mod requeue;
pub mod secret;
pub mod state;
pub mod submit;
pub mod tenants;
pub mod wait;
pub mod what_if;
pub mod windows;

use crate::args::Global;
use crate::client::Client;
use crate::config::{Config, DEFAULT_ENDPOINT};
use crate::failure::Failure;
use crate::output::Out;
use muster_proto::v1::Consistency;
use std::time::Duration;

/// What every client command has: the cluster, the configuration, the way out.
pub struct Context {
    /// The cluster.
    pub client: Client,
    /// The configuration file.
    pub config: Config,
    /// Where results go.
    pub out: Out,
    /// Linearizable unless `--stale`.
    pub consistency: Consistency,
}

impl Context {
    /// From flags, environment and configuration file.
    ///
    /// # Errors
    /// When the configuration cannot be read, or an endpoint is none.
    pub fn new(global: &Global) -> Result<Self, Failure> {
        let config = Config::load(global.config.as_deref())?;
        let endpoints = endpoints(global, &config);
        let deadline = Duration::from_secs(global.timeout.map_or(20, |timeout| timeout.0.max(1)));
        Ok(Context {
            client: Client::open(&endpoints, deadline, &config.access()?)?.remembering(),
            out: Out::new(global.output.or(config.output).unwrap_or_default(), global.color),
            consistency: if global.stale { Consistency::Stale } else { Consistency::Linearizable },
            config,
        })
    }
}

/// Who to ask: flags or environment, then the configuration, then the usual port of this machine.
#[must_use]
pub fn endpoints(global: &Global, config: &Config) -> Vec<String> {
    let named = [&global.endpoints, &config.endpoints].into_iter().find(|list| !list.is_empty());
    named.cloned().unwrap_or_else(|| vec![DEFAULT_ENDPOINT.to_owned()])
}

/// Now, in milliseconds since the Unix epoch, for showing how long things take.
#[must_use]
pub fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}
