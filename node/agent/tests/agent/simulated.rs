//! Agents on virtual time: fences to the nanosecond, and usage that is counted once whatever crashes.

use crate::agents::node_spec;
use crate::bench::{command, key};
use crate::cards::gpus;
use crate::control::Cluster;
use muster_agent::exec::virtual_::{RunRecord, VirtualMachine};
use muster_agent::gpu::sim::SimGpus;
use muster_agent::{Agent, AgentConfig};
use muster_model::{GpuModel, TaskState};
use muster_node_core::TaskSpec;
use muster_runtime::sim::{self, SimWorld};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A simulated host with the parts that outlive its agent.
pub(crate) struct Node {
    pub(crate) world: SimWorld,
    pub(crate) machine: VirtualMachine,
    pub(crate) gpus: Arc<SimGpus>,
    endpoints: Vec<String>,
}

impl Node {
    /// The control plane is up before it is called.
    pub(crate) async fn new(world: &SimWorld, endpoints: Vec<String>) -> (Node, Agent) {
        let host = world.boot("node");
        let node = Node {
            world: world.clone(),
            machine: VirtualMachine::new(host.clock.clone(), true),
            gpus: Arc::new(SimGpus::open(gpus(&[GpuModel::H100; 8]), "boot-1", None).expect("new cards")),
            endpoints,
        };
        let agent = node.start(host).await;
        (node, agent)
    }

    async fn start(&self, host: muster_runtime::Host) -> Agent {
        let executor = Arc::new(self.machine.clone());
        let config = AgentConfig::new(node_spec(), self.endpoints.clone(), executor, self.gpus.clone());
        Agent::start(host, config).await.expect("the agent starts")
    }

    pub(crate) async fn restart(&self) -> Agent {
        self.world.crash("node").await;
        self.start(self.world.boot("node")).await
    }

    pub(crate) fn run_of(&self, allocation: u64) -> RunRecord {
        let runs = self.machine.history();
        runs.into_iter().find(|run| run.key == key(allocation, 0)).expect("it ran")
    }
}

pub(crate) async fn control(world: &SimWorld, nodes: usize) -> (Cluster, Vec<String>) {
    let cluster = Cluster::new();
    cluster.with(|state| state.heartbeat_ms = 1_000);
    let mut endpoints = Vec::new();
    for index in 0..nodes {
        let host = world.boot(&format!("control-{index}"));
        endpoints.push(cluster.serve(&host, &format!("control-{index}:7000")).await.endpoint);
    }
    (cluster, endpoints)
}

pub(crate) fn sleeper(id: u64, seconds: u64, grace_s: u64) -> TaskSpec {
    TaskSpec { disconnect_grace_s: grace_s, ..command(id, 0, &["sleep", &seconds.to_string()]) }
}

#[test]
fn a_task_that_is_cut_off_dies_at_its_fence_with_or_without_its_agent() {
    for crashes in [false, true] {
        let (ended_after, told) = sim::run(7, async move |world| {
            let (cluster, endpoints) = control(&world, 1).await;
            let (node, _agent) = Node::new(&world, endpoints).await;
            cluster.desire(&[(sleeper(1, 10_000, 60), false), (sleeper(2, 100, 60), false)]);
            cluster.until_reported(key(1, 0), TaskState::Running).await;
            sleep(Duration::from_secs(100)).await;
            let cut_at = Instant::now();
            world.cut("control-0", "node");
            world.cut("node", "control-0");
            if crashes {
                world.crash("node").await;
            }
            sleep(Duration::from_secs(120)).await;
            world.mend_all();
            if crashes {
                std::mem::forget(node.start(world.boot("node")).await);
            }
            cluster.until_reported(key(1, 0), TaskState::Fenced).await;
            let run = node.run_of(1);
            assert_eq!(node.run_of(2).state, Some(TaskState::Exited { code: 0 }));
            (run.ended.expect("it is over").duration_since(cut_at), run.state)
        });
        assert_eq!(told, Some(TaskState::Fenced));
        // The last confirmed heartbeat was sent at most two seconds before the cut.
        assert!(ended_after <= Duration::from_secs(60) && ended_after >= Duration::from_secs(57), "{ended_after:?}");
    }
}

/// Whoever looks at a machine writes down which tasks are over. The agent must be woken all the same.
#[test]
fn an_end_that_somebody_else_sees_first_is_reported() {
    sim::run(2, async |world| {
        let (cluster, endpoints) = control(&world, 1).await;
        let (node, _agent) = Node::new(&world, endpoints).await;
        cluster.desire(&[(sleeper(1, 20, 600), false)]);
        cluster.until_reported(key(1, 0), TaskState::Running).await;
        let reported = cluster.until_reported(key(1, 0), TaskState::Exited { code: 0 });
        tokio::pin!(reported);
        let by = Instant::now() + Duration::from_secs(60);
        while Instant::now() < by {
            let _ = node.machine.history();
            if tokio::time::timeout(Duration::from_micros(500), &mut reported).await.is_ok() {
                return;
            }
        }
        panic!("the end was not reported within 60 s");
    });
}

#[test]
fn stops_limits_and_exit_codes_are_obeyed() {
    sim::run(1, async |world| {
        let (cluster, endpoints) = control(&world, 1).await;
        let (node, _agent) = Node::new(&world, endpoints).await;
        let mut stubborn = TaskSpec { grace_s: 30, ..sleeper(3, 10_000, 600) };
        stubborn.env.insert("MUSTER_SIM_IGNORE_TERM".to_owned(), "1".to_owned());
        let mut coded = command(4, 0, &["python", "train.py"]);
        coded.env.insert("MUSTER_SIM_RUN_MS".to_owned(), "1500".to_owned());
        coded.env.insert("MUSTER_SIM_EXIT".to_owned(), "9".to_owned());
        let limited = TaskSpec { time_limit_s: Some(5), ..sleeper(1, 10_000, 600) };
        let tasks = [limited, sleeper(2, 10_000, 600), stubborn, coded];
        cluster.desire(&tasks.clone().map(|task| (task, false)));
        for id in 1..=4 {
            cluster.until_reported(key(id, 0), TaskState::Running).await;
        }
        sleep(Duration::from_secs(10)).await;
        cluster.desire(&tasks.map(|task| (task, true)));
        for (id, state) in [
            (1, TaskState::TimedOut),
            (2, TaskState::Stopped),
            (3, TaskState::Stopped),
            (4, TaskState::Exited { code: 9 }),
        ] {
            cluster.until_reported(key(id, 0), state).await;
        }
        let lasted = |id| node.run_of(id).ended.expect("over").duration_since(node.run_of(id).started);
        assert_eq!((lasted(1), lasted(4)), (Duration::from_secs(5), Duration::from_millis(1_500)));
        assert!(lasted(3) >= lasted(2) + Duration::from_secs(30), "the stubborn one had its grace");
    });
}

/// Crashes, cuts and lost acknowledgements at random while tasks come and go. Every task runs at most once, ends are told, and
/// each allocation's usage is what its run lasted, to the rounding.
fn storm(seed: u64) -> u64 {
    sim::run(seed, async move |world| {
        let (cluster, endpoints) = control(&world, 2).await;
        let (node, mut agent) = Node::new(&world, endpoints).await;
        let chance = world.chance().clone();
        let mut wanted: Vec<(TaskSpec, bool)> = Vec::new();
        for id in 1..=12 {
            let mut task = sleeper(id, chance.between(1, 40), 600);
            task.env.insert("MUSTER_SIM_EXIT".to_owned(), (id % 3).to_string());
            wanted.push((task, false));
            cluster.desire(&wanted);
            sleep(Duration::from_millis(chance.between(0, 15_000))).await;
            match chance.between(0, 6) {
                0 => agent = node.restart().await,
                1 => world.cut("node", "control-0"),
                2 => world.cut("control-1", "node"),
                3 => cluster.with(|state| state.keeps_quiet = true),
                4 => world.mend_all(),
                _ => {}
            }
            if chance.between(0, 3) == 0 {
                cluster.with(|state| state.keeps_quiet = false);
            }
        }
        world.mend_all();
        cluster.with(|state| state.keeps_quiet = false);
        for (task, _) in &wanted {
            let code = (task.key.allocation.0 % 3) as i32;
            cluster.until_reported(task.key, TaskState::Exited { code }).await;
        }
        cluster.desire(&[]);
        sleep(Duration::from_secs(60)).await;
        assert_eq!((agent.status().live_tasks, agent.status().usage_pending), (0, 0), "seed {seed}");
        let runs = node.machine.history();
        assert_eq!(runs.len(), wanted.len());
        cluster.with(|heard| {
            assert!(!heard.usage_gap, "seed {seed}: an interval was skipped");
            for run in &runs {
                let lasted = run.ended.expect("over").duration_since(run.started);
                let held = lasted.as_millis() as u64 * 7_000;
                let counted = heard.usage.get(&run.key.allocation.0).copied().unwrap_or(0);
                assert!(counted <= held, "seed {seed}: {} counted {counted} of {held}", run.key);
                // One cut of ten seconds at the most is lost by each crash, and there are at most two in forty seconds on average.
                assert!(
                    counted + 10 * 7_000_000 * heard.hellos.len() as u64 >= held,
                    "seed {seed}: {counted} of {held}"
                );
            }
        });
        world.trace_hash()
    })
}

#[test]
fn whatever_happens_tasks_run_once_and_usage_counts_once() {
    for seed in 0..40 {
        storm(seed);
    }
}

#[test]
fn one_seed_is_one_history() {
    assert_eq!(storm(3), storm(3));
}

#[test]
fn an_undisturbed_node_is_charged_to_the_millisecond() {
    sim::run(2, async |world| {
        let (cluster, endpoints) = control(&world, 1).await;
        let (node, _agent) = Node::new(&world, endpoints).await;
        cluster.desire(&[(sleeper(1, 95, 600), false)]);
        cluster.until_reported(key(1, 0), TaskState::Exited { code: 0 }).await;
        sleep(Duration::from_secs(30)).await;
        assert_eq!(node.run_of(1).state, Some(TaskState::Exited { code: 0 }));
        cluster.with(|heard| {
            let counted = heard.usage[&1];
            // Each of the ten cuts may round down once.
            assert!((95 * 7_000_000 - 10..=95 * 7_000_000).contains(&counted), "{counted}");
        });
    });
}

#[test]
fn usage_is_not_sent_before_it_is_on_disk() {
    sim::run(7, async move |world| {
        let (cluster, endpoints) = control(&world, 1).await;
        let (_node, _agent) = Node::new(&world, endpoints).await;
        cluster.desire(&[(sleeper(1, 10_000, 600), false)]);
        cluster.until_reported(key(1, 0), TaskState::Running).await;
        // The first cut falls into the stall.
        sleep(Duration::from_secs(5)).await;
        world.stall_disk("node", Duration::from_secs(15));
        sleep(Duration::from_secs(12)).await;
        cluster.with(|heard| assert!(heard.usage.is_empty(), "sent from memory: {:?}", heard.usage));
        sleep(Duration::from_secs(13)).await;
        cluster.with(|heard| assert!(heard.usage[&1] > 0, "sent once it is on disk"));
    });
}

#[test]
fn an_idle_node_does_next_to_nothing() {
    let beats = sim::run(4, async |world| {
        let (cluster, endpoints) = control(&world, 1).await;
        let (_node, _agent) = Node::new(&world, endpoints).await;
        cluster.until("a lease", |heard| heard.leases > 0).await;
        let before = cluster.with(|heard| heard.heartbeats);
        sleep(Duration::from_secs(100)).await;
        cluster.with(|heard| heard.heartbeats - before)
    });
    assert!((95..=101).contains(&beats), "{beats} heartbeats in 100 s");
}
