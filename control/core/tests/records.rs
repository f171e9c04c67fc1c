//! What is recorded for bills, over random histories: who paid for an allocation since when, what each tenant was, and what burst leaves of floors that are
//! not lent. Each is shown to be caught when it is broken on purpose.

#[allow(dead_code, reason = "the histories are shared with other tests, which look at more of each step")]
mod common;

use common::{Step, Story, catches, holds, put, seeds};
use muster_control_core::bounds::{PAST_VERSIONS_MAX, TENANT_VERSION_HORIZON_MS};
use muster_control_core::{Command, Entry, Executed, State, execute};
use muster_model::ids::{AllocationId, JobId, TenantId};
use muster_model::object::Key;
use muster_model::tenant_history::TENANT_VERSIONS_MAX;
use muster_model::{
    Allocation, BurstTier, Change, GpuModel, GpuUnits, Object, QuotaClass, Tenant, TenantHistory, TenantVersion,
    TopologyLevel,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Watched = Result<(), String>;

fn checked(step: &Step<'_>) -> Watched {
    step.after.check().map_err(|broken| broken.to_string())
}

/// The state machine keeps a history of every tenant. A copy of the state for plans is sent without any, so `check` does not ask for them.
fn histories(step: &Step<'_>) -> Watched {
    let missing = |tenant: &&Tenant| !step.after.tenant_histories.contains_key(&tenant.id);
    match step.after.tenants.values().find(missing) {
        Some(tenant) if step.after.meta.feature_level >= 3 => Err(format!("tenant {} has no history", tenant.path)),
        _ => checked(step),
    }
}

fn lending(step: &Step<'_>) -> Watched {
    step.after.check_lending(step.before).map_err(|broken| broken.to_string())
}

fn clone_of(state: &State, which: impl Fn(&Allocation) -> bool) -> Option<Allocation> {
    state.allocations.values().find(|held| which(held)).map(|held| Allocation::clone(held))
}

#[test]
fn law_3_each_millisecond_of_an_allocation_has_one_payer() {
    holds("law_3_each_millisecond", || checked);
    // A change of class that forgets the time before it.
    catches(
        "is the first time without a sum",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let Some(mut held) = clone_of(state, |held| held.classes.segments.len() > 1) else { return };
                held.classes.segments.remove(0);
                put(state, Object::Allocation(held));
            }
        },
    );
    // A level that the job got by luck.
    catches(
        "is recorded to require",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let Some(mut held) = clone_of(state, |held| held.topology.level.is_none()) else { return };
                held.topology.level = Some(TopologyLevel::Island);
                put(state, Object::Allocation(held));
            }
        },
    );
}

/// Whatever is released, what it was stays known to the end: for its attempt, and for intervals that come late.
#[test]
fn what_is_released_keeps_its_classes_and_its_topology() {
    let mut seen = BTreeSet::new();
    for seed in seeds(25) {
        let mut watch = |step: &Step<'_>| {
            if step.before.meta.feature_level < 3 {
                return Ok(());
            }
            for (id, held) in &step.before.allocations {
                if step.after.allocations.contains_key(id) {
                    continue;
                }
                let usage = step.after.allocation_usage.get(id).and_then(|usage| usage.held.as_deref());
                // The entry that released it may have promoted it before.
                let paid = |classes: &muster_model::ClassRecord| {
                    classes.segments.starts_with(&held.classes.segments) || !classes.sums.is_empty()
                };
                let kept = usage.is_some_and(|kept| {
                    (kept.job, kept.bound_ms, kept.topology, kept.gpu_units)
                        == (held.job, held.bound_ms, held.topology, held.charge.gpu_total().0)
                        && paid(&kept.classes)
                });
                if !kept {
                    return Err(format!("of allocation {id} only {usage:?} is kept"));
                }
                let retired = step.changes.iter().find_map(|change| match change {
                    Change::Retire(job) if job.id == held.job => Some(&**job),
                    _ => None,
                });
                let job = retired.or_else(|| step.after.jobs.get(&held.job).map(AsRef::as_ref));
                let record = job.and_then(|job| job.attempts.iter().find(|record| record.allocation == *id));
                if !held.is_growth && !record.is_some_and(|record| paid(&record.classes)) {
                    return Err(format!("the attempt of allocation {id} says {record:?}"));
                }
                seen.extend(held.classes.now().map(|class| match class {
                    QuotaClass::Guaranteed(_) => "guaranteed",
                    QuotaClass::Burst(BurstTier::Standard) => "standard",
                    QuotaClass::Burst(BurstTier::Spot) => "spot",
                    QuotaClass::Burst(BurstTier::Marked) => "marked",
                }));
            }
            Ok(())
        };
        common::run(seed, 300, &mut watch, &mut |_, _, _| {}).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
    for kind in ["guaranteed", "spot", "marked"] {
        assert!(seen.contains(kind), "{kind} is never seen: {seen:?}");
    }
}

#[test]
fn law_10_the_history_of_a_tenant_ends_with_what_it_is() {
    holds("law_10_the_history", || histories);
    // A change of a tenant without a version.
    catches(
        "the history of tenant",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let Some(mut tenant) = state.tenants.values().next().cloned() else { return };
                tenant.weight += 1;
                put(state, Object::Tenant(tenant));
            }
        },
    );
    catches(
        "has no history",
        || histories,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let id = state.tenant_histories.keys().next().copied();
                id.into_iter().for_each(|id| state.apply(&Change::Delete(Key::TenantHistory(id))));
            }
        },
    );
}

/// Every time that a tenant differs is in its history with the time of that entry, whatever the command; and it goes on after the tenant.
#[test]
fn each_change_of_a_tenant_is_a_version_of_the_time_of_its_entry() {
    let mut commands = BTreeSet::new();
    for seed in seeds(25) {
        let mut scenario = Story::new(seed);
        let mut told: BTreeMap<TenantId, Vec<(u64, Option<Tenant>)>> = BTreeMap::new();
        for _ in 0..300 {
            let entry = scenario.next_entry();
            let before = scenario.state.tenants.clone();
            let set_back = entry.commands.contains(&Command::ResetClock);
            scenario.execute(&entry);
            if set_back {
                break; // Times of before are others from here on.
            }
            let (state, now_ms) = (&scenario.state, scenario.state.meta.now_ms);
            if state.meta.feature_level < 3 {
                continue;
            }
            for id in before.keys().chain(state.tenants.keys()).collect::<BTreeSet<_>>() {
                let (then, now) = (before.get(id), state.tenants.get(id));
                let unchanged = then.zip(now).is_some_and(|(then, now)| same(then, now));
                if !unchanged || !told.contains_key(id) {
                    tell(told.entry(*id).or_default(), now_ms, now);
                    commands.extend(entry.commands.iter().filter_map(kind));
                }
            }
        }
        if scenario.state.meta.feature_level < 3 {
            continue;
        }
        for (id, changes) in told {
            let history =
                scenario.state.tenant_histories.get(&id).unwrap_or_else(|| panic!("seed {seed}: no history of {id}"));
            let told: Vec<TenantVersion> = changes
                .iter()
                .filter_map(|(at_ms, tenant)| Some(TenantVersion::of(tenant.as_ref()?, *at_ms)))
                .collect();
            assert_eq!(history.versions, told, "seed {seed}: tenant {id}");
            let removed = changes.last().and_then(|(at_ms, tenant)| tenant.is_none().then_some(*at_ms));
            assert_eq!(history.removed_ms, removed, "seed {seed}: tenant {id}");
        }
    }
    for kind in ["apply", "edit", "move", "delete"] {
        assert!(commands.contains(kind), "{kind} is never seen: {commands:?}");
    }
}

fn same(a: &Tenant, b: &Tenant) -> bool {
    TenantVersion::of(a, 0) == TenantVersion::of(b, 0)
}

/// Adds what a tenant is from now on. What was for no time is nothing.
fn tell(told: &mut Vec<(u64, Option<Tenant>)>, now_ms: u64, now: Option<&Tenant>) {
    if now.is_some() && told.last().is_some_and(|(at_ms, _)| *at_ms == now_ms) {
        told.pop();
    }
    let before = told.last().and_then(|(_, tenant)| tenant.as_ref());
    if !before.zip(now).is_some_and(|(before, now)| same(before, now)) {
        told.push((now_ms, now.cloned()));
    }
}

fn kind(command: &Command) -> Option<&'static str> {
    match command {
        Command::ApplyTenants { .. } => Some("apply"),
        Command::EditTenants { .. } => Some("edit"),
        Command::MoveTenant { .. } => Some("move"),
        Command::DeleteTenant { .. } => Some("delete"),
        _ => None,
    }
}

#[test]
fn law_4_burst_leaves_what_others_do_not_lend() {
    holds("law_4_burst_leaves", || lending);
    // Burst that nobody has asked whether it may: it enters behind the ledger's back and takes what is free.
    catches(
        "are kept",
        || lending,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let there = state.tenants.values().map(|tenant| tenant.id);
                let Some(held) = clone_of(state, |held| held.account().is_none() && held.pays()) else { return };
                for tenant in there.collect::<Vec<_>>() {
                    let (id, job) = (AllocationId(1_000_000), JobId(1_000_000));
                    let mut more = Allocation { id, job, tenant, tasks: Vec::new(), ..held.clone() };
                    more.charge.set_gpu(GpuModel::H100, GpuUnits::cards(1_000));
                    state.allocations.insert(more.id, Arc::new(more));
                }
            }
        },
    );
}

fn sweep(state: &mut State, now_ms: u64) {
    let executed = execute(state, &Entry { now_ms, commands: vec![Command::Sweep] });
    assert!(executed.decided.iter().all(Result::is_ok), "{:?}", executed.decided);
}

fn version(number: u64, from_ms: u64) -> TenantVersion {
    TenantVersion::of(&Tenant { weight: number as u32 + 1, ..Tenant::usual(TenantId(1), "gone") }, from_ms)
}

#[test]
fn versions_are_forgotten_at_their_horizon_and_a_removed_tenant_with_its_last() {
    let mut state = State::new(7);
    execute(&mut state, &Entry { now_ms: 5, commands: vec![Command::RaiseFeatureLevel { level: 3 }] });
    let mut gone = TenantHistory::new(TenantId(1), version(0, 10), false);
    gone.note(version(1, 20));
    gone.remove(30);
    put(&mut state, Object::TenantHistory(gone));
    let versions = |state: &State| state.tenant_histories.get(&TenantId(1)).map(|history| history.versions.len());
    for (at_ms, left) in [(20, Some(2)), (21, Some(1)), (30, Some(1)), (31, None)] {
        sweep(&mut state, at_ms + TENANT_VERSION_HORIZON_MS);
        assert_eq!(versions(&state), left, "{at_ms} ms after the horizon");
        state.check().expect("laws hold");
    }
}

#[test]
fn versions_of_all_tenants_are_bounded_and_those_that_ended_first_go_first() {
    let mut state = State::new(7);
    execute(&mut state, &Entry { now_ms: 5, commands: vec![Command::RaiseFeatureLevel { level: 3 }] });
    let tenants = PAST_VERSIONS_MAX / TENANT_VERSIONS_MAX + 3;
    for id in 1..=tenants as u64 {
        let mut history = TenantHistory::new(TenantId(id as u32), version(0, 10 * id), false);
        for number in 1..TENANT_VERSIONS_MAX as u64 {
            history.note(version(number, 10 * id + number));
        }
        history.remove(10 * id + 1_000);
        put(&mut state, Object::TenantHistory(history));
    }
    let count = |state: &State| state.tenant_histories.values().map(TenantHistory::ended).sum::<usize>();
    assert!(count(&state) > PAST_VERSIONS_MAX);
    let newest = state.tenant_histories.values().last().cloned();
    sweep(&mut state, 1_000_000);
    assert_eq!(count(&state), PAST_VERSIONS_MAX);
    assert_eq!(state.tenant_histories.values().last().cloned(), newest);
    let first = &state.tenant_histories[&TenantId(1)];
    assert!(first.is_cut && first.versions.len() < TENANT_VERSIONS_MAX, "{} versions", first.versions.len());
}
