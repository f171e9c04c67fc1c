//! Windows in random histories: what operators plan, and what must be so whatever they plan. The rules are written out here by hand.

use crate::chance::Chance;
use muster_control_core::{Command, State};
use muster_model::{
    Allocation, AllocationId, AllocationState, Change, EndCause, GpuModel, NodeId, Object, Window, WindowKind,
    WindowSpec,
};
use std::collections::{BTreeMap, BTreeSet};

/// A window of any kind, soon; it may be refused.
pub(crate) fn random(chance: &mut Chance, state: &State, now_ms: u64) -> Option<Command> {
    let kind =
        *chance.pick(&[WindowKind::Maintenance, WindowKind::Reservation, WindowKind::Reservation, WindowKind::Drain]);
    if kind == WindowKind::Drain && (drains(state) || state.nodes.values().any(|node| !node.accepts_work())) {
        // The guarantees must stay within what is left.
        return None;
    }
    let names: Vec<&str> = state.nodes.values().map(|node| node.spec.name.as_str()).collect();
    let node = chance.pick(&names).to_string();
    let start_ms = now_ms + 1_000 * chance.within(0, 600);
    let end_ms = Some(start_ms + 1_000 * chance.within(20, 600)).filter(|_| kind != WindowKind::Drain);
    let reserves = kind == WindowKind::Reservation;
    let chooses = reserves && chance.in_hundred(60);
    let tenants: Vec<&str> = state.tenants.values().map(|tenant| tenant.path.as_str()).collect();
    let tenant = chance.pick(&tenants).to_string();
    Some(Command::PutWindow(WindowSpec {
        name: if kind == WindowKind::Drain { format!("drain-{node}") } else { format!("w{}", chance.within(0, 1_000)) },
        kind,
        nodes: if chooses { Vec::new() } else { vec![node] },
        gpus: if chooses { chance.within(1, 24) } else { 0 },
        model: chooses.then_some(GpuModel::H100),
        start_ms,
        end_ms,
        reason: String::new(),
        tenants: if reserves { vec![tenant] } else { Vec::new() },
        flex: reserves && chance.in_hundred(25),
        preempt: chance.in_hundred(50),
    }))
}

/// Whether a node is to be drained by a time.
pub(crate) fn drains(state: &State) -> bool {
    state.windows.values().any(|window| window.kind == WindowKind::Drain)
}

/// The load is over: windows are given up, with the jobs that can run in one alone, and every node is open.
pub(crate) fn give_up(state: &State) -> Vec<Command> {
    let windows = state.windows.keys().map(|name| Command::DeleteWindow { name: name.clone() });
    let jobs = state.jobs.values().filter(|job| job.spec.reservation.is_some());
    windows.chain(jobs.map(|job| Command::Cancel { job: job.id })).collect()
}

/// A reservation that a job may name, with a tenant that may.
pub(crate) fn named(chance: &mut Chance, state: &State) -> Option<(String, String)> {
    let of = |window: &Window| Some((window.name.clone(), state.tenants.get(window.tenants.first()?)?.path.clone()));
    let all: Vec<(String, String)> = state.windows.values().filter_map(of).collect();
    if all.is_empty() { None } else { Some(chance.pick(&all).clone()) }
}

fn named_by(state: &State, held: &Allocation) -> Option<String> {
    state.jobs.get(&held.job)?.spec.reservation.clone()
}

/// Start, limit and grace; for ever without a limit.
fn over_ms(state: &State, held: &Allocation) -> u64 {
    let Some(job) = state.jobs.get(&held.job) else { return u64::MAX };
    job.spec.time_limit_s.map_or(u64::MAX, |limit_s| held.bound_ms + 60_000 + 1_000 * (limit_s + job.spec.grace_s))
}

/// What the entry's changes broke; `lost`: a node was lost, so tasks may be gone later than they should.
pub(crate) fn broken(
    state: &State,
    changes: &[Change],
    is_new: impl Fn(&AllocationId) -> bool,
    lost: bool,
) -> Vec<String> {
    let mut broken = Vec::new();
    for change in changes {
        let Change::Put(object) = change else { continue };
        match &**object {
            Object::Allocation(held) if is_new(&held.id) => broken.extend(placed_wrongly(state, held)),
            Object::Window(window) if window.open && state.windows.contains_key(&window.name) => {
                broken.extend(not_there_at_its_start(state, window, lost));
            }
            _ => {}
        }
    }
    broken
}

/// No job is placed on a node of a window that it could still run into, and none outside of its reservation.
fn placed_wrongly(state: &State, held: &Allocation) -> Option<String> {
    let named = named_by(state, held);
    // Who has preempted others for its place was placed then: a window that lies ahead may be younger.
    let was_placed_before = state.jobs.get(&held.job).is_some_and(|job| job.preemptor.attempt == Some(held.attempt));
    let on = |node: NodeId| state.windows.values().filter(move |window| window.nodes.contains(&node));
    for task in &held.tasks {
        if let Some(name) = named.as_ref().filter(|_| !was_placed_before)
            && !on(task.node).any(|window| window.name == *name)
        {
            return Some(format!("windows: job {} was placed outside of reservation {name}", held.job));
        }
        for window in on(task.node) {
            let own = window.kind == WindowKind::Reservation && Some(&window.name) == named.as_ref();
            let may = match own {
                true => {
                    was_placed_before
                        || window.flex
                        || window.open && window.end_ms.is_none_or(|end_ms| over_ms(state, held) <= end_ms)
                }
                false => !window.open && (was_placed_before || over_ms(state, held) <= window.start_ms),
            };
            if !may {
                return Some(format!("windows: job {} was placed on node {} of {window:?}", held.job, task.node));
            }
        }
    }
    None
}

/// When a window opens whose nodes are to be empty then, nothing of others is left on them.
fn not_there_at_its_start(state: &State, window: &Window, lost: bool) -> Option<String> {
    let others = state.allocations.values().filter(|held| {
        let there = held.tasks.iter().any(|task| window.nodes.contains(&task.node));
        there && named_by(state, held).as_ref() != Some(&window.name)
    });
    let planned = window.start_ms > window.made_ms + 120_000;
    let left = others.into_iter().find(|held| match window.preempt {
        // One that began at once, or in a fleet that lost a node, waits for what it has told to stop.
        true => match held.state {
            AllocationState::Active => true,
            AllocationState::Stopping(EndCause::Window { .. }) => planned && !lost,
            AllocationState::Stopping(_) => false,
        },
        false => false,
    })?;
    Some(format!("windows: {window:?} opens, and job {} is there ({:?})", left.job, left.state))
}

/// A gang of a good history is bound on a node of a window that it runs into: found in the state after the entry. The event log does not know
/// windows, so the referee cannot find it.
#[test]
fn a_binding_inside_a_window_is_caught() {
    let mut caught = BTreeMap::<WindowKind, u64>::new();
    for seed in 1..=60 {
        let history = crate::world::run_with_windows(seed);
        assert!(history.broken.is_empty(), "seed {seed}: {:?}", history.broken);
        let mut state = State::from_objects(history.begin.clone());
        for changes in &history.entries {
            let known: BTreeSet<AllocationId> = state.allocations.keys().copied().collect();
            changes.iter().for_each(|change| state.apply(change));
            let fresh = state.allocations.values().find(|held| !known.contains(&held.id) && !held.is_growth);
            let Some(held) = fresh.map(|held| Allocation::clone(held)) else { continue };
            let named = named_by(&state, &held);
            let preempted = state.jobs.get(&held.job).is_some_and(|job| job.preemptor.attempt == Some(held.attempt));
            let others = state.windows.values().find(|window| {
                let into = window.open || over_ms(&state, &held) > window.start_ms;
                let there = held.tasks.iter().any(|task| window.nodes.contains(&task.node));
                into && !there && named.as_ref() != Some(&window.name)
            });
            let (Some(window), false) = (others.cloned(), preempted) else { continue };
            let Some(node) = window.nodes.first() else { continue };
            let mut inside = held.clone();
            inside.tasks[0].node = *node;
            let planted = Change::put(Object::Allocation(inside));
            let found = broken(&state, &[planted], |id| !known.contains(id), false);
            assert!(found.iter().any(|what| what.starts_with("windows: job")), "seed {seed}: {found:?}");
            *caught.entry(window.kind).or_default() += 1;
            break;
        }
    }
    assert!(WindowKind::ALL.iter().all(|kind| caught.contains_key(kind)), "{caught:?}");
}
