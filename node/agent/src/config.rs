//! What an agent is told when it starts.

use crate::exec::{ExecError, Executor};
use crate::gpu::{GpuBackend, GpuError};
use muster_model::Proof;
use muster_model::node::NodeSpec;
use muster_node_core::health::Mode;
use muster_runtime::{DiskError, NetError, Transport};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Everything an agent needs beside its host.
#[derive(Clone)]
pub struct AgentConfig {
    /// What it says of its node. With no cards named, those of the backend are.
    pub spec: NodeSpec,
    /// `host:port` of control nodes; any of them serves.
    pub endpoints: Vec<String>,
    /// How control nodes are talked with.
    pub transport: Transport,
    /// What runs its tasks.
    pub executor: Arc<dyn Executor>,
    /// Its cards.
    pub gpus: Arc<dyn GpuBackend>,
    /// What came of trying to get past the isolation of tasks; it may change while the agent runs.
    pub proofs: watch::Receiver<Vec<Proof>>,
    /// How the health of its cards is watched.
    pub health: HealthConfig,
    /// How often usage is cut into intervals.
    pub usage_period: Duration,
    /// A session whose heartbeats are not acknowledged for this long is given up for another control node.
    pub silence_max: Duration,
    /// Waits between failed sessions start here and double.
    pub backoff_min: Duration,
    /// They grow no longer than this.
    pub backoff_max: Duration,
}

impl AgentConfig {
    /// The usual times: usage every 10 s, a session given up after 3 s of silence, 100 ms to 10 s between failed sessions: a whole fleet that has lost one
    /// control node asks it some hundred times a second, and no more.
    #[must_use]
    pub fn new(spec: NodeSpec, endpoints: Vec<String>, executor: Arc<dyn Executor>, gpus: Arc<dyn GpuBackend>) -> Self {
        let proofs = watch::channel(spec.proofs.clone()).1;
        AgentConfig {
            spec,
            endpoints,
            transport: Transport::Plain,
            executor,
            gpus,
            proofs,
            health: HealthConfig::default(),
            usage_period: Duration::from_secs(10),
            silence_max: Duration::from_secs(3),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
        }
    }
}

/// How the health of cards is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// Whether verdicts are acted on, or only told.
    pub mode: Mode,
    /// `/dev/kmsg`, or what stands in its place; absent: the kernel's log is not read.
    pub kernel_log: Option<PathBuf>,
    /// GPUs that ask for a reset are reset while the node is drained and nobody uses it.
    pub resets: bool,
}

impl Default for HealthConfig {
    /// Verdicts are acted on, resets are done, and no kernel's log is read.
    fn default() -> Self {
        HealthConfig { mode: Mode::default(), kernel_log: None, resets: true }
    }
}

/// Why an agent cannot start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// There is nobody to talk to.
    #[error("no control endpoint is given; give at least one HOST:PORT (--endpoints)")]
    NoEndpoint,
    /// Its credentials cannot be used.
    #[error(transparent)]
    Credentials(#[from] NetError),
    /// Its own record cannot be read or written.
    #[error("the record of the agent cannot be read or written")]
    Disk(#[from] DiskError),
    /// Its own record is not what was written.
    #[error("the record of the agent, {file}, cannot be parsed")]
    Corrupt {
        /// Which.
        file: &'static str,
        /// How it shows.
        source: serde_json::Error,
    },
    /// Tasks are on record, but not whose they are.
    #[error(
        "the data folder has tasks but no record of the agent and its cluster (files/agent.json): if the folder was \
         restored in part, restore all of it; otherwise delete the whole folder, which also deletes the output of its tasks"
    )]
    NoIdentity,
    /// The control plane is that of another cluster.
    #[error(
        "this node belongs to cluster {own:016x}, but {endpoint} belongs to cluster {got:016x}: correct --endpoints; or, to move the node \
         to that cluster, stop the agent, delete its data folder and start it again"
    )]
    OtherCluster {
        /// Who was asked.
        endpoint: String,
        /// The cluster that the agent belongs to.
        own: u64,
        /// The one that answered.
        got: u64,
    },
    /// Its tasks cannot be taken over.
    #[error(transparent)]
    Tasks(#[from] ExecError),
    /// Its cards cannot be read.
    #[error("the GPUs of the node cannot be read")]
    Cards(#[from] GpuError),
}
