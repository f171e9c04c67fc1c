//! A small language for commands, as an operator would say them, and how their answers are shown.
//!
//! Words after the first two are `key=value`; commands with ` & ` between them stand in one entry. Ids are numbers; nodes, cells and tenants go by name. Epochs and attempts are the
//! right ones unless given.

use muster_control_core::{Command, Done, Entry, LeasedBinding, State, TaskReport, execute};
use muster_model::Reservation;
use muster_model::attempt::AttemptRecord;
use muster_model::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, Rank};
use muster_model::image::{Mount, MountRule};
use muster_model::mig::{MigPlacement, MigShape, PinnedLayout};
use muster_model::movable::Movable;
use muster_model::needs::Needs;
use muster_model::node::{Gpu, NodeSpec, Place, Repair, Withheld};
use muster_model::request::TaskRequest;
use muster_model::task::CleanUp;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::TenantEdit;
use muster_model::usage::{UsageInterval, UsageTotal, UseKind};
use muster_model::{
    AllocationState, AntiAffinity, Asked, Change, DeviceClass, DeviceHold, DeviceRequest, GpuModel, GpuUnits, HoldMode,
    Job, JobPhase, JobSpec, Limits, NetworkPolicy, Object, Outcome, Pool, Proof, Protection, ResourceVec, Spread,
    TaskPlacement, TaskState, Tenant, Topology, Trust, WorkloadClass,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Jobs that the answer to one command names.
const JOBS_TOLD_MAX: usize = 4;

/// A state with a clock.
pub(crate) struct World {
    pub(crate) state: State,
    now_ms: u64,
    requests: u64,
    /// Jobs that are over, with their last value.
    finished: BTreeMap<JobId, Job>,
}

/// The words of one command.
struct Words<'a> {
    plain: Vec<&'a str>,
    named: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        let (mut plain, mut named) = (Vec::new(), BTreeMap::new());
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) if !key.starts_with(|c: char| c.is_ascii_digit()) => drop(named.insert(key, value)),
                _ => plain.push(word),
            }
        }
        Words { plain, named }
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.named.get(key).copied()
    }

    fn number(&self, key: &str, otherwise: u64) -> u64 {
        self.get(key).map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{key}={value}")))
    }

    fn at(&self, place: usize) -> &'a str {
        self.plain.get(place).unwrap_or_else(|| panic!("word {place} of {:?}", self.plain))
    }
}

impl World {
    pub(crate) fn new() -> Self {
        World { state: State::new(1), now_ms: 1_000_000_000, requests: 0, finished: BTreeMap::new() }
    }

    /// Runs one line and says what came of it.
    pub(crate) fn run(&mut self, line: &str) -> Vec<String> {
        let parts: Vec<Words<'_>> = line.split(" & ").map(Words::of).collect();
        let words = Words::of(line);
        match words.at(0) {
            "show" => self.show(&words),
            "later" | "sooner" => {
                let by_ms = words.at(1).parse::<i64>().expect("seconds") * 1_000;
                let by_ms = if words.at(0) == "later" { by_ms } else { -by_ms };
                self.now_ms = self.now_ms.saturating_add_signed(by_ms);
                Vec::new()
            }
            _ => {
                let commands = parts.iter().map(|words| self.command(words)).collect();
                let executed = execute(&mut self.state, &Entry { now_ms: self.now_ms, commands });
                self.state.check().expect("no law is broken");
                for change in &executed.changes {
                    if let Change::Retire(job) = change {
                        self.finished.insert(job.id, Job::clone(job));
                    }
                }
                let answer = |decided: &Result<Done, _>| match decided {
                    Ok(done) => self.told(done),
                    Err(reject) => format!("refused: {reject}"),
                };
                let mut answers: Vec<String> = executed.decided.iter().map(answer).collect();
                let told: Vec<String> = executed.changes.iter().filter_map(|change| self.told_change(change)).collect();
                let more = told.len().saturating_sub(JOBS_TOLD_MAX);
                answers.extend(told.into_iter().take(JOBS_TOLD_MAX));
                answers.extend((more > 0).then(|| format!("  and {more} more")));
                answers
            }
        }
    }

    fn told(&self, done: &Done) -> String {
        match done {
            Done::Ok => "ok".to_owned(),
            Done::Submitted { first, count: 1 } => format!("job {first}"),
            Done::Submitted { first, count } => format!("jobs {first} to {}", first.0 + u64::from(*count) - 1),
            Done::Joined { node, epoch, usage_incarnation, usage_mark } => {
                format!("node {node} at epoch {epoch}, usage stream {usage_incarnation} from {usage_mark}")
            }
            Done::Acquired { epoch, .. } => format!("epoch {epoch}"),
            Done::Bound { allocation } => format!("allocation {allocation}"),
            Done::HandedOver { to } => format!("to {}", self.state.cells[to].name),
            Done::Tenants { half_life_before_s: Some(before), .. } => format!("ok, half-life was {before} s"),
            Done::Tenants { .. } => "ok".to_owned(),
            Done::Counted { mark } => format!("counted up to {mark}"),
            Done::ClockReset { ahead_ms, corrected, more } => {
                format!("clock set back by {ahead_ms} ms, {corrected} objects corrected, more: {more}")
            }
            Done::TurnedAway { why } => format!("turned away: {why}"),
            Done::Numbered { id } => format!("number {id}"),
        }
    }

    /// How an attempt ended, with its first failures.
    fn told_attempt(&self, record: &AttemptRecord) -> Vec<String> {
        let ends: Vec<String> = record.ends.iter().map(|count| format!("{} x {}", count.ranks, count.end)).collect();
        let name = |node: NodeId| self.state.nodes.get(&node).map_or("gone", |node| node.spec.name.as_str());
        let nodes: Vec<String> = record.nodes.iter().map(|run| format!("{}:{}", name(run.node), run.ranks)).collect();
        let head = format!(
            "  attempt {} as allocation {} on {}: {} ({})",
            record.attempt,
            record.allocation,
            nodes.join(" "),
            ends.join(", "),
            if record.reason.is_empty() { "all well" } else { &record.reason },
        );
        let failures = record.failures.iter().map(|failure| {
            let said = if failure.reason.is_empty() { String::new() } else { format!(": {}", failure.reason) };
            format!("    rank {} on {}: {}{said}", failure.rank, name(failure.node), failure.end)
        });
        std::iter::once(head).chain(failures).collect()
    }

    /// A tenant in H100 cards, with whatever is not usual.
    fn told_tenant(&self, tenant: &Tenant) -> String {
        let capacity = self.state.capacity();
        let cards = |amounts: &ResourceVec| amounts.gpu(GpuModel::H100).to_string();
        let used = capacity.tenants().get(&tenant.id).map(|at| at.used).unwrap_or_default();
        let mut told = format!("  {} guaranteed {} used {}", tenant.path, cards(&tenant.guarantee), cards(&used));
        if let Some(unmet) = capacity.unmet_floors().get(&tenant.id) {
            let _ = write!(told, " unmet {} of {}", cards(unmet), cards(&capacity.account_of(tenant.id)));
        }
        let apart: Vec<&str> = tenant.anti_affinity.iter().map(|rule| rule.tenant.as_str()).collect();
        if !apart.is_empty() {
            let _ = write!(told, " apart from {}", apart.join(","));
        }
        told
    }

    /// What became of jobs; other changes are looked at with `show`.
    fn told_change(&self, change: &Change) -> Option<String> {
        let job = match change {
            Change::Retire(job) => job,
            Change::Put(object) => match &**object {
                Object::Job(job) => job,
                _ => return None,
            },
            Change::Delete(_) | Change::Audit(_) => return None,
        };
        let why = match &job.phase {
            JobPhase::Queued => {
                let cell = job.cell.map_or("no cell", |cell| self.state.cells[&cell].name.as_str());
                let again = job.requeue_reason.as_ref().map(|reason| format!(" ({reason})"));
                format!(" in {cell}{}", again.unwrap_or_default())
            }
            JobPhase::Finished(Outcome::Failed { reason }) => format!(": {reason}"),
            _ => String::new(),
        };
        Some(format!("  job {} {}{why}", job.id, job.phase.word()))
    }

    fn command(&mut self, words: &Words<'_>) -> Command {
        match words.at(0) {
            "tenant" => {
                Command::ApplyTenants { tenants: words.plain[1..].iter().map(|path| tenant(path, words)).collect() }
            }
            "move" => Command::MoveTenant { path: words.at(1).to_owned(), to: words.at(2).to_owned() },
            // The tree below these consists of these.
            "only" => {
                let edit = |path: &&str| TenantEdit { path: (*path).to_owned(), ..TenantEdit::default() };
                Command::EditTenants {
                    edits: words.plain[1..].iter().map(edit).collect(),
                    prune: true,
                    half_life_s: None,
                }
            }
            "half-life" => {
                let half_life_s = Some(words.at(1).parse().expect("seconds"));
                Command::EditTenants { edits: Vec::new(), prune: false, half_life_s }
            }
            "untenant" => Command::DeleteTenant { path: words.at(1).to_owned() },
            "pool" => Command::PutPool(pool(words)),
            "proofs" => {
                let (node, epoch) = self.node(words.at(1));
                Command::ReportProofs { node, epoch, proofs: proofs(words.at(2)) }
            }
            "class" => Command::PutDeviceClass(DeviceClass {
                name: words.at(1).to_owned(),
                selector: words.get("selector").expect("a selector").parse().expect("a good selector"),
                tenants: words
                    .get("for")
                    .map(|paths| paths.split(',').map(str::to_owned).collect())
                    .unwrap_or_default(),
            }),
            "unclass" => Command::DeleteDeviceClass { name: words.at(1).to_owned() },
            "unpool" => Command::DeletePool { name: words.at(1).to_owned() },
            "join" => Command::JoinNode {
                spec: node(words),
                usage_incarnation: words.get("usage").map(|n| n.parse().expect("a number")),
                agent: words.number("agent", 1),
            },
            "submit" => self.submit(words),
            "cancel" => Command::Cancel { job: JobId(words.at(1).parse().expect("a job")) },
            "acquire" => Command::AcquireCell { cell: self.cell(words.at(1)).0, shard: words.at(2).to_owned() },
            "expire" => {
                let (cell, epoch) = self.cell(words.at(1));
                Command::ExpireCell { cell, epoch: Epoch(words.number("epoch", epoch.0)) }
            }
            "bind" => Command::Bind(self.binding(words)),
            "preempt" => {
                let victims = words.get("victims").expect("victims=ALLOCATIONS").split(',');
                let victims = victims.map(|id| AllocationId(id.parse().expect("an allocation"))).collect();
                Command::Preempt { binding: self.binding(words), victims }
            }
            "hand-over" => {
                let (cell, epoch) = self.cell(words.at(1));
                let job = JobId(words.at(2).parse().expect("a job"));
                Command::HandOver { cell, epoch: Epoch(words.number("epoch", epoch.0)), job }
            }
            "reserve" => {
                let (cell, epoch) = self.cell(words.at(1));
                let job = JobId(words.at(2).parse().expect("a job"));
                let nodes = words.get("nodes").map(|names| names.split(',').map(|name| self.node(name).0).collect());
                let reserved = nodes.map(|nodes| Reservation { start_ms: 1_000 * words.number("at", 0), nodes });
                Command::Reserve { cell, epoch: Epoch(words.number("epoch", epoch.0)), job, reserved }
            }
            "bypass" => {
                let (cell, epoch) = self.cell(words.at(1));
                let job = JobId(words.at(2).parse().expect("a job"));
                let cards = words.number("cards", 0);
                Command::RecordBypass { cell, epoch: Epoch(words.number("epoch", epoch.0)), job, cards }
            }
            "report" => self.report(words),
            "usage" => self.usage(words),
            "cards" => self.cards(words),
            "clear-gpu" => Command::ClearGpu {
                node: self.node(words.at(1)).0,
                gpu: words.at(2).parse().expect("a card"),
                reason: words.get("reason").unwrap_or_default().replace('_', " "),
            },
            "silent" | "ready" | "fence" | "drain" | "undrain" | "remove" => self.node_command(words),
            "sweep" => Command::Sweep,
            "reset-clock" => Command::ResetClock,
            "level" => Command::RaiseFeatureLevel { level: words.at(1).parse().expect("a level") },
            other => panic!("no command {other:?}"),
        }
    }

    /// `cards n1 0:Xid_79 2/G3@4:Xid_94 3:~Xid_63` withholds card 0, a slice of card 2 and, by a verdict, card 3.
    fn cards(&self, words: &Words<'_>) -> Command {
        let (node, epoch) = self.node(words.at(1));
        let withheld = words.plain.iter().skip(2).map(|word| {
            let (place, reason) = word.split_once(':').expect("card:reason");
            let DeviceHold { gpu, mode } = hold(place);
            let slice = if let HoldMode::Mig(place) = mode { Some(place) } else { None };
            let by_verdict = reason.starts_with('~');
            Withheld {
                gpu,
                slice,
                reason: reason.trim_start_matches('~').replace('_', " "),
                by_verdict,
                repair: Repair::Wait,
            }
        });
        Command::ReportCards { node, epoch: Epoch(words.number("epoch", epoch.0)), withheld: withheld.collect() }
    }

    fn node_command(&self, words: &Words<'_>) -> Command {
        let (node, epoch) = self.node(words.at(1));
        let epoch = Epoch(words.number("epoch", epoch.0));
        match words.at(0) {
            "silent" => Command::MarkSilent { node, epoch },
            "ready" => Command::MarkReady { node, epoch },
            "fence" => Command::FenceNode { node, epoch },
            "remove" => Command::RemoveNode { node },
            word => {
                let reason = words.get("reason").unwrap_or_default().replace('_', " ");
                Command::SetDrained { node, drained: word == "drain", reason, force: false }
            }
        }
    }

    fn cell(&self, name: &str) -> (CellId, Epoch) {
        let found = self.state.cells.values().find(|cell| cell.name == name);
        found.map_or((CellId(99), Epoch(1)), |cell| (cell.id, cell.epoch))
    }

    fn node(&self, name: &str) -> (NodeId, Epoch) {
        let found = self.state.nodes.values().find(|node| node.spec.name == name);
        found.map_or((NodeId(99), Epoch(1)), |node| (node.id, node.epoch))
    }

    fn submit(&mut self, words: &Words<'_>) -> Command {
        self.requests += 1;
        let spec = job(words).validate().unwrap_or_else(|errors| panic!("{errors:?}"));
        let age_ms = words.number("age", 0) * 1_000;
        Command::Submit {
            request_id: words.get("id").map_or_else(|| format!("request-{}", self.requests), str::to_owned),
            issued_ms: self.now_ms + words.number("ahead", 0) * 1_000 - age_ms,
            payload_hash: words.number("hash", 1),
            specs: vec![spec; words.number("copies", 1) as usize],
            ended: Vec::new(),
        }
    }

    /// `bind JOB NODE:HOLD,HOLD ...`, one word per rank; a hold is `3`, `3/G1@2`, `3/mps30:1000` or `3/ts1000`.
    fn binding(&self, words: &Words<'_>) -> LeasedBinding {
        let id = JobId(words.at(1).parse().expect("a job"));
        let job = self.state.jobs.get(&id);
        let (cell, epoch) = match words.get("cell") {
            Some(name) => self.cell(name),
            None => {
                let cell = job.and_then(|job| job.cell).unwrap_or_default();
                (cell, self.state.cells.get(&cell).map_or(Epoch(0), |cell| cell.epoch))
            }
        };
        let tasks: Vec<TaskPlacement> = words.plain[2..].iter().map(|task| self.task(task)).collect();
        let first = tasks.first().and_then(|task| Some((self.state.nodes.get(&task.node)?, task.devices.first()?)));
        let found = first.and_then(|(node, hold)| node.spec.gpus.get(usize::from(hold.gpu)).map(|gpu| gpu.model));
        LeasedBinding {
            cell,
            epoch: Epoch(words.number("epoch", epoch.0)),
            job: id,
            attempt: Attempt(words.number("attempt", job.map_or(1, |job| u64::from(job.attempt.0) + 1)) as u32),
            model: words.get("model").map_or(found, |model| model.parse().ok()),
            tasks,
        }
    }

    fn task(&self, text: &str) -> TaskPlacement {
        let (node, holds) = text.split_once(':').unwrap_or((text, ""));
        let devices = holds.split(',').filter(|hold| !hold.is_empty()).map(hold).collect();
        TaskPlacement { node: self.node(node).0, devices }
    }

    /// `report NODE ALLOCATION RANK=STATE ...`, without a rank for all its ranks there. Of devices: `cleaning=yes`, `cleaned=MS`, `unclean=WHY`.
    fn report(&self, words: &Words<'_>) -> Command {
        let (node, epoch) = self.node(words.at(1));
        let allocation = AllocationId(words.at(2).parse().expect("an allocation"));
        let mut reports = Vec::new();
        // `ago=3`: it was over three seconds ago, by the node's clock.
        let ended_ms = words.get("ago").map(|ago| self.now_ms - 1_000 * ago.parse::<u64>().expect("seconds"));
        let clean_up = match (words.get("cleaning"), words.get("unclean")) {
            (Some(_), _) => CleanUp::UnderWay,
            (None, Some(reason)) => CleanUp::Failed { reason: reason.replace('_', " ") },
            (None, None) => CleanUp::Done { took_ms: words.number("cleaned", 0) },
        };
        for word in &words.plain[3..] {
            let (ranks, state) = match word.split_once('=') {
                Some((rank, state)) => (vec![Rank(rank.parse().expect("a rank"))], state),
                None => {
                    let held = self.state.allocations.get(&allocation);
                    (held.map(|held| held.ranks_on(node).collect()).unwrap_or_default(), *word)
                }
            };
            reports.extend(ranks.into_iter().map(|rank| TaskReport {
                allocation,
                rank,
                state: task_state(state),
                ended_ms,
                checkpoint: None,
                clean_up: clean_up.clone(),
            }));
        }
        Command::ReportTasks { node, epoch: Epoch(words.number("epoch", epoch.0)), reports }
    }

    /// `usage NODE STREAM SEQ:ALLOCATION:UNIT_MS[:idle|:clean] ...`
    fn usage(&self, words: &Words<'_>) -> Command {
        let interval = |word: &&str| {
            let parts: Vec<&str> = word.split(':').collect();
            let number = |part: usize| parts[part].parse().expect("a number");
            let kind = match parts.get(3) {
                None => UseKind::Run,
                Some(&"idle") => UseKind::Idle,
                Some(&"clean") => UseKind::Clean,
                Some(other) => panic!("{other:?} is no kind of use"),
            };
            let (seq, allocation, gpu_unit_ms) = (number(0), AllocationId(number(1)), number(2));
            UsageInterval { seq, allocation, duration_ms: 1_000, gpu_unit_ms, kind }
        };
        let incarnation = words.at(2).parse().expect("a stream");
        let intervals = words.plain[3..].iter().map(interval).collect();
        Command::RecordUsage { node: self.node(words.at(1)).0, incarnation, intervals }
    }

    fn show_job(&self, words: &Words<'_>) -> Vec<String> {
        let id = JobId(words.at(2).parse().expect("a job"));
        let Some(job) = self.state.jobs.get(&id) else { return vec!["  not live".to_owned()] };
        let (attempt, failures) = (job.attempt, job.failures);
        let cell = job.cell.map_or("no cell", |cell| self.state.cells[&cell].name.as_str());
        let reserved = job.reserved.as_ref().map(|kept| {
            let nodes = kept.nodes.iter().map(|node| self.state.nodes[node].spec.name.as_str());
            format!("  reserved from {} s: {}", kept.start_ms / 1_000, nodes.collect::<Vec<_>>().join(","))
        });
        let stands = format!("  {} in {cell}, attempt {attempt}, {failures} failures", job.phase.word());
        let claim = job.claim.as_ref().map(|claim| match claim.account {
            Some(account) => {
                format!("  claims what others leave, paid by {}", self.state.tenants[&account].path)
            }
            None => "  claims what others leave, as burst".to_owned(),
        });
        std::iter::once(stands).chain(reserved).chain(claim).collect()
    }

    fn show_usage(&self) -> Vec<String> {
        let path = |id| self.state.tenants.get(id).map_or("nobody", |tenant| tenant.path.as_str());
        let totals = self.state.usage_totals.iter();
        let after = |total: &UsageTotal| match (total.idle_gpu_unit_ms, total.clean_gpu_unit_ms) {
            (0, 0) => String::new(),
            (idle, clean) => format!(", {idle} idle, {clean} in clean-up"),
        };
        totals
            .map(|(id, total)| format!("  {} {} in {}{}", path(id), total.gpu_unit_ms, total.intervals, after(total)))
            .collect()
    }

    fn show(&self, words: &Words<'_>) -> Vec<String> {
        match words.at(1) {
            "job" => self.show_job(words),
            "attempts" => {
                let id = JobId(words.at(2).parse().expect("a job"));
                let job = self.state.jobs.get(&id).map(AsRef::as_ref).or_else(|| self.finished.get(&id));
                job.map_or_else(Vec::new, |job| {
                    job.attempts.iter().flat_map(|record| self.told_attempt(record)).collect()
                })
            }
            "class" => {
                let class = &self.state.device_classes[words.at(2)];
                vec![format!("  for {}", class.tenants.iter().cloned().collect::<Vec<_>>().join(","))]
            }
            "use" => {
                let cards = |amount: muster_model::ResourceVec| amount.gpu_total().as_cards();
                let mut lines = Vec::new();
                for (id, record) in &self.state.use_histories {
                    let path = self.state.tenants.get(id).map_or("nobody", |tenant| tenant.path.as_str());
                    let (average, now) = (cards(record.burst_at(self.now_ms)), cards(record.burst.since));
                    lines.push(format!("  {path} {average:.3} on average, {now} now"));
                }
                lines
            }
            "tenants" => {
                let index = self.state.index();
                let all = index.tenants_below("", None).filter_map(|id| self.state.tenants.get(&id));
                all.map(|tenant| self.told_tenant(tenant)).collect()
            }
            "request" => {
                let id = JobId(words.at(2).parse().expect("a job"));
                let Some(job) = self.state.jobs.get(&id) else { return vec!["  not live".to_owned()] };
                let asked = &job.spec.asked;
                let chosen =
                    asked.choice.as_ref().map(|choice| format!("  {}", choice.text(&job.spec.request.devices)));
                let selector = asked.selector.as_ref().map(|selector| format!("  selector {selector}"));
                let segments = job.spec.topology.segment_tasks.map(|each| format!("  segments of {each}"));
                chosen.into_iter().chain(selector).chain(segments).collect()
            }
            "node" => {
                let (id, epoch) = self.node(words.at(2));
                let Some(there) = self.state.capacity().nodes().get(&id) else { return vec!["  not there".to_owned()] };
                let node = &there.node;
                let health = format!("  {:?} at epoch {epoch}, drained {}", node.health, node.drained);
                let reason = Some(node.reason()).filter(|reason| !reason.is_empty());
                let closed = node.closed_by().map(|closed| format!("  takes no work: {closed}"));
                let notes = closed.into_iter().chain(reason.map(|reason| format!("  {reason}")));
                let cards = there.cards.iter().zip(&node.spec.gpus).enumerate();
                let cards = cards.map(|(at, (card, gpu))| format!("  GPU {at}: {}", card.describe(gpu.model)));
                std::iter::once(health).chain(notes).chain(cards).collect()
            }
            "allocation" => {
                let id = AllocationId(words.at(2).parse().expect("an allocation"));
                let Some(held) = self.state.allocations.get(&id) else { return vec!["  not live".to_owned()] };
                let state = match &held.state {
                    AllocationState::Active => "active".to_owned(),
                    AllocationState::Stopping(cause) => format!("stopping: {cause:?}"),
                };
                vec![format!("  {state}, tasks {:?}", held.task_states)]
            }
            "desired" => {
                let tasks = self.state.desired_for(self.node(words.at(2)).0);
                let line = |task: muster_control_core::DesiredTask| {
                    let isolation = told_isolation(&task);
                    format!(
                        "  allocation {} rank {}/{} local {}/{} attempt {} at {}:{} restarts {} units {} stop {}{isolation}",
                        task.allocation,
                        task.rank,
                        task.world_size,
                        task.local_rank,
                        task.local_world_size,
                        task.attempt,
                        task.master_addr,
                        task.master_port,
                        task.restart_count,
                        task.gpu_units.0,
                        task.stop.is_some()
                    )
                };
                let held_on = self.state.held_on(self.node(words.at(2)).0);
                let held_on = held_on.map(|(id, rank)| format!("  allocation {id} rank {rank} is over and held on"));
                tasks.into_iter().map(line).chain(held_on).collect()
            }
            "sharing" => {
                let sharing = self.state.card_sharing(self.node(words.at(2)).0);
                vec![format!(
                    "  {} turns, {} processes for each client of MPS, {} for each task on a time-sliced GPU",
                    sharing.time_slice, sharing.mps_processes_max, sharing.time_slice_processes_max
                )]
            }
            "usage" => self.show_usage(),
            other => panic!("nothing to show of {other:?}"),
        }
    }
}

fn cards(words: &Words<'_>, key: &str) -> ResourceVec {
    words.get(key).map_or_else(ResourceVec::default, |count| {
        ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(count.parse().expect("cards")))
    })
}

/// `other:node`.
fn apart(text: &str) -> AntiAffinity {
    let (tenant, level) = text.split_once(':').expect("tenant:level");
    AntiAffinity { tenant: tenant.to_owned(), level: level.parse().expect("a level") }
}

fn tenant(path: &str, words: &Words<'_>) -> TenantSpec {
    let max = words.get("max").map(|count| (GpuModel::H100, GpuUnits::cards(count.parse().expect("cards"))));
    let mut guarantee = cards(words, "floor");
    guarantee.cpu_milli = 1_000 * words.number("floor-cpu", 0);
    TenantSpec {
        path: path.to_owned(),
        guarantee,
        max: Limits { gpu: max.into_iter().collect(), ..Limits::default() },
        weight: words.number("weight", 1) as u32,
        trust: if words.get("trust") == Some("no") { Trust::Untrusted } else { Trust::Trusted },
        anti_affinity: words.get("apart").into_iter().flat_map(|list| list.split(',')).map(apart).collect(),
        lend: words.get("lend") != Some("no"),
        weights: Default::default(),
        lends: Default::default(),
        run_as: words.get("run-as").map(|user| user.parse().expect("a user")),
    }
}

fn pool(words: &Words<'_>) -> Pool {
    let mut pool = Pool { name: words.at(1).to_owned(), ..Pool::standard() };
    if let Some(modes) = words.get("modes") {
        pool.modes = modes.split(',').map(|mode| mode.parse().expect("a mode")).collect();
    }
    if let Some(classes) = words.get("classes") {
        pool.classes = classes.split(',').map(|class| class.parse().expect("a class")).collect();
    }
    pool.images = words.get("images").into_iter().map(str::to_owned).collect();
    pool.mounts =
        words.get("mounts").into_iter().map(|path| MountRule { path: path.to_owned(), write: false }).collect();
    if let Some((model, slices)) = words.get("pin").and_then(|pin| pin.split_once('/')) {
        // `pin=h100/3g.40gb:1,1g.10gb:3`, on all cards or on the first `pin-cards`.
        let model: GpuModel = model.parse().expect("a model");
        let slices = slices.split(',').filter_map(|slice| slice.split_once(':'));
        let slices = slices.map(|(name, count)| (name.to_owned(), count.parse().expect("a count"))).collect();
        let cards = words.get("pin-cards").map(|cards| cards.parse().expect("cards"));
        pool.pinned.insert(model, PinnedLayout::new(model, &slices, cards).expect("a legal layout"));
    }
    if let Some(level) = words.get("isolation") {
        pool.isolation = level.parse().expect("a level");
    }
    pool.network = words.get("network").map(|network| network.parse().expect("a network"));
    pool.memory_limit_mib = words.get("memory-limit").map(|mib| mib.parse().expect("MiB"));
    pool.mps_clients = words.number("mps", 8) as u8;
    pool.time_slice = words.get("turns").map_or(pool.time_slice, |length| length.parse().expect("a length"));
    pool.time_slice_replicas = words.number("ts", 4) as u8;
    pool
}

fn node(words: &Words<'_>) -> NodeSpec {
    let name = words.at(1);
    let model: GpuModel = words.get("model").unwrap_or("h100").parse().expect("a model");
    let per_island = words.number("island", 8);
    let per_numa = words.number("numa", 8);
    let of = format!("{}-{name}", words.get("uuid").unwrap_or("GPU"));
    let gpu = |index: u64| Gpu {
        uuid: format!("{of}-{index}"),
        numa: (index / per_numa) as u8,
        island: (index / per_island) as u8,
        withheld: (words.get("withheld") == Some(index.to_string().as_str())).then(|| "xid 79".to_owned()),
        ..Gpu::usual(name, index as u32, model)
    };
    let place = |key: &str| words.get(key).unwrap_or(key).to_owned();
    NodeSpec {
        name: name.to_owned(),
        address: format!("{name}.fleet"),
        place: Place {
            region: place("region"),
            zone: place("zone"),
            block: place("block"),
            leaf: place("leaf"),
            nvlink_domain: words.get("nvlink").unwrap_or_default().to_owned(),
        },
        cell: words.get("cell").unwrap_or("a").to_owned(),
        pool: words.get("pool").unwrap_or("default").to_owned(),
        gpus: (0..words.number("gpus", 8)).map(gpu).collect(),
        cpu_milli: words.number("cpu", 64_000),
        memory_mib: words.number("memory", 512_000),
        driver: words.get("driver").unwrap_or("550").to_owned(),
        labels: words
            .get("label")
            .and_then(|label| label.split_once(':'))
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        boot_id: words.get("boot").unwrap_or("1").to_owned(),
        proofs: words.get("proofs").map(proofs).unwrap_or_default(),
    }
}

/// What of a task's isolation the control plane decides.
fn told_isolation(task: &muster_control_core::DesiredTask) -> String {
    let network = (task.network == NetworkPolicy::Private).then(|| " with a private network".to_owned());
    let ports = task.ports.block().map(|block| format!(" ports {block}"));
    let user = task.run_as.map(|user| format!(" as user {user}"));
    let memory = (task.memory_limit_mib > 0).then(|| format!(" at most {} MiB", task.memory_limit_mib));
    let channel = task.imex_channel.map(|channel| format!(" channel {channel}"));
    [network, ports, user, memory, channel].into_iter().flatten().collect()
}

/// `all`, or all but these: `but:ports,sockets`.
fn proofs(text: &str) -> Vec<Proof> {
    let missing: Vec<&str> = text.strip_prefix("but:").into_iter().flat_map(|list| list.split(',')).collect();
    let fault =
        |protection: Protection| missing.contains(&protection.to_string().as_str()).then(|| "not here".to_owned());
    Protection::ALL.into_iter().map(|protection| Proof::new(protection, fault(protection))).collect()
}

fn job(words: &Words<'_>) -> JobSpec {
    let models = words.get("model").map(|models| models.split(',').map(|m| m.parse().expect("a model")).collect());
    let models: Vec<GpuModel> = models.unwrap_or_default();
    let devices = match (words.get("gpus"), words.get("mig"), words.get("mps"), words.get("ts")) {
        (Some(count), ..) => DeviceRequest::Whole { count: count.parse().expect("cards"), models },
        (_, Some(profile), ..) => DeviceRequest::Mig { profile: profile.to_owned(), models },
        (.., Some(share), _) => {
            let (percent, memory) = share.split_once(':').expect("percent:memory");
            let (percent, memory_mib) = (percent.parse().expect("percent"), memory.parse().expect("MiB"));
            DeviceRequest::Mps { percent, memory_mib, models }
        }
        (.., Some(memory)) => DeviceRequest::TimeSlice { memory_mib: memory.parse().expect("MiB"), models },
        _ => DeviceRequest::None,
    };
    let (cpu_milli, memory_mib) = (words.number("cpu", 1_000), words.number("memory", 1_000));
    let request = TaskRequest { devices, cpu_milli, memory_mib };
    JobSpec {
        tasks: words.number("tasks", 1) as u32,
        priority: words.number("priority", 0) as i32,
        topology: Topology {
            required: words.get("within").map(|level| level.parse().expect("a level")),
            preferred: None,
            segment_tasks: words.get("segment").map(|each| each.parse().expect("tasks")),
            spread: words.get("spread").map(|level| Spread {
                level: level.parse().expect("a level"),
                tasks_max: words.number("most", 1) as u32,
                required: true,
            }),
        },
        numa: words.get("numa").map(|policy| policy.parse().expect("a policy")).unwrap_or_default(),
        driver_min: words.get("driver-min").map(|min| min.parse().expect("a version")),
        asked: Asked {
            selector: words.get("selector").map(|text| text.parse().expect("a selector")),
            device_class: words.get("device-class").map(str::to_owned),
            gpu_memory_mib: words.get("gpu-memory").map(|mib| mib.parse().expect("MiB")),
            needs: words.get("needs").map(needs),
            choice: None,
        },
        class: words.get("class").map_or(WorkloadClass::Batch, |class| class.parse().expect("a class")),
        pool: words.get("pool").map(str::to_owned),
        max_retries: words.number("retries", 0) as u32,
        image: words.get("image").map(str::to_owned),
        mounts: words.get("mount").and_then(|text| text.split_once(':')).into_iter().map(mount).collect(),
        movable: words.get("movable").map(|_| Movable::default()),
        ..JobSpec::usual(words.at(1), request, &["true"])
    }
}

/// `source:target`, and writable.
fn mount((source, target): (&str, &str)) -> Mount {
    Mount { source: source.to_owned(), target: target.to_owned(), read_only: false }
}

/// `memory:compute:isolation`, with `:bursty` and `:latency` behind it.
fn needs(text: &str) -> Needs {
    let parts: Vec<&str> = text.split(':').collect();
    Needs {
        memory_mib: parts[0].parse().expect("MiB"),
        compute_percent: parts[1].parse().expect("percent"),
        isolation: parts[2].parse().expect("an isolation"),
        bursty: parts.contains(&"bursty"),
        latency_critical: parts.contains(&"latency"),
        models: Vec::new(),
    }
}

fn hold(text: &str) -> DeviceHold {
    let (gpu, kind) = text.split_once('/').unwrap_or((text, ""));
    let mode = if kind.is_empty() {
        HoldMode::Whole
    } else if let Some(share) = kind.strip_prefix("mps") {
        let (percent, memory) = share.split_once(':').expect("percent:memory");
        HoldMode::Mps { percent: percent.parse().expect("percent"), memory_mib: memory.parse().expect("MiB") }
    } else if let Some(memory) = kind.strip_prefix("ts") {
        HoldMode::TimeSlice { memory_mib: memory.parse().expect("MiB") }
    } else {
        let (shape, start) = kind.split_once('@').expect("shape@start");
        let shape = MigShape::ALL.into_iter().find(|known| format!("{known:?}") == shape).expect("a shape");
        HoldMode::Mig(MigPlacement { shape, start: start.parse().expect("a start") })
    };
    DeviceHold { gpu: gpu.parse().expect("a card"), mode }
}

fn task_state(text: &str) -> TaskState {
    match text {
        "running" => TaskState::Running,
        "pending" => TaskState::Pending,
        "stopped" => TaskState::Stopped,
        "timed-out" => TaskState::TimedOut,
        "fenced" => TaskState::Fenced,
        "start-failed" => TaskState::StartFailed { reason: "no such file".to_owned(), by_node: false },
        "node-fault" => TaskState::StartFailed { reason: "the disk is read-only".to_owned(), by_node: true },
        "killed" => TaskState::Signaled { signal: 9 },
        "gpu-fault" => TaskState::DeviceFault { reason: "GPU 0: Xid 79".to_owned(), by_job: false },
        "over-share" => TaskState::OverShare { reason: "used 21 GiB of GPU 0, its share is 16 GiB".to_owned() },
        "out-of-memory" => TaskState::OutOfMemory { reason: "its limit is 64 MiB".to_owned() },
        "own-fault" => TaskState::DeviceFault { reason: "GPU 0: Xid 31".to_owned(), by_job: true },
        _ => TaskState::Exited { code: text.strip_prefix("exit").expect("exitN").parse().expect("a code") },
    }
}
