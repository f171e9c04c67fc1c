//! Sessions of node agents: one stream per node, to any control node.
//!
//! [`welcome`] lets an agent in, [`session`] serves it until it goes, [`dispatch`] tells sessions that what their node is to run has
//! changed, [`batcher`] carries what agents report to the log, many in one entry. What must stay true:
//! - the desired state is sent whole, stamped (incarnation, revision, node epoch), whenever the node's tasks have changed;
//! - a heartbeat is acknowledged only after a leader that a quorum has confirmed has written it down;
//! - reports and usage are acknowledged only after they are committed;
//! - a session whose epoch is not the newest is refused loudly: its agent joins again;
//! - an agent of another cluster is refused by every control node, and one agent at a time is a node;
//! - a slow or stopped agent costs only itself: its queue fills, and its session ends.

pub(crate) mod batcher;
pub(crate) mod dispatch;
pub(crate) mod logs;
mod session;
mod stream;
mod welcome;
mod wire;

use crate::api::{auth, refusal};
use crate::consensus::Consensus;
use crate::denials::Denials;
use crate::leases::renewals::Renewals;
use batcher::Batcher;
use futures::StreamExt;
use futures::stream::BoxStream;
use logs::{LogAsk, LogPiece, OpenTap};
use muster_model::NodeId;
use muster_proto::v1;
use muster_runtime::Host;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Messages that wait for an agent to read them. Behind a healthy agent there are none or a few; one that leaves so many unread has
/// stopped.
const OUT_MAX: usize = 64;
/// Sessions of one control node: the largest fleet that is planned for, all on one node, twice over.
const SESSIONS_MAX: usize = 16_384;
/// Openings of log streams that wait for a session to look at them.
const LOG_STREAMS_WAITING_MAX: usize = 16;

/// How patient sessions are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// An agent that does not introduce itself within this time is sent away.
    pub hello_ms: u64,
    /// A session without any message for so long is over: the connection is dead, or the agent has stopped.
    pub idle_ms: u64,
    /// Wait before a proposal without an answer is tried again, and what a refused agent is told to wait.
    pub retry_ms: u64,
    /// What an agent is told to wait that may not be its node yet, because another one is. Each time it asks is an entry of the log.
    pub turned_away_ms: u64,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig { hello_ms: 10_000, idle_ms: 15_000, retry_ms: 300, turned_away_ms: 2_000 }
    }
}

/// What a session's place in the registry is made of.
struct Entry {
    session: u64,
    dirty: Arc<Notify>,
    log_streams: mpsc::Sender<OpenTap>,
    replaced: CancellationToken,
}

/// The sessions of this control node, and what they need.
pub(crate) struct Hub {
    host: Host,
    consensus: Consensus,
    denials: Denials,
    renewals: Renewals,
    batcher: Batcher,
    config: SessionConfig,
    heartbeat_ms: u64,
    registry: Mutex<BTreeMap<NodeId, Entry>>,
    sessions: AtomicU64,
    room: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Hub {
    pub(crate) fn new(
        host: Host,
        consensus: Consensus,
        denials: Denials,
        renewals: Renewals,
        config: SessionConfig,
        heartbeat_ms: u64,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let batcher = Batcher::start(&host, consensus.clone());
        Arc::new(Hub {
            host,
            consensus,
            denials,
            renewals,
            batcher,
            config,
            heartbeat_ms,
            registry: Mutex::new(BTreeMap::new()),
            sessions: AtomicU64::new(1),
            room: Arc::new(Semaphore::new(SESSIONS_MAX)),
            stop,
        })
    }

    /// The identity of the cluster, once there is one and this node has heard of it.
    pub(crate) fn cluster(&self) -> Option<u64> {
        let cluster = self.consensus.read(|state, _| state.meta.cluster);
        (cluster != 0).then_some(cluster)
    }

    /// Sessions now.
    pub(crate) fn count(&self) -> usize {
        self.registry.lock().len()
    }

    /// Takes the node's seat; whoever had it is told that it is replaced.
    fn register(&self, node: NodeId, entry: Entry) {
        let mut registry = self.registry.lock();
        if let Some(old) = registry.insert(node, entry) {
            old.replaced.cancel();
        }
        metrics::gauge!("muster_agent_sessions").set(registry.len() as f64);
    }

    /// Leaves the seat, unless somebody else has taken it.
    fn leave(&self, node: NodeId, session: u64) {
        let mut registry = self.registry.lock();
        if registry.get(&node).is_some_and(|entry| entry.session == session) {
            registry.remove(&node);
        }
        metrics::gauge!("muster_agent_sessions").set(registry.len() as f64);
    }

    /// Tells the sessions of these nodes, if they are here, that what they are to run may have changed.
    pub(crate) fn touch(&self, nodes: impl IntoIterator<Item = NodeId>) {
        let registry = self.registry.lock();
        for node in nodes {
            if let Some(entry) = registry.get(&node) {
                entry.dirty.notify_one();
            }
        }
    }

    /// Tells all sessions.
    pub(crate) fn touch_all(&self) {
        for entry in self.registry.lock().values() {
            entry.dirty.notify_one();
        }
    }

    /// Opens a task's output through the session of its node; NOT_FOUND when that is not here.
    pub(crate) async fn open_log(&self, node: NodeId, ask: LogAsk) -> Result<mpsc::Receiver<LogPiece>, Status> {
        let log_streams = self.registry.lock().get(&node).map(|entry| entry.log_streams.clone());
        let log_streams = log_streams
            .ok_or_else(|| Status::not_found(format!("node {node} has no session with this control node")))?;
        let (pieces, answer) = mpsc::channel(logs::PIECES_MAX);
        let opened = log_streams.try_send(OpenTap { ask, pieces });
        opened.map_err(|_| refusal::busy("the node's queue of log streams", LOG_STREAMS_WAITING_MAX))?;
        Ok(answer)
    }
}

/// `muster.v1.Agents`.
pub(crate) struct AgentsService(pub(crate) Arc<Hub>);

#[tonic::async_trait]
impl v1::agents_server::Agents for AgentsService {
    async fn identify(&self, _: Request<v1::IdentifyRequest>) -> Result<Response<v1::IdentifyReply>, Status> {
        let hub = &self.0;
        let none = || {
            refusal::unavailable("this control node is not part of a cluster yet; bootstrap it, or add it to a cluster")
        };
        let cluster = hub.cluster().ok_or_else(none)?;
        let incarnation = hub.consensus.read(|state, _| state.meta.incarnation);
        Ok(Response::new(v1::IdentifyReply { cluster, incarnation }))
    }

    type SessionStream = BoxStream<'static, Result<v1::ControlMessage, Status>>;

    async fn session(
        &self,
        request: Request<tonic::Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let hub = Arc::clone(&self.0);
        let permit = Arc::clone(&hub.room).try_acquire_owned();
        let permit = permit.map_err(|_| refusal::busy("the number of sessions", SESSIONS_MAX))?;
        let (out, messages) = mpsc::channel(OUT_MAX);
        let shown = auth::shown(&request);
        let (author, inbound) = auth::split(request);
        let session = hub.sessions.fetch_add(1, Ordering::Relaxed);
        hub.host.clone().spawn_for_one(async move {
            let _permit = permit;
            let stop = hub.stop.clone();
            // A node that goes down ends its sessions; their agents dial another one.
            let _ = stop.run_until_cancelled(session::serve(hub, session, (author, shown), inbound, out)).await;
        });
        Ok(Response::new(ReceiverStream::new(messages).boxed()))
    }
}
