//! The health of cards on virtual time: what hangs, who ends, what is read again.

use crate::agents::node_spec;
use crate::bench::{Bench, S, command, key, spec};
use crate::cards::gpus;
use crate::control::{Cluster, ClusterState};
use futures::future::BoxFuture;
use muster_agent::exec::virtual_::VirtualMachine;
use muster_agent::exec::{ExecError, Executor, Fault, Launch, LogError, LogSlice, Owner, Stream};
use muster_agent::gpu::sim::SimGpus;
use muster_agent::{Agent, AgentConfig};
use muster_model::ids::Epoch;
use muster_model::task::{DeviceHold, HoldMode};
use muster_model::{GpuModel, Stop, TaskState, World};
use muster_node_core::health::{HealthEvent, RecoveryAction, Xid, XidEvent, XidSource};
use muster_node_core::{ObservedTask, Phase, TaskKey, TaskSpec};
use muster_runtime::sim::{self, SimWorld};
use muster_runtime::{Clock, Host, real};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

const SHARE: HoldMode = HoldMode::Mps { percent: 25, memory_mib: 2_048 };

struct Node {
    cluster: Cluster,
    gpus: Arc<SimGpus>,
    clock: Arc<dyn Clock>,
    executor: Arc<VirtualMachine>,
    endpoint: String,
    agent: Agent,
}

impl Node {
    /// A node of two cards with these foreign processes on each.
    async fn new(world: &SimWorld, processes: Option<&[u32]>) -> Node {
        let cluster = Cluster::new();
        cluster.with(|state| state.heartbeat_ms = 1_000);
        let endpoint = cluster.serve(&world.boot("control"), "control:7000").await.endpoint;
        let host = world.boot("node");
        let gpus = Arc::new(SimGpus::open(gpus(&[GpuModel::H100; 2]), "boot-1", None).expect("new cards"));
        for card in 0..2 {
            processes.into_iter().for_each(|pids| gpus.set_processes(card, pids));
        }
        let executor = Arc::new(VirtualMachine::new(host.clock.clone(), false));
        let config = AgentConfig::new(node_spec(), vec![endpoint.clone()], executor.clone(), gpus.clone());
        let clock = host.clock.clone();
        let agent = Agent::start(host, config).await.expect("the agent starts");
        cluster.until("a lease", |heard| heard.leases > 0).await;
        Node { cluster, gpus, clock, executor, endpoint, agent }
    }

    async fn restart(&mut self, world: &SimWorld) {
        world.crash("node").await;
        let endpoints = vec![self.endpoint.clone()];
        let config = AgentConfig::new(node_spec(), endpoints, self.executor.clone(), self.gpus.clone());
        self.agent = Agent::start(world.boot("node"), config).await.expect("the agent starts");
    }

    /// Desires these and waits until they run.
    async fn run(&self, tasks: &[TaskSpec]) {
        self.cluster.desire(&tasks.iter().map(|task| (task.clone(), false)).collect::<Vec<_>>());
        for task in tasks {
            self.cluster.until_reported(task.key, TaskState::Running).await;
        }
    }

    fn xid(&self, card: u16, code: u16, pid: Option<u32>) {
        let (source, at_ms) = (XidSource::Kernel { seq: None }, self.clock.wall_ms());
        let xid = XidEvent { xid: Xid(code), instance: None, source, at_ms, pid, process: None, text: String::new() };
        self.gpus.tell(card, HealthEvent::Xid(xid));
    }

    async fn fault_of(&self, id: u64) -> (String, bool) {
        let fault = |heard: &ClusterState| {
            heard.reports.get(&key(id, 0))?.iter().find_map(|state| match state {
                TaskState::DeviceFault { reason, by_job } => Some((reason.clone(), *by_job)),
                _ => None,
            })
        };
        self.cluster.until("the end of a task", |heard| fault(heard).is_some()).await;
        self.cluster.with(|heard| fault(heard)).expect("a fault")
    }

    fn is_withheld(&self, card: u16) -> Option<String> {
        self.cluster.with(|heard| {
            let last = heard.cards.last()?;
            last.withheld.iter().find(|one| one.gpu == u32::from(card)).map(|one| one.reason.clone())
        })
    }
}

fn sleeper(id: u64, gpu: u16, mode: HoldMode) -> TaskSpec {
    TaskSpec { devices: vec![DeviceHold { gpu, mode }], ..command(id, 0, &["sleep", "infinity"]) }
}

#[test]
fn a_listing_that_hangs_delays_no_fault_of_another_card() {
    sim::run(1, async |world| {
        let node = Node::new(&world, Some(&[])).await;
        node.run(&[sleeper(1, 1, HoldMode::Whole)]).await;
        node.gpus.set_hanging(0, true);
        sleep(Duration::from_millis(300)).await;
        let begun = Instant::now();
        node.xid(1, 95, None);
        assert!(!node.fault_of(1).await.1);
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    });
}

#[test]
fn a_driver_that_hangs_for_an_idle_card_is_noticed() {
    sim::run(2, async |world| {
        let node = Node::new(&world, Some(&[])).await;
        node.gpus.set_hanging(1, true);
        sleep(Duration::from_secs(8)).await;
        let why = node.is_withheld(1).expect("it is withheld");
        assert!(why.contains("has not answered since") && why.contains("listing its processes"), "{why}");
        assert_eq!(node.is_withheld(0), None);
        node.gpus.set_hanging(1, false);
        sleep(Duration::from_secs(40)).await;
        assert_eq!(node.is_withheld(1), None);
    });
}

#[test]
fn where_the_driver_names_no_process_sharers_pay_no_retry() {
    sim::run(3, async |world| {
        let node = Node::new(&world, None).await;
        let turn = HoldMode::TimeSlice { memory_mib: 2_048 };
        node.run(&[sleeper(1, 0, turn), sleeper(2, 0, turn), sleeper(3, 1, turn)]).await;
        node.xid(0, 31, None);
        node.xid(1, 31, None);
        assert!(!node.fault_of(1).await.1 && !node.fault_of(2).await.1);
        assert!(node.fault_of(3).await.1, "it was alone");
    });
}

#[test]
fn all_clients_of_an_mps_server_end_when_the_named_process_has_gone() {
    sim::run(4, async |world| {
        let node = Node::new(&world, None).await;
        node.run(&[sleeper(1, 0, SHARE), sleeper(2, 0, SHARE), sleeper(3, 1, HoldMode::Whole)]).await;
        // The virtual machine has no processes, so this is nobody's.
        node.xid(0, 31, Some(4_321));
        node.xid(1, 31, Some(4_321));
        for id in 1..=2 {
            let (reason, by_job) = node.fault_of(id).await;
            assert!(!by_job && reason.contains("Xid 31") && reason.contains("MPS server"), "{reason}");
        }
        sleep(Duration::from_secs(5)).await;
        node.cluster.with(|heard| assert_eq!(heard.reports[&key(3, 0)], [TaskState::Running], "not under MPS"));
    });
}

#[test]
fn a_failed_mps_server_is_started_again_before_the_next_client() {
    sim::run(5, async |world| failed_mps(&world, false).await);
}

#[test]
fn an_agent_that_is_restarted_knows_that_an_mps_server_has_failed() {
    sim::run(7, async |world| failed_mps(&world, true).await);
}

async fn failed_mps(world: &SimWorld, restarts: bool) {
    let mut node = Node::new(world, None).await;
    let mut stubborn = TaskSpec { grace_s: 30, ..sleeper(2, 0, SHARE) };
    stubborn.env.insert("MUSTER_SIM_IGNORE_TERM".to_owned(), "1".to_owned());
    let old = [sleeper(1, 0, SHARE), stubborn];
    node.run(&old).await;
    node.xid(0, 31, Some(4_321));
    node.fault_of(1).await;
    if restarts {
        node.restart(world).await;
    }
    let next = sleeper(3, 0, SHARE);
    node.cluster.desire(&[(old[1].clone(), false), (next.clone(), false)]);
    sleep(Duration::from_secs(10)).await;
    node.cluster.with(|heard| assert!(!heard.reports.contains_key(&key(3, 0)), "an old client is still there"));
    // The first change of the card fails, which shows that there is one.
    node.gpus.fail_next(0, "as told");
    let reason = node.cluster.until("a start that fails", |heard| heard.reports.contains_key(&key(3, 0)));
    reason.await;
    node.cluster.with(|heard| {
        let told = &heard.reports[&key(3, 0)];
        let stops = |reason: &str| reason.contains("stopping MPS failed: as told");
        assert!(matches!(&told[..], [TaskState::StartFailed { reason, .. }] if stops(reason)), "{told:?}");
    });
    node.run(&[sleeper(4, 0, SHARE)]).await;
}

#[test]
fn the_recovery_action_is_read_while_a_verdict_waits_for_it() {
    sim::run(6, async |world| {
        let node = Node::new(&world, None).await;
        node.gpus.set_recovery_action(0, RecoveryAction::GpuReset);
        node.xid(0, 95, None);
        sleep(Duration::from_secs(35)).await;
        let why = node.is_withheld(0).expect("it is withheld");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(node.is_withheld(0), Some(why));
        // Another card that the driver asks nothing about, and one that hangs for a while.
        node.gpus.set_recovery_action(1, RecoveryAction::None);
        node.gpus.set_hanging(1, true);
        node.xid(1, 95, None);
        node.gpus.set_recovery_action(0, RecoveryAction::None);
        sleep(Duration::from_secs(31)).await;
        assert_eq!(node.is_withheld(0), None, "it was reset");
        assert!(node.is_withheld(1).is_some());
        node.gpus.set_hanging(1, false);
        sleep(Duration::from_secs(40)).await;
        assert_eq!(node.is_withheld(1), None);
    });
}

/// The fault comes while the task is only being started and has no folder.
#[tokio::test]
async fn a_fault_of_a_task_that_has_no_folder_yet_is_its_cause() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let bench = Bench::open(dir.path()).await;
    let task = bench.start(spec(1, 0, "exec sleep 1000"), 600 * S);
    assert!(!dir.path().join("tasks/1.0").exists());
    bench.exec.fault(task, Fault::of_device("GPU 0: Xid 79".to_owned(), false));
    let over = bench.wait(task, |task| matches!(task.phase, Phase::Over { .. })).await;
    let is_fault =
        |state: &TaskState| matches!(state, TaskState::DeviceFault { reason, .. } if reason == "GPU 0: Xid 79");
    assert!(matches!(&over.phase, Phase::Over { state, .. } if is_fault(state)), "{:?}", over.phase);
    assert!(dir.path().join("tasks/1.0/fault").exists(), "the next agent knows it too");
}

/// Starts tasks after a verdict has come that their plan did not know.
struct Late {
    machine: VirtualMachine,
    gpus: Arc<SimGpus>,
}

impl Executor for Late {
    fn start(&self, launch: Launch) {
        self.gpus.tell(0, HealthEvent::Lost);
        // Meanwhile another thread takes it, counts the holders and finds none.
        tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(500)));
        self.machine.start(launch);
    }
    fn attach(&self, host: &Host, changed: Arc<Notify>) -> BoxFuture<'_, Result<(), ExecError>> {
        self.machine.attach(host, changed)
    }
    fn claim(&self, owner: Owner) -> BoxFuture<'_, Result<BTreeSet<TaskKey>, ExecError>> {
        self.machine.claim(owner)
    }
    fn record_over(&self, spec: Arc<TaskSpec>, node_epoch: Epoch, state: TaskState) {
        self.machine.record_over(spec, node_epoch, state);
    }
    fn stop(&self, key: TaskKey, how: Stop) {
        self.machine.stop(key, how);
    }
    fn kill(&self, key: TaskKey) {
        self.machine.kill(key);
    }
    fn fault(&self, key: TaskKey, fault: Fault) {
        self.machine.fault(key, fault);
    }
    fn task_of(&self, pid: u32) -> Option<TaskKey> {
        self.machine.task_of(pid)
    }
    fn set_time_limit(&self, key: TaskKey, limit_s: Option<u64>) {
        self.machine.set_time_limit(key, limit_s);
    }
    fn set_world(&self, key: TaskKey, world: World) {
        self.machine.set_world(key, world);
    }
    fn push_deadline(&self, key: TaskKey, deadline_ns: u64) {
        self.machine.push_deadline(key, deadline_ns);
    }
    fn observe(&self) -> BTreeMap<TaskKey, ObservedTask> {
        self.machine.observe()
    }
    fn forget(&self, key: TaskKey) {
        self.machine.forget(key);
    }
    fn read_log(
        &self,
        key: TaskKey,
        stream: Stream,
        offset: u64,
        bytes_max: usize,
    ) -> BoxFuture<'static, Result<LogSlice, LogError>> {
        self.machine.read_log(key, stream, offset, bytes_max)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_start_that_was_planned_before_a_verdict_ends_by_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let cluster = Cluster::new();
    let control = cluster.serve(&real::host("control", dir.path().join("control")), "127.0.0.1:0").await;
    let host = real::host("node-0001", dir.path().join("node"));
    let gpus = Arc::new(SimGpus::open(gpus(&[GpuModel::H100]), "boot-1", None).expect("new cards"));
    let late = Late { machine: VirtualMachine::new(host.clock.clone(), false), gpus: gpus.clone() };
    let config = AgentConfig::new(node_spec(), vec![control.endpoint.clone()], Arc::new(late), gpus);
    let _agent = Agent::start(host, config).await.expect("the agent starts");
    cluster.desire(&[(sleeper(1, 0, HoldMode::Whole), false)]);
    cluster
        .until("its end", |heard| {
            let told = heard.reports.get(&key(1, 0));
            told.is_some_and(|all| {
                all.iter().any(|state| matches!(state, TaskState::DeviceFault { by_job: false, .. }))
            })
        })
        .await;
}
