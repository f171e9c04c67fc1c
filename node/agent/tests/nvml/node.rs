//! An agent on the double, without a control plane: its clock and its tasks are the test's.

use crate::host::{BOOT, Host};
use muster_agent::exec::virtual_::VirtualMachine;
use muster_agent::exec::{Executor, Launch};
use muster_agent::gpu::GpuBackend;
use muster_agent::gpu::nvml::NvmlGpus;
use muster_agent::{Agent, AgentConfig, HealthConfig, HealthMode};
use muster_model::ids::{AllocationId, Epoch, JobId, Rank};
use muster_model::node::NodeSpec;
use muster_model::task::{DeviceHold, HoldMode};
use muster_node_core::{TaskKey, TaskSpec};
use muster_runtime::{Clock, real};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The host's clock, put forward by the test.
struct Shifted {
    real: Arc<dyn Clock>,
    ms: Arc<AtomicU64>,
}

impl Clock for Shifted {
    fn wall_ms(&self) -> u64 {
        self.real.wall_ms() + self.ms.load(Ordering::SeqCst)
    }

    fn boottime_ns(&self) -> u64 {
        self.real.boottime_ns() + self.ms.load(Ordering::SeqCst) * 1_000_000
    }
}

pub(crate) struct Node {
    pub(crate) agent: Agent,
    pub(crate) gpus: Arc<NvmlGpus>,
    machine: VirtualMachine,
    ms: Arc<AtomicU64>,
}

impl Node {
    /// An agent that samples when it is told to, and reads the health of its cards ten times a second.
    pub(crate) async fn start(host: &Host, mode: HealthMode) -> Node {
        let gpus = host.gpus().polled_every(Duration::from_secs(3_600), Duration::from_millis(100));
        Self::start_with(host, mode, gpus).await
    }

    pub(crate) async fn start_with(host: &Host, mode: HealthMode, gpus: NvmlGpus) -> Node {
        let gpus = Arc::new(gpus);
        let mut own = real::host("node-1", host.folder.path().join("node"));
        let ms = Arc::new(AtomicU64::new(0));
        own.clock = Arc::new(Shifted { real: own.clock.clone(), ms: ms.clone() });
        let machine = VirtualMachine::new(own.clock.clone(), false);
        let spec = NodeSpec { boot_id: BOOT.to_owned(), ..NodeSpec::usual("node-1", Vec::new()) };
        let backend: Arc<dyn GpuBackend> = gpus.clone();
        // Nobody listens there.
        let endpoints = vec!["127.0.0.1:9".to_owned()];
        let mut config = AgentConfig::new(spec, endpoints, Arc::new(machine.clone()), backend);
        config.health =
            HealthConfig { mode, kernel_log: Some(host.folder.path().join("kmsg")), ..HealthConfig::default() };
        let agent = Agent::start(own, config).await.expect("the agent starts");
        let node = Node { agent, gpus, machine, ms };
        node.until("the cards are read", |node| node.withheld().iter().all(|why| !why.contains("not answered yet")))
            .await;
        node
    }

    pub(crate) fn put_forward(&self, by: Duration) {
        self.ms.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// Why cards and slices take no new work.
    pub(crate) fn withheld(&self) -> Vec<String> {
        let slice = |one: &muster_model::node::Withheld| one.slice.map_or(String::new(), |place| format!(" {place:?}"));
        let status = self.agent.status();
        status.withheld.iter().map(|one| format!("{}{}: {}", one.gpu, slice(one), one.reason)).collect()
    }

    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Node) -> bool) {
        for _ in 0..1_000 {
            if is_so(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not within 10 s: {what}; withheld: {:?}", self.withheld());
    }

    pub(crate) async fn until_withheld(&self, words: &str) {
        self.until(words, |node| node.withheld().iter().any(|why| why.contains(words))).await;
    }

    pub(crate) async fn until_nothing_is_withheld(&self) {
        self.until("nothing is withheld", |node| node.withheld().is_empty()).await;
    }

    /// Starts a task of an allocation that holds this.
    pub(crate) fn hold(&self, allocation: u64, gpu: u16, mode: HoldMode) {
        let spec = task(allocation, vec![DeviceHold { gpu, mode }]);
        let launch = Launch {
            spec: Arc::new(spec),
            node_epoch: Epoch(1),
            env: BTreeMap::new(),
            deadline_ns: u64::MAX,
            devices: Vec::new(),
        };
        self.machine.start(launch);
    }

    pub(crate) fn kill(&self, allocation: u64) {
        self.machine.kill(key(allocation));
    }

    pub(crate) fn page(&self, with_tenants: bool) -> String {
        muster_agent::telemetry::page([&*self.agent.telemetry()], with_tenants)
    }

    pub(crate) async fn sample(&self) {
        self.agent.telemetry().sample().await;
    }
}

fn key(allocation: u64) -> TaskKey {
    TaskKey { allocation: AllocationId(allocation), rank: Rank(0) }
}

fn task(allocation: u64, devices: Vec<DeviceHold>) -> TaskSpec {
    TaskSpec {
        job: JobId(allocation + 100),
        tenant: "research/\"vision\"".to_owned(),
        devices,
        gpu_units: 7_000,
        ..TaskSpec::usual(key(allocation), &["sleep", "infinity"])
    }
}
