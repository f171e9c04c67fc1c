//! A control node in a temporary folder, clients of it, and an agent played by the test.

use muster_control_server::{ControlConfig, ControlNode, HistoryConfig, LeaseConfig, SessionConfig};
use muster_model::{FieldError, Object};
use muster_proto::v1;
use muster_runtime::Clock;
use muster_runtime::heavy::Heavy;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

/// How long anything may take before the test gives up on it; nothing is measured by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A control node whose folder outlives its restarts.
pub(crate) struct Control {
    id: u64,
    folder: tempfile::TempDir,
    endpoint: String,
    leases: LeaseConfig,
    sessions: SessionConfig,
    history: HistoryConfig,
    /// In the place of the host's own.
    heavy: Option<Arc<dyn Heavy>>,
    /// How far its wall clock is ahead, in milliseconds.
    pub(crate) clock_ahead_ms: Arc<AtomicI64>,
    running: Option<(muster_runtime::Host, ControlNode)>,
}

/// A wall clock that a test sets.
struct Ahead {
    clock: Arc<dyn Clock>,
    by_ms: Arc<AtomicI64>,
}

impl Clock for Ahead {
    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms().saturating_add_signed(self.by_ms.load(Ordering::Relaxed))
    }

    fn boottime_ns(&self) -> u64 {
        self.clock.boottime_ns()
    }
}

/// Leases that do not run out during a test that is not about them.
pub(crate) fn patient() -> LeaseConfig {
    LeaseConfig { node_silent_ms: 600_000, cell_lease_ms: 600_000, batch_ms: 5, ..LeaseConfig::default() }
}

impl Control {
    /// A single voter with these leases.
    pub(crate) async fn with(leases: LeaseConfig, sessions: SessionConfig) -> Self {
        Self::single(Self::empty(1, leases, sessions)).await
    }

    /// Starts it, and makes a cluster of it alone.
    async fn single(mut control: Self) -> Self {
        control.open().await;
        let members = BTreeMap::from([(1, control.endpoint.clone())]);
        control.node().consensus().bootstrap(members).await.expect("an empty folder is bootstrapped");
        control.lead().await;
        control
    }

    /// A single voter whose long work is done here.
    pub(crate) async fn with_heavy(heavy: Arc<dyn Heavy>) -> Self {
        let control = Self::empty(1, patient(), SessionConfig::default());
        Self::single(Control { heavy: Some(heavy), ..control }).await
    }

    /// A single voter that keeps finished jobs as told, and sweeps often.
    pub(crate) async fn keeping(history: HistoryConfig) -> Self {
        let leases = LeaseConfig { sweep_ms: 200, tick_ms: 20, ..patient() };
        let control = Self::empty(1, leases, SessionConfig::default());
        Self::single(Control { history, ..control }).await
    }

    /// Three voters.
    pub(crate) async fn three(leases: LeaseConfig) -> Vec<Self> {
        let mut controls = Vec::new();
        for id in 1..=3 {
            let mut control = Self::empty(id, leases.clone(), SessionConfig::default());
            control.open().await;
            controls.push(control);
        }
        let members = controls.iter().map(|control| (control.id, control.endpoint.clone())).collect();
        controls[0].node().consensus().bootstrap(members).await.expect("empty folders are bootstrapped");
        for control in &controls {
            control.lead().await;
        }
        controls
    }

    /// A node that does not run yet and belongs to no cluster.
    fn empty(id: u64, leases: LeaseConfig, sessions: SessionConfig) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = listener.local_addr().expect("its address").to_string();
        drop(listener);
        let folder = tempfile::tempdir().expect("a folder");
        Control {
            id,
            folder,
            endpoint,
            leases,
            sessions,
            history: HistoryConfig::default(),
            heavy: None,
            clock_ahead_ms: Arc::default(),
            running: None,
        }
    }

    /// A single voter.
    pub(crate) async fn start() -> Self {
        Self::with(patient(), SessionConfig::default()).await
    }

    async fn open(&mut self) {
        let config = ControlConfig {
            leases: self.leases.clone(),
            sessions: self.sessions.clone(),
            history: self.history,
            ..ControlConfig::new(self.id, self.endpoint.clone())
        };
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let mut host = muster_runtime::real::host(format!("control-{}", self.id), self.folder.path());
            if let Some(heavy) = &self.heavy {
                host.heavy = Arc::clone(heavy);
            }
            host.clock = Arc::new(Ahead { clock: host.clock.clone(), by_ms: self.clock_ahead_ms.clone() });
            match ControlNode::start(host.clone(), config.clone()).await {
                Ok(node) => {
                    self.running = Some((host, node));
                    return;
                }
                // Until the last task of the host before has let go of the store and of the port.
                Err(error) => {
                    assert!(tokio::time::Instant::now() < deadline, "the node does not start: {error}");
                    host.tasks.abort_all();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    async fn lead(&self) {
        until("a leader", || async { self.node().consensus().read_index().await.ok() }).await;
    }

    /// Ends it in order.
    pub(crate) async fn stop(&mut self) {
        let (host, node) = self.running.take().expect("it runs");
        node.shutdown().await;
        drop(node);
        host.tasks.abort_all();
    }

    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        self.open().await;
        self.lead().await;
    }

    pub(crate) fn node(&self) -> &ControlNode {
        &self.running.as_ref().expect("it runs").1
    }

    pub(crate) fn host(&self) -> &muster_runtime::Host {
        &self.running.as_ref().expect("it runs").0
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.endpoint)).expect("an endpoint").connect_lazy()
    }

    pub(crate) fn jobs(&self) -> v1::jobs_client::JobsClient<Channel> {
        v1::jobs_client::JobsClient::new(self.channel())
    }

    pub(crate) fn tenants(&self) -> v1::tenants_client::TenantsClient<Channel> {
        v1::tenants_client::TenantsClient::new(self.channel())
    }

    pub(crate) fn admin(&self) -> v1::admin_client::AdminClient<Channel> {
        v1::admin_client::AdminClient::new(self.channel())
    }

    pub(crate) fn audit(&self) -> v1::audit_client::AuditClient<Channel> {
        v1::audit_client::AuditClient::new(self.channel())
    }

    pub(crate) fn fleet(&self) -> v1::fleet_client::FleetClient<Channel> {
        v1::fleet_client::FleetClient::new(self.channel())
    }

    pub(crate) fn shards(&self) -> v1::shards_client::ShardsClient<Channel> {
        v1::shards_client::ShardsClient::new(self.channel())
    }

    /// Every object of the state, to see that nothing has changed.
    pub(crate) fn objects(&self) -> Vec<Object> {
        self.node().consensus().read(|state, _| state.objects().collect())
    }

    /// Applies one tenant without limits.
    pub(crate) async fn tenant(&self, path: &str) {
        let tenants = vec![v1::TenantSpec { path: path.to_owned(), ..v1::TenantSpec::default() }];
        self.tenants().apply(v1::ApplyTenantsRequest { tenants, ..Default::default() }).await.expect("a good tenant");
    }

    /// Submits jobs and gives their ids.
    pub(crate) async fn submit(&self, request_id: &str, jobs: Vec<v1::JobSpec>) -> Vec<u64> {
        self.try_submit(request_id, jobs).await.expect("good jobs")
    }

    pub(crate) async fn try_submit(&self, request_id: &str, jobs: Vec<v1::JobSpec>) -> Result<Vec<u64>, Status> {
        let request = v1::SubmitRequest { request_id: request_id.to_owned(), issued_ms: issued_now(), jobs };
        Ok(self.jobs().submit(request).await?.into_inner().job_ids)
    }

    pub(crate) async fn job(&self, id: u64) -> v1::Job {
        let request = v1::GetJobRequest { job_id: id, consistency: 0 };
        self.jobs().get(request).await.expect("the job").into_inner().job.expect("a job in the reply")
    }
}

/// The time of issue of a call that is made now.
pub(crate) fn issued_now() -> Option<u64> {
    Some(std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as u64)
}

/// Asks again until there is something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A good job of one task without GPUs.
pub(crate) fn job() -> v1::JobSpec {
    v1::JobSpec {
        tenant: "research".to_owned(),
        name: "train".to_owned(),
        tasks: 1,
        request: Some(v1::TaskRequest { devices: None, cpu_milli: 1_000, memory_mib: 1_024 }),
        command: vec!["true".to_owned()],
        disconnect_grace_s: Some(10),
        ..v1::JobSpec::default()
    }
}

/// A good job of one task on this many whole cards.
pub(crate) fn gpu_job(cards: u32) -> v1::JobSpec {
    let mut spec = job();
    let request = spec.request.as_mut().expect("it has one");
    request.devices = Some(v1::DeviceRequest {
        kind: Some(v1::device_request::Kind::Whole(v1::WholeGpus { count: cards })),
        models: vec!["h100".to_owned()],
    });
    spec
}

/// A good node with eight cards.
pub(crate) fn node_spec(name: &str) -> v1::NodeSpec {
    let gpu = |index: u32| v1::Gpu {
        uuid: format!("GPU-{name}-{index}"),
        model: "h100".to_owned(),
        memory_mib: 81_920,
        numa: index / 4,
        island: 0,
        withheld: None,
        withheld_slices: Vec::new(),
        repair: 0,
    };
    let word = |word: &str| word.to_owned();
    v1::NodeSpec {
        name: name.to_owned(),
        address: "127.0.0.1".to_owned(),
        place: Some(v1::Place {
            region: word("eu"),
            zone: word("a"),
            block: word("b1"),
            leaf: word("l1"),
            nvlink_domain: String::new(),
        }),
        cell: "cell-1".to_owned(),
        pool: "default".to_owned(),
        gpus: (0..8).map(gpu).collect(),
        cpu_milli: 96_000,
        memory_mib: 786_432,
        driver: "570.86".to_owned(),
        labels: BTreeMap::new(),
        boot_id: "boot-1".to_owned(),
        proofs: Vec::new(),
    }
}

/// Checks the code and gives the fields that a refusal names.
pub(crate) fn refused_fields(status: &Status) -> Vec<FieldError> {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let fields = muster_proto::status::field_errors(status);
    assert!(!fields.is_empty(), "no field is named: {status:?}");
    fields
}

/// An agent that does what the test tells it to.
pub(crate) struct Agent {
    out: mpsc::Sender<v1::AgentMessage>,
    inbound: Streaming<v1::ControlMessage>,
    /// What came while something else was waited for.
    kept: Vec<Said>,
    pub(crate) welcome: v1::Welcome,
}

/// What a control node says to an agent.
pub(crate) type Said = v1::control_message::Message;

impl Agent {
    /// Opens a session with this first message.
    pub(crate) async fn dial(
        control: &Control,
        first: v1::agent_message::Message,
    ) -> Result<(mpsc::Sender<v1::AgentMessage>, Streaming<v1::ControlMessage>), Status> {
        let (out, messages) = mpsc::channel(16);
        out.send(v1::AgentMessage { message: Some(first) }).await.expect("room");
        let mut client = v1::agents_client::AgentsClient::new(control.channel());
        let inbound = client.session(ReceiverStream::new(messages)).await?.into_inner();
        Ok((out, inbound))
    }

    pub(crate) fn hello(spec: Option<v1::NodeSpec>, usage_incarnation: Option<u64>) -> v1::agent_message::Message {
        v1::agent_message::Message::Hello(v1::Hello {
            spec,
            usage_incarnation,
            cluster_incarnation: None,
            version: "test".to_owned(),
            agent: 1,
            cluster: None,
            session: None,
            held: None,
        })
    }

    /// Joins and is welcomed.
    pub(crate) async fn join(control: &Control, spec: v1::NodeSpec, usage_incarnation: Option<u64>) -> Self {
        let (out, mut inbound) =
            Self::dial(control, Self::hello(Some(spec), usage_incarnation)).await.expect("a session");
        let welcome = match next(&mut inbound).await {
            Said::Welcome(welcome) => welcome,
            other => panic!("expected a welcome, got {other:?}"),
        };
        Agent { out, inbound, kept: Vec::new(), welcome }
    }

    pub(crate) async fn say(&self, message: v1::agent_message::Message) {
        let message = v1::AgentMessage { message: Some(message) };
        self.out.send(message).await.expect("the session takes messages");
    }

    pub(crate) async fn beat(&self, seq: u64) {
        self.say(v1::agent_message::Message::Heartbeat(v1::Heartbeat { seq, stamp: None })).await;
    }

    pub(crate) async fn report(&self, seq: u64, allocation: u64, rank: u32, kind: v1::task_state::Kind, code: i32) {
        let state =
            Some(v1::TaskState { kind: kind.into(), code, reason: String::new(), by_node: false, by_job: false });
        let reports = vec![v1::TaskReport { allocation, rank, state, ..v1::TaskReport::default() }];
        self.say(v1::agent_message::Message::Reports(v1::TaskReports { seq, reports })).await;
    }

    pub(crate) async fn usage(&self, incarnation: u64, seqs: std::ops::RangeInclusive<u64>, allocation: u64) {
        let interval = |seq| v1::UsageInterval {
            seq,
            allocation,
            duration_ms: 1_000,
            gpu_unit_ms: 7_000_000,
            kind: 0,
            held_unit_ms: 0,
        };
        let intervals = seqs.map(interval).collect();
        self.say(v1::agent_message::Message::Usage(v1::UsageReport { incarnation, intervals })).await;
    }

    /// The next message of a kind; others on the way are kept for when they are asked for.
    pub(crate) async fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(Said) -> Option<T>) -> T {
        for index in 0..self.kept.len() {
            if let Some(found) = wanted(self.kept[index].clone()) {
                self.kept.remove(index);
                return found;
            }
        }
        for _ in 0..1_000 {
            let said = next(&mut self.inbound).await;
            if let Some(found) = wanted(said.clone()) {
                return found;
            }
            self.kept.push(said);
        }
        panic!("{what} never came");
    }

    pub(crate) async fn desired(&mut self) -> v1::Desired {
        self.until("a desired state", |said| match said {
            Said::Desired(desired) => Some(desired),
            _ => None,
        })
        .await
    }

    pub(crate) async fn lease_ack(&mut self, seq: u64) {
        self.until("a lease acknowledgement", |said| match said {
            Said::Lease(ack) if ack.seq == seq => Some(()),
            _ => None,
        })
        .await;
    }

    pub(crate) async fn reports_ack(&mut self, seq: u64) {
        self.until("a report acknowledgement", |said| match said {
            Said::Reports(ack) if ack.seq == seq => Some(()),
            _ => None,
        })
        .await;
    }

    pub(crate) async fn usage_ack(&mut self) -> v1::UsageAck {
        self.until("a usage acknowledgement", |said| match said {
            Said::Usage(ack) => Some(ack),
            _ => None,
        })
        .await
    }
}

/// The next message, in time.
pub(crate) async fn next(inbound: &mut Streaming<v1::ControlMessage>) -> Said {
    let message = tokio::time::timeout(PATIENCE, inbound.message()).await.expect("a message in time");
    message.expect("the session is not broken").expect("the session is not closed").message.expect("not empty")
}
