//! A control plane that does what a test tells it, and remembers everything it was told. Runs on real hosts and on simulated ones.

use futures::StreamExt;
use futures::stream::BoxStream;
use muster_model::TaskState;
use muster_model::ports::PORTS_PER_BLOCK;
use muster_model::task::CleanUp;
use muster_model::task::DeviceHold;
use muster_node_core::{TaskKey, TaskSpec};
use muster_proto::convert::clean_up_from_wire;
use muster_proto::convert::report_from_wire;
use muster_proto::v1;
use muster_proto::v1::agent_message::Message as FromAgent;
use muster_proto::v1::control_message::Message as ToAgent;
use muster_runtime::{Admission, Host};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// No test waits this long, of real time or of virtual, for anything that works.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a whole control plane knows, whichever of its nodes heard it.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    state: Mutex<ClusterState>,
    /// Something was heard.
    heard: Notify,
    to_agent: broadcast::Sender<ToAgent>,
}

/// An identity that no other test of this machine has at the same time: agents claim their host by cluster and name.
fn new_cluster() -> u64 {
    static MADE: AtomicU64 = AtomicU64::new(1);
    (u64::from(std::process::id()) << 16) + MADE.fetch_add(1, Ordering::Relaxed)
}

#[derive(Default)]
pub(crate) struct ClusterState {
    pub(crate) desired: v1::Desired,
    /// The cluster's identity.
    pub(crate) cluster: u64,
    pub(crate) epoch: u64,
    pub(crate) heartbeat_ms: u64,
    /// Refuses sessions with these words.
    pub(crate) refusal: Option<String>,
    /// Takes what it hears but does not say so.
    pub(crate) keeps_quiet: bool,
    /// Every session ends right after its beginning.
    pub(crate) ends_sessions: bool,
    pub(crate) hellos: Vec<v1::Hello>,
    /// What an operator has cleared.
    pub(crate) cleared: Vec<v1::ClearedGpu>,
    /// What is kept in use although the agent would withhold it.
    pub(crate) spared: Vec<v1::WithheldCard>,
    /// MIG instances that cards keep.
    pub(crate) pinned: BTreeMap<u32, v1::PinnedSlots>,
    /// Card reports, in the order heard.
    pub(crate) cards: Vec<v1::CardReport>,
    pub(crate) heartbeats: u64,
    pub(crate) leases: u64,
    pub(crate) stamp: Option<v1::Stamp>,
    /// States of each task, each once, in the order heard.
    pub(crate) reports: BTreeMap<TaskKey, Vec<TaskState>>,
    /// What was said of the devices of tasks that are over, each once, in the order heard.
    pub(crate) clean_ups: BTreeMap<TaskKey, Vec<CleanUp>>,
    /// The revision of a join; 0 as a control node of an earlier version.
    pub(crate) joined_at: u64,
    /// The history of the cluster.
    pub(crate) incarnation: u64,
    pub(crate) usage_incarnation: u64,
    pub(crate) usage_mark: u64,
    /// GPU-unit milliseconds by allocation.
    pub(crate) usage: BTreeMap<u64, u64>,
    pub(crate) usage_gap: bool,
    /// Output by request: bytes, whether it ended, error.
    pub(crate) logs: BTreeMap<u64, (Vec<u8>, bool, String)>,
}

/// One node of it.
pub(crate) struct ControlNode {
    pub(crate) endpoint: String,
    /// While false, heartbeats are heard and not acknowledged.
    pub(crate) confirms: Arc<AtomicBool>,
    pub(crate) stop: CancellationToken,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let state = ClusterState {
            cluster: new_cluster(),
            epoch: 1,
            incarnation: 1,
            heartbeat_ms: 50,
            usage_incarnation: 1,
            ..ClusterState::default()
        };
        let (to_agent, _) = broadcast::channel(64);
        let cluster = Cluster(Arc::new(Inner { state: Mutex::new(state), heard: Notify::new(), to_agent }));
        cluster.desire(&[]);
        cluster
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut ClusterState) -> T) -> T {
        look(&mut self.0.state.lock())
    }

    /// Tells the agent what it is to run from now on; the flag means: stop it.
    pub(crate) fn desire(&self, tasks: &[(TaskSpec, bool)]) {
        let desired = self.with(|state| {
            let revision = state.desired.stamp.as_ref().map_or(1, |stamp| stamp.revision + 1);
            let stamp = v1::Stamp { incarnation: state.incarnation, revision, node_epoch: state.epoch };
            let tasks = tasks.iter().map(|(spec, stop)| to_wire(spec, *stop)).collect();
            let (cleared_gpus, spared) = (state.cleared.clone(), state.spared.clone());
            state.desired = v1::Desired {
                stamp: Some(stamp),
                tasks,
                cleared_gpus,
                sharing: None,
                spared,
                pinned: state.pinned.clone(),
                held_on: Vec::new(),
                drained: false,
            };
            state.desired.clone()
        });
        self.send(ToAgent::Desired(desired));
    }

    /// Sends to every session that is up.
    pub(crate) fn send(&self, message: ToAgent) {
        let _ = self.0.to_agent.send(message);
    }

    /// Waits until what was heard is as `enough` wants it.
    pub(crate) async fn until(&self, what: &str, enough: impl Fn(&ClusterState) -> bool) {
        let waiting = async {
            while !self.with(|state| enough(state)) {
                self.0.heard.notified().await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            self.with(|state| {
                panic!("{what}: reports {:?}, usage {:?}, logs {:?}", state.reports, state.usage, state.logs)
            });
        }
    }

    /// Waits until the agent has said that a task is in `state`.
    pub(crate) async fn until_reported(&self, key: TaskKey, state: TaskState) {
        self.until(&format!("{key} is {state:?}"), |heard| {
            heard.reports.get(&key).is_some_and(|all| all.contains(&state))
        })
        .await;
    }

    pub(crate) async fn serve(&self, host: &Host, endpoint: &str) -> ControlNode {
        let (confirms, stop) = (Arc::new(AtomicBool::new(true)), CancellationToken::new());
        let node = Node { cluster: self.clone(), confirms: confirms.clone(), host: host.clone(), stop: stop.clone() };
        let routes = tonic::service::Routes::new(v1::agents_server::AgentsServer::new(node));
        let serving =
            host.net.serve(endpoint, routes, Admission::plain(), stop.clone()).await.expect("the endpoint is free");
        ControlNode { endpoint: serving.endpoint, confirms, stop }
    }

    fn hear(&self, message: FromAgent, confirms: bool) -> Option<ToAgent> {
        let answer = self.with(|state| state.hear(message, confirms));
        self.0.heard.notify_one();
        answer
    }
}

impl ClusterState {
    fn hear(&mut self, message: FromAgent, confirms: bool) -> Option<ToAgent> {
        let quiet = self.keeps_quiet;
        match message {
            FromAgent::Hello(_) | FromAgent::Links(_) | FromAgent::Proofs(_) => None,
            FromAgent::Cards(report) => {
                self.cards.push(report);
                None
            }
            FromAgent::Heartbeat(beat) => {
                self.heartbeats += 1;
                self.stamp = beat.stamp;
                self.leases += u64::from(confirms);
                confirms.then_some(ToAgent::Lease(v1::LeaseAck { seq: beat.seq, now_ms: 0 }))
            }
            FromAgent::Reports(message) => {
                for report in message.reports {
                    let clean_up = clean_up_from_wire(&report);
                    let (allocation, rank, state, _) = report_from_wire(report).expect("a report");
                    if state.is_over() {
                        let said = self.clean_ups.entry(TaskKey { allocation, rank }).or_default();
                        said.retain(|before| *before != clean_up);
                        said.push(clean_up);
                    }
                    let heard = self.reports.entry(TaskKey { allocation, rank }).or_default();
                    if !heard.contains(&state) {
                        heard.push(state);
                    }
                }
                (!quiet).then_some(ToAgent::Reports(v1::ReportsAck { seq: message.seq }))
            }
            FromAgent::Usage(message) => {
                for interval in message.intervals {
                    if message.incarnation != self.usage_incarnation || interval.seq <= self.usage_mark {
                        continue;
                    }
                    self.usage_gap |= interval.seq != self.usage_mark + 1;
                    self.usage_mark = interval.seq;
                    *self.usage.entry(interval.allocation).or_default() += interval.gpu_unit_ms;
                }
                let ack = v1::UsageAck { incarnation: self.usage_incarnation, mark: self.usage_mark };
                (!quiet).then_some(ToAgent::Usage(ack))
            }
            FromAgent::Log(piece) => {
                let (data, ended, error) = self.logs.entry(piece.request).or_default();
                assert_eq!(piece.offset, data.len() as u64, "pieces come in order");
                data.extend(piece.data);
                *ended |= piece.end;
                *error = piece.error;
                None
            }
        }
    }
}

struct Node {
    cluster: Cluster,
    confirms: Arc<AtomicBool>,
    host: Host,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl v1::agents_server::Agents for Node {
    async fn identify(&self, _: Request<v1::IdentifyRequest>) -> Result<Response<v1::IdentifyReply>, Status> {
        let (cluster, incarnation) = self.cluster.with(|state| (state.cluster, state.incarnation));
        Ok(Response::new(v1::IdentifyReply { cluster, incarnation }))
    }

    type SessionStream = BoxStream<'static, Result<v1::ControlMessage, Status>>;

    async fn session(
        &self,
        request: Request<tonic::Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let mut inbound = request.into_inner();
        let (out, messages) = mpsc::channel(1_024);
        let (cluster, confirms, stop) = (self.cluster.clone(), self.confirms.clone(), self.stop.clone());
        self.host.spawn(async move {
            let send = async |message| out.send(Ok(v1::ControlMessage { message: Some(message) })).await.is_ok();
            let Ok(Some(v1::AgentMessage { message: Some(FromAgent::Hello(hello)) })) = inbound.message().await else {
                return;
            };
            let mut to_agent = cluster.0.to_agent.subscribe();
            let (first, desired) = cluster.with(|state| {
                // As control does: a stream whose record the agent has lost begins anew.
                if !state.hellos.is_empty() && hello.usage_incarnation != Some(state.usage_incarnation) {
                    state.usage_incarnation += 1;
                    state.usage_mark = 0;
                }
                state.hellos.push(hello);
                let welcome = v1::Welcome {
                    node: 7,
                    node_epoch: state.epoch,
                    cluster_incarnation: state.incarnation,
                    usage_incarnation: state.usage_incarnation,
                    usage_mark: state.usage_mark,
                    heartbeat_ms: state.heartbeat_ms,
                    cluster: state.cluster,
                    revision: state.joined_at,
                    generation: 0,
                };
                let refused = |reason| ToAgent::Refused(v1::Refused { reason, retry_ms: 100 });
                (state.refusal.clone().map_or(ToAgent::Welcome(welcome), refused), state.desired.clone())
            });
            cluster.0.heard.notify_one();
            if !send(first).await || !send(ToAgent::Desired(desired)).await || cluster.with(|state| state.ends_sessions)
            {
                return;
            }
            loop {
                let answer = tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    message = inbound.message() => match message {
                        Ok(Some(v1::AgentMessage { message: Some(message) })) => {
                            cluster.hear(message, confirms.load(Ordering::Relaxed))
                        }
                        _ => return,
                    },
                    message = to_agent.recv() => message.ok(),
                };
                if let Some(answer) = answer
                    && !send(answer).await
                {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(messages).boxed()))
    }
}

pub(crate) fn to_wire(spec: &TaskSpec, stop: bool) -> v1::DesiredTask {
    v1::DesiredTask {
        allocation: spec.key.allocation.0,
        rank: spec.key.rank.0,
        job: spec.job.0,
        attempt: spec.attempt.0,
        stop,
        devices: spec.devices.iter().map(|hold: &DeviceHold| hold.into()).collect(),
        command: spec.command.clone(),
        env: spec.env.clone(),
        workdir: spec.workdir.clone().unwrap_or_default(),
        world_size: spec.world_size,
        local_rank: spec.local_rank,
        local_world_size: spec.local_world_size,
        master_addr: spec.master_addr.clone(),
        master_port: u32::from(spec.master_port),
        restart_count: spec.restart_count,
        cpu_milli: spec.cpu_milli,
        memory_mib: spec.memory_mib,
        time_limit_s: spec.time_limit_s,
        grace_s: spec.grace_s,
        disconnect_grace_s: spec.disconnect_grace_s,
        tenant: spec.tenant.clone(),
        tenant_id: spec.tenant_id.0,
        gpu_units: spec.gpu_units,
        job_name: spec.job_name.clone(),
        node_rank: spec.node_rank,
        stop_signal: 0,
        stop_grace_s: None,
        checkpoint_note: String::new(),
        limit_signal: 0,
        limit_signal_s: 0,
        world: None,
        image: spec.image.clone().map(Into::into),
        mounts: spec.mounts.iter().map(Into::into).collect(),
        compute_instances: spec.compute_instances.into(),
        run_as: spec.run_as.unwrap_or_default(),
        private_network: spec.private_network,
        ports: spec
            .ports
            .block()
            .map(|block| v1::TaskPorts { first: block.first().into(), count: PORTS_PER_BLOCK.into() }),
        memory_limit_mib: spec.memory_limit_mib,
        imex_channel: spec.imex_channel.map(u32::from),
        secrets: spec.secrets.values.clone(),
        secrets_missing: spec.secrets.missing.clone().unwrap_or_default(),
    }
}
