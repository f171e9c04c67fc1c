//! Windows: made and removed by admins; [`due`] opens and ends them.
//!
//! What must stay true: a reservation is made only when its nodes can be free at its start by the time limits of what runs there, and no other
//! window has them meanwhile; a window that exists is never changed by a repeated request.

pub(super) mod due;
mod hold;

use super::level;
use crate::bounds::WINDOWS_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::ids::{NodeId, TenantId};
use muster_model::object::Key;
use muster_model::validate::nearest;
use muster_model::window::{DRAIN_PREFIX, WINDOW_MS_MAX};
use muster_model::{FieldError, Object, Tenant, Window, WindowKind, WindowSpec};
use std::collections::BTreeSet;

pub(super) fn put(draft: &mut Draft<'_>, spec: &WindowSpec) -> Result<Done, Reject> {
    let state = draft.state;
    level::need(state, level::QUOTAS, "window")?;
    spec.validate().map_err(Reject::Invalid)?;
    check_times(draft.now_ms, spec)?;
    let tenants = tenants_of(state, spec)?;
    let named = nodes_of(state, spec)?;
    let window = Window {
        name: spec.name.clone(),
        kind: spec.kind,
        nodes: named,
        start_ms: spec.start_ms.max(draft.now_ms),
        end_ms: spec.end_ms,
        reason: spec.reason.clone(),
        tenants,
        flex: spec.flex,
        preempt: spec.preempt || spec.kind != WindowKind::Maintenance,
        open: false,
        made_ms: draft.now_ms,
    };
    if let Some(known) = state.windows.get(&spec.name) {
        if is_repeated(state, known, &window, spec) {
            return Ok(Done::Ok);
        }
        if known.kind != WindowKind::Drain || spec.kind != WindowKind::Drain {
            let problem = format!("is {:?}, and there is a {} of that name", spec.name, known.kind);
            return Err(Reject::field("name", problem, "use another name, or delete that one first"));
        }
    } else if state.windows.len() >= WINDOWS_MAX {
        return Err(Reject::Full { what: "the table of windows".to_owned(), limit: WINDOWS_MAX as u64 });
    }
    let window = if spec.kind == WindowKind::Reservation { hold::nodes(draft, window, spec)? } else { window };
    no_reservation_there(state, &window)?;
    draft.put(Object::Window(window));
    Ok(Done::Ok)
}

/// Whoever has been placed in a reservation goes on; a drain that has not come does not.
pub(super) fn delete(draft: &mut Draft<'_>, name: &str) -> Result<Done, Reject> {
    if !draft.state.windows.contains_key(name) {
        return Err(Reject::not_found("window", name));
    }
    draft.delete(Key::Window(name.to_owned()));
    Ok(Done::Ok)
}

/// The node is drained, opened or gone: no drain lies ahead of it any more; `gone`: nor is it in any other window.
pub(super) fn leave(draft: &mut Draft<'_>, node: NodeId, gone: bool) {
    let state = draft.state;
    for window in state.windows_on(node).filter(|window| gone || window.kind == WindowKind::Drain) {
        let mut nodes = window.nodes.clone();
        nodes.remove(&node);
        match nodes.is_empty() {
            true => draft.delete(Key::Window(window.name.clone())),
            false => draft.put(Object::Window(Window { nodes, ..window.clone() })),
        }
    }
}

fn check_times(now_ms: u64, spec: &WindowSpec) -> Result<(), Reject> {
    if spec.end_ms.is_some_and(|end_ms| end_ms <= now_ms) {
        return Err(Reject::field("end_ms", "is over", "let it end in the future"));
    }
    if spec.start_ms > now_ms.saturating_add(WINDOW_MS_MAX) {
        return Err(Reject::field("start_ms", "is more than 366 days away", "plan it later"));
    }
    Ok(())
}

fn tenants_of(state: &State, spec: &WindowSpec) -> Result<BTreeSet<TenantId>, Reject> {
    let id = |path: &String| {
        let fix = "use tenants of `muster tenants list`";
        let known = state.index().tenant_ids.get(path).copied();
        known.ok_or_else(|| Reject::field("tenants", format!("{path:?} does not exist"), fix))
    };
    spec.tenants.iter().map(id).collect()
}

fn nodes_of(state: &State, spec: &WindowSpec) -> Result<BTreeSet<NodeId>, Reject> {
    let ids = &state.index().node_ids;
    let id = |name: &String| {
        let fix = match nearest(name, ids.keys().map(String::as_str)) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "use names of `muster nodes`".to_owned(),
        };
        ids.get(name).copied().ok_or_else(|| Reject::field("nodes", format!("{name:?} does not exist"), fix))
    };
    spec.nodes.iter().map(id).collect()
}

/// Whether a window was made by this very request: an answer may have been lost.
fn is_repeated(state: &State, known: &Window, window: &Window, spec: &WindowSpec) -> bool {
    let nodes = match spec.gpus {
        0 => known.nodes == window.nodes,
        gpus => spec.model.is_some_and(|model| hold::cards_on(state, &known.nodes, model) >= gpus),
    };
    let began = known.start_ms == spec.start_ms || spec.start_ms <= known.made_ms && known.start_ms == known.made_ms;
    let same = |window: &Window| {
        (window.kind, window.end_ms, window.reason.clone(), window.tenants.clone(), window.flex, window.preempt)
    };
    nodes && began && same(known) == same(window)
}

/// A reservation is a promise: maintenance and drains that would break it are refused.
fn no_reservation_there(state: &State, window: &Window) -> Result<(), Reject> {
    let there = window.nodes.iter().flat_map(|node| state.windows_on(*node));
    let broken = there
        .filter(|other| other.name != window.name && other.kind == WindowKind::Reservation)
        .find(|other| other.overlaps(window.start_ms, window.end_ms));
    match broken {
        None => Ok(()),
        Some(other) => {
            let why = format!(
                "{} {} would take nodes of it; delete it first, or choose another time",
                window.kind, window.name
            );
            Err(Reject::InUse { what: "reservation".to_owned(), id: other.name.clone(), why })
        }
    }
}

/// The window of a drain of this node.
#[must_use]
pub fn drain_name(node: &str) -> String {
    format!("{DRAIN_PREFIX}{node}")
}

/// Whether a job of this tenant may name the reservation that it names.
pub(super) fn check_named(state: &State, tenant: &Tenant, name: Option<&str>) -> Result<(), FieldError> {
    let Some(name) = name else { return Ok(()) };
    level::field(state, level::QUOTAS, "reservation")?;
    let all = || state.windows.values().filter(|window| window.kind == WindowKind::Reservation);
    let mine = || all().filter(|window| state.may_use(window, tenant.id)).map(|window| window.name.as_str());
    if mine().any(|mine| mine == name) {
        return Ok(());
    }
    let problem = match all().any(|window| window.name == name) {
        true => format!("{name:?} is not for tenant {}", tenant.path),
        false => format!("{name:?} does not exist"),
    };
    let fix = match nearest(name, mine().filter(|other| *other != name)) {
        Some(meant) => format!("did you mean {meant}? Or leave it out"),
        None => "use a reservation of `muster reservations list`, or leave it out".to_owned(),
    };
    Err(FieldError::new("reservation", problem, fix))
}
