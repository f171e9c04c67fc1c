//! Why a job waits, with the figures, and the smallest change that would start it.
//!
//! What must stay true: an explanation reads the same books and asks the same placement as the pass that left the job waiting, so
//! the two cannot disagree; it changes nothing; its search is bounded by the models and levels there are.

mod apart;
mod blockers;
mod levels;
mod pinned;
mod position;
mod reason;
mod reserved;

pub use apart::{KeptApart, TooSpread};
pub use blockers::Blocker;
pub use levels::Wider;
pub use pinned::PinnedPool;
pub use position::POSITION_MAX;
pub(crate) use position::in_turn;
pub use reason::Reason;
use reason::word as model_words;
pub use reserved::{KeptForGang, Promised};

use crate::index::GROUP_LEVELS;
use crate::index::shelf::Shelf;
use crate::index::state::Host;
use crate::job_class::{JobClass, Offer};
use crate::place::{Ask, Steps, fits_when_empty, place};
use crate::view::{Known, View};
use muster_model::request::SharingMode;
use muster_model::{CellId, DriverVersion, GpuModel, JobId, Node, NumaPolicy, TopologyLevel};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why a job stands where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// `queued`, `starting`, `running`, `stopping`.
    pub phase: &'static str,
    /// What keeps it waiting, per model it may land on; empty when it does not wait.
    pub reasons: Vec<Reason>,
    /// How many jobs of its cell go before it, when it waits in one.
    pub position: Option<u64>,
    /// What wider levels would cost it, where closeness is what it waits for.
    pub wider: Vec<Wider>,
}

/// Explains a live job at `now_ms` of the state's clock; none when there is no such job in the view.
#[must_use]
pub fn explain(view: &View, id: JobId, now_ms: u64) -> Option<Explanation> {
    let job = view.jobs.get(id.0)?;
    let Some(class) = job.class.clone() else {
        return Some(Explanation { phase: job.phase.word(), reasons: Vec::new(), position: None, wider: Vec::new() });
    };
    let mut reasons = Vec::new();
    if let Some(why) = &job.requeue_reason {
        reasons.push(Reason::Requeued { why: why.clone() });
    }
    let Some(cell) = job.cell else {
        reasons.push(no_cell(view, &class));
        return Some(Explanation { phase: job.phase.word(), reasons, position: None, wider: Vec::new() });
    };
    if let Some(there) = view.cells.get(&cell).filter(|there| there.holder.is_none()) {
        reasons.push(Reason::CellWithoutShard { cell: there.name.clone() });
    }
    let per_model: Vec<Reason> =
        class.offers().iter().filter_map(|offer| on_model(view, job, &class, (cell, offer.model), now_ms)).collect();
    let startable = per_model.iter().any(|reason| matches!(reason, Reason::JustQueued { .. }));
    reasons.extend(per_model.into_iter().filter(|reason| !startable || matches!(reason, Reason::JustQueued { .. })));
    if reasons.is_empty() {
        reasons.push(no_cell(view, &class));
    }
    reasons.extend(reserved::promised(job, now_ms).map(Reason::Promised));
    let apart = |offer: &&Offer| {
        let here = |reason: &Reason| reason.is_about_closeness() && reason.model() == offer.model;
        reasons.iter().any(here)
    };
    let asks = class.offers().iter().filter(apart);
    let asks = asks.map(|offer| Ask::of(job, &class, (cell, offer.model), now_ms));
    let wider = asks.flat_map(|ask| levels::wider(view, &ask)).collect();
    Some(Explanation { phase: job.phase.word(), reasons, position: position::of(view, cell, id), wider })
}

/// What is in the way on one model; none when the cell has no card of it.
fn on_model(
    view: &View,
    job: &Known,
    class: &JobClass,
    (cell, model): (CellId, Option<GpuModel>),
    now_ms: u64,
) -> Option<Reason> {
    let pools = pools_with(view, cell, model);
    if pools.is_empty() {
        return None;
    }
    if let Err(over) = view.capacity.max_allows(job.tenant, &class.charge_on(model)) {
        let used = view.capacity.tenants().get(&over.tenant).map_or(0, |at| at.used.get(over.resource));
        return Some(Reason::OverMax {
            tenant: over.path,
            resource: over.resource,
            used,
            asked: over.would_use - used,
            max: over.max,
        });
    }
    let untrusted = view.capacity.tenants().get(&job.tenant).is_some_and(|at| at.untrusted);
    let mode = class.request.devices.mode();
    if untrusted && matches!(mode, Some(SharingMode::Mps | SharingMode::TimeSlice)) {
        return Some(Reason::Untrusted);
    }
    let ask = Ask::of(job, class, (cell, model), now_ms);
    if !pools.iter().any(|pool| ask.pool_allows(view, pool)) {
        return Some(Reason::NoPool { model, pools, wanted: class.pool.clone(), mode, class: class.workload });
    }
    if let Some(reason) = not_admitted(view, &ask) {
        return Some(reason);
    }
    let mut steps = Steps::default();
    if place(view, &ask, &mut steps).is_some() {
        return Some(Reason::JustQueued { model });
    }
    Some(match reserved::in_the_way(view, &ask, now_ms) {
        Some(kept) => Reason::KeptForGang(kept),
        None => no_room(view, &ask),
    })
}

/// The pools of the cell that have the model on nodes that accept work. Not from the index: that forgets what is all taken.
fn pools_with(view: &View, cell: CellId, model: Option<GpuModel>) -> Vec<String> {
    let has = |node: &Node| {
        model.is_none() || node.spec.gpus.iter().any(|gpu| Some(gpu.model) == model && gpu.withheld.is_none())
    };
    let nodes = view.capacity.nodes().values().map(|there| &there.node);
    let pools =
        nodes.filter(|node| node.cell == cell && node.accepts_work() && has(node)).map(|node| node.spec.pool.clone());
    pools.collect::<BTreeSet<String>>().into_iter().collect()
}

/// Whether every open node of the cell that has the model in an allowed pool is of a kind that the job does not run on.
fn not_admitted(view: &View, ask: &Ask<'_>) -> Option<Reason> {
    let model = ask.model?;
    let has = |node: &&Arc<Node>| {
        let cards = node.spec.gpus.iter().any(|gpu| gpu.model == model && gpu.withheld.is_none());
        node.cell == ask.cell && node.accepts_work() && cards && ask.pool_allows(view, &node.spec.pool)
    };
    let nodes = || view.capacity.nodes().values().map(|there| &there.node).filter(has);
    let cell = || cell_name(view, ask.cell);
    if nodes().any(|node| ask.admits(node)) {
        return None;
    }
    match ask.class.driver_min {
        Some(needed) if !nodes().any(|node| ask.has_driver(node)) => {
            let newest = nodes().filter_map(|node| DriverVersion::reported(&node.spec.driver)).max();
            Some(Reason::DriverTooOld { cell: cell(), model, needed, newest })
        }
        _ => {
            let selector = ask.class.selector.as_ref()?.to_string();
            Some(Reason::NotSelected { cell: cell(), model, selector })
        }
    }
}

fn cell_name(view: &View, cell: CellId) -> String {
    view.cells.get(&cell).map_or_else(|| cell.to_string(), |there| there.name.clone())
}

/// Cards are free, but no task's lie as its NUMA policy wants them.
fn numa_split(view: &View, ask: &Ask<'_>, cell: &str) -> Option<Reason> {
    let policy = ask.class.numa;
    let model = ask.model.filter(|_| policy > NumaPolicy::BestEffort)?;
    let looser = ask.class.anyhow_in_numa();
    place(view, &Ask { class: &looser, ..*ask }, &mut Steps::default())?;
    let each = ask.class.request.devices.cards();
    Some(Reason::NumaSplit { cell: cell.to_owned(), model, policy, each })
}

fn no_room(view: &View, ask: &Ask<'_>) -> Reason {
    let cell = cell_name(view, ask.cell);
    let apart = || apart::explain(view, ask, &cell);
    let pinned = || pinned::all_pinned(view, ask, &cell);
    if let Some(reason) = numa_split(view, ask, &cell).or_else(pinned).or_else(apart) {
        return reason;
    }
    let needed = match ask.model {
        Some(_) => ask.class.cards(),
        None => u64::from(ask.class.tasks) * ask.class.request.cpu_milli,
    };
    if matches!(ask.class.request.devices.mode(), None | Some(SharingMode::Whole)) && !fits_when_empty(view, ask) {
        return Reason::LargerThanCell { cell, needed, model: ask.model, fix: change(view, ask) };
    }
    let allowed = || ask.shelves(view);
    let free_on = |shelf: &Shelf| if ask.model.is_some() { shelf.free() } else { free_cpu(view, shelf) };
    let free: u64 = allowed().map(|(_, shelf)| free_on(shelf)).sum();
    let (level, largest) = match ask.widest() {
        Some(level) if GROUP_LEVELS.contains(&level) => {
            let at = GROUP_LEVELS.iter().position(|l| *l == level).unwrap_or(0);
            (Some(level), allowed().map(|(_, shelf)| shelf.largest(at)).max().unwrap_or(0))
        }
        Some(level) => (Some(level), largest_on_node(view, ask, level)),
        None => (None, allowed().map(|(_, shelf)| free_on(shelf)).max().unwrap_or(0)),
    };
    let blockers = blockers::of(view, ask);
    let fix = change(view, ask);
    match ask.class.request.devices.mode() {
        Some(mode @ (SharingMode::Mig | SharingMode::Mps | SharingMode::TimeSlice)) => {
            Reason::NoShare { cell, model: ask.model, mode, what: share_in_words(ask), free, blockers, fix }
        }
        _ if free >= needed && largest < needed => {
            let level = level.unwrap_or(TopologyLevel::Region);
            Reason::Topology { cell, model: ask.model, level, free, largest, needed, blockers, fix }
        }
        _ if largest >= needed => Reason::NodesTooFull {
            cell,
            model: ask.model,
            free,
            largest_node: largest_on_node(view, ask, TopologyLevel::Node),
            each: needed / u64::from(ask.class.tasks).max(1),
            needed,
            blockers,
            fix,
        },
        _ => Reason::NoFreeGpus {
            cell,
            model: ask.model,
            free,
            largest_node: largest_on_node(view, ask, TopologyLevel::Node),
            needed,
            blockers,
            fix,
        },
    }
}

fn share_in_words(ask: &Ask<'_>) -> String {
    use muster_model::DeviceRequest;
    match &ask.class.request.devices {
        DeviceRequest::Mig { profile, .. } => format!("MIG slice {profile}"),
        DeviceRequest::Mps { percent, memory_mib, .. } => format!("MPS share of {percent} % and {memory_mib} MiB"),
        DeviceRequest::TimeSlice { memory_mib, .. } => format!("time-slice of {memory_mib} MiB"),
        DeviceRequest::None | DeviceRequest::Whole { .. } => "share".to_owned(),
    }
}

/// Free milli-CPUs, exactly: states round them.
fn free_cpu(view: &View, shelf: &Shelf) -> u64 {
    let nodes = shelf.open_nodes(Host::default()).filter_map(|id| view.capacity.nodes().get(&id));
    nodes.map(|there| there.cpu_free_milli.max(0) as u64).sum()
}

/// Most free units on one node (or island).
fn largest_on_node(view: &View, ask: &Ask<'_>, level: TopologyLevel) -> u64 {
    let rooms = ask.shelves(view).flat_map(|(_, shelf)| shelf.rooms());
    let on_node = level != TopologyLevel::Island || ask.model.is_none();
    let on_nodes = rooms.map(|room| if on_node { u64::from(room.free) } else { u64::from(room.islands[0]) });
    let allowed = ask.shelves(view);
    // NVLink islands may span nodes.
    let spanning = allowed.filter_map(|(_, shelf)| shelf.islands.by_free.last()).map(|(free, _)| *free);
    on_nodes.chain(spanning.filter(|_| !on_node)).max().unwrap_or(0)
}

/// The smallest change of the request that would start it now, if there is one: a wider level, another model, fewer tasks.
fn change(view: &View, ask: &Ask<'_>) -> Option<String> {
    let fits = |class: &JobClass, model| place(view, &Ask { class, model, ..*ask }, &mut Steps::default()).is_some();
    if let Some(required) = ask.class.topology.required {
        for level in TopologyLevel::ALL.into_iter().filter(|level| *level > required) {
            if fits(&ask.class.with(ask.class.tasks, Some(level)), ask.model) {
                return Some(format!("accept topology {level} instead of {required}"));
            }
        }
    }
    let named = ask.class.request.devices.models();
    let other = |model: &GpuModel| !named.is_empty() && !named.contains(model);
    for model in view.index.models(ask.cell).flatten().filter(other) {
        let allowed = view.capacity.max_allows(ask.tenant, &ask.class.charge_on(Some(model))).is_ok();
        let serves = ask.class.request.devices.mode() != Some(SharingMode::Mig)
            || ask.class.request.devices.mig_shape(model).is_some();
        if allowed && serves && fits(ask.class, Some(model)) {
            return Some(format!("accept model {model} too"));
        }
    }
    fewer_tasks(ask, |class| fits(class, ask.model))
}

/// The largest smaller gang that would start now.
fn fewer_tasks(ask: &Ask<'_>, fits: impl Fn(&JobClass) -> bool) -> Option<String> {
    // A gang of segments shrinks by whole segments.
    let step = ask.class.topology.segment_tasks.unwrap_or(1).max(1);
    let with = |parts: u32| ask.class.with(parts * step, ask.class.topology.required);
    let parts = ask.class.tasks / step;
    if parts < 2 || !fits(&with(1)) {
        return None;
    }
    let (mut good, mut bad) = (1, parts);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(&with(middle)) { good = middle } else { bad = middle }
    }
    Some(format!("ask for {} tasks instead of {}", good * step, ask.class.tasks))
}

fn no_cell(view: &View, class: &Arc<JobClass>) -> Reason {
    let wanted: Vec<Option<GpuModel>> = class.offers().iter().map(|offer| offer.model).collect();
    let mut largest: BTreeMap<CellId, u64> = BTreeMap::new();
    for there in view.capacity.nodes().values() {
        let fits = |gpu: &&muster_model::Gpu| wanted.contains(&Some(gpu.model)) && gpu.withheld.is_none();
        *largest.entry(there.node.cell).or_default() += there.node.spec.gpus.iter().filter(fits).count() as u64;
    }
    Reason::NoCell {
        needed: class.cards(),
        largest: largest.into_values().max().unwrap_or(0),
        models: class.request.devices.models().to_vec(),
    }
}
