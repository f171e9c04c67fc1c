//! A random history over the real cores in virtual time: jobs come, end, fail and are cancelled, nodes are lost and come back, the tree is edited.
//!
//! What must stay true: the seed alone decides; nodes do what agents do and nothing more; load is finite, so that at the end everything that can run
//! has run.

use crate::chance::Chance;
use crate::laws::Judge;
use crate::tree::{self, Budget};
use crate::{rich, windows};
use muster_control_core::events::{About, Event as Told, Follower, Header, Line};
use muster_control_core::{Command, Entry, State, TaskReport, execute};
use muster_model::capacity::Ended;
use muster_model::node::NodeHealth;
use muster_model::request::{SharingMode, TaskRequest};
use muster_model::{
    AllocationId, AllocationState, CellId, Change, DeviceRequest, Elastic, EndCause, Epoch, GpuModel, Job, JobId,
    JobSpec, Movable, Node, NodeId, Object, Pool, Preemption, PriorityClass, Rank, ResourceVec, TaskState, Trust,
};
use muster_scheduler_core::{Bounds, View, plan};
use muster_twin::fleet::Fleet;
use muster_twin::proposals;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BEGIN_MS: u64 = 1_000_000_000_000;
const STOP_MS_MAX: u64 = 3_000;
/// Half-lives of past use, where it counts; 0: edits turn it off for a while.
const HALF_LIVES_S: [u64; 4] = [60, 600, 0, 86_400];
const SILENT_MS_MAX: u64 = 70_000;
/// After the last submission everything must have ended within this.
const DRAIN_MS: u64 = 40 * 3_600_000;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Submit,
    Started(AllocationId),
    /// Rank 0 fails, or all tasks succeed.
    Ended(AllocationId, bool),
    Stopped(AllocationId),
    /// A victim that completes before the signal reaches it.
    Completed(AllocationId),
    Edit,
    /// A tenant moves, or is renamed.
    Relocate,
    /// Somebody changes a job.
    OnJob,
    Cancel,
    Lose,
    Fence(NodeId),
    Return(NodeId),
    Drain,
    Undrain(NodeId),
    Window,
    Due,
    Lease,
    Look,
    /// The load is over: nodes come back, the tree stays.
    Calm,
}

pub(crate) struct History {
    /// What there was before the first entry.
    pub(crate) begin: Vec<Object>,
    pub(crate) header: Header,
    pub(crate) lines: Vec<Line>,
    pub(crate) broken: Vec<String>,
    pub(crate) entries: Vec<Vec<Change>>,
    pub(crate) refusals: BTreeMap<String, u64>,
    pub(crate) preemptions: u64,
    pub(crate) promotions: u64,
    /// Parts of growth that were bound, that were taken back for others without a right to preempt, and that were preempted.
    pub(crate) growth: [u64; 3],
}

struct World {
    chance: Chance,
    state: State,
    view: View,
    follower: Follower,
    judge: Judge,
    budget: Budget,
    now_ms: u64,
    revision: u64,
    next: BTreeSet<(u64, u64, Next)>,
    sequence: u64,
    known: BTreeSet<AllocationId>,
    stopping: BTreeSet<AllocationId>,
    /// What is left of each job's work.
    work_ms: BTreeMap<JobId, u64>,
    history: History,
    submissions: u64,
    calm: bool,
    shares: bool,
    /// Some jobs are of a priority class.
    classes: bool,
    /// Most jobs are movable, and the pool moves them.
    moves: bool,
    /// Some gangs are elastic.
    elastic: bool,
    models: Vec<(GpuModel, u32)>,
    /// Maintenance, reservations and drains are planned, and jobs keep their time limits.
    windows: bool,
    /// Everything that [`rich`] adds.
    rich: bool,
    /// Past use counts in the order of tenants; edits change its half-life.
    past_counts: bool,
    /// A node was lost: what stops on it is heard of late.
    lost: bool,
    /// Who asks why jobs wait, and how often in a hundred rests.
    asks: Option<(u64, Asker)>,
}

/// Looks at a state in which nothing is left to propose.
pub(crate) type Asker = Box<dyn FnMut(&State, u64) -> Vec<String>>;

/// Runs the history of a seed to its end.
pub(crate) fn run(seed: u64) -> History {
    let mut world = World::new(seed);
    world.go();
    world.history
}

/// The same with all that [`rich`] adds.
pub(crate) fn run_rich(seed: u64) -> History {
    let mut world = World::made(seed, true);
    world.go();
    world.history
}

/// The same with windows of all kinds beside.
pub(crate) fn run_rich_with_windows(seed: u64) -> History {
    let mut world = World::made(seed, true);
    world.windows = true;
    world.go();
    world.history
}

/// The same with windows of all kinds.
pub(crate) fn run_with_windows(seed: u64) -> History {
    let mut world = World::new(seed);
    world.windows = true;
    world.go();
    world.history
}

/// The same with jobs that may be moved, and a pool that moves them.
pub(crate) fn run_moving(seed: u64) -> History {
    let mut world = World::new(seed);
    world.moves = true;
    let pool = world.state.pools.values().next().cloned().expect("the pool of the set-up");
    let (moves_per_hour, lost) = (world.chance.within(1, 12) as u32, world.chance.within(1, 8) as u32);
    let pool = Pool { moves_per_hour, moves_lost_gpu_hours_per_day: lost, ..pool };
    world.commit(vec![Command::PutPool(pool)]);
    world.go();
    world.history
}

/// The same; now and then, when nothing is left to propose, somebody looks.
pub(crate) fn run_asked(seed: u64, rich: bool, in_hundred: u64, asker: Asker) -> History {
    let mut world = World::made(seed, rich);
    world.asks = Some((in_hundred, asker));
    // A class that is marked over others takes what a suggestion frees, and no explanation looks so far ahead.
    world.classes = false;
    world.go();
    world.history
}

impl World {
    fn new(seed: u64) -> Self {
        World::made(seed, false)
    }

    fn made(seed: u64, rich: bool) -> Self {
        let mut chance = Chance::new(seed);
        let two = chance.in_hundred(40);
        let cells = if chance.in_hundred(20) { 2 } else { 1 };
        let (nodes, others) = (chance.within(2, 9).max(cells), chance.within(1, 3).max(cells));
        let places = if cells > 1 { "leaf=1:block=1" } else { "leaf=2" };
        let mut shape = format!("{nodes}x8:h100:{places}:cells={cells}");
        let mut models = vec![(GpuModel::H100, 8)];
        let mut cards = vec![(GpuModel::H100, 8 * (nodes - nodes.div_ceil(4)))];
        if two {
            shape.push_str(&format!(",{others}x4:a100-80:{places}:cells={cells}"));
            models.push((GpuModel::A100_80, 4));
            cards.push((GpuModel::A100_80, 4 * (others - others.div_ceil(4))));
        }
        let shares = chance.in_hundred(30);
        let cpu_milli = if chance.in_hundred(if rich { 60 } else { 30 }) { nodes * 16_000 } else { 0 };
        let memory_mib = if rich && chance.in_hundred(50) { nodes * 131_072 } else { 0 };
        let budget = Budget { cards, cpu_milli, memory_mib };
        let mut state = State::new(1);
        let must = |state: &mut State, commands: Vec<Command>| {
            let executed = execute(state, &Entry { now_ms: BEGIN_MS, commands });
            for decided in executed.decided {
                decided.expect("the set-up is accepted");
            }
        };
        let cool_down_s = *chance.pick(&[0, 0, 20, 60]);
        let preemptions_max = *chance.pick(&[None, None, None, Some(2)]);
        let checkpoint_mib_per_s = *chance.pick(&[None, Some(2_000)]);
        must(&mut state, vec![Command::RaiseFeatureLevel { level: 3 }]);
        must(
            &mut state,
            vec![Command::PutPool(Pool { cool_down_s, preemptions_max, checkpoint_mib_per_s, ..Pool::standard() })],
        );
        for (name, priority, preempts) in [("batch", 1, vec![]), ("production", 5, vec!["batch", "default"])] {
            let preempts = preempts.into_iter().map(str::to_owned).collect();
            let class = PriorityClass { name: name.to_owned(), priority, preempts, tenants: BTreeSet::new() };
            must(&mut state, vec![Command::PutPriorityClass(class)]);
        }
        let fleet = Fleet::parse_shorthand(&shape).expect("a fleet");
        for spec in fleet.node_specs() {
            must(&mut state, vec![Command::JoinNode { spec, usage_incarnation: None, agent: 1 }]);
        }
        let mut tenants = tree::random(&mut chance, &budget);
        if rich {
            rich::of_tree(&mut chance, &mut tenants);
        }
        must(&mut state, vec![Command::ApplyTenants { tenants }]);
        let past_counts = seed % 5 == 3;
        if past_counts {
            let half_life_s = Some(HALF_LIVES_S[seed as usize % HALF_LIVES_S.len()]);
            must(&mut state, vec![Command::EditTenants { edits: Vec::new(), prune: false, half_life_s }]);
        }
        let cells: Vec<CellId> = state.cells.keys().copied().collect();
        let acquire = |cell: &CellId| Command::AcquireCell { cell: *cell, shard: "s".to_owned() };
        must(&mut state, cells.iter().map(acquire).collect());
        let card_units_max = if shares { muster_control_core::events::CARD_UNITS_OF_SHARES_MAX } else { 7_000 };
        // What stops on a silent node is heard of when the node is.
        let about = About { stop_ms_max: STOP_MS_MAX + SILENT_MS_MAX, card_units_max };
        let begin: Vec<Object> = state.objects().collect();
        let (follower, header, lines) = Follower::begin(begin.clone(), (0, BEGIN_MS), about);
        let submissions = chance.within(5, 60);
        World {
            view: View::from_objects(begin.clone()),
            judge: Judge::begin(begin.clone().into_iter()),
            asks: None,
            state,
            follower,
            budget,
            now_ms: 0,
            revision: 0,
            next: BTreeSet::new(),
            sequence: 0,
            known: BTreeSet::new(),
            stopping: BTreeSet::new(),
            work_ms: BTreeMap::new(),
            history: History {
                begin,
                header,
                lines,
                broken: Vec::new(),
                entries: Vec::new(),
                refusals: BTreeMap::new(),
                preemptions: 0,
                promotions: 0,
                growth: [0; 3],
            },
            submissions,
            calm: false,
            shares,
            classes: true,
            moves: false,
            elastic: chance.in_hundred(40),
            models,
            windows: false,
            rich,
            past_counts,
            lost: false,
            chance,
        }
    }

    fn at(&mut self, in_ms: u64, next: Next) {
        self.sequence += 1;
        self.next.insert((self.now_ms + in_ms, self.sequence, next));
    }

    fn go(&mut self) {
        let span_ms = self.submissions * 15_000;
        for _ in 0..self.submissions {
            let at_ms = self.chance.within(0, span_ms);
            self.at(at_ms, Next::Submit);
        }
        for (most, next) in [(6, Next::Edit), (4, Next::Cancel), (3, Next::Lose), (2, Next::Drain), (1, Next::Lease)] {
            for _ in 0..self.chance.within(0, most) {
                let at_ms = self.chance.within(0, span_ms);
                self.at(at_ms, next.clone());
            }
        }
        if self.rich {
            for (most, next) in [(5, Next::Relocate), (20, Next::OnJob)] {
                for _ in 0..self.chance.within(0, most) {
                    let at_ms = self.chance.within(0, span_ms);
                    self.at(at_ms, next.clone());
                }
            }
        }
        if self.windows {
            for _ in 0..self.chance.within(1, 8) {
                let at_ms = self.chance.within(0, span_ms);
                self.at(at_ms, Next::Window);
            }
        }
        self.at(span_ms + 400_000, Next::Calm);
        while let Some((at_ms, _, _)) = self.next.first().cloned() {
            if at_ms > span_ms + DRAIN_MS || !self.history.broken.is_empty() {
                break;
            }
            if self.calm && self.state.jobs.is_empty() {
                break;
            }
            self.now_ms = at_ms;
            let mut batch = Vec::new();
            while let Some((first_ms, _, _)) = self.next.first()
                && *first_ms == at_ms
            {
                let (_, _, next) = self.next.pop_first().expect("it is there");
                self.happen(next, &mut batch);
            }
            while !batch.is_empty() {
                let size = self.chance.within(1, 6).min(batch.len() as u64) as usize;
                let rest = batch.split_off(size);
                self.commit(std::mem::replace(&mut batch, rest));
            }
            self.plan();
            self.wait_for_due();
            self.ask();
        }
        if self.history.broken.is_empty() {
            self.nobody_starves();
        }
        let end = self.follower.end(BEGIN_MS + self.now_ms);
        self.history.lines.push(end);
    }

    fn ask(&mut self) {
        let Some((in_hundred, asker)) = &mut self.asks else { return };
        if self.chance.in_hundred(*in_hundred) {
            self.history.broken.extend(asker(&self.state, BEGIN_MS + self.now_ms));
        }
    }

    /// Whoever still waits can never be served: its tenants' max, or the fleet, is too small.
    fn nobody_starves(&mut self) {
        for job in self.state.jobs.values().filter(|job| job.spec.reservation.is_none()) {
            if self.may_wait_for_ever(job) {
                continue;
            }
            let fits = job.spec.possible_models().any(|model| {
                let charge = job.spec.charge_on(model);
                let line = self.state.capacity().line_of(job.tenant);
                let each = job.spec.request.devices.cards() as usize;
                let of = |node: &Arc<Node>| node.spec.gpus.iter().filter(|card| card.model == model).count();
                let there: usize = self.state.nodes.values().map(of).filter(|cards| *cards >= each).sum();
                let under_max = line.into_iter().all(|(_, at)| at.max.first_passed_by(&charge).is_none());
                under_max && self.may_be_lent(job, &charge) && charge.gpu(model).0 <= 7_000 * there as u64
            });
            let no_gpu = job.spec.request.devices.mode().is_none();
            let charge = job.spec.charge_on(GpuModel::H100);
            let mut line = self.state.capacity().line_of(job.tenant);
            if fits || no_gpu && line.all(|(_, at)| at.max.first_passed_by(&charge).is_none()) {
                let what = format!(
                    "starved: job {} ({:?}, {} tasks, priority {}, claim {}, {:?}, {:?}) after {} s",
                    job.id,
                    job.phase,
                    job.spec.tasks,
                    job.spec.priority,
                    job.claim.is_some(),
                    job.spec.request,
                    job.unmet,
                    self.now_ms / 1000
                );
                self.history.broken.push(what);
            }
        }
    }

    /// Others keep the CPUs that it needs for ever, its tenant may not share cards any more, or it is an array whose tasks are judged themselves.
    fn may_wait_for_ever(&self, job: &Job) -> bool {
        let mode = job.spec.request.devices.mode();
        let shares = mode.is_some_and(|mode| mode != SharingMode::Whole);
        let trusted = self.state.tenants.get(&job.tenant).is_some_and(|tenant| tenant.trust == Trust::Trusted);
        let is_task = |other: &Arc<Job>| other.array_task.is_some_and(|task| task.array == job.id);
        let lives = job.array.is_some() && self.state.jobs.values().any(is_task);
        let no_gpu = mode.is_none() && !self.may_be_lent(job, &job.spec.charge_on(GpuModel::H100));
        self.rich && (no_gpu || shares && !trusted || lives)
    }

    fn may_be_lent(&self, job: &Job, charge: &ResourceVec) -> bool {
        let capacity = self.state.capacity();
        let lent = capacity.lending_allows(&Ended::default(), job.tenant, charge).is_ok();
        lent || capacity.account_for(job.tenant, charge).is_some()
    }

    fn happen(&mut self, next: Next, batch: &mut Vec<Command>) {
        match next {
            Next::Submit => batch.push(self.submit()),
            Next::Started(id) => self.tell(id, &next, batch, |_| Some(TaskState::Running)),
            Next::Ended(id, fails) => {
                let active = self.state.allocations.get(&id).is_some_and(|held| held.state == AllocationState::Active);
                if active {
                    self.tell(id, &next, batch, |rank| match (fails, rank) {
                        (true, Rank(0)) => Some(TaskState::Exited { code: 1 }),
                        (true, _) => None,
                        (false, _) => Some(TaskState::Exited { code: 0 }),
                    });
                }
            }
            Next::Completed(id) => self.tell(id, &next, batch, |_| Some(TaskState::Exited { code: 0 })),
            Next::Stopped(id) => self.tell(id, &next, batch, |_| Some(TaskState::Stopped)),
            Next::Edit => {
                let mut edit = tree::edit(&mut self.chance, &self.state, &self.budget);
                if let Some(edit) = edit.as_mut().filter(|_| self.rich) {
                    rich::of_edit(&mut self.chance, &self.state, edit);
                }
                batch.extend(edit);
                if self.past_counts {
                    let half_life_s = Some(HALF_LIVES_S[self.revision as usize % HALF_LIVES_S.len()]);
                    batch.push(Command::EditTenants { edits: Vec::new(), prune: false, half_life_s });
                }
            }
            Next::Relocate => batch.extend(rich::relocate(&mut self.chance, &self.state)),
            Next::OnJob => batch.extend(rich::on_job(&mut self.chance, &self.state)),
            Next::Cancel => {
                let jobs: Vec<JobId> = self.state.jobs.keys().copied().collect();
                if !jobs.is_empty() {
                    batch.push(Command::Cancel { job: *self.chance.pick(&jobs) });
                }
            }
            Next::Lose => self.lose(batch),
            Next::Fence(id) => self.fence(id, batch),
            Next::Return(id) => self.rejoin(id, batch),
            Next::Drain => {
                // The guarantees must stay within what is left.
                let nodes: Vec<NodeId> = self.state.nodes.keys().copied().collect();
                let node = *self.chance.pick(&nodes);
                if windows::drains(&self.state) || self.state.nodes.values().any(|node| !node.accepts_work()) {
                    return;
                }
                batch.push(Command::SetDrained { node, drained: true, reason: String::new(), force: false });
                let back_ms = self.chance.within(10_000, 300_000);
                self.at(back_ms, Next::Undrain(node));
            }
            Next::Undrain(node) => {
                batch.push(Command::SetDrained { node, drained: false, reason: String::new(), force: false })
            }
            Next::Lease => {
                let cells: Vec<(CellId, Epoch)> = self.state.cells.values().map(|cell| (cell.id, cell.epoch)).collect();
                let (cell, epoch) = *self.chance.pick(&cells);
                batch.push(Command::ExpireCell { cell, epoch });
                batch.push(Command::AcquireCell { cell, shard: "t".to_owned() });
            }
            Next::Window => batch.extend(windows::random(&mut self.chance, &self.state, BEGIN_MS + self.now_ms)),
            Next::Due => batch.push(Command::DecideDue),
            Next::Look => {}
            Next::Calm => {
                self.calm = true;
                batch.extend(windows::give_up(&self.state));
                batch.extend(rich::give_up(&self.state));
                for node in self.state.nodes.values().filter(|node| node.drained) {
                    batch.push(Command::SetDrained {
                        node: node.id,
                        drained: false,
                        reason: String::new(),
                        force: false,
                    });
                }
            }
        }
    }

    fn submit(&mut self) -> Command {
        let chance = &mut self.chance;
        let tenants: Vec<&str> = self.state.tenants.values().map(|tenant| tenant.path.as_str()).collect();
        let tenant = chance.pick(&tenants).to_string();
        let (model, per_node) = *chance.pick(&self.models);
        let models = if chance.in_hundred(70) { vec![model] } else { Vec::new() };
        let (mut tasks, mut cpu_milli) = (1, *chance.pick(&[0, 0, 1_000, 4_000]));
        let devices = match chance.within(0, 99) {
            0..8 => {
                cpu_milli = chance.within(1, 32) * 1_000;
                DeviceRequest::None
            }
            8..30 if self.shares => {
                let percent = *chance.pick(&[10, 25, 40, 50]);
                DeviceRequest::Mps { percent, memory_mib: chance.within(1, 30) * 1_024, models }
            }
            _ => {
                let count = chance.within(1, u64::from(per_node)) as u32;
                tasks = *chance.pick(&[1, 1, 1, 2, 3, 4, 8]);
                DeviceRequest::Whole { count, models }
            }
        };
        let grace_s = chance.within(0, 60);
        let reserved = if self.windows && chance.in_hundred(30) { windows::named(chance, &self.state) } else { None };
        let tenant = reserved.as_ref().map_or(tenant, |(_, tenant)| tenant.clone());
        let limited = if self.windows { 80 } else { 40 };
        let class = *chance.pick(&[None, None, None, None, Some("batch"), Some("production")]);
        let class = class.filter(|_| self.classes);
        let movable = (self.moves && chance.in_hundred(70)).then(|| Movable {
            checkpoint_every_s: chance.in_hundred(50).then_some(60),
            restart_s: chance.within(0, 120),
        });
        let whole = matches!(devices, DeviceRequest::Whole { .. } | DeviceRequest::None);
        let elastic = (self.elastic && whole && chance.in_hundred(50))
            .then(|| Elastic { tasks_max: tasks + chance.within(1, 12) as u32, signal: None });
        let array = (self.rich && chance.in_hundred(12)).then(|| rich::array(chance));
        let memory_mib = if self.rich { *chance.pick(&[0, 0, 8_192, 65_536]) } else { 0 };
        let spec = JobSpec {
            tasks,
            elastic: elastic.filter(|_| array.is_none()),
            array,
            priority: if class.is_some() { 0 } else { *chance.pick(&[0, 0, 0, 1, 2, -1]) },
            priority_class: class.map(str::to_owned),
            grace_s,
            movable,
            max_retries: chance.within(0, 1) as u32,
            time_limit_s: if chance.in_hundred(limited) { Some(chance.within(20, 1_000)) } else { None },
            preemption: Preemption {
                grace_s: if chance.in_hundred(30) { Some(chance.within(0, 40)) } else { None },
                checkpoint_bytes: chance.within(0, 100_000_000_000),
                ..Preemption::default()
            },
            reservation: reserved.map(|(name, _)| name),
            ..JobSpec::usual(&tenant, TaskRequest { devices, cpu_milli, memory_mib }, &["work"])
        };
        self.sequence += 1;
        Command::Submit {
            request_id: format!("r{}", self.sequence),
            issued_ms: BEGIN_MS + self.now_ms,
            payload_hash: self.sequence,
            specs: vec![spec.validate().expect("a valid job")],
            ended: Vec::new(),
        }
    }

    /// The ready nodes of an allocation report; those that are silent do so later.
    fn tell(
        &mut self,
        id: AllocationId,
        again: &Next,
        batch: &mut Vec<Command>,
        seen: impl Fn(Rank) -> Option<TaskState>,
    ) {
        let Some(held) = self.state.allocations.get(&id).cloned() else { return };
        let mut by_node: BTreeMap<NodeId, Vec<TaskReport>> = BTreeMap::new();
        let mut later = false;
        for (index, task) in held.tasks.iter().enumerate() {
            let (rank, over) = (Rank(index as u32), held.task_states[index].is_over());
            let Some(state) = seen(rank).filter(|_| !over) else { continue };
            match self.state.nodes.get(&task.node).map(|node| node.health) {
                Some(NodeHealth::Ready) => by_node.entry(task.node).or_default().push(TaskReport {
                    allocation: id,
                    rank,
                    state,
                    ended_ms: None,
                    checkpoint: None,
                    clean_up: muster_model::task::CleanUp::default(),
                }),
                _ => later = true,
            }
        }
        for (node, reports) in by_node {
            let epoch = held.node_epochs.get(&node).copied().unwrap_or_default();
            batch.push(Command::ReportTasks { node, epoch, reports });
        }
        if later {
            self.at(5_000, again.clone());
        }
    }

    fn lose(&mut self, batch: &mut Vec<Command>) {
        let lost = self.state.nodes.values().filter(|node| !node.accepts_work()).count();
        // The guarantees must stay within what is left.
        let few = self.state.nodes.values().filter(|node| !node.spec.gpus.is_empty());
        let of_model = |model| few.clone().filter(|node| node.spec.gpus.iter().all(|card| card.model == model)).count();
        let may: Vec<(NodeId, Epoch)> = self
            .state
            .nodes
            .values()
            .filter(|node| node.health == NodeHealth::Ready && !node.drained && lost == 0)
            .filter(|node| node.spec.gpus.first().is_some_and(|card| of_model(card.model) > 1))
            .map(|node| (node.id, node.epoch))
            .collect();
        if !may.is_empty() && !windows::drains(&self.state) {
            let (node, epoch) = *self.chance.pick(&may);
            self.lost = true;
            batch.push(Command::MarkSilent { node, epoch });
            self.at(60_000, Next::Fence(node));
        }
    }

    fn fence(&mut self, id: NodeId, batch: &mut Vec<Command>) {
        let Some(node) = self.state.nodes.get(&id) else { return };
        let (node, epoch) = (node.id, node.epoch);
        if self.chance.in_hundred(30) {
            batch.push(Command::MarkReady { node, epoch });
        } else {
            batch.push(Command::FenceNode { node, epoch });
            let back_ms = self.chance.within(1_000, 120_000);
            self.at(back_ms, Next::Return(node));
        }
    }

    fn rejoin(&mut self, id: NodeId, batch: &mut Vec<Command>) {
        let Some(node) = self.state.nodes.get(&id) else { return };
        let mut spec = node.spec.clone();
        spec.boot_id.push('+');
        batch.push(Command::JoinNode { spec, usage_incarnation: None, agent: 1 });
    }

    fn commit(&mut self, commands: Vec<Command>) {
        let entry = Entry { now_ms: BEGIN_MS + self.now_ms, commands };
        let executed = execute(&mut self.state, &entry);
        for (decided, command) in executed.decided.iter().zip(&entry.commands) {
            let Err(reject) = decided else { continue };
            let name = format!("{command:?}");
            let name = name.split([' ', '{', '(']).next().unwrap_or_default();
            let what =
                format!("{name}: {}", reject.to_string().chars().filter(|c| !c.is_ascii_digit()).collect::<String>());
            *self.history.refusals.entry(what).or_default() += 1;
            proposals::refused(&mut self.view, command, reject, BEGIN_MS + self.now_ms);
        }
        if self.windows {
            let new = |id: &AllocationId| !self.known.contains(id);
            let broken = windows::broken(&self.state, &executed.changes, new, self.lost);
            self.history.broken.extend(broken);
        }
        for change in &executed.changes {
            self.view.apply(change);
            self.react(change);
        }
        self.revision += 1;
        let lines = self.follower.follow(self.revision, BEGIN_MS + self.now_ms, &executed.changes);
        for line in &lines {
            self.history.preemptions += u64::from(matches!(line.event, Told::Preempt { .. }));
            self.history.promotions += u64::from(matches!(line.event, Told::Promote { .. }));
        }
        self.history.lines.extend(lines);
        let mut broken = self.judge.entry(&executed.changes);
        broken.extend(self.state.check().err().map(|broken| broken.to_string()));
        let named = |what: String| format!("rev {}: {what}", self.revision);
        self.history.broken.extend(broken.into_iter().map(named));
        self.history.entries.push(executed.changes);
    }

    /// What nodes do when they hear of a change.
    fn react(&mut self, change: &Change) {
        let Change::Put(object) = change else { return };
        let Object::Allocation(held) = &**object else { return };
        let id = held.id;
        let is_new = self.known.insert(id);
        if is_new && held.is_growth {
            self.history.growth[0] += 1;
            self.at(1_000, Next::Started(id));
            // Most work until their gang is done; some fail, or find nothing to do.
            if self.chance.in_hundred(15) {
                let (in_ms, fails) = (self.chance.within(2_000, 300_000), self.chance.in_hundred(50));
                self.at(in_ms, Next::Ended(id, fails));
            }
        } else if is_new {
            self.at(1_000, Next::Started(id));
            let whole_ms = *self.work_ms.entry(held.job).or_insert_with(|| self.chance.within(5, 900) * 1_000);
            // What a preempted attempt did is lost or kept; that it is sometimes done again does not matter here.
            let left_ms = self.chance.within(whole_ms / 2, whole_ms);
            let limit_s = self.state.jobs.get(&held.job).and_then(|job| job.spec.time_limit_s).filter(|_| self.windows);
            let left_ms = limit_s.map_or(left_ms, |limit_s| left_ms.min(1_000 * limit_s));
            self.work_ms.insert(held.job, left_ms.max(1_000));
            let fails = self.chance.in_hundred(6);
            self.at(1_000 + left_ms, Next::Ended(id, fails));
        }
        let AllocationState::Stopping(cause) = &held.state else { return };
        if !self.stopping.insert(id) {
            return;
        }
        if held.is_growth {
            self.history.growth[1] += u64::from(matches!(cause, EndCause::Shrunk { by: Some(_) }));
            self.history.growth[2] += u64::from(matches!(cause, EndCause::Preempted { .. }));
        }
        let grace_ms = match (cause, self.state.jobs.get(&held.job)) {
            (EndCause::Preempted { .. } | EndCause::Window { .. } | EndCause::Shrunk { .. }, Some(job)) => {
                1_000 * job.spec.preemption.grace_s(job.spec.grace_s)
            }
            _ => 1_000,
        };
        if matches!(cause, EndCause::Preempted { .. }) && !held.is_growth && self.chance.in_hundred(8) {
            self.at(grace_ms.min(10), Next::Completed(id));
        }
        let stop_ms = if self.chance.in_hundred(50) { grace_ms } else { self.chance.within(0, grace_ms) };
        let clean_ms = self.chance.within(0, STOP_MS_MAX);
        self.at(stop_ms + clean_ms, Next::Stopped(id));
    }

    fn plan(&mut self) {
        let now_ms = BEGIN_MS + self.now_ms;
        let cells: Vec<CellId> = self.state.cells.keys().copied().collect();
        for _ in 0..10_000 {
            let (mut commands, mut more) = (Vec::new(), false);
            let rested = self.view.next_wake_ms().is_some_and(|at_ms| at_ms <= now_ms);
            for &cell in &cells {
                if self.view.waiting(cell) == 0 && !rested {
                    continue;
                }
                let epoch = self.view.cells().get(&cell).map(|cell| cell.epoch).unwrap_or_default();
                let plan = plan(&mut self.view, cell, &Bounds::default(), now_ms);
                more |= plan.more;
                let proposed = plan.proposals.into_iter();
                commands.extend(proposed.map(|proposal| proposals::command(cell, epoch, proposal)));
            }
            if commands.is_empty() && !more {
                self.look_again(cells.len());
                return;
            }
            while !commands.is_empty() {
                let size = self.chance.within(1, 4).min(commands.len() as u64) as usize;
                let rest = commands.split_off(size);
                self.commit(std::mem::replace(&mut commands, rest));
            }
        }
        self.history.broken.push(format!("the shard never rests, after {} s", self.now_ms / 1000));
    }

    /// Time decides about windows when the state says so.
    fn wait_for_due(&mut self) {
        let Some(at_ms) = self.state.next_due_ms(BEGIN_MS + self.now_ms).filter(|_| self.windows) else { return };
        let at_ms = at_ms.saturating_sub(BEGIN_MS).max(self.now_ms + 1);
        if !self.next.iter().any(|(at, _, next)| *next == Next::Due && *at <= at_ms) {
            self.at(at_ms - self.now_ms, Next::Due);
        }
    }

    fn look_again(&mut self, cells: usize) {
        let now_ms = BEGIN_MS + self.now_ms;
        let wake = self.view.next_wake_ms();
        let look = (cells > 1).then_some(now_ms + 5_000);
        if let Some(at_ms) = [wake, look].into_iter().flatten().min() {
            let at_ms = at_ms.saturating_sub(BEGIN_MS).max(self.now_ms + 1);
            let ahead = |(at, _, next): &(u64, u64, Next)| *at <= at_ms && *next == Next::Look;
            if !self.state.jobs.is_empty() && !self.next.iter().take(200).any(ahead) {
                self.at(at_ms - self.now_ms, Next::Look);
            }
        }
    }
}
