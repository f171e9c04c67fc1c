//! A control node as a whole: consensus, the leader's loops and every service at one endpoint.

use crate::api::rates::CallRates;
use crate::consensus::{Consensus, ConsensusConfig, OpenError};
use crate::denials::Denials;
use crate::history::HistoryConfig;
use crate::leases::LeaseConfig;
use crate::leases::leader::LeaderLeases;
use crate::leases::renewals::{Carrier, Renewals};
use crate::recovery::{self, RecoveryError};
use crate::services::{self, App};
use crate::sessions::{Hub, SessionConfig, dispatch};
use muster_runtime::{DiskError, Host, NetError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How the paths of calls among control nodes begin.
const PEERS_PATH: &str = "/muster.v1.Peer/";
/// How long calls in flight may take to end when the node goes down in order.
const GOING_DOWN: Duration = Duration::from_secs(3);

/// Settings of a control node.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// How it takes part in consensus.
    pub consensus: ConsensusConfig,
    /// `host:port` at which it listens; port 0 chooses one (then `consensus.advertise` must be known by other means).
    pub listen: String,
    /// Leases of nodes and cells; the same on all control nodes.
    pub leases: LeaseConfig,
    /// How long finished jobs are kept.
    pub history: HistoryConfig,
    /// Sessions of agents.
    pub sessions: SessionConfig,
    /// How often callers may call a closed cluster.
    pub rates: CallRates,
}

impl ControlConfig {
    /// The usual settings of node `id`, which listens where it is reached.
    #[must_use]
    pub fn new(id: u64, endpoint: impl Into<String>) -> Self {
        let endpoint = endpoint.into();
        ControlConfig {
            consensus: ConsensusConfig::new(id, endpoint.clone()),
            listen: endpoint,
            leases: LeaseConfig::default(),
            history: HistoryConfig::default(),
            sessions: SessionConfig::default(),
            rates: CallRates::default(),
        }
    }
}

/// Why a control node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its stores or its consensus.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its address.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Its record of refusals.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A running control node. Dropping it leaves it running; [`ControlNode::shutdown`] ends it in order.
pub struct ControlNode {
    app: App,
    endpoint: String,
    ended: watch::Receiver<Option<String>>,
}

impl ControlNode {
    /// Opens the stores of `host`, starts consensus and serves. A node with an empty folder then waits to be bootstrapped
    /// ([`Consensus::bootstrap`]) or added to a cluster, answering UNAVAILABLE meanwhile.
    ///
    /// # Errors
    /// [`StartError`], above all when the stores cannot be trusted or the address is taken.
    pub async fn start(host: Host, config: ControlConfig) -> Result<ControlNode, StartError> {
        let consensus = Consensus::open(host.clone(), config.consensus.clone()).await?;
        let leader_leases = LeaderLeases::new(consensus.clone(), config.leases.clone(), config.history);
        host.spawn(Arc::clone(&leader_leases).run());
        let carrier = Carrier { consensus: consensus.clone(), leader_leases: Arc::clone(&leader_leases) };
        let renewals = Renewals::start(&host, carrier, Duration::from_millis(config.leases.batch_ms));
        let stop = CancellationToken::new();
        let hub = Hub::new(
            host.clone(),
            consensus.clone(),
            renewals.clone(),
            config.sessions.clone(),
            config.leases.heartbeat_ms,
            stop.clone(),
        );
        host.spawn(dispatch::run(Arc::clone(&hub)));
        let denials = Denials::start(&host, consensus.clone())?;
        let app = App::new(
            host.clone(),
            consensus.clone(),
            leader_leases,
            renewals,
            hub,
            config.leases.clone(),
            config.rates,
            denials,
            stop.clone(),
        );
        host.spawn(services::past::run(app.clone()));

        let (routes, health) = services::routes(&app).await;
        let serving = match host.net.serve_with_peers(&config.listen, routes, PEERS_PATH, stop.clone()).await {
            Ok(serving) => serving,
            Err(error) => {
                consensus.shutdown().await;
                return Err(error.into());
            }
        };
        let endpoint = serving.endpoint.clone();
        tracing::info!(id = consensus.id(), endpoint, "control node is ready");
        let (tell, ended) = watch::channel(None);
        let tasks = host.tasks.clone();
        host.spawn(async move {
            let why = tokio::select! {
                why = consensus.stopped() => why,
                what = tasks.panicked() => {
                    let why = format!("internal error (a bug): a task panicked: {what}");
                    tracing::error!(why, "this control node is stopping; start it again");
                    consensus.fail(&why).await;
                    why
                }
            };
            for name in services::NAMES {
                health.set_service_status(name, tonic_health::ServingStatus::NotServing).await;
            }
            // Whoever still has a stream here is to go elsewhere.
            stop.cancel();
            if tokio::time::timeout(GOING_DOWN, serving.ended).await.is_err() {
                tracing::warn!("some calls were still running when the node stopped");
            }
            tracing::info!(why, "control node has ended");
            let _ = tell.send(Some(why));
        });
        Ok(ControlNode { app, endpoint, ended })
    }

    /// Where it serves, with the real port.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Its consensus, for bootstrapping and for tests.
    #[must_use]
    pub fn consensus(&self) -> &Consensus {
        &self.app.consensus
    }

    /// Whether it runs and knows a leader: what `/healthz` answers.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.ended.borrow().is_none() && !self.app.stop.is_cancelled() && self.app.consensus.leader().is_some()
    }

    /// Agents that have their session here.
    #[must_use]
    pub fn agent_sessions(&self) -> usize {
        self.app.hub.count()
    }

    /// A session for whoever has this machine: admin of the root of the tree, operator and auditor, for an hour.
    ///
    /// # Errors
    /// [`RecoveryError`], above all without a quorum.
    pub async fn recovery_session(&self, user: &str) -> Result<String, RecoveryError> {
        recovery::session(&self.app.consensus, &self.app.host.chance, user).await
    }

    /// Resolves with the reason when the node has ended, by [`ControlNode::shutdown`] or because its disk or core failed.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the host was stopped".to_owned(),
        }
    }

    /// Ends it in order: streams are closed, what was acknowledged is durable.
    pub async fn shutdown(&self) {
        self.app.stop.cancel();
        self.app.consensus.shutdown().await;
        self.ended().await;
    }
}
