//! What an answer about the fleet shows to those who do not see all of it.
//!
//! What must stay true: to a caller who sees some tenants alone, nothing of an answer depends on the jobs, names and nodes of others; what is left is whole
//! and true. Whoever sees the fleet is shown everything.

use muster_control_core::State;
use muster_control_core::authz::Visibility;
use muster_model::{DeviceClass, JobId, NodeId, PriorityClass};
use muster_proto::v1;
use std::collections::BTreeSet;

/// Nodes on which something of the tenants runs that the caller sees; none where all nodes are shown.
fn own_nodes(state: &State, sees: &Visibility) -> Option<BTreeSet<NodeId>> {
    if sees.shows_fleet() {
        return None;
    }
    let own = state.allocations.values().filter(|held| sees.shows(state, held.tenant));
    Some(own.flat_map(|held| held.tasks.iter().map(|task| task.node)).collect())
}

fn is_own(state: &State, own: &BTreeSet<NodeId>, name: &str) -> bool {
    state.index().node_ids.get(name).is_some_and(|id| own.contains(id))
}

fn sees_job(state: &State, sees: &Visibility, job: u64) -> bool {
    state.jobs.get(&JobId(job)).is_some_and(|job| sees.shows(state, job.tenant))
}

/// Nodes of the caller's own jobs, with nothing of what else they have.
pub(super) fn nodes(state: &State, sees: &Visibility, views: Vec<v1::NodeView>) -> Vec<v1::NodeView> {
    let Some(own) = own_nodes(state, sees) else { return views };
    let name = |view: &v1::NodeView| {
        view.node.as_ref().and_then(|node| node.spec.as_ref()).map(|spec| spec.name.clone()).unwrap_or_default()
    };
    let mut views: Vec<v1::NodeView> = views.into_iter().filter(|view| is_own(state, &own, &name(view))).collect();
    for view in &mut views {
        let id = state.index().node_ids.get(&name(view)).copied().unwrap_or_default();
        let held = state.index().allocations_on(id).filter_map(|held| state.allocations.get(&held));
        let tasks = held.filter(|held| sees.shows(state, held.tenant)).map(|held| held.ranks_on(id).count());
        view.tasks = tasks.sum::<usize>() as u32;
        (view.gpus_free, view.cpu_free_milli, view.memory_free_mib) = (0, 0, 0);
        view.windows.clear();
    }
    views
}

/// Cards of the nodes of the caller's own jobs; a card that others hold says only that it is in use.
pub(super) fn gpus(state: &State, sees: &Visibility, views: Vec<v1::GpuView>) -> Vec<v1::GpuView> {
    let Some(own) = own_nodes(state, sees) else { return views };
    let mut views: Vec<v1::GpuView> = views.into_iter().filter(|view| is_own(state, &own, &view.node)).collect();
    for view in &mut views {
        let all = view.jobs.len() + view.cleaning.len();
        view.jobs.retain(|job| sees_job(state, sees, *job));
        view.cleaning.retain(|job| sees_job(state, sees, *job));
        if view.jobs.len() + view.cleaning.len() == all && all > 0 {
            continue;
        }
        if view.jobs.is_empty() {
            view.mode = "not-yours".to_owned();
            (view.held, view.unavailable) = (String::new(), String::new());
        } else {
            view.held = "shared with others".to_owned();
        }
    }
    views
}

/// Cells without what runs and waits in them.
pub(super) fn cells(sees: &Visibility, mut views: Vec<v1::CellView>) -> Vec<v1::CellView> {
    if !sees.shows_fleet() {
        for view in &mut views {
            (view.running, view.waiting, view.gpus_free) = (0, 0, 0);
        }
    }
    views
}

/// Whether one of the tenants `allowed` (all, when it names none) is one that the caller sees, and those of them that are.
fn seen_of(state: &State, sees: &Visibility, allowed: &BTreeSet<String>) -> (bool, BTreeSet<String>) {
    let Visibility::Below(tops) = sees else { return (true, allowed.clone()) };
    let tops: Vec<&str> = tops.iter().filter_map(|top| state.tenants.get(top)).map(|tenant| &*tenant.path).collect();
    let under = |path: &str, top: &str| muster_model::tenant::lies_under(path, top);
    let of_use =
        allowed.is_empty() || allowed.iter().any(|path| tops.iter().any(|top| under(top, path) || under(path, top)));
    let seen = allowed.iter().filter(|path| tops.iter().any(|top| under(path, top) || under(top, path))).cloned();
    (of_use, seen.collect())
}

/// Device classes that a tenant may use that the caller sees.
pub(super) fn device_classes(state: &State, sees: &Visibility) -> Vec<DeviceClass> {
    let seen = |class: &DeviceClass| {
        let (of_use, tenants) = seen_of(state, sees, &class.tenants);
        of_use.then(|| DeviceClass { tenants, ..class.clone() })
    };
    state.device_classes.values().filter_map(seen).collect()
}

/// Priority classes that a tenant may use that the caller sees.
pub(super) fn priority_classes(state: &State, sees: &Visibility) -> Vec<PriorityClass> {
    let seen = |class: &PriorityClass| {
        let (of_use, tenants) = seen_of(state, sees, &class.tenants);
        of_use.then(|| PriorityClass { tenants, ..class.clone() })
    };
    state.priority_classes.values().filter_map(seen).collect()
}

/// Reservations of the tenants that the caller sees, and no other windows.
pub(super) fn windows(state: &State, sees: &Visibility, views: Vec<v1::WindowView>) -> Vec<v1::WindowView> {
    if sees.shows_fleet() {
        return views;
    }
    let seen = |path: &String| state.index().tenant_ids.get(path).is_some_and(|id| sees.shows(state, *id));
    let mut views: Vec<v1::WindowView> = views.into_iter().filter(|view| view.tenants.iter().any(seen)).collect();
    for view in &mut views {
        view.tenants.retain(seen);
        view.jobs_in_the_way.retain(|job| sees_job(state, sees, *job));
    }
    views
}
