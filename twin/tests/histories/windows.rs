//! Windows in random histories: what operators plan, and what must be so whatever they plan. The rules are written out here by hand.

use crate::chance::Chance;
use muster_control_core::{Command, State};
use muster_model::{
    Allocation, AllocationId, AllocationState, Change, EndCause, GpuModel, NodeId, Object, Window, WindowKind,
    WindowSpec,
};

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
    // Who has preempted others for its place was placed then: the window may be younger.
    if state.jobs.get(&held.job).is_some_and(|job| job.preemptor.attempt == Some(held.attempt)) {
        return None;
    }
    let on = |node: NodeId| state.windows.values().filter(move |window| window.nodes.contains(&node));
    for task in &held.tasks {
        if let Some(name) = &named
            && !on(task.node).any(|window| window.name == *name)
        {
            return Some(format!("windows: job {} was placed outside of reservation {name}", held.job));
        }
        for window in on(task.node) {
            let own = window.kind == WindowKind::Reservation && Some(&window.name) == named.as_ref();
            let may = match own {
                true => window.flex || window.open && window.end_ms.is_none_or(|end_ms| over_ms(state, held) <= end_ms),
                false => !window.open && over_ms(state, held) <= window.start_ms,
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
