//! A control node as a whole: consensus, the leader's loops and every service, at one endpoint or at two: one for people and services, and
//! one for machines, which show certificates.
//!
//! What must stay true: where machines have an endpoint of their own, nothing that only machines may do is reached at the other one. Clear text is spoken
//! there only while a cluster is being encrypted and its operator says so.

use crate::api::rates::CallRates;
use crate::backup::{Backup, NotMade};
use crate::consensus::{Consensus, ConsensusConfig, OpenError};
use crate::denials::Denials;
use crate::floor_metrics;
use crate::history::HistoryConfig;
use crate::identities::{self, Pins};
use crate::leases::LeaseConfig;
use crate::leases::leader::LeaderLeases;
use crate::leases::renewals::{Carrier, Renewals};
use crate::login::{Login, LoginConfig};
use crate::recovery::{self, RecoveryError};
use crate::services::{self, App};
use crate::sessions::{Hub, SessionConfig, dispatch};
use muster_runtime::pki::{Admit, Role};
use muster_runtime::{Admission, DiskError, Host, NetError, Serving, Transport};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// How the paths of calls among control nodes begin.
const PEERS_PATH: &str = "/muster.v1.Peer/";
/// How long calls in flight may take to end when the node goes down in order.
const GOING_DOWN: Duration = Duration::from_secs(3);

/// How often the certificate clock is told the time: certificates live for weeks.
const TELL_TIME_EVERY: Duration = Duration::from_secs(10);

/// Settings of a control node.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// How it takes part in consensus.
    pub consensus: ConsensusConfig,
    /// `host:port` at which it listens; port 0 chooses one (then `consensus.advertise` must be known by other means).
    pub listen: String,
    /// Where machines are served over TLS. Then people and services are served at `listen` with this node's certificate, and
    /// `consensus.advertise` is where machines reach this node. `None`: everybody is served at `listen`, in clear text.
    pub machines: Option<String>,
    /// With `machines`: everybody who does not speak TLS yet is served there too, in clear text, and control nodes that do not are spoken with in clear
    /// text: while a cluster is being encrypted, one machine after another.
    pub accept_plaintext: bool,
    /// Leases of nodes and cells; the same on all control nodes.
    pub leases: LeaseConfig,
    /// How long finished jobs are kept.
    pub history: HistoryConfig,
    /// Sessions of agents.
    pub sessions: SessionConfig,
    /// How often callers may call a closed cluster.
    pub rates: CallRates,
    /// The identity provider of people, if there is one.
    pub login: Option<LoginConfig>,
}

impl ControlConfig {
    /// The usual settings of node `id`, which listens where it is reached.
    #[must_use]
    pub fn new(id: u64, endpoint: impl Into<String>) -> Self {
        let endpoint = endpoint.into();
        ControlConfig {
            consensus: ConsensusConfig::new(id, endpoint.clone()),
            listen: endpoint,
            machines: None,
            accept_plaintext: false,
            leases: LeaseConfig::default(),
            history: HistoryConfig::default(),
            sessions: SessionConfig::default(),
            rates: CallRates::default(),
            login: None,
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
    machines: Option<String>,
    ended: watch::Receiver<Option<String>>,
}

impl ControlNode {
    /// Opens the stores of `host`, starts consensus and serves. A node with an empty folder then waits to be bootstrapped
    /// ([`Consensus::bootstrap`]) or added to a cluster, answering UNAVAILABLE meanwhile.
    ///
    /// # Errors
    /// [`StartError`], above all when the stores cannot be trusted or the address is taken.
    pub async fn start(host: Host, config: ControlConfig) -> Result<ControlNode, StartError> {
        let transport = match (&config.machines, config.accept_plaintext) {
            (None, _) => Transport::Plain,
            (Some(_), false) => Transport::Mutual,
            (Some(_), true) => Transport::MutualOrPlain,
        };
        // Asked about whoever connects, and about whom this node dials.
        let pins = Arc::new(Pins::default());
        let admit: Arc<dyn Admit> = Arc::<Pins>::clone(&pins);
        host.prepare(transport, &Role::Control(config.consensus.id), Some(Arc::clone(&admit)))?;
        let consensus = ConsensusConfig { transport, ..config.consensus.clone() };
        let consensus = Consensus::open(host.clone(), consensus).await?;
        pins.read_from(consensus.clone());
        let leader_leases = LeaderLeases::new(consensus.clone(), config.leases.clone(), config.history);
        host.spawn(Arc::clone(&leader_leases).run());
        let carrier = Carrier { consensus: consensus.clone(), leader_leases: Arc::clone(&leader_leases) };
        let renewals = Renewals::start(&host, carrier, Duration::from_millis(config.leases.batch_ms));
        let stop = CancellationToken::new();
        let denials = Denials::start(&host, consensus.clone())?;
        let hub = Hub::new(
            host.clone(),
            consensus.clone(),
            denials.clone(),
            renewals.clone(),
            config.sessions.clone(),
            config.leases.heartbeat_ms,
            stop.clone(),
        );
        host.spawn(dispatch::run(Arc::clone(&hub)));
        let app = App::new(
            host.clone(),
            consensus.clone(),
            leader_leases,
            renewals,
            hub,
            config.leases.clone(),
            (config.rates, denials, config.login.map(|login| Login::new(host.clone(), login))),
            stop.clone(),
        );
        host.spawn(services::past::run(app.clone()));
        host.spawn(floor_metrics::run(consensus.clone()));

        if transport.has_credentials() {
            host.spawn(tell_time(host.clone(), consensus.clone()));
            host.spawn(identities::renew(host.clone(), consensus.clone()));
        }
        let services::AllRoutes { users, all, health } = services::routes(&app).await;
        let served = match &config.machines {
            None => serve_all(&host, &config.listen, all, &stop).await,
            Some(machines) => {
                let admission = match transport {
                    Transport::MutualOrPlain => Admission::mutual_or_plain(admit).with_peers(PEERS_PATH),
                    Transport::Plain | Transport::Mutual => Admission::mutual(admit),
                };
                serve_apart(&host, (&config.listen, users), (machines, all, admission), &stop).await
            }
        };
        let (serving, for_machines) = match served {
            Ok(served) => served,
            Err(error) => {
                stop.cancel();
                consensus.shutdown().await;
                return Err(error.into());
            }
        };
        let (endpoint, machines) = (serving.endpoint.clone(), for_machines.as_ref().map(|of| of.endpoint.clone()));
        tracing::info!(id = consensus.id(), endpoint, machines, "control node is ready");
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
            let ended = async {
                serving.ended.await;
                if let Some(for_machines) = for_machines {
                    for_machines.ended.await;
                }
            };
            if tokio::time::timeout(GOING_DOWN, ended).await.is_err() {
                tracing::warn!("some calls were still running when the node stopped");
            }
            tracing::info!(why, "control node has ended");
            let _ = tell.send(Some(why));
        });
        Ok(ControlNode { app, endpoint, machines, ended })
    }

    /// Where it serves, with the real port.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Where it serves machines, if apart, with the real port.
    #[must_use]
    pub fn machines_endpoint(&self) -> Option<&str> {
        self.machines.as_deref()
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

    /// Begins a backup of the state; without `stale` it has everything that was acknowledged before, which takes a quorum.
    ///
    /// # Errors
    /// [`NotMade`].
    pub async fn backup(&self, stale: bool) -> Result<Backup, NotMade> {
        Backup::begin(&self.app.consensus, self.app.host.clock.wall_ms(), !stale).await
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

/// Serves everybody at one endpoint, in clear text.
async fn serve_all(
    host: &Host,
    listen: &str,
    all: Routes,
    stop: &CancellationToken,
) -> Result<(Serving, Option<Serving>), NetError> {
    let admission = Admission::plain().with_peers(PEERS_PATH);
    Ok((host.net.serve(listen, all, admission, stop.clone()).await?, None))
}

/// Serves people and services at one endpoint, and machines at another.
async fn serve_apart(
    host: &Host,
    (listen, users): (&str, Routes),
    (machines, all, admission): (&str, Routes, Admission),
    stop: &CancellationToken,
) -> Result<(Serving, Option<Serving>), NetError> {
    let for_machines = host.net.serve(machines, all, admission, stop.clone()).await?;
    let for_users = host.net.serve(listen, users, Admission::server_certificate(), stop.clone()).await?;
    Ok((for_users, Some(for_machines)))
}

/// Tells the certificate clock of this host the time of the state.
async fn tell_time(host: Host, consensus: Consensus) {
    loop {
        host.certificate_clock.hear(consensus.read(|state, _| state.meta.now_ms));
        tokio::time::sleep(TELL_TIME_EVERY).await;
    }
}
