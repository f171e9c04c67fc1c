//! Every service of a control node, at one endpoint.
//!
//! A handler converts, checks, proposes or reads, and converts back; it decides nothing. What must stay true:
//! - a reply to a change is given after a quorum has it; a read is linearizable unless the caller asked for a stale one, and both
//!   say their revision;
//! - whatever a caller sends, nothing grows without bound here: messages, pages, streams and queues have their limits;
//! - a slow reader of a stream waits for itself: it is sent a new snapshot when it has missed changes, never a gap, and ended when the
//!   unread events of all pass their budget.

mod access;
mod admin;
mod audit;
pub(crate) mod calls;
mod fleet;
mod guarded;
mod history_copy;
mod jobs;
mod login;
mod machines;
mod moves;
mod outlet;
mod oversized;
pub(crate) mod paging;
pub(crate) mod past;
mod peer;
mod plan;
mod redact;
pub(crate) mod search;
mod secrets;
mod shards;
pub(crate) mod snapshot;
mod state_copy;
mod tenants;
mod usage;
mod windows;

use crate::api::rates::{CallRates, Callers};
use crate::api::{MESSAGE_BYTES_MAX, auth};
use crate::consensus::Consensus;
use crate::denials::Denials;
use crate::leases::LeaseConfig;
use crate::leases::leader::LeaderLeases;
use crate::leases::renewals::Renewals;
use crate::login::Login;
use crate::sessions::{AgentsService, Hub};
use muster_proto::v1;
use muster_runtime::Host;
use outlet::Outlets;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tower::util::MapResponseLayer;

/// Watches served at a time: some hundreds of shards, consoles and waiting command lines, with room.
const WATCHES_MAX: usize = 4_096;
/// Log streams served at a time.
const LOG_STREAMS_MAX: usize = 1_024;
/// Pieces of output that wait for a slow reader of a log: with those of all readers, half a gigabyte at the most.
pub(crate) const STREAM_EVENTS_MAX: usize = 16;
/// Bytes of unread events that all watches of jobs may keep together, all watches of shards, and all copies of the history: a slow reader of
/// one kind never ends a watch of another.
const WATCH_BYTES_MAX: usize = 128 << 20;

/// What all services share.
pub(crate) struct Shared {
    pub(crate) host: Host,
    pub(crate) consensus: Consensus,
    pub(crate) leader_leases: Arc<LeaderLeases>,
    pub(crate) renewals: Renewals,
    pub(crate) hub: Arc<Hub>,
    pub(crate) leases: LeaseConfig,
    pub(crate) searches: search::Searches,
    pub(crate) watches: Arc<Semaphore>,
    pub(crate) job_events: Outlets<v1::JobEvent>,
    pub(crate) shard_events: Outlets<v1::WatchEvent>,
    pub(crate) log_streams: Arc<Semaphore>,
    pub(crate) state_copies: Arc<Semaphore>,
    pub(crate) history_copies: Arc<Semaphore>,
    pub(crate) history_parts: Outlets<v1::CopyHistoryPart>,
    pub(crate) past: past::Past,
    pub(crate) callers: Arc<Callers>,
    pub(crate) denials: Denials,
    /// The identity provider of people, if there is one.
    pub(crate) login: Option<Arc<Login>>,
    /// Cancelled when the node goes down: every stream ends then.
    pub(crate) stop: CancellationToken,
}

/// The services' common handle.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

impl std::ops::Deref for App {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl App {
    pub(crate) fn new(
        host: Host,
        consensus: Consensus,
        leader_leases: Arc<LeaderLeases>,
        renewals: Renewals,
        hub: Arc<Hub>,
        leases: LeaseConfig,
        (rates, denials, login): (CallRates, Denials, Option<Login>),
        stop: CancellationToken,
    ) -> Self {
        App(Arc::new(Shared {
            host,
            consensus,
            leader_leases,
            renewals,
            hub,
            leases,
            searches: search::Searches::default(),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
            job_events: Outlets::new(WATCH_BYTES_MAX),
            shard_events: Outlets::new(WATCH_BYTES_MAX),
            log_streams: Arc::new(Semaphore::new(LOG_STREAMS_MAX)),
            state_copies: Arc::new(Semaphore::new(state_copy::COPIES_MAX)),
            history_copies: Arc::new(Semaphore::new(history_copy::CALLS_MAX)),
            history_parts: Outlets::new(WATCH_BYTES_MAX),
            past: past::Past::default(),
            callers: Arc::new(Callers::new(rates)),
            denials,
            login: login.map(Arc::new),
            stop,
        }))
    }
}

/// The names of all services, for the health service.
pub(crate) const NAMES: [&str; 12] = [
    "muster.v1.Jobs",
    "muster.v1.Tenants",
    "muster.v1.Usage",
    "muster.v1.Fleet",
    "muster.v1.Shards",
    "muster.v1.Agents",
    "muster.v1.Admin",
    "muster.v1.Auth",
    "muster.v1.Machines",
    "muster.v1.Secrets",
    "muster.v1.Audit",
    "muster.v1.Peer",
];

/// Puts a service under the message bound.
macro_rules! served {
    ($server:path, $service:expr) => {
        <$server>::new($service).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(usize::MAX)
    };
}

/// The routes of a control node.
pub(crate) struct AllRoutes {
    /// Those of people and services: no path leads from them to what only machines may do.
    pub(crate) users: Routes,
    /// All of them.
    pub(crate) all: Routes,
    /// Says whether they are served.
    pub(crate) health: tonic_health::server::HealthReporter,
}

/// All routes of a control node, health and reflection included.
pub(crate) async fn routes(app: &App) -> AllRoutes {
    let (health, health_service) = tonic_health::server::health_reporter();
    for name in NAMES {
        health.set_service_status(name, tonic_health::ServingStatus::Serving).await;
    }
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(muster_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptors were compiled with this binary");
    let peer = app.consensus.peer_service(peer::services(app.clone()));
    let users = Routes::new(served!(v1::jobs_server::JobsServer<_>, jobs::JobsService(app.clone())))
        .add_service(served!(v1::tenants_server::TenantsServer<_>, tenants::TenantsService(app.clone())))
        .add_service(served!(v1::usage_server::UsageServer<_>, usage::UsageService(app.clone())))
        .add_service(served!(v1::fleet_server::FleetServer<_>, fleet::FleetService(app.clone())))
        .add_service(served!(v1::admin_server::AdminServer<_>, admin::AdminService(app.clone())))
        .add_service(served!(v1::auth_server::AuthServer<_>, access::AuthService(app.clone())))
        .add_service(served!(v1::machines_server::MachinesServer<_>, machines::MachinesService(app.clone())))
        .add_service(served!(v1::secrets_server::SecretsServer<_>, secrets::SecretsService(app.clone())))
        .add_service(served!(v1::audit_server::AuditServer<_>, audit::AuditService(app.clone())))
        .add_service(health_service)
        .add_service(reflection);
    let all = users
        .clone()
        .add_service(served!(v1::shards_server::ShardsServer<_>, shards::ShardsService(app.clone())))
        .add_service(served!(v1::agents_server::AgentsServer<_>, AgentsService(app.hub.clone())))
        .add_service(peer);
    // The outermost layer comes last: nothing is served before it is known who calls.
    let behind_the_check = |routes: Routes| {
        let checked = auth::AuthLayer {
            consensus: app.consensus.clone(),
            callers: Arc::clone(&app.callers),
            denials: app.denials.clone(),
        };
        Routes::from(routes.into_axum_router().layer(MapResponseLayer::new(oversized::with_remedy)).layer(checked))
    };
    AllRoutes { users: behind_the_check(users), all: behind_the_check(all), health }
}
