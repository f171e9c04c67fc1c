//! A small fleet in virtual time that writes down what happens to it, for scenarios that people read.
//!
//! The real state machine decides and the real shard core plans; nodes do what agents do. What must stay true: the scenario alone decides; every line
//! is something that a user or an operator could have seen.

use muster_control_core::{Command, Entry, State, TaskReport, execute, standing};
use muster_model::ids::{AllocationId, CellId, JobId, NodeId, Rank};
use muster_model::object::Object;
use muster_model::request::TaskRequest;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::TenantEdit;
use muster_model::{
    Allocation, AllocationState, Change, Checkpoint, DeviceRequest, EndCause, GpuModel, GpuUnits, JobSpec, Limits,
    Pool, ResourceVec, TaskState,
};
use muster_scheduler_core::{Bounds, Proposal, View, explain, plan};
use muster_twin::fleet::Fleet;
use muster_twin::proposals;
use muster_twin::what_if::{Answer, Edit, Evicted, JobLine, Options, Question, Start, ask};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// 2026-01-01T00:00:00Z.
const BEGIN_MS: u64 = 1_767_225_600_000;
const CELL: CellId = CellId(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Running(AllocationId),
    Ended(AllocationId),
    TimedOut(AllocationId),
    Stopped(AllocationId),
    Look,
}

/// See the module.
pub(crate) struct Scenario {
    pub(crate) state: State,
    view: View,
    now_ms: u64,
    next: BTreeSet<(u64, Next)>,
    names: BTreeMap<JobId, String>,
    /// How long each job's work takes; for ever if it is not said.
    work_s: BTreeMap<JobId, u64>,
    known: BTreeSet<AllocationId>,
    stopping: BTreeSet<AllocationId>,
    reserved: BTreeMap<JobId, u64>,
    text: String,
    /// Preemptions so far, and their victims.
    pub(crate) preemptions: (u64, u64),
    /// A long list of equal lines is counted instead of told.
    pub(crate) quiet: bool,
}

/// A tenant: guarantee and max in GPUs by model.
pub(crate) fn tenant(path: &str, guarantee: &[(GpuModel, u64)], max: &[(GpuModel, u64)]) -> TenantSpec {
    let mut floor = ResourceVec::default();
    guarantee.iter().for_each(|(model, cards)| floor.set_gpu(*model, GpuUnits::cards(*cards)));
    let gpu = max.iter().map(|(model, cards)| (*model, GpuUnits::cards(*cards))).collect();
    TenantSpec { guarantee: floor, max: Limits { gpu, ..Limits::default() }, ..TenantSpec::usual(path) }
}

/// `tasks` tasks of `gpus` whole GPUs of a model.
pub(crate) fn gang(tenant: &str, tasks: u32, gpus: u32, model: GpuModel) -> JobSpec {
    let devices = DeviceRequest::Whole { count: gpus, models: vec![model] };
    let request = TaskRequest { devices, cpu_milli: 0, memory_mib: 0 };
    JobSpec { tasks, grace_s: 30, ..JobSpec::usual(tenant, request, &["work"]) }
}

impl Scenario {
    /// A fleet in one cell, its tenants, and the cool-down of its pool.
    pub(crate) fn new(fleet: &str, tenants: Vec<TenantSpec>, cool_down_s: u64) -> Self {
        let mut state = State::new(1);
        let fleet = Fleet::parse_shorthand(fleet).expect("a fleet");
        let mut commands =
            vec![Command::RaiseFeatureLevel { level: 3 }, Command::PutPool(Pool { cool_down_s, ..Pool::standard() })];
        let join = |spec| Command::JoinNode { spec, usage_incarnation: None, agent: 1 };
        commands.extend(fleet.node_specs().map(join));
        commands.push(Command::ApplyTenants { tenants });
        commands.push(Command::AcquireCell { cell: CELL, shard: "s".to_owned() });
        for decided in execute(&mut state, &Entry { now_ms: BEGIN_MS, commands }).decided {
            decided.expect("the set-up is accepted");
        }
        Scenario {
            view: View::from_objects(state.objects()),
            state,
            now_ms: BEGIN_MS,
            next: BTreeSet::new(),
            names: BTreeMap::new(),
            work_s: BTreeMap::new(),
            known: BTreeSet::new(),
            stopping: BTreeSet::new(),
            reserved: BTreeMap::new(),
            text: String::new(),
            preemptions: (0, 0),
            quiet: false,
        }
    }

    /// An operator changes the pool.
    pub(crate) fn pool(&mut self, change: impl FnOnce(&mut Pool)) {
        let mut pool = Pool::standard();
        change(&mut pool);
        self.commit(vec![Command::PutPool(pool)]);
    }

    /// An operator sets the half-life of past use.
    pub(crate) fn half_life(&mut self, seconds: u64) {
        self.commit(vec![Command::EditTenants { edits: Vec::new(), prune: false, half_life_s: Some(seconds) }]);
    }

    /// An operator changes tenants.
    pub(crate) fn edit_tenants(&mut self, edits: Vec<TenantEdit>) {
        self.commit(vec![Command::EditTenants { edits, prune: false, half_life_s: None }]);
        self.plan();
    }

    /// What would become of the fleet with an edit, as `muster what-if` says it.
    pub(crate) fn what_if(&mut self, edit: Edit, horizon_s: u64) -> Answer {
        let options = Options { horizon_ms: horizon_s * 1_000, ..Options::default() };
        let objects = self.state.objects().collect();
        let question = Question { objects, now_ms: self.now_ms, edits: vec![edit], workload: Vec::new(), options };
        let answer = ask(&question).expect("an answer");
        self.say(&format!("what if {}:", answer.edits.join(", ")));
        let start = |start: &Start| match start {
            Start::Running => "runs".to_owned(),
            Start::Starts { in_s } => format!("starts in {in_s} s"),
            other => format!("{other:?}").to_lowercase(),
        };
        let name = |line: &JobLine| line.job.map_or_else(|| line.name.clone(), |job| self.name(job));
        let job = |line: &JobLine| format!("{}: {}, before: {}", name(line), start(&line.after), start(&line.before));
        let evicted = |evicted: &Evicted| {
            let (name, in_s, lost) = (name(&evicted.job), evicted.in_s, evicted.lost_gpu_seconds);
            format!("{name}: in {in_s} s for {}, loses {lost} GPU seconds", evicted.for_tenant)
        };
        let mut lines = Vec::new();
        lines.extend(answer.gains.iter().map(|line| format!("gains: {}", job(line))));
        lines.extend(answer.loses.iter().map(|line| format!("loses: {}", job(line))));
        lines.extend(answer.evicted.iter().map(|line| format!("evicted: {}", evicted(line))));
        for line in lines {
            writeln!(self.text, "           {line}").expect("a text");
        }
        answer
    }

    /// What happened, line by line.
    pub(crate) fn text(self) -> String {
        self.text
    }

    /// What happened so far: for a test that fails.
    pub(crate) fn so_far(&self) -> &str {
        &self.text
    }

    /// A line of the scenario itself.
    pub(crate) fn say(&mut self, text: &str) {
        let s = (self.now_ms - BEGIN_MS) / 1_000;
        writeln!(self.text, "{}:{:02}:{:02}  {text}", s / 3_600, s / 60 % 60, s % 60).expect("a text");
    }

    fn tell(&mut self, text: &str) {
        if !self.quiet {
            self.say(text);
        }
    }

    fn name(&self, job: JobId) -> String {
        match self.names.get(&job) {
            Some(name) => format!("job {job} ({name})"),
            None => format!("job {job}"),
        }
    }

    /// Submits a job whose work takes so long; without a time it never ends by itself.
    pub(crate) fn submit(&mut self, name: &str, spec: JobSpec, work_s: Option<u64>) -> JobId {
        let id = self.state.meta.next_job;
        self.names.insert(id, name.to_owned());
        self.work_s.extend(work_s.map(|s| (id, s)));
        let limit = spec.time_limit_s.map(|s| format!(", time limit {} min", s / 60)).unwrap_or_default();
        let (count, model) = (spec.request.devices.cards(), spec.request.devices.models()[0]);
        let what = format!("{} submits {}: {} x {count} {model}{limit}", spec.tenant, self.name(id), spec.tasks);
        self.tell(&what);
        let command = Command::Submit {
            request_id: format!("r{id}"),
            issued_ms: self.now_ms,
            payload_hash: id.0,
            specs: vec![spec.validate().expect("a valid job")],
            ended: Vec::new(),
        };
        self.commit(vec![command]);
        self.plan();
        id
    }

    /// Somebody cancels a job.
    pub(crate) fn cancel(&mut self, job: JobId) {
        let what = format!("{} is cancelled", self.name(job));
        self.tell(&what);
        self.commit(vec![Command::Cancel { job }]);
        self.plan();
    }

    /// The job says that it has saved its work.
    pub(crate) fn checkpoint(&mut self, job: JobId) {
        let Some(id) = self.state.jobs[&job].phase.allocation() else { return };
        let what = format!("{} makes a checkpoint", self.name(job));
        self.tell(&what);
        let checkpoint = Some(Checkpoint { at_ms: self.now_ms, note: String::new() });
        self.report(id, &TaskState::Running, checkpoint);
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, s: u64) {
        let until_ms = self.now_ms + 1_000 * s;
        while let Some((at_ms, next)) = self.next.first().copied().filter(|(at_ms, _)| *at_ms <= until_ms) {
            self.next.remove(&(at_ms, next));
            self.now_ms = at_ms.max(self.now_ms);
            match next {
                Next::Running(id) => self.report(id, &TaskState::Running, None),
                Next::Ended(id) => self.report(id, &TaskState::Exited { code: 0 }, None),
                Next::TimedOut(id) => self.report(id, &TaskState::TimedOut, None),
                Next::Stopped(id) => self.report(id, &TaskState::Stopped, None),
                Next::Look => {}
            }
            self.plan();
        }
        self.now_ms = until_ms;
    }

    /// Why a job waits, as `muster explain` says it.
    pub(crate) fn explain(&mut self, job: JobId) {
        let view = View::from_objects(self.state.objects());
        let Some(said) = explain(&view, job, self.now_ms) else { return };
        let position = said.position.map(|before| format!(" (position {})", before + 1)).unwrap_or_default();
        let what = format!("explain {}: {}{position}", self.name(job), said.phase);
        self.say(&what);
        for reason in &said.reasons {
            writeln!(self.text, "           {}: {}", reason.code(), reason.text()).expect("a text");
            for fix in reason.fixes() {
                writeln!(self.text, "             would start it: {fix}").expect("a text");
            }
            for held in &reason.holders {
                writeln!(self.text, "             blocked by: {}", held.text()).expect("a text");
            }
        }
        for estimate in &said.estimates {
            let word = if estimate.is_bound() { "starts at the latest" } else { "expected start" };
            writeln!(self.text, "           {word} ({}): {}", estimate.basis(), estimate.text()).expect("a text");
        }
    }

    /// Why a tenant gets what it gets, as `muster tenants explain` says it.
    pub(crate) fn explain_tenant(&mut self, path: &str) {
        let Some(said) = standing::explain(&self.state, path) else { return };
        self.say(&format!("tenant {path}"));
        for sentence in said.sentences() {
            writeln!(self.text, "           {}: {}", sentence.code, sentence.text).expect("a text");
        }
    }

    /// Whether a job holds devices.
    pub(crate) fn runs(&self, job: JobId) -> bool {
        self.state.jobs.get(&job).is_some_and(|job| job.phase.allocation().is_some())
    }

    /// How many GPUs a tenant uses.
    pub(crate) fn used(&self, path: &str) -> u64 {
        let id = self.state.index().tenant_ids[path];
        self.state.capacity().tenants()[&id].used.gpu_total().0 / GpuUnits::CARD.0
    }

    fn report(&mut self, id: AllocationId, seen: &TaskState, checkpoint: Option<Checkpoint>) {
        let Some(held) = self.state.allocations.get(&id).cloned() else { return };
        let stopping = held.state != AllocationState::Active;
        if stopping && !matches!(seen, TaskState::Stopped) || !stopping && matches!(seen, TaskState::Stopped) {
            return;
        }
        let mut by_node: BTreeMap<NodeId, Vec<TaskReport>> = BTreeMap::new();
        for (rank, task) in held.tasks.iter().enumerate() {
            let (rank, state) = (Rank(rank as u32), seen.clone());
            let checkpoint = checkpoint.clone().filter(|_| rank == Rank(0));
            let report = TaskReport {
                allocation: id,
                rank,
                state,
                ended_ms: None,
                checkpoint,
                clean_up: muster_model::task::CleanUp::default(),
            };
            by_node.entry(task.node).or_default().push(report);
        }
        let report = |(node, reports)| {
            let epoch = self.state.nodes[&node].epoch;
            Command::ReportTasks { node, epoch, reports }
        };
        let commands = by_node.into_iter().map(report).collect();
        self.commit(commands);
    }

    fn commit(&mut self, commands: Vec<Command>) {
        let before: BTreeMap<AllocationId, Option<String>> =
            self.state.allocations.values().map(|held| (held.id, self.account(held))).collect();
        let executed = execute(&mut self.state, &Entry { now_ms: self.now_ms, commands });
        for decided in &executed.decided {
            assert!(decided.is_ok(), "{decided:?}");
        }
        for change in &executed.changes {
            self.view.apply(change);
            self.react(change, &before);
        }
    }

    fn account(&self, held: &Allocation) -> Option<String> {
        held.account().map(|account| self.state.tenants[&account].path.clone())
    }

    fn paid(account: Option<String>) -> String {
        account.map_or_else(|| "burst".to_owned(), |path| format!("guaranteed by {path}"))
    }

    fn react(&mut self, change: &Change, before: &BTreeMap<AllocationId, Option<String>>) {
        match change {
            Change::Retire(job) => {
                let what = format!("{} is {}", self.name(job.id), job.phase.word());
                self.tell(&what);
            }
            Change::Put(object) => match &**object {
                Object::Allocation(held) => self.held(held, before),
                Object::Job(job) => {
                    let start_ms = job.reserved.as_ref().map(|reserved| reserved.start_ms);
                    if let Some(start_ms) = start_ms.filter(|start_ms| self.reserved.get(&job.id) != Some(start_ms)) {
                        self.reserved.insert(job.id, start_ms);
                        let in_s = start_ms.saturating_sub(self.now_ms) / 1_000;
                        let nodes = job.reserved.as_ref().map_or(0, |reserved| reserved.nodes.len());
                        let (name, min) = (self.name(job.id), in_s / 60);
                        let what = format!(
                            "{name} gets a reservation: {nodes} nodes, in {min} min {} s at the latest",
                            in_s % 60
                        );
                        self.tell(&what);
                    }
                }
                _ => {}
            },
            Change::Delete(_) | Change::Audit(_) => {}
        }
    }

    fn held(&mut self, held: &Allocation, before: &BTreeMap<AllocationId, Option<String>>) {
        let (id, now_ms) = (held.id, self.now_ms);
        let name = self.name(held.job);
        if self.known.insert(id) {
            let nodes: BTreeSet<NodeId> = held.tasks.iter().map(|task| task.node).collect();
            let named: Vec<String> =
                nodes.iter().take(4).map(|node| self.state.nodes[node].spec.name.clone()).collect();
            let more = if nodes.len() > 4 { format!(" and {} more nodes", nodes.len() - 4) } else { String::new() };
            let what = format!("{name} starts on {}{more}, {}", named.join(", "), Self::paid(self.account(held)));
            self.tell(&what);
            self.next.insert((now_ms, Next::Running(id)));
            let limit_s = self.state.jobs.get(&held.job).and_then(|job| job.spec.time_limit_s);
            let work_s = self.work_s.get(&held.job).copied();
            match (work_s, limit_s) {
                (Some(work_s), limit_s) if limit_s.is_none_or(|limit_s| work_s < limit_s) => {
                    self.next.insert((now_ms + 1_000 * work_s, Next::Ended(id)));
                }
                (_, Some(limit_s)) => drop(self.next.insert((now_ms + 1_000 * limit_s, Next::TimedOut(id)))),
                _ => {}
            }
            return;
        }
        let AllocationState::Stopping(cause) = &held.state else {
            let account = self.account(held);
            if before.get(&id).is_some_and(|before| *before != account) {
                let what = format!("{name} is {} from now on", Self::paid(account));
                self.tell(&what);
            }
            return;
        };
        if !self.stopping.insert(id) {
            return;
        }
        let mut stop_ms = 0;
        if let EndCause::Preempted { by: Some(by), reason } = cause {
            self.preemptions.1 += 1;
            let grace_s = self.state.jobs.get(&held.job).map_or(0, |job| job.spec.preemption.grace_s(job.spec.grace_s));
            stop_ms = 1_000 * grace_s;
            let what = format!("{name} is preempted by {} ({reason}): it has {grace_s} s to stop", self.name(*by));
            self.tell(&what);
        }
        self.next.insert((now_ms + stop_ms, Next::Stopped(id)));
    }

    fn plan(&mut self) {
        for _ in 0..1_000 {
            let planned = plan(&mut self.view, CELL, &Bounds::default(), self.now_ms);
            if planned.proposals.is_empty() && !planned.more {
                break;
            }
            for proposal in planned.proposals {
                let epoch = self.state.cells[&CELL].epoch;
                // There is one cell.
                if let Proposal::HandOver(job) = proposal {
                    self.view.not_offered_before(job, self.now_ms + 30_000);
                    continue;
                }
                self.preemptions.0 += u64::from(matches!(proposal, Proposal::Preempt { .. }));
                let command = proposals::command(CELL, epoch, proposal);
                self.commit(vec![command]);
            }
        }
        if let Some(wake_ms) = self.view.next_wake_ms().filter(|_| self.view.waiting(CELL) > 0) {
            let at_ms = wake_ms.max(self.now_ms + 1_000);
            if !self.next.range(..(at_ms + 1, Next::Running(AllocationId(0)))).any(|(_, next)| *next == Next::Look) {
                self.next.insert((at_ms, Next::Look));
            }
        }
    }
}
