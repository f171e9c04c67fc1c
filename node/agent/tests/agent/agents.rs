//! Whole agents over real sockets, with real tasks on simulated cards.

use crate::bench::{command, key, lines, shim, spec};
use crate::cards::gpus;
use crate::control::{Cluster, ClusterState, ControlNode};
use muster_agent::exec::process::{ProcessConfig, ProcessExecutor};
use muster_agent::gpu::GpuBackend;
use muster_agent::gpu::sim::SimGpus;
use muster_agent::{Agent, AgentConfig, HealthConfig};
use muster_model::mig::{MigPlacement, MigShape};
use muster_model::node::NodeSpec;
use muster_model::request::SharingMode;
use muster_model::task::{DeviceHold, HoldMode};
use muster_model::{GpuModel, TaskState};
use muster_node_core::TaskSpec;
use muster_node_core::health::Mode;
use muster_proto::v1;
use muster_proto::v1::control_message::Message as ToAgent;
use muster_runtime::{Host, real};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) fn node_spec() -> NodeSpec {
    NodeSpec { address: "127.0.0.1".to_owned(), cell: "a".to_owned(), ..NodeSpec::usual("node-0001", Vec::new()) }
}

/// A control plane with two nodes, and a host whose agent a test starts.
struct Fleet {
    dir: TempDir,
    cluster: Cluster,
    nodes: Vec<ControlNode>,
    gpus: Arc<SimGpus>,
    _control: Host,
}

impl Fleet {
    async fn new() -> Fleet {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let control = real::host("control", dir.path().join("control"));
        let cluster = Cluster::new();
        let mut nodes = Vec::new();
        for _ in 0..2 {
            nodes.push(cluster.serve(&control, "127.0.0.1:0").await);
        }
        let cards = gpus(&[GpuModel::H100, GpuModel::H100, GpuModel::T4]);
        let gpus = Arc::new(SimGpus::open(cards, "boot-1", None).expect("new cards"));
        Fleet { dir, cluster, nodes, gpus, _control: control }
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    async fn agent(&self) -> (Agent, Host) {
        let host = real::host("node-0001", self.dir().join("node"));
        (Agent::start(host.clone(), self.config()).await.expect("the agent starts"), host)
    }

    fn config(&self) -> AgentConfig {
        let executor = ProcessExecutor::new(ProcessConfig::new(shim(), self.dir().join("node"), "boot-1"));
        let endpoints = self.nodes.iter().map(|node| node.endpoint.clone()).collect();
        let mut config = AgentConfig::new(node_spec(), endpoints, Arc::new(executor), self.gpus.clone());
        config.usage_period = Duration::from_millis(200);
        config.silence_max = Duration::from_millis(500);
        config
    }

    /// What a task wrote to its standard output, as the control plane reads it.
    async fn output(&self, request: u64, allocation: u64, rank: u32, follow: bool) -> String {
        self.cluster.send(ToAgent::Log(v1::LogRequest { request, allocation, rank, follow, ..Default::default() }));
        self.cluster.until("output", |heard| heard.logs.get(&request).is_some_and(|(_, ended, _)| *ended)).await;
        self.cluster.with(|heard| String::from_utf8_lossy(&heard.logs[&request].0).into_owned())
    }

    async fn modes(&self) -> Vec<SharingMode> {
        let mut modes = Vec::new();
        for card in 0..3 {
            modes.push(self.gpus.state(card).await.expect("readable").mode);
        }
        modes
    }
}

pub(crate) fn holding(spec: TaskSpec, gpu: u16, mode: HoldMode) -> TaskSpec {
    TaskSpec { devices: vec![DeviceHold { gpu, mode }], ..spec }
}

const SHOW: &str = "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT on \
    [$CUDA_VISIBLE_DEVICES] restart $MUSTER_RESTART_COUNT job $MUSTER_JOB_ID attempt $MUSTER_ATTEMPT lr $LR";

#[tokio::test]
async fn a_gang_runs_from_desired_to_forgotten() {
    let fleet = Fleet::new().await;
    let (agent, _host) = fleet.agent().await;
    let rank = |rank: u32| {
        let mut task = holding(spec(1, rank, &format!("{SHOW}; sleep 0.5; exit {rank}")), rank as u16, HoldMode::Whole);
        task.env.insert("LR".to_owned(), "0.1".to_owned());
        task
    };
    fleet.cluster.desire(&[(rank(0), false), (rank(1), false)]);
    for task in 0..2 {
        fleet.cluster.until_reported(key(1, task), TaskState::Running).await;
    }
    let followed = fleet.output(1, 1, 1, true).await;
    assert_eq!(followed, "1/2 local 1/2 at 127.0.0.1:29500 on [GPU-node-1] restart 0 job 1 attempt 1 lr 0.1\n");
    for task in 0..2 {
        fleet.cluster.until_reported(key(1, task), TaskState::Exited { code: task as i32 }).await;
    }
    fleet.cluster.desire(&[]);
    while fleet.dir().join("node/tasks/1.0").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(fleet.output(2, 1, 0, false).await.starts_with("0/2 "), "output outlives the task");
    assert_eq!(agent.status().live_tasks, 0);
    fleet.cluster.until("usage", |heard| heard.usage.get(&1).is_some_and(|used| *used >= 2 * 7_000 * 500)).await;
    fleet.cluster.with(|heard| {
        let hello = &heard.hellos[0];
        assert_eq!(hello.spec.as_ref().map(|spec| spec.gpus.len()), Some(3), "the cards come from the backend");
        assert_eq!((hello.usage_incarnation, hello.cluster_incarnation), (None, None));
        assert!(!heard.usage_gap);
    });
    fleet.cluster.until("a heartbeat that says what was taken", |heard| heard.stamp == heard.desired.stamp).await;
    agent.stop().await.expect("it had not failed");
}

#[tokio::test]
async fn unknown_output_is_an_error_and_an_abandoned_follower_ends() {
    let fleet = Fleet::new().await;
    let (_agent, _host) = fleet.agent().await;
    fleet.cluster.until("a session", |heard| heard.leases > 0).await;
    assert_eq!(fleet.output(1, 99, 0, true).await, "");
    fleet.cluster.with(|heard| assert!(heard.logs[&1].2.contains("no output of task 99.0"), "{:?}", heard.logs));
    fleet.cluster.desire(&[(spec(2, 0, "echo first; sleep 1000"), false)]);
    fleet.cluster.send(ToAgent::Log(v1::LogRequest { request: 2, allocation: 2, follow: true, ..Default::default() }));
    fleet.cluster.until("output", |heard| heard.logs.get(&2).is_some_and(|(data, ..)| data == b"first\n")).await;
    fleet.cluster.send(ToAgent::Log(v1::LogRequest { request: 2, cancel: true, ..Default::default() }));
    fleet.cluster.desire(&[(spec(2, 0, "echo first; sleep 1000"), true)]);
    fleet.cluster.until_reported(key(2, 0), TaskState::Stopped).await;
    fleet.cluster.with(|heard| assert!(!heard.logs[&2].1, "nobody asked for its end"));
}

#[tokio::test]
async fn cards_are_cut_and_shared_for_tasks_and_whole_again_after_them() {
    let fleet = Fleet::new().await;
    let (_agent, _host) = fleet.agent().await;
    let show = |id, gpu, mode| holding(spec(id, 0, &format!("{SHOW}; env | grep -c ^CUDA_MPS; sleep 1000")), gpu, mode);
    let place = MigPlacement { shape: MigShape::G3, start: 4 };
    let mps = HoldMode::Mps { percent: 25, memory_mib: 2_048 };
    let mut wanted = vec![
        (show(1, 0, HoldMode::Mig(place)), false),
        (show(2, 1, mps), false),
        (show(3, 1, mps), false),
        (show(4, 2, HoldMode::TimeSlice { memory_mib: 1_024 }), false),
    ];
    fleet.cluster.desire(&wanted);
    for id in 1..=4 {
        fleet.cluster.until_reported(key(id, 0), TaskState::Running).await;
    }
    assert_eq!(fleet.modes().await, [SharingMode::Mig, SharingMode::Mps, SharingMode::TimeSlice]);
    let instances = fleet.gpus.state(0).await.expect("readable").instances;
    assert_eq!(instances.iter().map(|instance| instance.place).collect::<Vec<_>>(), [place]);
    for (id, devices, mps) in [(1, instances[0].uuids[0].as_str(), "0"), (2, "GPU-node-1", "3"), (4, "GPU-node-2", "0")]
    {
        lines(&fleet.dir().join(format!("node/tasks/{id}.0/stdout")), 2).await;
        let said = fleet.output(id, id, 0, false).await;
        assert!(said.contains(&format!("on [{devices}] ")) && said.trim_end().ends_with(mps), "{said}");
    }
    // One of two shares ends: the card stays shared. Then all end.
    wanted[1].1 = true;
    fleet.cluster.desire(&wanted);
    fleet.cluster.until_reported(key(2, 0), TaskState::Stopped).await;
    assert_eq!(fleet.modes().await[1], SharingMode::Mps);
    fleet.cluster.desire(&[]);
    for id in [1, 3, 4] {
        fleet.cluster.until_reported(key(id, 0), TaskState::Stopped).await;
    }
    while fleet.modes().await != [SharingMode::Whole; 3] {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_card_that_fails_fails_the_task_with_its_words() {
    let fleet = Fleet::new().await;
    let (_agent, _host) = fleet.agent().await;
    fleet.gpus.fail_next(0, "Xid 79");
    let mig = HoldMode::Mig(MigPlacement { shape: MigShape::G1, start: 0 });
    fleet.cluster.desire(&[(holding(spec(1, 0, "true"), 0, mig), false), (spec(2, 0, "exit 3"), false)]);
    fleet.cluster.until_reported(key(2, 0), TaskState::Exited { code: 3 }).await;
    let reason = "GPU 0: entering MIG mode failed: Xid 79".to_owned();
    fleet.cluster.until_reported(key(1, 0), TaskState::StartFailed { reason, by_node: true }).await;
    fleet.cluster.desire(&[(holding(spec(3, 0, "true"), 0, mig), false)]);
    fleet.cluster.until_reported(key(3, 0), TaskState::Exited { code: 0 }).await;
}

/// Law of the node: a driver that does not answer for one card costs nobody else anything, and the card is told of until it answers.
#[tokio::test]
async fn a_card_that_hangs_costs_only_itself() {
    let fleet = Fleet::new().await;
    let (agent, _host) = fleet.agent().await;
    let mig = HoldMode::Mig(MigPlacement { shape: MigShape::G1, start: 0 });
    fleet.cluster.desire(&[(spec(1, 0, "sleep 1000"), false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    fleet.gpus.set_hanging(0, true);
    // A task that needs the card, one that needs another, and the end of a third.
    let waits = holding(spec(2, 0, "true"), 0, mig);
    let other = holding(spec(3, 0, "exit 5"), 1, HoldMode::Whole);
    fleet.cluster.desire(&[(spec(1, 0, "sleep 1000"), true), (waits.clone(), false), (other, false)]);
    let begun = std::time::Instant::now();
    fleet.cluster.until_reported(key(1, 0), TaskState::Stopped).await;
    fleet.cluster.until_reported(key(3, 0), TaskState::Exited { code: 5 }).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    fleet.cluster.with(|heard| assert!(!heard.reports.contains_key(&key(2, 0)), "{:?}", heard.reports));
    assert!(agent.status().session.is_some());
    fleet.cluster.desire(&[]);
    agent.stop().await.expect("it had not failed");

    // Another agent cannot read the card: it says so, and the rest of the node works.
    let (_agent, _host) = fleet.agent().await;
    fleet.cluster.until("the second agent", |heard| heard.hellos.len() == 2).await;
    fleet.cluster.with(|heard| {
        let gpus = &heard.hellos[1].spec.as_ref().expect("a node").gpus;
        let withheld: Vec<bool> = gpus.iter().map(|gpu| gpu.withheld.is_some()).collect();
        assert_eq!(withheld, [true, false, false]);
    });
    fleet.gpus.set_hanging(0, false);
    fleet
        .cluster
        .until("the card is used again", |heard| heard.cards.last().is_some_and(|r| r.withheld.is_empty()))
        .await;
    fleet.cluster.desire(&[(waits, false)]);
    fleet.cluster.until_reported(key(2, 0), TaskState::Exited { code: 0 }).await;
}

fn now_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A record of the kernel's log, as `/dev/kmsg` tells it, so many seconds old.
fn record(seq: u64, seconds_old: u64, message: &str) -> String {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    let now_us = now.tv_sec() as u64 * 1_000_000 + now.tv_nsec() as u64 / 1_000;
    format!("6,{seq},{},-;NVRM: {message}", now_us - seconds_old * 1_000_000)
}

fn mig_hold(start: u8) -> HoldMode {
    HoldMode::Mig(MigPlacement { shape: MigShape::G3, start })
}

impl Fleet {
    /// What the kernel says from now on. The agent reads it from this file.
    fn kernel_says(&self, line: &str) {
        use std::io::Write;
        let path = self.dir().join("kernel-log");
        let mut file = std::fs::File::options().append(true).create(true).open(path).expect("a file");
        writeln!(file, "{line}").expect("it is written");
    }

    async fn watched_agent(&self, mode: Mode) -> (Agent, Host) {
        self.kernel_says("");
        let host = real::host("node-0001", self.dir().join("node"));
        let health = HealthConfig { mode, kernel_log: Some(self.dir().join("kernel-log")), ..HealthConfig::default() };
        let config = AgentConfig { health, ..self.config() };
        (Agent::start(host.clone(), config).await.expect("the agent starts"), host)
    }

    /// An operator has taken a card for well at this time.
    fn clear(&self, card: u16, at_ms: u64) {
        let cleared = v1::ClearedGpu { uuid: format!("GPU-node-{card}"), at_ms, reason: "new riser".to_owned() };
        self.cluster.with(|state| state.cleared = vec![cleared]);
    }

    async fn withheld(&self, what: &str, enough: impl Fn(&[v1::WithheldCard]) -> bool) {
        self.cluster.until(what, |heard| heard.cards.last().is_some_and(|report| enough(&report.withheld))).await;
    }
}

/// An Xid that the driver confines to a MIG slice ends the task of that slice and withholds the slice; its neighbour runs on. A restart of the agent changes nothing.
#[tokio::test]
async fn an_xid_of_a_slice_ends_its_task_and_withholds_that_slice_alone() {
    let fleet = Fleet::new().await;
    let (agent, host) = fleet.watched_agent(Mode::Enforce).await;
    let tasks = [
        (holding(spec(1, 0, "sleep 1000"), 0, mig_hold(0)), false),
        (holding(spec(2, 0, "sleep 1000"), 0, mig_hold(4)), false),
    ];
    fleet.cluster.desire(&tasks);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    fleet.cluster.until_reported(key(2, 0), TaskState::Running).await;
    let state = fleet.gpus.state(0).await.expect("readable");
    let handle = state.instances.iter().find(|made| made.place.start == 4).expect("it stands").handle;
    fleet.kernel_says("NVRM: GPU 0000:ff:00.0: nothing of ours has fallen off the bus");
    fleet.kernel_says(&format!(
        "NVRM: Xid (PCI:0000:10:00 GPU-I:{handle:02}): 94, Contained: SM (0x1). RST: No, D-RST: No"
    ));
    let begun = std::time::Instant::now();
    fleet
        .withheld("a withheld slice", |all| {
            all.len() == 1 && all[0].gpu == 0 && all[0].slice.as_ref().is_some_and(|slice| slice.start == 4)
        })
        .await;
    fleet.cluster.until("the end of its task", |heard| {
        let states = &heard.reports[&key(2, 0)];
        states.iter().any(|state| matches!(state, TaskState::DeviceFault { reason, by_job: false } if reason.starts_with("GPU 0: Xid 94")))
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    fleet.cluster.with(|heard| assert_eq!(heard.reports[&key(1, 0)], [TaskState::Running], "its neighbour runs on"));
    // The node itself starts nothing there.
    fleet.cluster.desire(&[tasks[0].clone(), (holding(spec(3, 0, "true"), 0, mig_hold(4)), false)]);
    fleet.cluster.until("a refusal", |heard| heard.reports.contains_key(&key(3, 0))).await;
    fleet.cluster.with(|heard| {
        assert!(matches!(&heard.reports[&key(3, 0)][..], [TaskState::StartFailed { by_node: true, .. }]))
    });
    drop(agent);
    host.tasks.abort_all();
    tokio::time::sleep(Duration::from_millis(50)).await;

    let (agent, _host) = fleet.watched_agent(Mode::Enforce).await;
    fleet.cluster.until("a second hello", |heard| heard.hellos.len() >= 2).await;
    fleet.cluster.with(|heard| {
        let gpus = &heard.hellos[1].spec.as_ref().expect("a node").gpus;
        assert_eq!(gpus[0].withheld_slices.len(), 1, "a verdict survives a restart");
        assert!(gpus[0].withheld.is_none());
    });
    // The control plane's clock is ahead by an hour.
    fleet.clear(0, now_ms() + 3_600_000);
    fleet.cluster.desire(&tasks[..1]);
    fleet.withheld("the operator's clear", <[_]>::is_empty).await;
    fleet.kernel_says(&format!(
        "NVRM: Xid (PCI:0000:10:00 GPU-I:{handle:02}): 94, Contained: SM (0x1). RST: No, D-RST: No"
    ));
    fleet.withheld("the same again", |all| !all.is_empty()).await;
    fleet.cluster.desire(&tasks[..1]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    fleet.withheld("a clear counts once", |all| !all.is_empty()).await;
    // Now it was set right, and the clear's time with it.
    fleet.clear(0, now_ms());
    fleet.cluster.desire(&tasks[..1]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    fleet.withheld("an older clear counts no more", |all| !all.is_empty()).await;
    agent.stop().await.expect("it had not failed");
}

/// A verdict that the control plane does not follow, since too much of the cell is withheld: the card is used. What is certain stays withheld whatever it says.
#[tokio::test]
async fn what_the_control_plane_spares_is_used_although_a_verdict_stands_against_it() {
    let fleet = Fleet::new().await;
    let (_agent, _host) = fleet.watched_agent(Mode::Enforce).await;
    fleet.cluster.until("a session", |heard| heard.leases > 0).await;
    fleet.kernel_says("NVRM: Xid (PCI:0000:11:00): 48, pid=7, name=python, DBE (double bit error)");
    fleet.withheld("a verdict", |all| matches!(all, [card] if card.gpu == 1 && card.by_verdict)).await;
    let on_card = |id| (holding(spec(id, 0, "sleep 1000"), 1, HoldMode::Whole), false);
    fleet.cluster.desire(&[on_card(1)]);
    fleet
        .cluster
        .until("a refused task", |heard| {
            let all = heard.reports.get(&key(1, 0));
            all.is_some_and(|all| all.iter().any(|state| matches!(state, TaskState::StartFailed { by_node: true, .. })))
        })
        .await;
    let spared = |by_verdict| v1::WithheldCard { gpu: 1, slice: None, reason: "DBE".to_owned(), by_verdict, repair: 0 };
    fleet.cluster.with(|state| state.spared = vec![spared(true)]);
    fleet.cluster.desire(&[on_card(2)]);
    fleet.cluster.until_reported(key(2, 0), TaskState::Running).await;
    // It is told all the same.
    fleet.withheld("the verdict", |all| matches!(all, [card] if card.gpu == 1)).await;
    fleet.cluster.with(|state| state.spared = Vec::new());
    fleet.cluster.desire(&[on_card(2), on_card(3)]);
    fleet.cluster.desire(&[on_card(3)]);
    fleet
        .cluster
        .until("a refused task", |heard| {
            let all = heard.reports.get(&key(3, 0));
            all.is_some_and(|all| all.iter().any(|state| matches!(state, TaskState::StartFailed { by_node: true, .. })))
        })
        .await;
}

#[tokio::test]
async fn a_card_that_falls_off_the_bus_ends_all_its_tasks_and_no_others() {
    let fleet = Fleet::new().await;
    let (_agent, _host) = fleet.watched_agent(Mode::Enforce).await;
    fleet.cluster.desire(&[
        (holding(spec(1, 0, "sleep 1000"), 0, HoldMode::Whole), false),
        (holding(spec(2, 0, "sleep 1000"), 1, HoldMode::Whole), false),
    ]);
    for id in 1..=2 {
        fleet.cluster.until_reported(key(id, 0), TaskState::Running).await;
    }
    fleet.kernel_says("NVRM: GPU at PCI:0000:11:00 has fallen off the bus");
    fleet.withheld("a withheld card", |all| matches!(all, [card] if card.gpu == 1 && card.slice.is_none())).await;
    fleet
        .cluster
        .until("the end of its task", |heard| {
            heard.reports[&key(2, 0)].iter().any(|state| matches!(state, TaskState::DeviceFault { by_job: false, .. }))
        })
        .await;
    fleet.cluster.with(|heard| assert_eq!(heard.reports[&key(1, 0)], [TaskState::Running]));
}

/// Of the sharers of a card, the one whose process made a fault ends for it; under MPS, all do, and the others are told who it was.
#[tokio::test]
async fn a_fault_of_one_client_is_told_to_its_mps_neighbours() {
    let fleet = Fleet::new().await;
    let (_agent, _host) = fleet.watched_agent(Mode::Enforce).await;
    let share =
        |id| holding(spec(id, 0, "echo $$; exec sleep 1000"), 1, HoldMode::Mps { percent: 25, memory_mib: 2_048 });
    fleet.cluster.desire(&[(share(1), false), (share(2), false)]);
    for id in 1..=2 {
        fleet.cluster.until_reported(key(id, 0), TaskState::Running).await;
    }
    lines(&fleet.dir().join("node/tasks/2.0/stdout"), 1).await;
    let pid = fleet.output(9, 2, 0, false).await;
    fleet.kernel_says(&format!(
        "NVRM: Xid (PCI:0000:11:00): 31, pid={}, name=python, Ch 00000008, MMU Fault",
        pid.trim()
    ));
    let ended = |heard: &crate::control::ClusterState, id, by_own: bool, words: &str| {
        heard.reports[&key(id, 0)].iter().any(|state| {
            matches!(state, TaskState::DeviceFault { reason, by_job } if *by_job == by_own && reason.contains(words))
        })
    };
    fleet
        .cluster
        .until("the end of both", |heard| {
            ended(heard, 2, true, "Xid 31")
                && ended(heard, 1, false, "another client of the same MPS server, rank 0 of job 2, made it")
        })
        .await;
    fleet
        .cluster
        .with(|heard| assert!(heard.cards.iter().all(|report| report.withheld.is_empty()), "the card is not to blame"));
}

/// A process that Muster did not start withholds its card for as long as it is there, and is named; that of a task does not.
#[tokio::test]
async fn a_process_that_is_no_tasks_withholds_its_card_and_is_named() {
    let fleet = Fleet::new().await;
    fleet.gpus.set_processes(1, &[]);
    let (_agent, _host) = fleet.watched_agent(Mode::Enforce).await;
    let desired = [(holding(spec(1, 0, "echo $$; exec sleep 1000"), 1, HoldMode::Whole), false)];
    fleet.cluster.desire(&desired);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    lines(&fleet.dir().join("node/tasks/1.0/stdout"), 1).await;
    let task: u32 = fleet.output(1, 1, 0, false).await.trim().parse().expect("a process");
    let own = std::process::id();
    fleet.gpus.set_processes(1, &[task, own]);
    let words = format!("process {own} of user ");
    fleet
        .withheld("a withheld card", |all| matches!(all, [card] if card.gpu == 1 && card.reason.starts_with(&words)))
        .await;
    fleet.cluster.with(|heard| assert_eq!(heard.reports[&key(1, 0)], [TaskState::Running], "the task runs on"));
    fleet.gpus.set_processes(1, &[task]);
    fleet.withheld("the card is used again", <[_]>::is_empty).await;
    // One that an operator accepts is no fault for as long as it lives, and costs nothing.
    fleet.gpus.set_processes(1, &[task, own]);
    fleet.withheld("a withheld card", |all| all.len() == 1).await;
    fleet.clear(1, now_ms());
    fleet.cluster.desire(&desired);
    fleet.withheld("the operator's clear", <[_]>::is_empty).await;
    let ledger = fleet.dir().join("node/files/gpu-health.json");
    let written = || std::fs::metadata(&ledger).and_then(|file| file.modified()).expect("it is stored");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = written();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(written(), before, "nothing is stored while nothing changes");
    fleet.gpus.set_processes(1, &[task]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    fleet.gpus.set_processes(1, &[task, own]);
    fleet.withheld("a later process of that number was not accepted", |all| all.len() == 1).await;
}

/// The kernel tells its old records again to each agent that starts.
#[tokio::test]
async fn an_old_record_of_a_lost_card_ends_nobody_after_a_restart() {
    let fleet = Fleet::new().await;
    let (agent, host) = fleet.watched_agent(Mode::Enforce).await;
    fleet.cluster.until("a hello", |heard| !heard.hellos.is_empty()).await;
    fleet.kernel_says(&record(7, 0, "GPU at PCI:0000:11:00 has fallen off the bus"));
    fleet.withheld("a withheld card", |all| matches!(all, [card] if card.gpu == 1)).await;
    fleet.clear(1, now_ms());
    let desired = [(holding(spec(1, 0, "sleep 1000"), 1, HoldMode::Whole), false)];
    fleet.cluster.desire(&[]);
    fleet.withheld("the operator's clear", <[_]>::is_empty).await;
    fleet.cluster.desire(&desired);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    drop(agent);
    host.tasks.abort_all();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (agent, host) = fleet.watched_agent(Mode::Enforce).await;
    fleet.cluster.until("a second hello", |heard| heard.hellos.len() >= 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    fleet.cluster.with(|heard| {
        assert!(heard.cards.last().expect("a report").withheld.is_empty());
        assert!(heard.hellos[1].spec.as_ref().expect("a node").gpus[1].withheld.is_none());
        assert_eq!(heard.reports[&key(1, 0)], [TaskState::Running]);
    });
    // One that is news and old withholds its card and ends nobody.
    drop(agent);
    host.tasks.abort_all();
    tokio::time::sleep(Duration::from_millis(50)).await;
    fleet.kernel_says(&record(8, 100, "GPU at PCI:0000:11:00 has fallen off the bus"));
    let (_agent, _host) = fleet.watched_agent(Mode::Enforce).await;
    let is_withheld = |gpus: &[v1::Gpu]| gpus[1].withheld.is_some();
    fleet
        .cluster
        .until("a withheld card", |heard| {
            heard.cards.last().is_some_and(|report| !report.withheld.is_empty())
                || heard.hellos.last().is_some_and(|hello| is_withheld(&hello.spec.as_ref().expect("a node").gpus))
        })
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    fleet.cluster.with(|heard| assert_eq!(heard.reports[&key(1, 0)], [TaskState::Running]));
}

/// The log is there at once, and the cards take their time.
#[tokio::test]
async fn a_fault_of_a_slice_is_no_fault_of_the_card_while_the_cards_are_not_read_yet() {
    let fleet = Fleet::new().await;
    let (agent, host) = fleet.watched_agent(Mode::Enforce).await;
    let tasks = [
        (holding(spec(1, 0, "sleep 1000"), 0, mig_hold(0)), false),
        (holding(spec(2, 0, "sleep 1000"), 0, mig_hold(4)), false),
    ];
    fleet.cluster.desire(&tasks);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    fleet.cluster.until_reported(key(2, 0), TaskState::Running).await;
    let state = fleet.gpus.state(0).await.expect("readable");
    let handle = state.instances.iter().find(|made| made.place.start == 4).expect("it stands").handle;
    drop(agent);
    host.tasks.abort_all();
    tokio::time::sleep(Duration::from_millis(50)).await;
    fleet.kernel_says(&record(9, 1, &format!("Xid (PCI:0000:10:00 GPU-I:{handle:02}): 94, Contained: SM (0x1).")));
    fleet.gpus.set_slow(0, Duration::from_secs(1));
    let (_agent, _host) = fleet.watched_agent(Mode::Enforce).await;
    fleet.cluster.until("the end of its task", |heard| heard.reports[&key(2, 0)].len() > 1).await;
    fleet.withheld("a withheld slice", |all| matches!(all, [one] if one.slice.is_some())).await;
    fleet.cluster.with(|heard| {
        assert_eq!(heard.reports[&key(1, 0)], [TaskState::Running], "its neighbour runs on");
        let is_whole = |card: &v1::WithheldCard| card.slice.is_none() && card.reason.contains("Xid");
        assert!(heard.cards.iter().all(|report| !report.withheld.iter().any(is_whole)));
    });
}

/// A card that is not read in time: the slice that the kernel names may be any of them, which is something else than one that has gone.
#[tokio::test]
async fn a_fault_of_a_slice_that_cannot_be_placed_yet_ends_all_who_may_be_meant() {
    let fleet = Fleet::new().await;
    let (agent, host) = fleet.watched_agent(Mode::Enforce).await;
    fleet.cluster.desire(&[
        (holding(spec(1, 0, "sleep 1000"), 0, mig_hold(0)), false),
        (holding(spec(2, 0, "sleep 1000"), 1, HoldMode::Whole), false),
    ]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    fleet.cluster.until_reported(key(2, 0), TaskState::Running).await;
    drop(agent);
    host.tasks.abort_all();
    tokio::time::sleep(Duration::from_millis(50)).await;
    fleet.kernel_says(&record(9, 1, "Xid (PCI:0000:10:00 GPU-I:01): 94, Contained: SM (0x1)."));
    fleet.gpus.set_hanging(0, true);
    let (_agent, _host) = fleet.watched_agent(Mode::Enforce).await;
    fleet.cluster.until("the end of its task", |heard| heard.reports[&key(1, 0)].len() > 1).await;
    fleet.cluster.with(|heard| assert_eq!(heard.reports[&key(2, 0)], [TaskState::Running]));
}

/// The kernel's clock differs from all others by what it has drifted since the boot.
#[tokio::test]
async fn a_record_that_comes_while_the_reader_waits_is_new_whatever_its_stamp_says() {
    let fleet = Fleet::new().await;
    let log = fleet.dir().join("kernel-log");
    nix::unistd::mkfifo(&log, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let host = real::host("node-0001", fleet.dir().join("node"));
    let health = HealthConfig { kernel_log: Some(log.clone()), ..HealthConfig::default() };
    let config = AgentConfig { health, ..fleet.config() };
    let _agent = Agent::start(host, config).await.expect("the agent starts");
    fleet.cluster.desire(&[(holding(spec(1, 0, "sleep 1000"), 1, HoldMode::Whole), false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    fleet.kernel_says(&record(7, 120, "GPU at PCI:0000:11:00 has fallen off the bus"));
    fleet
        .cluster
        .until("the end of its task", |heard| {
            heard.reports[&key(1, 0)].iter().any(|state| matches!(state, TaskState::DeviceFault { by_job: false, .. }))
        })
        .await;
}

#[tokio::test]
async fn an_agent_that_only_observes_withholds_and_ends_nothing() {
    let fleet = Fleet::new().await;
    let (_agent, _host) = fleet.watched_agent(Mode::ObserveOnly).await;
    fleet.cluster.desire(&[(holding(spec(1, 0, "sleep 2; exit 4"), 0, HoldMode::Whole), false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    fleet.kernel_says("NVRM: GPU at PCI:0000:10:00 has fallen off the bus");
    fleet.cluster.until_reported(key(1, 0), TaskState::Exited { code: 4 }).await;
    fleet.cluster.with(|heard| assert!(heard.cards.iter().all(|report| report.withheld.is_empty())));
}

#[tokio::test]
async fn nothing_starts_before_a_quorum_has_confirmed_the_node() {
    let fleet = Fleet::new().await;
    for node in &fleet.nodes {
        node.confirms.store(false, Ordering::Relaxed);
    }
    let (_agent, _host) = fleet.agent().await;
    fleet.cluster.desire(&[(spec(1, 0, "exit 3"), false)]);
    fleet.cluster.until("a session beyond the first", |heard| heard.hellos.len() >= 3).await;
    fleet.cluster.with(|heard| assert!(heard.reports.is_empty(), "{:?}", heard.reports));
    fleet.nodes[0].confirms.store(true, Ordering::Relaxed);
    fleet.cluster.until_reported(key(1, 0), TaskState::Exited { code: 3 }).await;
}

#[tokio::test]
async fn a_control_node_that_goes_or_falls_silent_is_replaced_by_another() {
    let fleet = Fleet::new().await;
    let (agent, _host) = fleet.agent().await;
    let before = TaskSpec { disconnect_grace_s: 3, ..spec(1, 0, "sleep 6; exit 3") };
    fleet.cluster.desire(&[(before.clone(), false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    fleet.nodes[0].stop.cancel();
    tokio::time::sleep(Duration::from_millis(300)).await;
    fleet.cluster.desire(&[(before.clone(), false), (spec(2, 0, "exit 4"), false)]);
    fleet.cluster.until_reported(key(2, 0), TaskState::Exited { code: 4 }).await;
    // With a grace of three seconds the long task lives to its end only if its fence was pushed on all the time.
    fleet.cluster.until_reported(key(1, 0), TaskState::Exited { code: 3 }).await;
    assert!(agent.status().session.is_some());
}

/// A fleet whose sessions all break as soon as they are up would otherwise come back ten times a second, and hold up what could keep them.
#[tokio::test]
async fn sessions_that_break_at_once_are_begun_again_with_growing_pauses() {
    let fleet = Fleet::new().await;
    fleet.cluster.with(|state| state.ends_sessions = true);
    let begin = std::time::Instant::now();
    let (_agent, _host) = fleet.agent().await;
    fleet.cluster.until("five sessions", |heard| heard.hellos.len() >= 5).await;
    // At least half of 200, 400, 800 and 1,600 ms.
    assert!(begin.elapsed() >= Duration::from_millis(1_500), "{:?}", begin.elapsed());
    fleet.cluster.with(|state| state.ends_sessions = false);
    fleet.cluster.until("a lease", |heard| heard.leases > 0).await;
}

#[tokio::test]
async fn a_refused_agent_comes_again() {
    let fleet = Fleet::new().await;
    fleet.cluster.with(|state| state.refusal = Some("the pool is unknown".to_owned()));
    let (agent, _host) = fleet.agent().await;
    fleet.cluster.until("two tries", |heard| heard.hellos.len() >= 2).await;
    assert_eq!(agent.status().session, None);
    fleet.cluster.with(|state| state.refusal = None);
    fleet.cluster.until("a lease", |heard| heard.leases > 0).await;
}

#[tokio::test]
async fn a_lagging_control_node_neither_kills_nor_revives() {
    let fleet = Fleet::new().await;
    let (agent, host) = fleet.agent().await;
    fleet.cluster.desire(&[(spec(1, 0, "sleep 1000"), false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    agent.stop().await.expect("it had not failed");
    host.tasks.abort_all();
    // The next agent is shown what was true before the task was bound, and something that was never meant for now.
    fleet.cluster.with(|state| {
        state.desired = v1::Desired {
            stamp: Some(v1::Stamp { incarnation: 1, revision: 1, node_epoch: 1 }),
            tasks: vec![crate::control::to_wire(&spec(2, 0, "true"), false)],
            cleared_gpus: Vec::new(),
            sharing: None,
            spared: Vec::new(),
            pinned: Default::default(),
            held_on: Vec::new(),
            drained: false,
        };
        state.reports.clear();
    });
    let (agent, _host) = fleet.agent().await;
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    fleet.cluster.until("a few heartbeats", |heard| heard.leases > 10).await;
    fleet.cluster.with(|heard| assert_eq!(heard.reports.keys().copied().collect::<Vec<_>>(), [key(1, 0)]));
    assert_eq!(agent.status().live_tasks, 1);
    fleet.cluster.with(|state| state.desired.stamp = Some(v1::Stamp { incarnation: 1, revision: 90, node_epoch: 1 }));
    fleet.cluster.desire(&[]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Stopped).await;
}

/// A session begins later than all that was sent before. So its desired states wait for no disk, and after a crash nothing older is taken.
#[tokio::test]
async fn a_session_is_on_disk_once_and_nothing_older_is_taken_after_a_crash() {
    let fleet = Fleet::new().await;
    fleet.cluster.with(|state| state.joined_at = 1);
    let (agent, host) = fleet.agent().await;
    fleet.cluster.until("a session", |heard| heard.leases > 0).await;
    let record = || std::fs::read_to_string(fleet.dir().join("node/files/agent.json")).expect("a record");
    let (began, mut last, mut written) = (std::time::Instant::now(), record(), 0);
    for id in 1..=5 {
        fleet.cluster.desire(&[(spec(id, 0, "sleep 1000"), false)]);
        fleet.cluster.until_reported(key(id, 0), TaskState::Running).await;
        let now = record();
        written += u64::from(now != last);
        last = now;
    }
    assert!(written <= began.elapsed().as_secs() / 10, "five desired states were written down {written} times");
    drop(agent);
    host.tasks.abort_all();
    // What the agent was sent before its fifth task, by a control node that forgets to wait for the join.
    fleet.cluster.with(|state| {
        state.joined_at = 10;
        state.desired = v1::Desired {
            stamp: Some(v1::Stamp { incarnation: 1, revision: 4, node_epoch: 1 }),
            tasks: vec![crate::control::to_wire(&spec(4, 0, "sleep 1000"), false)],
            cleared_gpus: Vec::new(),
            sharing: None,
            spared: Vec::new(),
            pinned: Default::default(),
            held_on: Vec::new(),
            drained: false,
        };
        state.reports.clear();
    });
    let (agent, _host) = fleet.agent().await;
    fleet.cluster.until_reported(key(5, 0), TaskState::Running).await;
    fleet.cluster.until("a few heartbeats", |heard| heard.leases > 10).await;
    assert_eq!(agent.status().live_tasks, 1, "the fifth task goes on, and the fourth is not started again");
}

#[tokio::test]
async fn an_agent_that_comes_back_takes_its_tasks_over() {
    let fleet = Fleet::new().await;
    let (agent, host) = fleet.agent().await;
    let waits = |id: u64| spec(id, 0, "while [ ! -e go ]; do sleep 0.02; done; exit 5");
    fleet.cluster.desire(&[(waits(1), false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    drop(agent);
    host.tasks.abort_all();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (_agent, _host) = fleet.agent().await;
    fleet.cluster.until("a second session", |heard| heard.hellos.len() >= 2 && heard.leases > 0).await;
    std::fs::write(fleet.dir().join("node/tasks/1.0/work/go"), "").expect("the sign");
    fleet.cluster.until_reported(key(1, 0), TaskState::Exited { code: 5 }).await;
    fleet.cluster.with(|heard| {
        let told = &heard.reports[&key(1, 0)];
        assert_eq!(told, &[TaskState::Running, TaskState::Exited { code: 5 }], "never lost, never started again");
        assert_eq!(heard.hellos[1].cluster_incarnation, Some(1));
        assert_eq!(heard.hellos[1].usage_incarnation, Some(1));
    });
}

#[tokio::test]
async fn what_is_unacknowledged_is_said_again() {
    let fleet = Fleet::new().await;
    fleet.cluster.with(|state| state.keeps_quiet = true);
    let (agent, host) = fleet.agent().await;
    fleet.cluster.desire(&[(command(1, 0, &["true"]), false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Exited { code: 0 }).await;
    fleet.cluster.desire(&[]);
    drop(agent);
    host.tasks.abort_all();
    fleet.cluster.with(|state| {
        state.keeps_quiet = false;
        state.reports.clear();
    });
    let (_agent, _host) = fleet.agent().await;
    fleet.cluster.until_reported(key(1, 0), TaskState::Exited { code: 0 }).await;
    while fleet.dir().join("node/tasks/1.0").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_agent_belongs_to_the_first_cluster_it_meets() {
    let fleet = Fleet::new().await;
    let (agent, host) = fleet.agent().await;
    fleet.cluster.desire(&[(command(1, 0, &["true"]), false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Exited { code: 0 }).await;
    let own = fleet.cluster.with(|state| state.cluster);
    fleet.cluster.with(|heard| {
        assert_eq!(heard.hellos[0].cluster, Some(own));
        assert_ne!(heard.hellos[0].agent, 0);
    });
    agent.stop().await.expect("it had not failed");
    host.tasks.abort_all();
    // Another cluster is made in its place, whose first task has the same number: the old exit is none of its business.
    fleet.cluster.with(|state| {
        state.cluster = own + 1_000_000;
        state.hellos.clear();
        state.reports.clear();
    });
    let (agent, host) = fleet.agent().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    fleet.cluster.with(|heard| assert!(heard.hellos.is_empty() && heard.reports.is_empty(), "{:?}", heard.hellos));
    assert_eq!(agent.status().session, None);
    agent.stop().await.expect("it waits for its own cluster");
    host.tasks.abort_all();
    // With its own cluster it goes on.
    fleet.cluster.with(|state| state.cluster = own);
    let (_agent, _host) = fleet.agent().await;
    fleet.cluster.until("a session", |heard| !heard.hellos.is_empty()).await;
}

#[tokio::test]
async fn tasks_without_a_record_of_their_agent_are_not_taken_over() {
    let fleet = Fleet::new().await;
    let (agent, host) = fleet.agent().await;
    fleet.cluster.desire(&[(spec(1, 0, "sleep 1000"), false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    agent.stop().await.expect("it had not failed");
    host.tasks.abort_all();
    std::fs::remove_file(fleet.dir().join("node/files/agent.json")).expect("the record is there");
    let host = real::host("node-0001", fleet.dir().join("node"));
    let refused = Agent::start(host, fleet.config()).await.err().expect("whose tasks are they?");
    assert!(refused.to_string().contains("agent.json"), "{refused}");
}

/// What an agent of an earlier version left: its highest stamp, whose incarnation was the identity of the cluster.
#[tokio::test]
async fn an_agent_of_an_earlier_version_keeps_its_cluster() {
    let fleet = Fleet::new().await;
    let own = fleet.cluster.with(|state| state.cluster);
    let files = fleet.dir().join("node/files");
    std::fs::create_dir_all(&files).expect("a folder");
    let stamp = format!("{{\"highest\":{{\"incarnation\":{},\"revision\":9,\"node_epoch\":1}}}}", own + 1);
    std::fs::write(files.join("stamp.json"), stamp).expect("a record");
    let (agent, host) = fleet.agent().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(agent.status().session, None, "this is not the cluster of that stamp");
    agent.stop().await.expect("it had not failed");
    host.tasks.abort_all();
    // A cluster that is as old has kept the number as the one of its history.
    fleet.cluster.with(|state| (state.cluster, state.incarnation) = (own + 1, own + 1));
    let (_agent, _host) = fleet.agent().await;
    fleet.cluster.until("a session", |heard| !heard.hellos.is_empty()).await;
}

#[tokio::test]
async fn an_agent_says_what_it_runs_to_a_history_it_has_not_served_and_refuses_an_earlier_one() {
    let fleet = Fleet::new().await;
    fleet.cluster.with(|state| state.joined_at = 1);
    let (agent, host) = fleet.agent().await;
    fleet.cluster.desire(&[(spec(1, 0, "sleep 1000"), false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    let again = async |agent: Agent, host: Host, incarnation: u64| {
        drop(agent);
        host.tasks.abort_all();
        fleet.cluster.with(|state| {
            state.incarnation = incarnation;
            state.hellos.clear();
            state.reports.clear();
        });
        fleet.cluster.desire(&[(spec(1, 0, "sleep 1000"), false)]);
        fleet.agent().await
    };
    let held = |heard: &ClusterState| heard.hellos[0].held.clone();
    // Of the same history it has nothing to say.
    let (agent, host) = again(agent, host, 1).await;
    fleet.cluster.until("a session", |heard| !heard.hellos.is_empty()).await;
    assert_eq!(fleet.cluster.with(|heard| held(heard)), None);
    let (agent, host) = again(agent, host, 5).await;
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    let tasks = fleet.cluster.with(|heard| held(heard)).expect("it is a new history").tasks;
    let disconnect_grace_s = spec(1, 0, "").disconnect_grace_s;
    assert_eq!(tasks, [v1::HeldTask { allocation: 1, rank: 0, job: 1, node_epoch: 1, disconnect_grace_s }]);
    let (agent, _host) = again(agent, host, 4).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(
        (agent.status().session, agent.status().live_tasks),
        (None, 1),
        "nothing of an earlier history is heard"
    );
    assert!(fleet.cluster.with(|heard| heard.hellos.is_empty()));
}

/// What waits here to be started is not in what the agent says that it runs.
#[tokio::test]
async fn an_agent_that_meets_a_new_history_starts_nothing_of_the_one_before() {
    let fleet = Fleet::new().await;
    fleet.cluster.with(|state| state.joined_at = 1);
    let (_agent, _host) = fleet.agent().await;
    let on_card = |spec| holding(spec, 0, HoldMode::Whole);
    let (running, waiting) = (on_card(spec(1, 0, "sleep 2")), on_card(spec(2, 0, "sleep 1000")));
    fleet.cluster.desire(&[(running, false), (waiting, false)]);
    fleet.cluster.until_reported(key(1, 0), TaskState::Running).await;
    // What the session is told after its beginning is of the history before.
    fleet.cluster.with(|state| {
        state.incarnation = 5;
        state.hellos.clear();
    });
    fleet.cluster.send(ToAgent::Refused(v1::Refused { reason: "restored".to_owned(), retry_ms: 100 }));
    fleet.cluster.until("a session", |heard| !heard.hellos.is_empty()).await;
    let tasks = fleet.cluster.with(|heard| heard.hellos[0].held.clone()).expect("it is a new history").tasks;
    assert_eq!(tasks.iter().map(|task| task.allocation).collect::<Vec<_>>(), [1]);
    let completed = TaskState::Exited { code: 0 };
    fleet.cluster.until_reported(key(1, 0), completed).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        fleet.cluster.with(|heard| heard.reports.get(&key(2, 0)).cloned()),
        None,
        "its card is free, and nobody asks for it"
    );
}
