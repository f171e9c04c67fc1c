//! Why a submission could run nowhere, even on an empty fleet, with the figures of what comes nearest.

use super::submit::ERRORS_SHOWN_MAX;
use crate::index::{NodeShape, tasks_on};
use crate::routing::{Models, refusal_of_pool, rules, tasks_held};
use crate::state::State;
use muster_model::{FieldError, GpuModel, JobSpec, NumaPolicy};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why no cell could ever hold the gang, with the figures of the one that comes nearest.
pub(super) fn why(state: &State, spec: &JobSpec, models: &Models) -> FieldError {
    let mut largest = (0, None);
    for (id, cell) in &state.index().cells {
        for &model in models {
            let held = tasks_held(state, cell, spec, model, u64::MAX);
            if held > largest.0 {
                largest = (held, Some((*id, model)));
            }
        }
    }
    let (held, Some((cell, model))) = largest else { return why_not_one(state, spec) };
    let name = state.cells.get(&cell).map_or("", |cell| cell.name.as_str());
    let on = model.map(|model| format!(" on {model}")).unwrap_or_default();
    let inside = spec.topology.required.map(|level| format!(" inside one {level}")).unwrap_or_default();
    let problem = format!("{} tasks{inside}, the largest cell ({name}) could hold {held}{on}", spec.tasks);
    let fix = if spec.topology.required.is_some() {
        format!("ask for at most {held} tasks, or a wider topology level")
    } else {
        format!("ask for at most {held} tasks, or split the job")
    };
    FieldError::new("tasks", problem, fix)
}

/// Why no node could run even one task.
fn why_not_one(state: &State, spec: &JobSpec) -> FieldError {
    let index = state.index();
    if let Some(pool) = spec.pool.as_ref().filter(|pool| !index.pool_nodes.contains_key(*pool)) {
        let known: Vec<&str> = index.pool_nodes.keys().map(String::as_str).take(ERRORS_SHOWN_MAX).collect();
        let fix = format!("use one of {}, or leave it out", known.join(", "));
        return FieldError::new("pool", format!("{pool:?} has no node"), fix);
    }
    let refusals: Vec<String> =
        index.pool_nodes.keys().filter_map(|name| refusal_of_pool(state, name, spec)).take(ERRORS_SHOWN_MAX).collect();
    if refusals.len() == index.pool_nodes.len() {
        let problem = format!("fits no pool: {}", refusals.join("; "));
        return FieldError::new("request", problem, "change class, sharing mode or pool");
    }
    let shapes = || index.cells.values().flat_map(|cell| cell.shapes.keys());
    if let Some(fault) = why_not_admitted(spec, shapes).or_else(|| why_not_so_close(state, spec, shapes)) {
        return fault;
    }
    let shapes = shapes();
    let kinds: BTreeSet<String> = shapes
        .map(|shape| {
            let card = shape.cards.first().map(|card| format!("{}x{} ", shape.cards.len(), card.model));
            format!("{}{}m CPU {} MiB", card.unwrap_or_default(), shape.cpu_milli, shape.memory_mib)
        })
        .collect();
    let kinds: Vec<String> = kinds.into_iter().take(ERRORS_SHOWN_MAX).collect();
    let problem = format!("no node could run one task of it, even empty; nodes are {}", kinds.join(", "));
    FieldError::new("request", problem, "ask for what one node has, or for another model")
}

/// Whether a node could run a task of it, if it did not insist on one NUMA node or on segments.
fn why_not_so_close<'a, S: Iterator<Item = &'a Arc<NodeShape>>>(
    state: &State,
    spec: &JobSpec,
    shapes: impl Fn() -> S,
) -> Option<FieldError> {
    let could = |looser: &JobSpec| {
        let on = |shape: &Arc<NodeShape>, model| tasks_on(shape, rules(state, &shape.pool), looser, Some(model), false);
        let served = |shape: &&Arc<NodeShape>| refusal_of_pool(state, &shape.pool, spec).is_none();
        shapes().filter(served).any(|shape| spec.possible_models().any(|model| on(shape, model) > 0))
    };
    let cards = spec.request.devices.cards();
    if spec.numa == NumaPolicy::SingleNumaNode && could(&JobSpec { numa: NumaPolicy::None, ..spec.clone() }) {
        let problem = format!("no node has {cards} fitting GPUs on one NUMA node");
        return Some(FieldError::new("numa", problem, "use restricted, or ask for fewer GPUs for each task"));
    }
    let mut looser = spec.clone();
    let each = looser.topology.segment_tasks.take()?;
    could(&looser).then(|| {
        let problem = format!("no node could hold one segment of {each} tasks, even empty");
        FieldError::new("topology.segment_tasks", problem, "use smaller segments")
    })
}

/// Whether the driver minimum or the selector is what keeps every node with a possible model out.
fn why_not_admitted<'a, S: Iterator<Item = &'a Arc<NodeShape>>>(
    spec: &JobSpec,
    shapes: impl Fn() -> S,
) -> Option<FieldError> {
    let models: Vec<GpuModel> = spec.possible_models().collect();
    let has = |shape: &&Arc<NodeShape>| shape.cards.iter().any(|card| models.contains(&card.model));
    if let Some(min) = spec.driver_min
        && shapes().any(|shape| has(&shape))
        && shapes().filter(has).all(|shape| shape.driver.is_none_or(|driver| driver < min))
    {
        let newest = shapes().filter(has).filter_map(|shape| shape.driver).max();
        let newest = newest.map_or_else(|| "none can be read".to_owned(), |newest| format!("the newest is {newest}"));
        let problem = format!("driver older than needed on every node that could serve it: {min} asked, {newest}");
        return Some(FieldError::new("driver_min", problem, "ask for an older driver, or have nodes upgraded"));
    }
    let served = |shape: &Arc<NodeShape>| models.iter().any(|model| shape.may_serve(spec, Some(*model)));
    if spec.asked.selector.is_some() && shapes().filter(has).all(|shape| !served(shape)) {
        let problem = "accepts no card of any node";
        return Some(FieldError::new(
            "selector",
            problem,
            "see what there is with `muster gpus` and `muster nodes -o wide`",
        ));
    }
    None
}
