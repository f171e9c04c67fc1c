//! The engine of a replay: one loop over virtual time.
//!
//! Take everything that happens at the next millisecond, put it through the state machine as log entries, hand the changes to the
//! shard's view, and let the shard plan until it proposes nothing more. What must stay true: no decision is made here that a
//! fleet's cores would make; what the state machine says is followed, never foreseen.

use crate::error::ReplayError;
use crate::estimates::{ASKED_AFTER_MS, Estimated};
use crate::event_log::EventLog;
use crate::events::{Event, Events};
use crate::fairness::Watch;
use crate::fleet::Fleet;
use crate::follow::Records;
use crate::gathered::{Account, BEGIN_MS, TreeFacts};
use crate::gauge::Bins;
use crate::import::EndState;
use crate::input::{Options, ReplayInput};
use crate::ledger::Ledger;
use crate::measure::{Measure, Places, fleet_facts};
use crate::nodes::{last_words, reports};
use crate::queue::Queues;
use crate::report::Work;
use crate::shard::Shard;
use crate::window::{DAY_S, Window};
use muster_control_core::bounds::TENANTS_PER_COMMAND_MAX;
use muster_control_core::events::About;
use muster_control_core::{Command, Done, Entry, Reject, State, execute};
use muster_model::node::NodeSpec;
use muster_model::tenant::TenantSpec;
use muster_model::{AllocationId, AllocationState, CellId, JobId, JobPhase, Pool, Rank, TaskState};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// The level of a cluster whose control nodes are all of this version.
const FEATURE_LEVEL: u32 = 3;
/// Commands of one log entry: what a proposer merges at most.
const ENTRY_COMMANDS_MAX: usize = 1_024;
/// Housekeeping is hourly.
const SWEEP_MS: u64 = 3_600_000;
/// A client whose submission was refused because the queue is full tries again after this.
const FULL_RETRY_MS: u64 = 600_000;
/// Rounds of planning at one moment. Each binds or hands over something or goes on with a bounded pass; the longest queue needs
/// far fewer.
const ROUNDS_MAX: usize = 1_000_000;
/// Progress is told once in this many moments.
const PROGRESS_EVERY: u64 = 1_024;

/// A replay under way.
pub(crate) struct Engine<'w> {
    log: Option<EventLog<'w>>,
    state: State,
    shard: Shard,
    events: Events,
    records: Records,
    work: Work,
    /// Leaves and blocks.
    places: (u64, u64),
    window_ms: u64,
    stop_ms: u64,
    now_ms: u64,
    /// Commands of the present moment.
    batch: Vec<(Command, Origin)>,
    refused: BTreeMap<String, u64>,
    tree: TreeFacts,
    /// When the shard looks again, so that each time is asked for once.
    looks: BTreeSet<u64>,
    /// Jobs that were neither accepted nor refused so far.
    ahead: u64,
    /// [`Options::estimates_every`].
    estimates_every: usize,
    /// Jobs of which it is asked at the end of the present moment when they will start.
    asked: Vec<JobId>,
}

/// What a replay is set up from.
pub(crate) struct Given<'a> {
    pub(crate) fleet: &'a Fleet,
    /// Of the trace and of the tree.
    pub(crate) tenants: &'a [TenantSpec],
    pub(crate) queues: &'a Queues,
    pub(crate) options: &'a Options,
    pub(crate) window_ms: u64,
}

/// Where a command came from, to know what to do with its answer.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Submit(usize),
    Shard,
    Node,
}

impl<'w> Engine<'w> {
    /// Makes the fleet and its tenants, and notes every submission.
    pub(crate) fn set_up(
        given: &Given<'_>,
        ledger: Ledger,
        log: Option<&'w mut dyn Write>,
    ) -> Result<Self, ReplayError> {
        let &Given { fleet, tenants, queues, options, window_ms } = given;
        let mut state = State::new(1);
        let pool = Pool { cool_down_s: options.cool_down_s, ..Pool::standard() };
        let places = build(&mut state, fleet, pool, &queues.tenants(tenants), options.half_life_s)?;
        let counts = places.counts();
        let measure = Measure::new(Bins::over(window_ms), ledger.tenants.len(), places, fleet);
        // A victim stops when its grace and the usual delay are over.
        let about = About { stop_ms_max: options.nodes.stop_delay_ms, card_units_max: ledger.card_units_max() };
        let log = log.map(|to| EventLog::begin(to, &state, (about, 1_000 * options.checkpoint_s), BEGIN_MS));
        let watch = Watch::new(tenants, window_ms);
        let mut engine = Engine {
            log,
            shard: Shard::new(&state, options.policy),
            state,
            events: Events::default(),
            records: Records::new(ledger, (measure, watch), options, window_ms),
            work: Work::default(),
            places: counts,
            window_ms,
            stop_ms: window_ms + u64::from(options.drain_days_max) * DAY_S * 1000,
            now_ms: 0,
            batch: Vec::new(),
            refused: BTreeMap::new(),
            tree: tree_facts(tenants),
            looks: BTreeSet::new(),
            ahead: 0,
            estimates_every: options.estimates_every as usize,
            asked: Vec::new(),
        };
        engine.note_submissions();
        for part in 1..=u64::from(options.checks) {
            engine.events.push(window_ms * part / u64::from(options.checks), Event::Check);
        }
        engine.events.push(SWEEP_MS, Event::Sweep);
        Ok(engine)
    }

    fn note_submissions(&mut self) {
        for (index, job) in self.records.ledger.jobs.iter().enumerate() {
            if job.spec.is_some() {
                self.events.push(job.submit_ms, Event::Submit(index));
                self.ahead += 1;
            }
        }
        for errors in &self.records.ledger.malformed {
            count(&mut self.refused, Reject::Invalid(errors.clone()).to_string());
        }
    }

    /// Runs to the end of the window, and on until every job is over or the time for that is up.
    pub(crate) fn run(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), ReplayError> {
        while let Some(next_ms) = self.events.next_ms() {
            let idle = self.records.live == 0 && self.ahead == 0;
            if next_ms > self.stop_ms || (idle && next_ms > self.window_ms) {
                break;
            }
            self.records.measure.advance(next_ms, self.state.capacity());
            self.now_ms = next_ms;
            self.work.moments += 1;
            if self.work.moments.is_multiple_of(PROGRESS_EVERY) {
                progress(next_ms, self.window_ms);
            }
            let mut check = false;
            while let Some(event) = self.events.pop_at(next_ms) {
                check |= event == Event::Check;
                self.happen(event);
            }
            self.commit();
            self.plan()?;
            self.estimate();
            if check {
                self.check()?;
            }
        }
        // A window that is longer than what happened in it is measured to its end.
        self.now_ms = self.now_ms.max(self.window_ms);
        self.records.measure.advance(self.now_ms, self.state.capacity());
        self.records.measure.settle(self.now_ms);
        self.check()?;
        match self.log.take() {
            Some(log) => Ok(log.end(BEGIN_MS + self.now_ms)?),
            None => Ok(()),
        }
    }

    fn check(&mut self) -> Result<(), ReplayError> {
        self.work.checks += 1;
        self.state.check().map_err(|broken| ReplayError::Law { after_s: self.now_ms / 1000, broken })
    }

    /// Turns an event into commands.
    fn happen(&mut self, event: Event) {
        match event {
            Event::Submit(index) => self.submit(index),
            Event::Started(id) => self.started(id),
            Event::Worked(id) => self.worked(id),
            Event::Cancel(id) => {
                if let Some(held) = self.state.allocations.get(&id) {
                    self.batch.push((Command::Cancel { job: held.job }, Origin::Node));
                }
            }
            Event::Stopped(id) => self.tell(id, |_| Some(TaskState::Stopped)),
            Event::Estimate(id) => self.asked.push(id),
            Event::Sweep => {
                self.batch.push((Command::Sweep, Origin::Node));
                self.events.push(self.now_ms + SWEEP_MS, Event::Sweep);
            }
            Event::Look => {
                self.looks.remove(&self.now_ms);
            }
            Event::Check => {}
        }
    }

    fn submit(&mut self, index: usize) {
        let account = &mut self.records.ledger.jobs[index];
        let Some(spec) = account.spec.take() else { return };
        account.tries += 1;
        // A submission that is repeated after a refusal is a new call: nothing of the first one was kept.
        let command = Command::Submit {
            request_id: format!("replay-{index}-{}", account.tries),
            issued_ms: BEGIN_MS + self.now_ms,
            payload_hash: index as u64,
            specs: vec![spec],
            ended: Vec::new(),
        };
        self.batch.push((command, Origin::Submit(index)));
    }

    /// The nodes of an allocation report what they see of its tasks.
    fn tell(&mut self, id: AllocationId, seen: impl Fn(Rank) -> Option<TaskState>) {
        if let Some(held) = self.state.allocations.get(&id) {
            self.batch.extend(reports(held, seen).into_iter().map(|command| (command, Origin::Node)));
        }
    }

    fn started(&mut self, id: AllocationId) {
        let Some(held) = self.state.allocations.get(&id) else { return };
        if held.state != AllocationState::Active {
            return;
        }
        let job = self.records.ledger.job(held.job);
        let limit_ms = job.time_limit_ms.unwrap_or(u64::MAX);
        let left_ms = job.left_ms();
        let cancelled = job.end == EndState::Cancelled && left_ms <= limit_ms;
        let event = if cancelled { Event::Cancel(id) } else { Event::Worked(id) };
        self.events.push(self.now_ms + left_ms.min(limit_ms), event);
        if let Some(log) = &mut self.log {
            log.started(BEGIN_MS + self.now_ms, id, held.job);
        }
        self.tell(id, |_| Some(TaskState::Running));
    }

    fn worked(&mut self, id: AllocationId) {
        // A preempted attempt saves nothing more in its grace.
        let Some(held) = self.state.allocations.get(&id).filter(|held| held.pays()) else { return };
        let job = self.records.ledger.job(held.job);
        let limited = job.time_limit_ms.is_some_and(|limit_ms| limit_ms < job.left_ms());
        let end = if limited { EndState::TimedOut } else { job.end };
        self.tell(id, |rank| last_words(end, rank));
    }

    /// Puts the gathered commands through the state machine.
    fn commit(&mut self) {
        let mut batch = std::mem::take(&mut self.batch).into_iter();
        while batch.len() > 0 {
            let (commands, origins): (Vec<_>, Vec<_>) = batch.by_ref().take(ENTRY_COMMANDS_MAX).unzip();
            self.work.entries += 1;
            self.work.commands += commands.len() as u64;
            let entry = Entry { now_ms: BEGIN_MS + self.now_ms, commands };
            let executed = execute(&mut self.state, &entry);
            // Answers first, so that the changes find their jobs in the ledger.
            let answers = executed.decided.iter().zip(origins).zip(entry.commands);
            for ((decided, origin), command) in answers {
                self.answered(decided, origin, command);
            }
            if let Some(log) = &mut self.log {
                log.entry(&self.state, BEGIN_MS + self.now_ms, &executed.changes);
            }
            for change in &executed.changes {
                self.shard.apply(change);
                self.records.follow(self.now_ms, change, self.state.capacity(), &mut self.events);
            }
        }
    }

    fn answered(&mut self, decided: &Result<Done, Reject>, origin: Origin, command: Command) {
        match (origin, decided) {
            (Origin::Submit(index), Ok(Done::Submitted { first, .. })) => {
                self.ahead -= 1;
                self.records.accepted(self.now_ms, *first, index);
                if self.estimates_every > 0
                    && index.is_multiple_of(self.estimates_every)
                    && !self.records.ledger.jobs[index].warm
                {
                    self.events.push(self.now_ms + ASKED_AFTER_MS, Event::Estimate(*first));
                }
            }
            (Origin::Submit(index), Err(Reject::Full { .. })) => {
                if let Command::Submit { specs, .. } = command {
                    self.records.ledger.jobs[index].spec = specs.into_iter().next();
                }
                self.work.repeated_submissions += 1;
                self.events.push(self.now_ms + FULL_RETRY_MS, Event::Submit(index));
            }
            (Origin::Submit(index), Err(reject)) => {
                self.ahead -= 1;
                self.records.ledger.jobs[index].refused = true;
                count(&mut self.refused, reject.to_string());
            }
            (Origin::Shard, Ok(_)) => match command {
                Command::Bind(_) => self.work.bound += 1,
                Command::Preempt { .. } | Command::Move { .. } => self.work.preemptions += 1,
                Command::HandOver { .. } => self.work.handed_over += 1,
                _ => {}
            },
            (Origin::Shard, Err(reject)) => {
                count(&mut self.work.rejected, kind(reject).to_owned());
                self.shard.refused(&command, reject, BEGIN_MS + self.now_ms);
            }
            (Origin::Node, Err(reject)) => count(&mut self.work.rejected, kind(reject).to_owned()),
            (Origin::Submit(_) | Origin::Node, Ok(_)) => {}
        }
    }

    /// Lets the shard plan until it proposes nothing more.
    fn plan(&mut self) -> Result<(), ReplayError> {
        for _ in 0..ROUNDS_MAX {
            let (proposed, more) = self.shard.pass(BEGIN_MS + self.now_ms);
            if proposed.is_empty() && !more {
                self.look_again();
                return Ok(());
            }
            self.batch.extend(proposed.into_iter().map(|command| (command, Origin::Shard)));
            self.commit();
        }
        Err(ReplayError::Restless { after_s: self.now_ms / 1000 })
    }

    /// Asks when jobs will start that still wait.
    fn estimate(&mut self) {
        for id in std::mem::take(&mut self.asked) {
            if !self.state.jobs.get(&id).is_some_and(|job| job.phase == JobPhase::Queued) {
                continue;
            }
            let found = self.shard.estimates(id, BEGIN_MS + self.now_ms);
            let starts_ms = found.iter().map(|said| (said.basis(), said.start_ms.saturating_sub(BEGIN_MS))).collect();
            let index = self.records.ledger.index_of(id);
            self.records.ledger.jobs[index].estimated = Some(Estimated { asked_ms: self.now_ms, starts_ms });
        }
    }

    /// The shard is asked again when a resting job wakes, or when a job may go to another cell.
    fn look_again(&mut self) {
        if let Some(at_ms) = self.shard.next_look_ms(BEGIN_MS + self.now_ms) {
            let at_ms = at_ms.saturating_sub(BEGIN_MS).max(self.now_ms + 1);
            // One look lies ahead at a time; an earlier one replaces the need for a later one.
            if self.looks.first().is_none_or(|first_ms| at_ms < *first_ms) && self.looks.insert(at_ms) {
                self.events.push(at_ms, Event::Look);
            }
        }
    }

    /// What the report is made of.
    pub(crate) fn account<'a>(self, input: &'a ReplayInput, window: &'a Window) -> Account<'a> {
        let mut work = self.work;
        let effort = self.shard.effort;
        (work.passes, work.decisions, work.steps) = (effort.passes, effort.decisions, effort.steps);
        Account {
            input,
            window,
            fleet: fleet_facts(&input.fleet, self.places, self.state.cells.len() as u64),
            ledger: self.records.ledger,
            measure: self.records.measure,
            watch: self.records.watch,
            kept: self.records.kept,
            tree: self.tree,
            work,
            refused: self.refused,
            stopped_ms: self.now_ms,
        }
    }
}

fn tree_facts(tenants: &[TenantSpec]) -> TreeFacts {
    let guaranteed = |spec: &&TenantSpec| spec.guarantee.gpu_total().0 > 0;
    let organisations = tenants.iter().filter(|spec| !spec.path.contains('/'));
    TreeFacts {
        tenants: tenants.len() as u64,
        with_guarantee: tenants.iter().filter(guaranteed).count() as u64,
        with_max: tenants.iter().filter(|spec| !spec.max.gpu.is_empty()).count() as u64,
        guaranteed_gpus: organisations.map(|spec| spec.guarantee.gpu_total().as_cards()).sum(),
    }
}

/// Makes pools, nodes, tenants and leases, as operators and agents would.
fn build(
    state: &mut State,
    fleet: &Fleet,
    pool: Pool,
    tenants: &[TenantSpec],
    half_life_s: u64,
) -> Result<Places, ReplayError> {
    fn must(state: &mut State, commands: Vec<Command>) -> Result<Vec<Done>, ReplayError> {
        let executed = execute(state, &Entry { now_ms: BEGIN_MS, commands });
        executed.decided.into_iter().collect::<Result<_, _>>().map_err(ReplayError::SetUp)
    }
    must(state, vec![Command::RaiseFeatureLevel { level: FEATURE_LEVEL }])?;
    must(state, vec![Command::PutPool(pool)])?;
    let mut places = Places::default();
    let specs: Vec<NodeSpec> = fleet.node_specs().collect();
    for chunk in specs.chunks(ENTRY_COMMANDS_MAX) {
        let join = |spec: &NodeSpec| Command::JoinNode { spec: spec.clone(), usage_incarnation: None, agent: 1 };
        for (spec, done) in chunk.iter().zip(must(state, chunk.iter().map(join).collect())?) {
            if let Done::Joined { node, .. } = done {
                places.add(node, &spec.place);
            }
        }
    }
    for chunk in tenants.chunks(TENANTS_PER_COMMAND_MAX) {
        must(state, vec![Command::ApplyTenants { tenants: chunk.to_vec() }])?;
    }
    if half_life_s > 0 {
        let half_life_s = Some(half_life_s);
        must(state, vec![Command::EditTenants { edits: Vec::new(), prune: false, half_life_s }])?;
    }
    let cells: Vec<CellId> = state.cells.keys().copied().collect();
    let acquire = |cell: CellId| Command::AcquireCell { cell, shard: "replay".to_owned() };
    must(state, cells.into_iter().map(acquire).collect())?;
    Ok(places)
}

/// Reasons that are told apart; figures in a reason make each its own.
const REASONS_MAX: usize = 30;

fn count(map: &mut BTreeMap<String, u64>, reason: String) {
    let known = map.contains_key(&reason) || map.len() < REASONS_MAX;
    *map.entry(if known { reason } else { "other reasons".to_owned() }).or_default() += 1;
}

fn kind(reject: &Reject) -> &'static str {
    match reject {
        Reject::Invalid(_) => "invalid",
        Reject::NotFound { .. } => "not found",
        Reject::InUse { .. } => "in use",
        Reject::StaleEpoch { .. } => "stale epoch",
        Reject::Held { .. } => "cell held by another",
        Reject::NotWaiting { .. } => "job not waiting",
        Reject::DoesNotFit { over_max: true, .. } => "over max",
        Reject::DoesNotFit { .. } => "does not fit",
        Reject::WrongShape { .. } => "wrong shape",
        Reject::NowhereElse { .. } => "nowhere else to go",
        Reject::RequestReused { .. } | Reject::RequestTooOld { .. } => "request id",
        Reject::Full { .. } => "full",
        Reject::UsageGap { .. } => "usage gap",
        Reject::NotSilent { .. } => "not silent",
        Reject::NotPreemptible { .. } => "not preemptible",
        Reject::EndUnknown { .. } => "end unknown",
        Reject::CannotGrow { .. } => "cannot grow",
        Reject::Denied(_) => "denied",
    }
}
