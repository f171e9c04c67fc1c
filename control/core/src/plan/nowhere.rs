//! Why a submission could run nowhere, even on an empty fleet, with the figures of what comes nearest.

use super::submit::ERRORS_SHOWN_MAX;
use crate::index::{NodeShape, tasks_on};
use crate::routing::{Models, refusal_of_pool, rules, tasks_held};
use crate::state::State;
use muster_model::mig::{self, PinnedLayout};
use muster_model::request::SharingMode;
use muster_model::{DeviceRequest, FieldError, GpuModel, JobSpec, NumaPolicy, Pool};
use std::collections::{BTreeMap, BTreeSet};
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
    let fault = why_not_admitted(spec, shapes)
        .or_else(|| why_not_so_close(state, spec, shapes))
        .or_else(|| why_not_pinned(state, spec, shapes));
    if let Some(fault) = fault {
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

/// Whether a node could run a task of it, if its pool did not pin its cards to other slices.
fn why_not_pinned<'a, S: Iterator<Item = &'a Arc<NodeShape>>>(
    state: &State,
    spec: &JobSpec,
    shapes: impl Fn() -> S,
) -> Option<FieldError> {
    let models: Vec<GpuModel> = spec.possible_models().collect();
    let served = |shape: &&Arc<NodeShape>| refusal_of_pool(state, &shape.pool, spec).is_none();
    let mut pins: BTreeSet<(String, GpuModel)> = BTreeSet::new();
    for shape in shapes().filter(served) {
        let free = Pool { pinned: BTreeMap::new(), ..rules(state, &shape.pool).clone() };
        let could = models.iter().filter(|model| tasks_on(shape, &free, spec, Some(**model), false) > 0);
        pins.extend(could.map(|model| (shape.pool.clone(), *model)));
    }
    let asked = |model: GpuModel| match &spec.request.devices {
        DeviceRequest::Mig { .. } => {
            spec.request.devices.mig_shape(model).and_then(|shape| mig::profile_name(model, shape)).unwrap_or_default()
        }
        DeviceRequest::Whole { count: 0 | 1, .. } => "whole card".to_owned(),
        DeviceRequest::Whole { count, .. } => format!("node with {count} whole cards"),
        DeviceRequest::Mps { .. } => "MPS share".to_owned(),
        DeviceRequest::TimeSlice { .. } | DeviceRequest::None => "time-slice".to_owned(),
    };
    let pinned = pins.iter().filter_map(|(name, model)| Some((name, *model, rules(state, name).pinned.get(model)?)));
    let on = |pin: &PinnedLayout| {
        pin.cards_per_node().map_or_else(String::new, |cards| format!(" on the first {cards} of each node"))
    };
    let reasons: Vec<String> = pinned
        .clone()
        .map(|(name, model, pin)| format!("pool {name} pins {}{}: no {}", pin.in_words(model), on(pin), asked(model)))
        .take(ERRORS_SHOWN_MAX)
        .collect();
    if reasons.is_empty() {
        return None;
    }
    let slices: BTreeSet<String> = pinned.flat_map(|(_, model, pin)| pin.slices(model).into_keys()).collect();
    let slices = slices.into_iter().collect::<Vec<_>>().join(" or ");
    let field = if spec.request.devices.mode() == Some(SharingMode::Mig) { "request.mig.profile" } else { "request" };
    let fix = format!("ask for a slice of {slices}, or for cards that are not pinned");
    Some(FieldError::new(field, format!("fits no card: {}", reasons.join("; ")), fix))
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
