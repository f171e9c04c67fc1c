//! What a node is to run: a pure view of the state, whole, as it is sent to the node's agent.

use crate::bounds::{MASTER_PORT_BASE, MASTER_PORT_RANGE, SHARED_PORT_BASE, SHARED_PORT_RANGE};
use crate::state::State;
use muster_model::elastic::Workers;
use muster_model::identity::Secret;
use muster_model::ids::{AllocationId, Attempt, JobId, NodeId, Rank, TenantId};
use muster_model::mig::MigPlacement;
use muster_model::sharing::CardSharing;
use muster_model::{
    Allocation, AllocationState, DeviceHold, DriverVersion, EndCause, GpuUnits, HoldMode, Job, JobSpec, LimitSignal,
    Mount, NetworkPolicy, Ports, Stop, TaskImage, TaskMount, TaskPlacement, TaskState, Tenant, World,
};
use std::collections::{BTreeMap, BTreeSet};

/// One task that a node is to run, or to stop, with all that its process needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredTask {
    /// Its allocation.
    pub allocation: AllocationId,
    /// Its rank in the gang.
    pub rank: Rank,
    /// Its job.
    pub job: JobId,
    /// Which run of the job.
    pub attempt: Attempt,
    /// It is to be stopped in this way rather than run.
    pub stop: Option<Stop>,
    /// The cards it holds.
    pub devices: Vec<DeviceHold>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment beside what the agent sets.
    pub env: BTreeMap<String, String>,
    /// Working directory, if the job names one.
    pub workdir: Option<String>,
    /// Tasks of the gang.
    pub world_size: u32,
    /// Place among the gang's tasks on this node, from 0.
    pub local_rank: u32,
    /// The gang's tasks on this node.
    pub local_world_size: u32,
    /// This node's place among the gang's nodes, in the order of their first rank.
    pub node_rank: u32,
    /// Address of rank 0's node.
    pub master_addr: String,
    /// Port that rank 0 is to listen on.
    pub master_port: u16,
    /// Earlier attempts.
    pub restart_count: u32,
    /// Milli-CPUs it holds.
    pub cpu_milli: u64,
    /// MiB of host memory it holds.
    pub memory_mib: u64,
    /// It is stopped when it has run this long, in seconds.
    pub time_limit_s: Option<u64>,
    /// From SIGTERM to SIGKILL, in seconds.
    pub grace_s: u64,
    /// How long it may outlive contact with the control plane, in seconds.
    pub disconnect_grace_s: u64,
    /// Path of the tenant that pays.
    pub tenant: String,
    /// Its number.
    pub tenant_id: TenantId,
    /// GPU units it holds, for metering.
    pub gpu_units: GpuUnits,
    /// The job's name, for people.
    pub job_name: String,
    /// A signal before its time limit.
    pub limit_signal: Option<LimitSignal>,
    /// What an earlier attempt wrote about its newest checkpoint; empty once the task has been seen.
    pub checkpoint_note: String,
    /// Of an elastic gang: what this worker knows of it now.
    pub world: Option<World>,
    /// Its image, with the rule of its pool that allows it.
    pub image: Option<TaskImage>,
    /// Its mounts, with the rules that allow them.
    pub mounts: Vec<TaskMount>,
    /// Equal compute instances in its MIG instance; 0 and 1: one.
    pub compute_instances: u8,
    /// The user to run as, where its tenant or one above it says so.
    pub run_as: Option<u32>,
    /// What it sees of the network.
    pub network: NetworkPolicy,
    /// Ports that it has for itself.
    pub ports: Ports,
    /// MiB that it may use, where that differs from `memory_mib`; 0: it does not.
    pub memory_limit_mib: u64,
    /// The channel of its gang in their NVLink domain, where the gang holds whole cards on several nodes of one.
    pub imex_channel: Option<u16>,
    /// Secrets of its tenant, by the variable that it has them in; none once the task has been seen. Nothing where one is gone.
    pub secrets: BTreeMap<String, Option<Secret>>,
}

/// The address of rank 0 where a task sees no other network.
const LOOPBACK: &str = "127.0.0.1";

/// The gang that tasks belong to: its minimum, and of an elastic one all workers.
struct Gang<'a> {
    minimum: &'a Allocation,
    workers: Option<Workers>,
}

impl State {
    /// The whole of what `node` is to run, in order of allocation and rank: the tasks of its live allocations that are not over
    /// yet. A task that is not in it must not run there.
    #[must_use]
    pub fn desired_for(&self, node: NodeId) -> Vec<DesiredTask> {
        let mut tasks = Vec::new();
        let mut gangs: BTreeMap<JobId, Gang<'_>> = BTreeMap::new();
        for id in self.index().allocations_on(node) {
            let Some(allocation) = self.allocations.get(&id) else { continue };
            let Some(job) = self.jobs.get(&allocation.job) else { continue };
            let Some(minimum) = job.phase.allocation().and_then(|id| self.allocations.get(&id)) else { continue };
            let gang = gangs.entry(job.id).or_insert_with(|| Gang { minimum, workers: self.workers_of(job, minimum) });
            let here: Vec<Rank> = allocation.ranks_on(node).collect();
            for (local, &rank) in here.iter().enumerate() {
                if !allocation.task_states[rank.0 as usize].is_over() {
                    tasks.push(self.desired_task((gang, allocation, job), rank, (local as u32, here.len() as u32)));
                }
            }
        }
        tasks
    }

    /// The tasks of `node` that are over while others of their gang are not: their devices are held on. Those of an allocation that is over are about
    /// to be released, and nobody is charged for that.
    pub fn held_on(&self, node: NodeId) -> impl Iterator<Item = (AllocationId, Rank)> {
        let here = self.index().allocations_on(node).filter_map(|id| self.allocations.get(&id));
        let live = here.filter(|allocation| !allocation.has_ended());
        live.flat_map(move |allocation| {
            let over = move |rank: &Rank| allocation.task_states[rank.0 as usize].is_over();
            allocation.ranks_on(node).filter(over).map(move |rank| (allocation.id, rank))
        })
    }

    /// How the cards of `node` are shared, as its pool is now.
    #[must_use]
    pub fn card_sharing(&self, node: NodeId) -> CardSharing {
        let Some(node) = self.nodes.get(&node) else { return CardSharing::default() };
        CardSharing::of(crate::routing::rules(self, &node.spec.pool), DriverVersion::reported(&node.spec.driver))
    }

    /// The MIG instances that the cards of a node keep while nobody holds them, by the layouts of its pool.
    #[must_use]
    pub fn pinned_instances(&self, node: NodeId) -> BTreeMap<u16, Vec<MigPlacement>> {
        let Some(node) = self.nodes.get(&node) else { return BTreeMap::new() };
        let pins = crate::routing::rules(self, &node.spec.pool).pins(&node.spec.gpus);
        pins.map(|(index, pin)| (index as u16, pin.slots().to_vec())).collect()
    }

    /// The longest time that any task on `node` may outlive contact, in seconds; 0 when nothing runs there. Its devices may be
    /// given away only after it. Tasks that the state does not know count too, where it comes from a backup.
    #[must_use]
    pub fn disconnect_grace_s(&self, node: NodeId) -> u64 {
        let live = self.index().allocations_on(node).filter_map(|id| self.allocations.get(&id));
        let jobs = live.filter_map(|allocation| self.jobs.get(&allocation.job));
        let restored = self.nodes.get(&node).and_then(|node| node.notes.restored.as_ref());
        let unknown = restored.map(|restored| restored.disconnect_grace_s());
        jobs.map(|job| job.spec.disconnect_grace_s).chain(unknown).max().unwrap_or(0)
    }

    /// Who works in an elastic gang now; none when the job is not elastic, or is being stopped.
    fn workers_of(&self, job: &Job, minimum: &Allocation) -> Option<Workers> {
        job.spec.elastic.filter(|_| minimum.state == AllocationState::Active)?;
        let mut workers = Workers::default();
        workers.add(minimum.id, &minimum.tasks);
        let parts = job.growth.parts.iter().filter_map(|id| self.allocations.get(id));
        for part in parts.filter(|part| part.state == AllocationState::Active) {
            workers.add(part.id, &part.tasks);
        }
        Some(workers)
    }

    /// The user that the tenant's tasks run as: what it says, or the nearest above it that says one.
    #[must_use]
    pub fn runs_as(&self, tenant: TenantId) -> Option<u32> {
        let parent = |tenant: &&Tenant| self.tenants.get(&tenant.parent?);
        std::iter::successors(self.tenants.get(&tenant), parent).find_map(|tenant| tenant.run_as)
    }

    /// The number of the gang's ports is nobody else's in the domain. Growth that has others has no channel: it could not reach the gang's memory.
    fn imex_channel(&self, held: &Allocation, minimum: &Allocation) -> Option<u16> {
        let block = minimum.ports.block().filter(|_| held.ports == minimum.ports)?;
        let whole = |task: &TaskPlacement| task.devices.iter().any(|hold| hold.mode == HoldMode::Whole);
        let tasks = || minimum.tasks.iter().chain(held.tasks.iter().filter(|_| held.is_growth));
        let mut nodes: Vec<NodeId> = tasks().map(|task| task.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let first = self.nodes.get(nodes.first()?)?;
        let place = |id: &NodeId| self.nodes.get(id).map(|node| &node.spec.place);
        let together = nodes.iter().all(|id| place(id).is_some_and(|place| place.shares_nvlink(&first.spec.place)));
        (nodes.len() > 1 && together && tasks().all(whole)).then_some(block.0)
    }

    /// The secrets of a job's variables; none for one that is gone.
    #[must_use]
    pub fn secret_env_of(&self, job: &Job) -> BTreeMap<String, Option<Secret>> {
        let secret = |name: &String| self.secrets.get(&Secret::id_of(job.tenant, name)).cloned();
        job.spec.secret_env.iter().map(|(variable, name)| (variable.clone(), secret(name))).collect()
    }

    fn desired_task(
        &self,
        (gang, held, job): (&Gang<'_>, &Allocation, &Job),
        rank: Rank,
        (local_rank, local_size): (u32, u32),
    ) -> DesiredTask {
        let (spec, minimum) = (&job.spec, gang.minimum);
        let place = &held.tasks[rank.0 as usize];
        let master = minimum.tasks.first().and_then(|first| self.nodes.get(&first.node));
        let port = match minimum.ports {
            Ports::Block(block) => block.first(),
            Ports::NoneFree => SHARED_PORT_BASE + (minimum.id.0 % SHARED_PORT_RANGE) as u16,
            Ports::Unassigned => MASTER_PORT_BASE + (minimum.id.0 % MASTER_PORT_RANGE) as u16,
        };
        let workers = gang.workers.as_ref();
        let world = workers.zip(spec.elastic).and_then(|(workers, elastic)| {
            workers.world_of((held.id, rank), job.growth.generation, (spec.tasks, elastic))
        });
        // As the pool is now: what it does not allow any more does not start.
        let pool = self.nodes.get(&place.node).map_or("", |node| node.spec.pool.as_str());
        let rules = crate::routing::rules(self, pool);
        let of_mount = |mount: &Mount| TaskMount {
            mount: mount.clone(),
            below: rules.allows_mount(mount).unwrap_or_default().to_owned(),
        };
        let units = held.model.map(|model| spec.request.devices.charge_on(model)).unwrap_or_default();
        let network = rules.network();
        let master_addr = match network {
            // Nothing else is there.
            NetworkPolicy::Private => LOOPBACK.to_owned(),
            NetworkPolicy::Host => master.map(|node| node.spec.address.clone()).unwrap_or_default(),
        };
        let memory_limit_mib = match (held.memory_mib, self.nodes.get(&place.node)) {
            (0, Some(node)) => rules.memory_limit_mib(&node.spec, units, held.cpu_milli),
            _ => 0,
        };
        DesiredTask {
            allocation: held.id,
            rank,
            job: job.id,
            attempt: held.attempt,
            stop: match &held.state {
                AllocationState::Active => None,
                AllocationState::Stopping(cause) => Some(stop_for(cause, spec)),
            },
            devices: place.devices.clone(),
            command: spec.command.clone(),
            env: env_of(job),
            workdir: spec.workdir.clone(),
            world_size: held.tasks.len() as u32,
            local_rank,
            local_world_size: local_size,
            node_rank: node_rank(held, place.node),
            master_addr,
            master_port: port,
            restart_count: held.attempt.0.saturating_sub(1),
            cpu_milli: held.cpu_milli,
            memory_mib: held.memory_mib,
            time_limit_s: spec.time_limit_s,
            grace_s: spec.grace_s,
            disconnect_grace_s: spec.disconnect_grace_s,
            tenant: spec.tenant.clone(),
            tenant_id: held.tenant,
            gpu_units: units,
            job_name: spec.name.clone(),
            limit_signal: spec.limit_signal,
            // Only a task that is yet to start needs it, and what this attempt saves must not change what the others are told.
            checkpoint_note: match held.task_states[rank.0 as usize] {
                TaskState::Pending => job.checkpoint_note.clone(),
                _ => String::new(),
            },
            world,
            image: spec.image.as_ref().map(|image| TaskImage {
                image: image.clone(),
                below: rules.allows_image(image).unwrap_or_default().to_owned(),
            }),
            mounts: spec.mounts.iter().map(of_mount).collect(),
            compute_instances: spec.compute_instances,
            run_as: self.runs_as(held.tenant),
            network,
            ports: held.ports,
            memory_limit_mib,
            imex_channel: self.imex_channel(held, minimum),
            secrets: match held.task_states[rank.0 as usize] {
                TaskState::Pending if held.state == AllocationState::Active => self.secret_env_of(job),
                _ => BTreeMap::new(),
            },
        }
    }
}

/// How the tasks of a job are stopped for this. An attempt that will be followed by another is told by the signal that the job has chosen for
/// that, so that it can save its work.
fn stop_for(cause: &EndCause, spec: &JobSpec) -> Stop {
    match cause {
        EndCause::Preempted { .. } | EndCause::Requeued | EndCause::Window { .. } | EndCause::Shrunk { .. } => {
            spec.preemption.stop(spec.grace_s)
        }
        EndCause::Cancelled
        | EndCause::RankFailed { .. }
        | EndCause::TimeLimit
        | EndCause::NodeLost { .. }
        | EndCause::Deadline
        | EndCause::Completed => Stop::term(spec.grace_s),
    }
}

/// How many other nodes of the gang have their first rank before `node` has.
fn node_rank(held: &Allocation, node: NodeId) -> u32 {
    let before: BTreeSet<NodeId> = held.tasks.iter().map(|task| task.node).take_while(|other| *other != node).collect();
    before.len() as u32
}

/// What the job gives its tasks, and what they are told of their array.
fn env_of(job: &Job) -> BTreeMap<String, String> {
    let mut env = job.spec.env.clone();
    if let Some(task) = job.array_task {
        env.insert("MUSTER_ARRAY_JOB_ID".to_owned(), task.array.to_string());
        env.insert("MUSTER_ARRAY_TASK_ID".to_owned(), task.index.to_string());
    }
    env
}
