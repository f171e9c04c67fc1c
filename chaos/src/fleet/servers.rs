//! The servers of a run: control nodes, shards and agents, each on a host of its own; starting, crashing and observing them.

use super::Planted;
use super::flawed::{Flaw, Flawed};
use super::identities::{Identities, Voter};
use super::provider::Provider;
use super::recorder::{Recorder, Seen};
use crate::history::{History, Run};
use crate::nemesis::Fleet;
use crate::observe::Observer;
use crate::specs;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use muster_agent::exec::Executor;
use muster_agent::exec::virtual_::VirtualMachine;
use muster_agent::gpu::sim::SimGpus;
use muster_agent::{Agent, AgentConfig};
use muster_control_server::{
    Consensus, ConsensusConfig, ControlConfig, ControlNode, HistoryConfig, LeaseConfig, SessionConfig,
};
use muster_runtime::pki::Role;
use muster_runtime::sim::SimWorld;
use muster_runtime::{Chance, Files, Host, Transport};
use muster_scheduler_server::{Shard, ShardConfig};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Control nodes, by id.
pub(super) static VOTERS: [Voter; 3] =
    [(1, "control-1", "control-1:7000"), (2, "control-2", "control-2:7000"), (3, "control-3", "control-3:7000")];
/// Finished jobs that control nodes keep: fewer than a run has, so that jobs are forgotten in it.
const KEPT_JOBS: u64 = 20;
pub(super) const SHARDS: [&str; 2] = ["shard-1", "shard-2"];
/// Nodes: two in each of two cells, so that gangs span nodes and jobs are handed over between cells.
pub(super) const NODES: usize = 4;
/// Hosts that say they are a node, beside the one that is: of the first and of the second.
const DOUBLES: usize = 2;
const DOUBLE: &str = "double-";
/// Where an agent keeps who it is.
const IDENTITY: &str = "agent.json";
pub(super) const CLIENTS: [&str; 3] = ["client-0", "client-1", "client-2"];

/// Of what outlives an agent: the tasks of its host, and which boot of it this is.
struct Machine {
    tasks: VirtualMachine,
    boots: u32,
}

enum Server {
    Control { node: Rc<ControlNode>, observer: Box<Observer> },
    Shard { _shard: Shard },
    Agent { agent: Agent },
}

pub(super) struct Servers {
    pub(super) world: SimWorld,
    chance: Chance,
    began: Instant,
    snapshot_every: u64,
    planted: Option<Planted>,
    pub(super) identities: Identities,
    /// Of a closed cluster, whose people log in.
    pub(super) provider: Option<Arc<Provider>>,
    /// The record of the run; taps of agents write to it as well.
    pub(super) history: Seen,
    up: RefCell<BTreeMap<String, Server>>,
    /// The small files of each agent's host.
    files: RefCell<BTreeMap<String, Arc<dyn Files>>>,
    machines: RefCell<BTreeMap<String, Machine>>,
}

impl Servers {
    pub(super) fn new(
        world: SimWorld,
        snapshot_every: u64,
        planted: Option<Planted>,
        provider: Option<Arc<Provider>>,
    ) -> Self {
        let chance = Chance::seeded(world.chance().u64());
        let began = Instant::now() - world.elapsed();
        let history = Seen::default();
        let identities = Identities::new(&world, &VOTERS);
        Servers {
            world,
            chance,
            began,
            snapshot_every,
            planted,
            identities,
            provider,
            history,
            up: RefCell::default(),
            files: RefCell::default(),
            machines: RefCell::default(),
        }
    }

    pub(super) fn history(&self) -> std::sync::MutexGuard<'_, History> {
        self.history.lock().expect("no panic while it was held")
    }

    /// Makes the empty control nodes a cluster, and waits for a leader.
    pub(super) async fn bootstrap(&self) -> Result<(), String> {
        let members: BTreeMap<u64, String> = self.identities.endpoints().into_iter().collect();
        let first = match self.up.borrow().get(VOTERS[0].1) {
            Some(Server::Control { observer, .. }) => observer.consensus().clone(),
            _ => return Err("the first control node is not up".to_owned()),
        };
        first.bootstrap(members).await.map_err(|error| format!("bootstrap: {error}"))?;
        for _ in 0..100 {
            if first.leader().is_some() {
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Err("no leader within 10 s of the bootstrap".to_owned())
    }

    /// A session for whoever has the machine of the first control node, as `muster recover` makes it.
    pub(super) async fn recovery_session(&self, user: &str) -> Option<String> {
        let node = match self.up.borrow().get(VOTERS[0].1) {
            Some(Server::Control { node, .. }) => Rc::clone(node),
            _ => return None,
        };
        node.recovery_session(user).await.ok()
    }

    /// Starts one server on its host, in the host's own tasks: whatever it spawns dies with the host.
    pub(super) async fn start_on(&self, host: Host) {
        let name = host.name.clone();
        let life = self.world.life_of(&name);
        let role = match VOTERS.iter().find(|(_, voter, _)| *voter == name) {
            Some((id, _, _)) => Role::Control(*id),
            None if SHARDS.contains(&name.as_str()) => Role::Shard(name.clone()),
            // A double has a certificate in the name of the node that it says it is.
            None => {
                Role::Node(name.strip_prefix(DOUBLE).map_or_else(|| name.clone(), |number| format!("node-{number}")))
            }
        };
        // Of two hosts that say they are one node, some have one key.
        let is_double = name.starts_with(DOUBLE) && self.identities.transport() == Transport::Mutual;
        let is_copy = is_double && self.chance.between(0, 2) == 0;
        let provided = match is_double {
            true if is_copy && self.identities.copy(&host, &role).await => Ok(()),
            true => self.identities.forge(&host, role).await,
            false => self.identities.provide(&host, role).await,
        };
        if let Err(error) = provided {
            drop(host);
            // It was crashed meanwhile; whoever crashed it starts it again.
            if self.world.life_of(&name) == life {
                self.failed_to_start(&name, &error).await;
            }
            return;
        }
        let starting = match VOTERS.iter().find(|(_, voter, _)| *voter == name) {
            Some((id, _, endpoint)) => self.start_control(host, *id, endpoint).await,
            None if SHARDS.contains(&name.as_str()) => self.start_shard(host).await,
            None => self.start_agent(host).await,
        };
        // Nothing when it was crashed while it started; whoever crashed it starts it again.
        if let Some(server) = starting {
            self.up.borrow_mut().insert(name, server);
        }
    }

    async fn start_control(&self, host: Host, id: u64, endpoint: &str) -> Option<Server> {
        let config = ControlConfig {
            consensus: ConsensusConfig {
                snapshot_every_entries: self.snapshot_every,
                keep_entries: 20,
                // Slower than in production: heartbeats are most of what there is to simulate.
                heartbeat_ms: 200,
                election_ms: (600, 1_000),
                ..ConsensusConfig::new(id, self.endpoint_of(id))
            },
            listen: endpoint.to_owned(),
            machines: self.identities.machines(),
            leases: LeaseConfig {
                heartbeat_ms: 500,
                node_silent_ms: 2_000,
                fence_margin_ms: 2_500,
                // A cell here has two nodes: both silent are a mass, whose fences are held back for a while.
                mass_silence_nodes_min: 2,
                mass_silence_hold_ms: 8_000,
                ..LeaseConfig::default()
            },
            sessions: SessionConfig::default(),
            // So few that jobs are forgotten in every run.
            history: HistoryConfig { keep_max: KEPT_JOBS, ..HistoryConfig::default() },
            login: self.provider.as_ref().map(Provider::config),
            ..ControlConfig::new(id, endpoint)
        };
        let starting = host.spawn({
            let host = host.clone();
            async move { ControlNode::start(host, config).await }
        });
        let node = match starting.await {
            Ok(Ok(node)) => node,
            Ok(Err(error)) => return self.failed_to_start(&host.name, &error).await,
            Err(_) => return None,
        };
        let mut history = self.history();
        let life = self.world.life_of(&host.name).unwrap_or_default();
        let observer = Observer::attach(&mut history, (host.name, life), node.consensus().clone());
        drop(history);
        Some(Server::Control { node: Rc::new(node), observer: Box::new(observer) })
    }

    /// A server starts unless its disk is broken; whoever broke it starts the server again.
    async fn failed_to_start(&self, name: &str, error: &dyn std::error::Error) -> Option<Server> {
        assert!(self.world.is_disk_failing(name), "{name} does not start: {error}");
        self.world.crash(name).await;
        None
    }

    /// Where shards and agents reach the voters.
    fn endpoints(&self) -> Vec<String> {
        self.identities.endpoints().into_iter().map(|(_, at)| at).collect()
    }

    pub(super) fn endpoint_of(&self, id: u64) -> String {
        let mut all = self.identities.endpoints().into_iter();
        all.find_map(|(voter, at)| (voter == id).then_some(at)).expect("it is a voter")
    }

    async fn start_shard(&self, host: Host) -> Option<Server> {
        let config = ShardConfig {
            shards_expected: SHARDS.len(),
            transport: self.identities.transport(),
            ..ShardConfig::new(host.name.clone(), self.endpoints())
        };
        let starting = host.spawn({
            let host = host.clone();
            async move { Shard::start(&host, config) }
        });
        match starting.await.ok()? {
            Ok(shard) => Some(Server::Shard { _shard: shard }),
            Err(error) => self.failed_to_start(&host.name, &error).await,
        }
    }

    async fn start_agent(&self, mut host: Host) -> Option<Server> {
        let name = host.name.clone();
        let number = name.rsplit('-').next().and_then(|number| number.parse().ok()).expect("nodes are numbered");
        let (tasks, mut boot_id) = self.machine(&host);
        if self.planted == Some(Planted::ForgedAgents) && name.starts_with(DOUBLE) {
            boot_id = self.boot_of(&format!("node-{number}"));
        }
        self.files.borrow_mut().insert(name.clone(), host.files.clone());
        host.files = Arc::new(Recorder { node: name.clone(), files: host.files.clone(), seen: self.history.clone() });
        let spec = specs::node(number, &boot_id);
        let gpus = SimGpus::open(spec.gpus.clone(), &boot_id, Some(host.files.clone()));
        let gpus = Arc::new(gpus.expect("what the agent stored can be read"));
        let executor: Arc<dyn Executor> = match self.planted {
            Some(Planted::NoFences) => Arc::new(Flawed { machine: tasks, flaw: Flaw::NoFences }),
            Some(Planted::StraysLive) => Arc::new(Flawed { machine: tasks, flaw: Flaw::StraysLive }),
            _ => Arc::new(tasks),
        };
        if self.planted == Some(Planted::ForgedAgents) && name.starts_with(DOUBLE) {
            self.forge(&host, &format!("node-{number}")).await;
        }
        let config = AgentConfig {
            usage_period: Duration::from_secs(3),
            silence_max: Duration::from_secs(3),
            transport: self.identities.transport(),
            ..AgentConfig::new(spec, self.endpoints(), executor, gpus)
        };
        let starting = host.spawn({
            let host = host.clone();
            async move { Agent::start(host, config).await }
        });
        match starting.await {
            Ok(Ok(agent)) => Some(Server::Agent { agent }),
            Ok(Err(error)) => self.failed_to_start(&name, &error).await,
            Err(_) => None,
        }
    }

    /// Gives the agent of `host` the identity of another's: the planted bug that two agents cannot be told apart.
    async fn forge(&self, host: &Host, other: &str) {
        let identity = self.files.borrow().get(other).and_then(|files| files.read(IDENTITY).ok().flatten());
        if let Some(identity) = identity {
            // On a disk that fails the agent does not start either.
            let _ = host.files.write(IDENTITY, identity).await;
        }
    }

    fn boot_of(&self, name: &str) -> String {
        let boots = self.machines.borrow().get(name).map_or(1, |machine| machine.boots);
        format!("{name}-boot-{boots}")
    }

    /// The machine under an agent. One restart in four is a reboot of the whole host.
    fn machine(&self, host: &Host) -> (VirtualMachine, String) {
        let mut machines = self.machines.borrow_mut();
        let is_new = !machines.contains_key(&host.name);
        let machine = machines
            .entry(host.name.clone())
            .or_insert_with(|| Machine { tasks: VirtualMachine::new(host.clock.clone(), true), boots: 1 });
        if !is_new && self.chance.between(0, 4) == 0 {
            self.world.note(format_args!("reboot {}", host.name));
            machine.tasks.reboot();
            machine.boots += 1;
        }
        let tasks = machine.tasks.clone();
        drop(machines);
        (tasks, self.boot_of(&host.name))
    }

    /// Takes down what was published, and the whole states when asked to.
    pub(super) fn drain(&self, sample: bool) {
        let mut history = self.history();
        history.wall_ms = self.world.wall_ms();
        for server in self.up.borrow_mut().values_mut() {
            if let Server::Control { observer, .. } = server {
                if sample {
                    observer.sample(&mut history);
                } else {
                    observer.drain(&mut history);
                }
            }
        }
    }

    /// What ran, by the machines' own record.
    pub(super) fn runs(&self) -> Vec<Run> {
        let since = |at: Instant| u64::try_from((at - self.began).as_nanos()).unwrap_or(u64::MAX);
        let mut runs = Vec::new();
        for (node, machine) in self.machines.borrow().iter() {
            runs.extend(machine.tasks.history().into_iter().map(|run| Run {
                node: node.clone(),
                allocation: run.key.allocation,
                job: run.job,
                attempt: run.attempt,
                rank: run.key.rank,
                from_ns: since(run.started),
                to_ns: run.ended.map(since),
            }));
        }
        runs
    }

    /// The state of a control node, while it is up.
    pub(super) fn consensus_of(&self, name: &str) -> Option<Consensus> {
        match self.up.borrow().get(name) {
            Some(Server::Control { observer, .. }) => Some(observer.consensus().clone()),
            _ => None,
        }
    }

    /// What each agent says of itself.
    pub(super) fn agents(&self) -> Vec<String> {
        let up = self.up.borrow();
        let agents = up.iter().filter_map(|(name, server)| match server {
            Server::Agent { agent } => Some(format!("{name}: {:?}", agent.status())),
            _ => None,
        });
        agents.collect()
    }

    /// What is not yet done, by the state of every control node and by the agents; nothing when all is at rest.
    pub(super) fn unrest(&self) -> Option<String> {
        let up = self.up.borrow();
        let mut applied = Vec::new();
        for (name, server) in up.iter() {
            match server {
                Server::Control { node, observer } => {
                    if !node.is_healthy() {
                        return Some(format!("{name} is not healthy"));
                    }
                    let left = observer.consensus().read(|state, _| {
                        let jobs: Vec<String> =
                            state.jobs.values().map(|job| format!("job {} {}", job.id, job.phase.word())).collect();
                        let held = state.allocations.values().map(|held| {
                            let tasks = held.tasks.iter().zip(&held.task_states).enumerate();
                            let left = tasks.filter(|(_, (_, seen))| !seen.is_over());
                            let left =
                                left.map(|(rank, (task, seen))| format!("rank {rank} on {} {seen:?}", task.node));
                            format!("allocation {} {:?}: {:?}", held.id, held.state, left.collect::<Vec<_>>())
                        });
                        (jobs, held.collect::<Vec<_>>())
                    });
                    if left != (Vec::new(), Vec::new()) {
                        return Some(format!("{name} knows {left:?}; agents: {:?}", self.agents()));
                    }
                    applied.push(observer.applied());
                }
                Server::Agent { agent } => {
                    let status = agent.status();
                    if status.failed || status.session.is_none() || status.live_tasks > 0 || status.usage_pending > 0 {
                        return Some(format!("{name}: {status:?}"));
                    }
                }
                Server::Shard { .. } => {}
            }
        }
        applied.dedup();
        let all = VOTERS.len() + SHARDS.len() + NODES;
        let rest = up.len() == all && applied.len() == 1;
        (!rest).then(|| format!("{} of {all} servers are up, applied {applied:?}", up.len()))
    }
}

impl Fleet for Servers {
    fn voters(&self) -> Vec<String> {
        VOTERS.iter().map(|(_, name, _)| (*name).to_owned()).collect()
    }

    fn others(&self) -> Vec<String> {
        let nodes = (0..NODES).map(|number| format!("node-{number}"));
        SHARDS.iter().map(|shard| (*shard).to_owned()).chain(nodes).collect()
    }

    fn doubles(&self) -> Vec<String> {
        (0..DOUBLES).map(|number| format!("{DOUBLE}{number}")).collect()
    }

    fn folders(&self) -> Vec<String> {
        (0..NODES).map(|number| format!("node-{number}")).collect()
    }

    fn lose_folder(&self, name: &str) {
        self.world.wipe(name);
        if let Some(machine) = self.machines.borrow().get(name) {
            machine.tasks.lose_records();
        }
        self.history().lost_usage.insert(name.to_owned());
    }

    fn bystanders(&self) -> Vec<String> {
        CLIENTS.iter().map(|client| (*client).to_owned()).collect()
    }

    fn crash<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, ()> {
        async move {
            let server = self.up.borrow_mut().remove(name);
            if let Some(Server::Control { mut observer, .. }) = server {
                let mut history = self.history();
                history.wall_ms = self.world.wall_ms();
                observer.drain(&mut history);
            }
            self.world.crash(name).await;
        }
        .boxed_local()
    }

    fn start<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, ()> {
        if let Some(number) = name.strip_prefix(DOUBLE) {
            // Whichever of the two is the node, the other's stream of usage ends with what it had not sent.
            self.history().lost_usage.extend([name.to_owned(), format!("node-{number}")]);
        }
        async move { self.start_on(self.world.boot(name)).await }.boxed_local()
    }

    fn leader(&self) -> Option<String> {
        let up = self.up.borrow();
        let mut leading = up.iter().filter(|(_, server)| match server {
            Server::Control { observer, .. } => observer.consensus().is_leader(),
            _ => false,
        });
        leading.next().map(|(name, _)| name.clone())
    }
}
