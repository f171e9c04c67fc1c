//! Why no node or cell could ever run a submission, even an empty one, with the figures of what comes nearest.

use super::charge::over_max;
use crate::bounds::ERRORS_SHOWN_MAX;
use crate::index::{CardShape, NodeShape, tasks_on};
use crate::routing::{Models, card_rules, models_of, refusal_of_pool, rules, tasks_held};
use crate::state::State;
use muster_model::capacity::CardRules;
use muster_model::eligibility::PoolRefusal;
use muster_model::mig::{self, PinnedLayout};
use muster_model::request::SharingMode;
use muster_model::resources::Resource;
use muster_model::{DeviceRequest, FieldError, GpuModel, JobSpec, NumaPolicy, Pool, Tenant};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why no cell could ever hold the gang, with the figures of the one that comes nearest.
pub(super) fn why(state: &State, tenant: &Tenant, spec: &JobSpec, models: &Models) -> FieldError {
    let mut largest = (0, None);
    for (id, cell) in &state.index().cells {
        for &model in models {
            let held = tasks_held(state, cell, spec, model, u64::MAX);
            if held > largest.0 {
                largest = (held, Some((*id, model)));
            }
        }
    }
    let (held, Some((cell, model))) = largest else { return why_not_one(state, tenant, spec, models) };
    let name = state.cells.get(&cell).map_or("", |cell| cell.name.as_str());
    let on = model.map(|model| format!(" on {model}")).unwrap_or_default();
    let inside = spec.topology.required.map(|level| format!(" inside one {level}")).unwrap_or_default();
    let problem = format!("is {}{inside}, but the largest cell ({name}) has room for only {held}{on}", spec.tasks);
    let spread = spec.topology.required_spread();
    let apart = spread.map(|spread| format!(" with {} on each {}", spread.tasks_max, spread.level)).unwrap_or_default();
    let problem = format!("{problem}{apart}");
    let fix = if spread.is_some() {
        format!("request at most {}, or allow more tasks in each domain", tasks_in_words(held))
    } else if spec.topology.required.is_some() {
        format!("request at most {}, or a wider topology level", tasks_in_words(held))
    } else {
        format!("request at most {}, or split the job", tasks_in_words(held))
    };
    FieldError::new("tasks", problem, fix)
}

/// Why no node could run even one task.
fn why_not_one(state: &State, tenant: &Tenant, spec: &JobSpec, models: &Models) -> FieldError {
    let index = state.index();
    let refusal = |name: &String| Some((name.clone(), refusal_of_pool(state, name, spec)?));
    let found: Vec<(String, PoolRefusal)> = index.pool_nodes.keys().filter_map(refusal).collect();
    let allow = |what| {
        format!(
            "use what `muster pools list -o json` shows as allowed, or ask an operator to allow the {what} in a pool"
        )
    };
    let remedy = found.iter().find_map(|(_, refusal)| match refusal {
        PoolRefusal::Image(_) => Some(("image", allow("image"))),
        PoolRefusal::Mount(_) => Some(("mounts", allow("mount"))),
        PoolRefusal::Network => {
            let fix = "require one node (`--topology node`), or ask an operator for a pool with `network: host`";
            Some(("topology", fix.to_owned()))
        }
        PoolRefusal::NotAskedFor | PoolRefusal::Class(_) | PoolRefusal::Mode(_) => None,
    });
    let mut refusals: Vec<String> = found.iter().map(|(name, refusal)| refusal.of(name).to_string()).collect();
    if refusals.len() == index.pool_nodes.len() {
        let more = refusals.len().saturating_sub(ERRORS_SHOWN_MAX);
        refusals.truncate(ERRORS_SHOWN_MAX);
        if more > 0 {
            refusals.push(format!("and {more} more pools"));
        }
        let problem = format!("fits no pool: {}", refusals.join("; "));
        return match remedy {
            Some((field, fix)) => FieldError::new(field, problem, fix),
            None => FieldError::new("request", problem, "change the class, the sharing mode or the pool"),
        };
    }
    let shapes = || index.cells.values().flat_map(|cell| cell.shapes.keys());
    let fault = why_not_admitted(spec, shapes)
        .or_else(|| why_not_so_close(state, spec, shapes))
        .or_else(|| why_not_pinned(state, spec, shapes));
    if let Some(fault) = fault {
        return fault;
    }
    let serving = || shapes().filter(|shape| refusal_of_pool(state, &shape.pool, spec).is_none());
    let there = |model: &Option<GpuModel>| serving().any(|shape| model.is_none() || cards_of(shape, *model) > 0);
    if models.iter().any(there) {
        return too_large(state, spec, models, serving);
    }
    // Models that are there, and of which the tenant's max allows too few.
    let too_many = models_of(spec).into_iter().filter(there).find_map(|model| over_max(state, tenant, spec, model));
    too_many.unwrap_or_else(|| no_such_card(spec, serving()))
}

/// Cards of the model, or all of them.
fn cards_of(shape: &NodeShape, model: Option<GpuModel>) -> usize {
    shape.cards.iter().filter(|card| model.is_none_or(|model| card.model == model)).count()
}

/// What each task asks for that no node with such cards has, even empty: so many of them, the CPU, the memory, or all of it on one node.
fn too_large<'a, S: Iterator<Item = &'a Arc<NodeShape>>>(
    state: &State,
    spec: &JobSpec,
    models: &Models,
    serving: impl Fn() -> S,
) -> FieldError {
    let there = || serving().filter(|shape| models.iter().any(|model| model.is_none() || cards_of(shape, *model) > 0));
    let could = |edit: fn(&mut JobSpec)| {
        let mut looser = spec.clone();
        edit(&mut looser);
        let on = |shape: &NodeShape, model| tasks_on(shape, card_rules(state, &shape.pool), &looser, model, false) > 0;
        there().any(|shape| models.iter().any(|model| on(shape, *model)))
    };
    let request = &spec.request;
    let with = match request.devices.models() {
        [] => String::new(),
        asked => format!(" with {}", in_words(asked)),
    };
    let lacks = |edit| !could(|_| ()) && could(edit);
    if lacks(|spec| spec.request.cpu_milli = 0) {
        let most = there().map(|shape| shape.cpu_milli).max().unwrap_or(0);
        let most = Resource::Cpu.in_words(most);
        let asked = Resource::Cpu.in_words(request.cpu_milli);
        let problem = format!("is {asked} for each task, but nodes{with} have at most {most}");
        return FieldError::new("request.cpu_milli", problem, format!("request at most {most} for each task"));
    }
    if lacks(|spec| spec.request.memory_mib = 0) {
        let most = there().map(|shape| shape.memory_mib).max().unwrap_or(0);
        let most = Resource::Memory.in_words(most);
        let asked = Resource::Memory.in_words(request.memory_mib);
        let problem = format!("is {asked} for each task, but nodes{with} have at most {most}");
        let fix = format!("request at most {most} of memory for each task");
        return FieldError::new("request.memory_mib", problem, fix);
    }
    let most = there().flat_map(|shape| models.iter().map(move |model| (cards_of(shape, *model), *model))).max();
    if let (DeviceRequest::Whole { count, .. }, Some((most, Some(model)))) = (&request.devices, most)
        && (*count as usize) > most
    {
        let problem = format!("has {count} GPUs for each task, but no node has more than {most} {model}");
        return FieldError::new(
            "request",
            problem,
            format!("request at most {most} GPUs for each task, and more tasks"),
        );
    }
    if let Some(fault) = share_too_large(state, spec, models, &there) {
        return fault;
    }
    let kinds: BTreeSet<String> = there()
        .map(|shape| {
            let card = shape.cards.first().map(|card| format!("{} {}, ", shape.cards.len(), card.model));
            let (cpu, memory) = (Resource::Cpu.in_words(shape.cpu_milli), Resource::Memory.in_words(shape.memory_mib));
            format!("{}{cpu} and {memory}", card.unwrap_or_default())
        })
        .collect();
    let kinds: Vec<String> = kinds.into_iter().take(ERRORS_SHOWN_MAX).collect();
    let problem = format!("no node has all resources of one task (nodes have {})", kinds.join(", or "));
    FieldError::new("request", problem, "request at most what one node has, or another model")
}

/// A share with more memory than driver and context leave of a card.
fn share_too_large<'a, S: Iterator<Item = &'a Arc<NodeShape>>>(
    state: &State,
    spec: &JobSpec,
    models: &Models,
    there: &impl Fn() -> S,
) -> Option<FieldError> {
    let (field, mode, asked) = match spec.request.devices {
        DeviceRequest::Mps { memory_mib, .. } => ("request.mps.memory_mib", SharingMode::Mps, memory_mib),
        DeviceRequest::TimeSlice { memory_mib, .. } => {
            ("request.time_slice.memory_mib", SharingMode::TimeSlice, memory_mib)
        }
        DeviceRequest::None | DeviceRequest::Whole { .. } | DeviceRequest::Mig { .. } => return None,
    };
    let rule = state.capacity().share_rule();
    let largest = |card: &CardShape| rule.largest_mib(card.model, mode, card.memory_mib);
    let cards = there().flat_map(|shape| shape.cards.iter().filter(|card| models.contains(&Some(card.model))));
    let (most, total, model) = cards.map(|card| (largest(card), card.memory_mib, card.model)).max()?;
    let in_words = |mib| Resource::Memory.in_words(mib);
    (asked > most).then(|| {
        let problem = format!(
            "is {}, but a share of one {model} has at most {}: driver and context take {} of its {}",
            in_words(asked),
            in_words(most),
            in_words(total - most),
            in_words(total)
        );
        FieldError::new(field, problem, format!("request at most {}, or a whole GPU", in_words(most)))
    })
}

/// No node that may serve the job has a card that it accepts.
fn no_such_card<'a>(spec: &JobSpec, served: impl Iterator<Item = &'a Arc<NodeShape>>) -> FieldError {
    let there: BTreeSet<GpuModel> = served.flat_map(|shape| shape.cards.iter().map(|card| card.model)).collect();
    let devices = &spec.request.devices;
    let what = match (devices, spec.asked.gpu_memory_mib) {
        _ if !devices.models().is_empty() => in_words(devices.models()),
        (DeviceRequest::Mig { profile, .. }, None) => format!("a GPU that can be partitioned into {profile}"),
        (_, Some(mib)) => format!("a GPU with {} of memory", Resource::Memory.in_words(mib)),
        _ => "a GPU that fits the request".to_owned(),
    };
    let fix = if there.is_empty() {
        "add nodes with GPUs, or use a pool that has GPUs".to_owned()
    } else {
        format!("use one of the GPUs that the job may use: {}", in_words(&there))
    };
    FieldError::new("request", format!("no node has {what}"), fix)
}

/// `h100 or h200`.
fn in_words<'a>(models: impl IntoIterator<Item = &'a GpuModel>) -> String {
    models.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

fn tasks_in_words(count: u64) -> String {
    if count == 1 { "1 task".to_owned() } else { format!("{count} tasks") }
}

/// Whether a node could run a task of it, if it did not insist on one NUMA node or on segments.
fn why_not_so_close<'a, S: Iterator<Item = &'a Arc<NodeShape>>>(
    state: &State,
    spec: &JobSpec,
    shapes: impl Fn() -> S,
) -> Option<FieldError> {
    let could = |looser: &JobSpec| {
        let on =
            |shape: &Arc<NodeShape>, model| tasks_on(shape, card_rules(state, &shape.pool), looser, Some(model), false);
        let served = |shape: &&Arc<NodeShape>| refusal_of_pool(state, &shape.pool, spec).is_none();
        shapes().filter(served).any(|shape| spec.possible_models().any(|model| on(shape, model) > 0))
    };
    let cards = spec.request.devices.cards();
    if spec.numa == NumaPolicy::SingleNumaNode && could(&JobSpec { numa: NumaPolicy::None, ..spec.clone() }) {
        let problem = format!("no node has {cards} suitable GPUs on one NUMA node");
        return Some(FieldError::new("numa", problem, "use restricted, or request fewer GPUs for each task"));
    }
    let mut looser = spec.clone();
    let each = looser.topology.segment_tasks.take()?;
    could(&looser).then(|| {
        let problem = format!("no island or node is large enough for one segment of {each} tasks");
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
        let free = CardRules { pool: &free, ..card_rules(state, &shape.pool) };
        let could = models.iter().filter(|model| tasks_on(shape, free, spec, Some(**model), false) > 0);
        pins.extend(could.map(|model| (shape.pool.clone(), *model)));
    }
    let asked = |model: GpuModel| match &spec.request.devices {
        DeviceRequest::Mig { .. } => {
            spec.request.devices.mig_shape(model).and_then(|shape| mig::profile_name(model, shape)).unwrap_or_default()
        }
        DeviceRequest::Whole { count: 0 | 1, .. } => "whole GPU".to_owned(),
        DeviceRequest::Whole { count, .. } => format!("node with {count} whole GPUs"),
        DeviceRequest::Mps { .. } => "MPS share".to_owned(),
        DeviceRequest::TimeSlice { .. } | DeviceRequest::None => "time-slice".to_owned(),
    };
    let pinned = pins.iter().filter_map(|(name, model)| Some((name, *model, rules(state, name).pinned.get(model)?)));
    let on = |pin: &PinnedLayout| {
        pin.cards_per_node().map_or_else(String::new, |cards| format!(" on the GPUs below index {cards} of each node"))
    };
    let reasons: Vec<String> = pinned
        .clone()
        .map(|(name, model, pin)| {
            format!("pool {name} keeps the MIG layout {}{}: no {}", pin.in_words(model), on(pin), asked(model))
        })
        .take(ERRORS_SHOWN_MAX)
        .collect();
    if reasons.is_empty() {
        return None;
    }
    let slices: BTreeSet<String> = pinned.flat_map(|(_, model, pin)| pin.slices(model).into_keys()).collect();
    let slices = slices.into_iter().collect::<Vec<_>>().join(" or ");
    let field = if spec.request.devices.mode() == Some(SharingMode::Mig) { "request.mig.profile" } else { "request" };
    let fix = format!("request a MIG slice of {slices}, or GPUs without a fixed MIG layout");
    Some(FieldError::new(field, format!("fits no GPU: {}", reasons.join("; ")), fix))
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
        let newest =
            newest.map_or_else(|| "no version is known".to_owned(), |newest| format!("the newest is {newest}"));
        let problem = format!("is {min}, but every node that could serve the job has an older driver ({newest})");
        return Some(FieldError::new("driver_min", problem, "use an older version, or upgrade the drivers of nodes"));
    }
    let served = |shape: &Arc<NodeShape>| models.iter().any(|model| shape.may_serve(spec, Some(*model)));
    if spec.asked.selector.is_some() && shapes().filter(has).all(|shape| !served(shape)) {
        let problem = "accepts no GPU of any node";
        return Some(FieldError::new("selector", problem, "compare it with `muster gpus` and `muster nodes -o wide`"));
    }
    None
}
