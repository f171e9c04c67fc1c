//! A small cluster in virtual time that is *not* the one of what-if: its tasks do what they do, and its shard goes
//! on with what it has planned. Answers are compared with what happens here.

use muster_control_core::{Command, Done, Entry, Reject, State, TaskReport, execute};
use muster_model::needs::{Isolation, Needs};
use muster_model::request::{SharingMode, TaskRequest};
use muster_model::tenant::TenantSpec;
use muster_model::{
    AllocationId, AllocationState, Asked, CellId, Change, DeviceRequest, EndCause, GpuModel, GpuUnits, JobId, JobPhase,
    JobSpec, NodeId, Object, Pool, Rank, ResourceVec, TaskState, ValidJobSpec,
};
use muster_scheduler_core::{Bounds, View, plan};
use muster_twin::fleet::Fleet;
use muster_twin::proposals;
use muster_twin::what_if::{Answer, Edit, Options, Question, Submission, ask};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const BEGIN_MS: u64 = 1_000_000_000_000;
const DELAY_MS: u64 = 1_000;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Started(AllocationId),
    Worked(AllocationId),
    Stopped(AllocationId),
    Due,
    Look,
}

pub(crate) struct Cluster {
    pub(crate) state: State,
    view: View,
    pub(crate) now_ms: u64,
    /// Jobs end after this share of their time limits.
    pub(crate) limit_percent: u64,
    next: BTreeSet<(u64, u64, Next)>,
    sequence: u64,
    known: BTreeSet<AllocationId>,
    stopping: BTreeSet<AllocationId>,
    /// Every binding of a job, in order.
    pub(crate) starts: BTreeMap<JobId, Vec<u64>>,
    pub(crate) evicted: BTreeMap<JobId, Vec<u64>>,
}

/// A pool that allows these ways of sharing.
pub(crate) fn pool(modes: &[SharingMode]) -> Pool {
    Pool { modes: modes.iter().copied().collect(), ..Pool::standard() }
}

pub(crate) fn tenant(path: &str, guarantee: u64, max: u64) -> TenantSpec {
    let mut floor = ResourceVec::default();
    floor.set_gpu(GpuModel::H100, GpuUnits::cards(guarantee));
    let mut spec = TenantSpec { guarantee: floor, ..TenantSpec::usual(path) };
    if max > 0 {
        spec.max.gpu.insert(GpuModel::H100, GpuUnits::cards(max));
    }
    spec
}

/// A gang of whole cards.
pub(crate) fn whole(tenant: &str, tasks: u32, count: u32, limit_s: u64) -> JobSpec {
    let devices = DeviceRequest::Whole { count, models: Vec::new() };
    let request = TaskRequest { devices, cpu_milli: 0, memory_mib: 0 };
    JobSpec { tasks, time_limit_s: Some(limit_s), ..JobSpec::usual(tenant, request, &["work"]) }
}

/// A task that says what it needs; bursty: a notebook.
pub(crate) fn needs(tenant: &str, memory_mib: u64, compute_percent: u32, bursty: bool) -> JobSpec {
    let isolation = if bursty { Isolation::BestEffort } else { Isolation::Strict };
    let needs = Needs { memory_mib, compute_percent, isolation, bursty, latency_critical: false, models: Vec::new() };
    let request = TaskRequest { devices: DeviceRequest::None, cpu_milli: 0, memory_mib: 0 };
    let asked = Asked { needs: Some(needs), ..Asked::default() };
    JobSpec { asked, ..JobSpec::usual(tenant, request, &["work"]) }
}

pub(crate) fn valid(spec: JobSpec) -> ValidJobSpec {
    spec.validate().expect("a valid job")
}

/// Submitted at once.
pub(crate) fn at_once(specs: impl IntoIterator<Item = JobSpec>) -> Vec<Submission> {
    specs.into_iter().map(|spec| Submission { after_ms: 0, spec: valid(spec), work_ms: None }).collect()
}

impl Cluster {
    pub(crate) fn new(shape: &str, pool: Pool) -> Self {
        let mut state = State::new(1);
        let fleet = Fleet::parse_shorthand(shape).expect("a fleet");
        let mut commands = vec![Command::RaiseFeatureLevel { level: 3 }, Command::PutPool(pool)];
        let join = |spec| Command::JoinNode { spec, usage_incarnation: None, agent: 1 };
        commands.extend(fleet.node_specs().map(join));
        for command in commands {
            let executed = execute(&mut state, &Entry { now_ms: BEGIN_MS, commands: vec![command] });
            executed.decided.into_iter().for_each(|decided| drop(decided.expect("the set-up is accepted")));
        }
        let cells: Vec<CellId> = state.cells.keys().copied().collect();
        let acquire = |cell: CellId| Command::AcquireCell { cell, shard: "shard".to_owned() };
        let commands = cells.into_iter().map(acquire).collect();
        execute(&mut state, &Entry { now_ms: BEGIN_MS, commands });
        Cluster {
            view: View::from_objects(state.objects()),
            state,
            now_ms: BEGIN_MS,
            limit_percent: 100,
            next: BTreeSet::new(),
            sequence: 0,
            known: BTreeSet::new(),
            stopping: BTreeSet::new(),
            starts: BTreeMap::new(),
            evicted: BTreeMap::new(),
        }
    }

    pub(crate) fn tenants(&mut self, tenants: Vec<TenantSpec>) {
        self.make(Command::ApplyTenants { tenants }).expect("a sound tree");
    }

    pub(crate) fn submit(&mut self, spec: JobSpec) -> JobId {
        self.sequence += 1;
        let command = Command::Submit {
            request_id: format!("r{}", self.sequence),
            issued_ms: self.now_ms,
            payload_hash: self.sequence,
            specs: vec![valid(spec)],
            ended: Vec::new(),
        };
        match self.make(command).expect("accepted") {
            Done::Submitted { first, .. } => first,
            done => panic!("{done:?}"),
        }
    }

    /// One command, and what the shard makes of it.
    pub(crate) fn make(&mut self, command: Command) -> Result<Done, Reject> {
        let decided = self.commit(vec![command]).remove(0);
        self.plan();
        self.wait_for_due();
        decided
    }

    /// Nothing starts or stops.
    pub(crate) fn is_calm(&self) -> bool {
        let running = |id| self.state.jobs.values().any(|job| matches!(job.phase, JobPhase::Running(at) if at == id));
        self.state.allocations.values().all(|held| held.state == AllocationState::Active && running(held.id))
    }

    /// Another shard takes over, with what the state says and no more.
    pub(crate) fn restart_shards(&mut self) {
        self.view = View::from_objects(self.state.objects());
    }

    /// Goes on until then.
    pub(crate) fn run_until(&mut self, end_ms: u64) {
        while let Some((at_ms, _, _)) = self.next.first().cloned()
            && at_ms <= end_ms
        {
            self.now_ms = at_ms;
            let mut batch = Vec::new();
            while self.next.first().is_some_and(|(first_ms, _, _)| *first_ms == at_ms) {
                let (_, _, next) = self.next.pop_first().expect("it is there");
                self.happen(&next, &mut batch);
            }
            self.commit(batch);
            self.plan();
            self.wait_for_due();
        }
        self.now_ms = end_ms;
    }

    pub(crate) fn question(&self, edits: Vec<Edit>, workload: Vec<Submission>, horizon_s: u64) -> Question {
        let options = Options { horizon_ms: horizon_s * 1_000, ..Options::default() };
        Question { objects: self.state.objects().collect(), now_ms: self.now_ms, edits, workload, options }
    }

    pub(crate) fn ask(&self, edits: Vec<Edit>, workload: Vec<Submission>, horizon_s: u64) -> Answer {
        ask(&self.question(edits, workload, horizon_s)).expect("an answer")
    }

    fn at(&mut self, at_ms: u64, next: Next) {
        self.sequence += 1;
        self.next.insert((at_ms, self.sequence, next));
    }

    fn happen(&mut self, next: &Next, batch: &mut Vec<Command>) {
        let active =
            |state: &State, id| state.allocations.get(&id).is_some_and(|held| held.state == AllocationState::Active);
        match *next {
            Next::Started(id) if active(&self.state, id) => {
                let job = self.state.jobs[&self.state.allocations[&id].job].clone();
                if let Some(limit_s) = job.spec.time_limit_s {
                    self.at(self.now_ms + limit_s * 10 * self.limit_percent, Next::Worked(id));
                }
                self.tell(id, TaskState::Running, batch);
            }
            Next::Worked(id) if active(&self.state, id) => self.tell(id, TaskState::Exited { code: 0 }, batch),
            Next::Stopped(id) => self.tell(id, TaskState::Stopped, batch),
            Next::Due => batch.push(Command::DecideDue),
            _ => {}
        }
    }

    fn tell(&self, id: AllocationId, state: TaskState, batch: &mut Vec<Command>) {
        let Some(held) = self.state.allocations.get(&id) else { return };
        let mut by_node: BTreeMap<NodeId, Vec<TaskReport>> = BTreeMap::new();
        for (index, task) in held.tasks.iter().enumerate() {
            if !held.task_states[index].is_over() {
                let rank = Rank(index as u32);
                let report = TaskReport {
                    allocation: id,
                    rank,
                    state: state.clone(),
                    ended_ms: None,
                    checkpoint: None,
                    clean_up: muster_model::task::CleanUp::default(),
                };
                by_node.entry(task.node).or_default().push(report);
            }
        }
        for (node, reports) in by_node {
            batch.push(Command::ReportTasks { node, epoch: held.node_epochs[&node], reports });
        }
    }

    fn commit(&mut self, commands: Vec<Command>) -> Vec<Result<Done, Reject>> {
        let entry = Entry { now_ms: self.now_ms, commands };
        let executed = execute(&mut self.state, &entry);
        for (decided, command) in executed.decided.iter().zip(&entry.commands) {
            let Err(reject) = decided else { continue };
            proposals::refused(&mut self.view, command, reject, self.now_ms);
        }
        for change in &executed.changes {
            self.view.apply(change);
            self.react(change);
        }
        self.state.check().expect("the laws hold");
        executed.decided
    }

    fn react(&mut self, change: &Change) {
        let Change::Put(object) = change else { return };
        let Object::Allocation(held) = &**object else { return };
        if self.known.insert(held.id) {
            self.starts.entry(held.job).or_default().push(self.now_ms);
            self.at(self.now_ms + DELAY_MS, Next::Started(held.id));
        }
        let AllocationState::Stopping(cause) = &held.state else { return };
        if self.stopping.insert(held.id) {
            let job = &self.state.jobs[&held.job];
            let mut grace_s = job.spec.grace_s;
            if let EndCause::Preempted { .. } | EndCause::Window { .. } = cause {
                grace_s = job.spec.preemption.grace_s(grace_s);
                self.evicted.entry(held.job).or_default().push(self.now_ms);
            }
            self.at(self.now_ms + grace_s * 1_000 + DELAY_MS, Next::Stopped(held.id));
        }
    }

    /// Time decides about windows when the state says so.
    fn wait_for_due(&mut self) {
        let due_ms = self.state.next_due_ms(self.now_ms).map(|at_ms| at_ms.max(self.now_ms + 1));
        let waits = |at_ms: u64| self.next.iter().any(|(known_ms, _, next)| *next == Next::Due && *known_ms <= at_ms);
        if let Some(at_ms) = due_ms.filter(|at_ms| !waits(*at_ms)) {
            self.at(at_ms, Next::Due);
        }
    }

    fn plan(&mut self) {
        let cells: Vec<CellId> = self.state.cells.keys().copied().collect();
        for _ in 0..10_000 {
            let (mut commands, mut more) = (Vec::new(), false);
            for &cell in &cells {
                let epoch = self.view.cells()[&cell].epoch;
                let plan = plan(&mut self.view, cell, &Bounds::default(), self.now_ms);
                more |= plan.more;
                let proposed = plan.proposals.into_iter();
                commands.extend(proposed.map(|proposal| proposals::command(cell, epoch, proposal)));
            }
            if commands.is_empty() && !more {
                if let Some(at_ms) = self.view.next_wake_ms() {
                    self.at(at_ms.max(self.now_ms + 1), Next::Look);
                }
                return;
            }
            self.commit(commands);
        }
        panic!("the shard never rests");
    }
}
