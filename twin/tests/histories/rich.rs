//! What makes a random history richer: floors that are not lent, weights and trust of their own, moves and renames of tenants, changes of jobs that
//! wait, and arrays with a limit.
//!
//! What must stay true: what is made here is valid or refused, and refused without a trace; organisations guarantee no more than before.

use crate::chance::Chance;
use crate::laws::Judge;
use muster_control_core::{Command, State};
use muster_model::resources::Resource;
use muster_model::start::Holder;
use muster_model::tenant::{TenantSpec, lies_under};
use muster_model::tenant_edit::Edit;
use muster_model::{
    AllocationId, ArraySpec, ArrayTask, Change, GpuModel, Job, JobId, JobPhase, JobUpdate, Object, ResourceVec, Tenant,
    TenantId, Trust,
};
use std::collections::BTreeMap;

const RESOURCES: [Resource; 4] =
    [Resource::Gpu(GpuModel::H100), Resource::Gpu(GpuModel::A100_80), Resource::Cpu, Resource::Memory];

/// Gives the tenants of a new tree lending, weights and trust; parents come first.
pub(crate) fn of_tree(chance: &mut Chance, specs: &mut [TenantSpec]) {
    let mut untrusted: Vec<String> = Vec::new();
    for spec in specs {
        traits(chance, spec);
        if untrusted.iter().any(|top| lies_under(&spec.path, top)) || chance.in_hundred(10) {
            spec.trust = Trust::Untrusted;
            untrusted.push(spec.path.clone());
        }
    }
}

/// The same for an edit: most of what a tenant has stays.
pub(crate) fn of_edit(chance: &mut Chance, state: &State, command: &mut Command) {
    let Command::ApplyTenants { tenants } = command else { return };
    for spec in tenants {
        let of = |path: &str| state.tenants.values().find(|tenant| tenant.path == path);
        match of(&spec.path) {
            Some(known) => {
                let Tenant { lend, weights, lends, trust, .. } = known.clone();
                (spec.lend, spec.weights, spec.lends, spec.trust) = (lend, weights, lends, trust);
            }
            None => {
                spec.trust = Tenant::parent_path(&spec.path).and_then(of).map_or(Trust::Trusted, |above| above.trust)
            }
        }
        if chance.in_hundred(30) {
            traits(chance, spec);
        }
        if chance.in_hundred(10) {
            spec.trust = *chance.pick(&[Trust::Trusted, Trust::Untrusted]);
        }
    }
}

fn traits(chance: &mut Chance, spec: &mut TenantSpec) {
    spec.lend = !chance.in_hundred(20);
    (spec.lends, spec.weights) = (BTreeMap::new(), BTreeMap::new());
    if chance.in_hundred(20) {
        spec.lends.insert(*chance.pick(&RESOURCES), chance.in_hundred(50));
    }
    if chance.in_hundred(30) {
        spec.weights.insert(*chance.pick(&RESOURCES), chance.within(1, 5) as u32);
    }
}

/// A tenant moves or gets another name. Under most new parents its guarantee fits.
pub(crate) fn relocate(chance: &mut Chance, state: &State) -> Option<Command> {
    let tenants: Vec<&Tenant> = state.tenants.values().collect();
    let tenant = *chance.pick(&tenants);
    let name = format!("m{}", chance.within(0, 9));
    if chance.in_hundred(35) {
        let to = Tenant::parent_path(&tenant.path).map_or_else(|| name.clone(), |above| format!("{above}/{name}"));
        return Some(Command::MoveTenant { path: tenant.path.clone(), to });
    }
    if tenant.guarantee.is_empty() && chance.in_hundred(15) {
        return Some(Command::MoveTenant { path: tenant.path.clone(), to: name });
    }
    let has_slack = |above: &&Tenant| {
        let children = state.tenants.values().filter(|child| child.parent == Some(above.id));
        let sum = children.fold(tenant.guarantee, |sum: ResourceVec, child| sum.plus(&child.guarantee));
        sum.first_excess_over(&above.guarantee).is_none()
    };
    let outside = tenants.iter().copied().filter(|above| !lies_under(&above.path, &tenant.path));
    let mut places: Vec<&Tenant> = outside.filter(|above| Some(above.id) != tenant.parent).collect();
    if chance.in_hundred(80) {
        places.retain(has_slack);
    }
    if places.is_empty() {
        return None;
    }
    let to = format!("{}/{name}", chance.pick(&places).path);
    Some(Command::MoveTenant { path: tenant.path.clone(), to })
}

/// Somebody changes a job: its limit, priority or tenant, holds it, releases it, queues it again, or edits an array.
pub(crate) fn on_job(chance: &mut Chance, state: &State) -> Option<Command> {
    let jobs: Vec<&Job> = state.jobs.values().map(AsRef::as_ref).collect();
    if jobs.is_empty() {
        return None;
    }
    let job = *chance.pick(&jobs);
    let pending = job.phase == JobPhase::Queued;
    let by = *chance.pick(&[Holder::User, Holder::Admin]);
    if job.array.is_some() && chance.in_hundred(60) {
        return Some(match chance.in_hundred(70) {
            true => {
                let max_running = chance.in_hundred(80).then(|| chance.within(1, 4) as u32);
                Command::SetArrayLimit { job: job.id, max_running }
            }
            false => Command::CancelTasks { job: job.id, indices: [chance.within(0, 11) as u32].into_iter().collect() },
        });
    }
    Some(match chance.within(0, 9) {
        0..5 => Command::UpdateJob { job: job.id, update: update(chance, state, pending) },
        5..7 => Command::Hold { job: job.id, by },
        7 => Command::Release { job: job.id, by },
        _ => Command::Requeue { job: job.id },
    })
}

/// What runs keeps its limit: its processes have been told.
fn update(chance: &mut Chance, state: &State, pending: bool) -> JobUpdate {
    let tenants: Vec<&Tenant> = state.tenants.values().collect();
    let mut update = JobUpdate { priority: Some(chance.within(0, 4) as i32 - 1), ..JobUpdate::default() };
    if pending && chance.in_hundred(50) {
        update.time_limit_s = match chance.in_hundred(85) {
            true => Edit::Set(chance.within(20, 1_000)),
            false => Edit::Remove,
        };
    }
    if pending && chance.in_hundred(35) {
        update.tenant = Some(chance.pick(&tenants).path.clone());
    }
    if chance.in_hundred(40) {
        update.priority = None;
        update.name = Some("another".to_owned());
    }
    update
}

/// An array of a few tasks; most have a limit.
pub(crate) fn array(chance: &mut Chance) -> ArraySpec {
    let last = chance.within(1, 11) as u32;
    ArraySpec { indices: (0..=last).collect(), max_running: chance.in_hundred(75).then(|| chance.within(1, 3) as u32) }
}

/// The load is over: nobody holds a job any more.
pub(crate) fn give_up(state: &State) -> Vec<Command> {
    let held = state.jobs.values().filter(|job| job.unmet.held.is_some());
    held.map(|job| Command::Release { job: job.id, by: Holder::Admin }).collect()
}

/// Jobs that live, by their array.
fn live_tasks(judge: &Judge) -> BTreeMap<JobId, u32> {
    let mut live = BTreeMap::new();
    for task in judge.jobs.values().filter_map(|job| job.array_task) {
        *live.entry(task.array).or_default() += 1;
    }
    live
}

/// No array has more live tasks than its limit, unless the limit was lowered below what lives: then none is added.
pub(crate) fn arrays_keep_their_limits(now: &Judge, before: &Judge, broken: &mut Vec<String>) {
    let (live, lived) = (live_tasks(now), live_tasks(before));
    for (id, live) in live {
        let Some(array) = now.jobs.get(&id).and_then(|job| job.array.as_ref()) else {
            broken.push(format!("array: tasks of array {id} live, and it does not"));
            continue;
        };
        let most = array.max_running.unwrap_or(u32::MAX).max(lived.get(&id).copied().unwrap_or(0));
        if live > most {
            broken.push(format!("array: {live} tasks of array {id} live, at most {:?}", array.max_running));
        }
    }
}

/// Burst that is new leaves free what tenants outside of its own line are guaranteed, do not use and do not lend. What comes later in the entry is judged
/// by itself: a floor may pay for it, or others may keep less from it. An entry that changes tenants or nodes is not judged.
pub(crate) fn what_is_not_lent_is_kept(now: &Judge, before: &Judge, broken: &mut Vec<String>) {
    let lends_all = |tenant: &Tenant| tenant.lend && tenant.lends.values().all(|lent| *lent);
    if now.tenants.values().all(lends_all) || now.tenants != before.tenants || now.nodes != before.nodes {
        return;
    }
    let new = new_charges(now, before);
    for (id, taker, charge, _) in new.iter().filter(|(.., account)| account.is_none()) {
        let mut used = now.used();
        for (_, tenant, later, _) in new.iter().filter(|(other, ..)| other > id) {
            now.line(*tenant).for_each(|at| used.entry(at.id).or_default().sub(later));
        }
        for (resource, _) in charge.nonzero().filter(|(resource, _)| now.is_floored(*resource)) {
            let organisations = now.tenants.values().filter(|tenant| tenant.parent.is_none());
            let in_use: u64 = organisations.filter_map(|at| used.get(&at.id)).map(|used| used.get(resource)).sum();
            let free = now.healthy().get(resource).saturating_sub(in_use);
            let kept = kept_from(now, &used, *taker, resource);
            if kept > free {
                broken
                    .push(format!("lending: burst of tenant {taker} leaves {free} of {resource}, and {kept} are kept"));
            }
        }
    }
}

/// What this entry bound and claimed: which, whose, how much, and the floor that pays. What a claim of before becomes was judged when it was made.
fn new_charges(now: &Judge, before: &Judge) -> Vec<(AllocationId, TenantId, ResourceVec, Option<TenantId>)> {
    let claimed = |judge: &Judge| -> Vec<(AllocationId, TenantId, ResourceVec, Option<TenantId>)> {
        let claims = judge.jobs.values().filter_map(|job| Some((job.tenant, job.claim.as_ref()?)));
        claims.map(|(tenant, claim)| (claim.allocation, tenant, claim.charge, claim.account)).collect()
    };
    let was = claimed(before);
    let known = |id: &AllocationId| before.held.contains_key(id) || was.iter().any(|(claim, ..)| claim == id);
    let held = now.held.values().filter(|held| held.pays());
    let held = held.map(|held| (held.id, held.tenant, held.charge, held.account()));
    held.chain(claimed(now)).filter(|(id, ..)| !known(id)).collect()
}

/// Of tenants that keep what they do not use, one below the other, the highest counts.
fn kept_from(judge: &Judge, used: &BTreeMap<TenantId, ResourceVec>, taker: TenantId, resource: Resource) -> u64 {
    let mine: Vec<TenantId> = judge.line(taker).map(|at| at.id).collect();
    let keeps = |tenant: &Tenant| !tenant.lends(resource) && !mine.contains(&tenant.id);
    let tops = judge.tenants.values().filter(|tenant| keeps(tenant) && !judge.line(tenant.id).skip(1).any(keeps));
    let idle = |tenant: &Tenant| {
        let used = used.get(&tenant.id).map_or(0, |used| used.get(resource));
        tenant.guarantee.get(resource).saturating_sub(used)
    };
    tops.map(idle).sum()
}

/// An array has one task more than its limit allows: found by the law. The event log does not know arrays, so the referee cannot find it.
#[test]
fn an_array_above_its_limit_is_caught() {
    let mut caught = 0;
    for seed in 1..=40 {
        let history = crate::world::run_rich(seed);
        assert!(history.broken.is_empty(), "seed {seed}: {:?}", history.broken);
        let mut judge = Judge::begin(history.begin.iter().cloned());
        for changes in &history.entries {
            let before = judge.clone();
            assert_eq!(judge.entry(changes), Vec::<String>::new(), "seed {seed}: it was good");
            let (live, lived) = (live_tasks(&judge), live_tasks(&before));
            let full = live.iter().find(|(id, live)| {
                let array = judge.jobs.get(id).and_then(|job| job.array.as_ref());
                array.is_some_and(|array| array.max_running == Some(**live)) && lived.get(id) != Some(live)
            });
            let Some((array, _)) = full else { continue };
            let Some(task) = judge.jobs.values().find(|job| job.array_task.is_some_and(|task| task.array == *array))
            else {
                continue;
            };
            let array_task = Some(ArrayTask { array: *array, index: 999 });
            let more = Job { id: JobId(u64::MAX), array_task, phase: JobPhase::Queued, claim: None, ..task.clone() };
            let mut planted = changes.clone();
            planted.push(Change::put(Object::Job(more)));
            let found = before.clone().entry(&planted);
            assert!(found.iter().any(|what| what.starts_with("array:")), "seed {seed}: {found:?}");
            caught += 1;
            break;
        }
    }
    assert!(caught > 5, "{caught} histories have an array at its limit");
}
