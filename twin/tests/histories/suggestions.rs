//! Every change that an explanation suggests, made, starts the job: over random states of quota trees with preemption.
//!
//! The change is made through the state machine's own commands, with what follows from them (promotions, claims that are bound), and a shard that has
//! just taken the cell over plans. What must stay true: nothing is tried that was not suggested; whoever waits beside the job is there too.

use crate::world;
use muster_control_core::{Command, Entry, State, TaskReport, execute};
use muster_model::{
    AllocationId, AllocationState, Change, Job, JobId, JobPhase, JobSpec, NodeHealth, NodeId, Object, Rank, Spread,
    TaskState, Tenant, TenantId, Trust,
};
use muster_scheduler_core::explain::{Change as Suggested, Estimate, Remedy};
use muster_scheduler_core::{Bounds, View, explain, plan};
use muster_twin::proposals;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Jobs that one look asks about.
const JOBS_MAX: usize = 4;
/// How what is found here begins: what else a history breaks is for the test of histories.
const SUGGESTED: &str = "suggestion:";
/// Rounds of passes until nothing is proposed any more.
const ROUNDS_MAX: usize = 200;

/// What was suggested how often.
#[derive(Default)]
struct Seen {
    kinds: BTreeMap<String, u64>,
    bases: BTreeMap<&'static str, u64>,
    /// Suggestions with which an array's next task came.
    next_tasks: u64,
}

fn must(state: &mut State, now_ms: u64, commands: Vec<Command>) -> bool {
    execute(state, &Entry { now_ms, commands }).decided.iter().all(Result::is_ok)
}

/// Makes the suggested changes; false where the state machine does not allow one.
fn make(state: &mut State, id: JobId, remedy: &Remedy, now_ms: u64) -> bool {
    remedy.0.iter().all(|change| match change {
        Suggested::RaiseMax { tenant, resource, to, .. } => {
            edit_tenant(state, *tenant, now_ms, |tenant| tenant.max.set(*resource, *to))
        }
        Suggested::RaiseGuarantee { tenant, resource, to, .. } => {
            edit_tenant(state, *tenant, now_ms, |tenant| tenant.guarantee.set(*resource, *to))
        }
        Suggested::Lend { tenant, resource, .. } => {
            edit_tenant(state, *tenant, now_ms, |tenant| _ = tenant.lends.insert(*resource, true))
        }
        Suggested::Trust { tenant, .. } => edit_tenant(state, *tenant, now_ms, |tenant| tenant.trust = Trust::Trusted),
        Suggested::Open(nodes) => nodes.iter().all(|node| open(state, node.node, now_ms)),
        Suggested::End(jobs) => jobs.iter().all(|job| end(state, *job, now_ms)),
        edit => {
            let Some(job) = state.jobs.get(&id).map(|job| Job::clone(job)) else { return false };
            let Ok(spec) = edited((*job.spec).clone(), edit).validate() else { return false };
            state.apply(&Change::put(Object::Job(Job { spec, ..job })));
            true
        }
    })
}

fn edit_tenant(state: &mut State, id: TenantId, now_ms: u64, edit: impl FnOnce(&mut Tenant)) -> bool {
    let Some(mut tenant) = state.tenants.get(&id).cloned() else { return false };
    edit(&mut tenant);
    must(state, now_ms, vec![Command::ApplyTenants { tenants: vec![(&tenant).into()] }])
}

fn open(state: &mut State, id: NodeId, now_ms: u64) -> bool {
    let Some(node) = state.nodes.get(&id).cloned() else { return false };
    let mut commands = Vec::new();
    match node.health {
        NodeHealth::Ready => {}
        NodeHealth::Silent => commands.push(Command::MarkReady { node: id, epoch: node.epoch }),
        NodeHealth::Down => {
            let mut spec = node.spec.clone();
            spec.boot_id.push('+');
            commands.push(Command::JoinNode { spec, usage_incarnation: None, agent: 1 });
        }
    }
    if node.drained || node.notes.quarantine.is_some() {
        commands.push(Command::SetDrained { node: id, drained: false, reason: String::new(), force: false });
    }
    must(state, now_ms, commands)
}

/// Somebody cancels it, and its tasks stop.
fn end(state: &mut State, id: JobId, now_ms: u64) -> bool {
    // An elastic gang has several.
    let held: Vec<AllocationId> =
        state.allocations.values().filter(|held| held.job == id).map(|held| held.id).collect();
    must(state, now_ms, vec![Command::Cancel { job: id }]);
    held.into_iter().for_each(|held| stopped(state, held, now_ms));
    !state.jobs.contains_key(&id)
}

fn stopped(state: &mut State, id: AllocationId, now_ms: u64) {
    let Some(held) = state.allocations.get(&id).cloned() else { return };
    let mut by_node: BTreeMap<NodeId, Vec<TaskReport>> = BTreeMap::new();
    for (rank, task) in held.tasks.iter().enumerate() {
        let report = TaskReport {
            allocation: id,
            rank: Rank(rank as u32),
            state: TaskState::Stopped,
            ended_ms: None,
            checkpoint: None,
            clean_up: muster_model::task::CleanUp::default(),
        };
        by_node.entry(task.node).or_default().push(report);
    }
    for (node, reports) in by_node {
        let epoch = state.nodes.get(&node).map(|node| node.epoch).unwrap_or_default();
        must(state, now_ms, vec![Command::ReportTasks { node, epoch, reports }]);
    }
}

/// The request after a change, as its tenant would submit it.
fn edited(mut spec: JobSpec, change: &Suggested) -> JobSpec {
    use muster_model::DeviceRequest;
    match change {
        Suggested::Topology { to, .. } => spec.topology.required = *to,
        Suggested::AnyPool(_) => spec.pool = None,
        Suggested::AnyDriver => spec.driver_min = None,
        Suggested::AnyCard => spec.asked.selector = None,
        Suggested::Model(more) => match &mut spec.request.devices {
            DeviceRequest::None => {}
            DeviceRequest::Whole { models, .. }
            | DeviceRequest::Mig { models, .. }
            | DeviceRequest::Mps { models, .. }
            | DeviceRequest::TimeSlice { models, .. } => models.push(*more),
        },
        Suggested::Tasks { to, .. } => spec.tasks = *to,
        Suggested::Numa(policy) => spec.numa = *policy,
        Suggested::TasksMax { tasks, .. } => {
            spec.topology.spread = spec.topology.spread.map(|spread| Spread { tasks_max: *tasks, ..spread });
        }
        Suggested::TimeLimit(seconds) => spec.time_limit_s = Some(*seconds),
        Suggested::Cpu(milli) => spec.request.cpu_milli = *milli,
        Suggested::Memory(mib) => spec.request.memory_mib = *mib,
        Suggested::Priority(priority) => spec.priority = *priority,
        Suggested::RaiseMax { .. }
        | Suggested::RaiseGuarantee { .. }
        | Suggested::Lend { .. }
        | Suggested::Trust { .. }
        | Suggested::Open(_)
        | Suggested::End(_) => {}
    }
    spec
}

/// Whether the job has devices, or a claim on them.
fn has_started(state: &State, id: JobId) -> bool {
    state.jobs.get(&id).is_none_or(|job| job.phase != JobPhase::Queued || job.claim.is_some())
}

/// Whether the job gets devices, or a claim on them, when its cell is planned until nothing is proposed any more.
fn starts(state: &mut State, id: JobId, now_ms: u64) -> bool {
    let started = |state: &State| has_started(state, id);
    let mut view = View::from_objects(state.objects());
    for _ in 0..ROUNDS_MAX {
        let mut commands = Vec::new();
        // Its own cell first: what another cell's jobs would take of the same quota is up to that cell's shard.
        let own = state.jobs.get(&id).and_then(|job| job.cell);
        if let Some(cell) = own {
            let epoch = state.cells.get(&cell).map(|cell| cell.epoch).unwrap_or_default();
            let found = plan(&mut view, cell, &Bounds::default(), now_ms);
            commands.extend(found.proposals.into_iter().map(|proposal| proposals::command(cell, epoch, proposal)));
        }
        if started(state) || commands.is_empty() {
            return started(state);
        }
        for command in commands {
            let entry = Entry { now_ms, commands: vec![command] };
            let executed = execute(state, &entry);
            executed.changes.iter().for_each(|change| view.apply(change));
            for (command, decided) in entry.commands.iter().zip(&executed.decided) {
                if let Err(reject) = decided {
                    proposals::refused(&mut view, command, reject, now_ms);
                }
            }
        }
        if started(state) {
            return true;
        }
    }
    false
}

fn look(state: &State, now_ms: u64, seen: &mut Seen) -> Vec<String> {
    let mut broken = Vec::new();
    let waits = |job: &&Arc<Job>| {
        job.phase == JobPhase::Queued
            && job.claim.is_none()
            && job.is_eligible()
            && !job.cancelled
            && job.cell.is_some()
    };
    let waiting: Vec<JobId> = state.jobs.values().filter(waits).map(|job| job.id).collect();
    // Those that stop may be anywhere between two states.
    if waiting.is_empty() || state.allocations.values().any(|held| held.state != AllocationState::Active) {
        return broken;
    }
    let view = View::from_objects(state.objects());
    for id in waiting.into_iter().take(JOBS_MAX) {
        let Some(said) = explain(&view, id, now_ms) else {
            broken.push(format!("{SUGGESTED} job {id} is not explained"));
            continue;
        };
        said.estimates.iter().map(Estimate::basis).for_each(|basis| *seen.bases.entry(basis).or_default() += 1);
        for reason in &said.reasons {
            for remedy in &reason.remedies {
                let mut then = state.clone();
                if !make(&mut then, id, remedy, now_ms) {
                    broken.push(format!("{SUGGESTED} job {id}: refused: {}", remedy.text()));
                    continue;
                }
                if then.jobs.keys().any(|job| !state.jobs.contains_key(job)) {
                    seen.next_tasks += 1;
                }
                *seen.kinds.entry(remedy.kind().to_owned()).or_default() += 1;
                let waited: Vec<JobId> = then.jobs.keys().copied().filter(|job| !has_started(&then, *job)).collect();
                if !starts(&mut then, id, now_ms) {
                    let instead: Vec<String> =
                        waited.iter().filter(|job| has_started(&then, **job)).map(JobId::to_string).collect();
                    let (what, why) = (remedy.text(), reason.text());
                    let then = explain(&View::from_objects(then.objects()), id, now_ms).map(|said| said.reasons);
                    let then: Vec<String> = then.iter().flatten().map(muster_scheduler_core::Reason::text).collect();
                    let code = reason.code();
                    broken.push(format!(
                        "{SUGGESTED} job {id} does not start after: {what}; told for {code}: {why}; instead start: {}; then: {}",
                        instead.join(", "),
                        then.join("; ")
                    ));
                }
            }
        }
    }
    broken
}

/// Asks in so many histories from `first` on. What of these kinds was never suggested fails too.
fn hold_in_histories(rich: bool, (first, count): (u64, u64), kinds: &[&str]) {
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let mut broken: Vec<String> = Vec::new();
    for seed in first..first + count {
        let kept = Arc::clone(&seen);
        let asker = Box::new(move |state: &State, now_ms: u64| look(state, now_ms, &mut kept.lock().expect("alone")));
        let history = world::run_asked(seed, rich, 20, asker);
        let found = history.broken.into_iter().filter(|what| what.contains(SUGGESTED));
        broken.extend(found.take(2).map(|what| format!("seed {seed}: {what}")));
        if broken.len() > 20 {
            break;
        }
    }
    let seen = seen.lock().expect("alone");
    println!(
        "suggestions: {:?}, {} of them with the next task of an array; estimates: {:?}",
        seen.kinds, seen.next_tasks, seen.bases
    );
    assert!(broken.is_empty(), "MUSTER_SEED={first}\n{}", broken.join("\n"));
    for kind in kinds {
        assert!(
            seen.kinds.get(*kind).copied().unwrap_or(0) > 0 || std::env::var("MUSTER_SEED").is_ok(),
            "{kind}: {:?}",
            seen.kinds
        );
    }
}

#[test]
fn every_suggestion_starts_the_job_under_random_quota_trees_with_preemption() {
    let seeds = (crate::number("MUSTER_SEED", 1), crate::number("MUSTER_HISTORIES", 16));
    let kinds = ["end_jobs", "raise_max", "open_nodes", "tasks", "raise_guarantee", "priority"];
    hold_in_histories(false, seeds, &kinds);
}

#[test]
fn every_suggestion_starts_the_job_where_floors_are_not_lent_and_trust_differs() {
    let seeds = (crate::number("MUSTER_SEED", 1), crate::number("MUSTER_HISTORIES", 6));
    hold_in_histories(true, seeds, &["end_jobs", "raise_max", "raise_guarantee", "lend"]);
}
