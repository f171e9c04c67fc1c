//! Why there is no place: which of the things that a job insists on, or that others do, stands in the way.
//!
//! Each is lifted in turn while all else stands, and the search is asked again. What must stay true: a reason is given only when the job would
//! find a place without it, or, where several stand in the way together, without all that are given; otherwise too little is free.

use super::lift::Lift;
use super::reason::{PoolRefusal, Why};
use super::supply::{self, Supply, has_model};
use super::trial::Trial;
use super::{anti_affinity, cell_name, pinned, reserved, windows};
use crate::job_class::JobClass;
use crate::search::{Ask, fits_when_empty};
use crate::view::{Known, ReservationFault, View};
use muster_model::request::SharingMode;
use muster_model::{DriverVersion, GpuModel, NumaPolicy};
use std::collections::BTreeSet;

/// Reasons that are given of those that each alone stand in the way.
const ALONE_MAX: usize = 2;

/// Looks for places while some things are lifted.
struct Search<'a> {
    trial: &'a mut Trial,
    /// The same with every node open.
    opened: Option<Trial>,
    class: &'a JobClass,
    model: Option<GpuModel>,
}

impl Search<'_> {
    fn fits_without(&mut self, lifted: &[Lift]) -> bool {
        let class = self.class.edited(|key| lifted.iter().for_each(|lift| lift.lift(key)));
        let over_ms = lifted.contains(&Lift::Reservations).then_some(0);
        let trial = match lifted.contains(&Lift::Closed) {
            false => &mut *self.trial,
            true => {
                let trial = &self.trial;
                self.opened.get_or_insert_with(|| opened(trial))
            }
        };
        trial.fits_until(&class, self.model, over_ms)
    }

    /// Those that each alone stand in the way, in order, each with nothing else lifted; or, when none does, the fewest that do together, each
    /// with the others; or none.
    fn in_the_way(&mut self, active: &[Lift]) -> Vec<(Lift, Vec<Lift>)> {
        let alone: Vec<Lift> =
            active.iter().copied().filter(|lift| self.fits_without(&[*lift])).take(ALONE_MAX).collect();
        if !alone.is_empty() {
            return alone.into_iter().map(|lift| (lift, Vec::new())).collect();
        }
        let mut together = active.to_vec();
        if together.len() < 2 || !self.fits_without(&together) {
            return Vec::new();
        }
        for lift in active {
            let without: Vec<Lift> = together.iter().copied().filter(|other| other != lift).collect();
            if self.fits_without(&without) {
                together = without;
            }
        }
        let others = |lift: &Lift| together.iter().copied().filter(|other| other != lift).collect();
        together.iter().map(|lift| (*lift, others(lift))).collect()
    }
}

/// Whether there is anything of it to lift.
fn is_active(lift: Lift, trial: &Trial, ask: &Ask<'_>) -> bool {
    let class = ask.class;
    match lift {
        Lift::Pool => class.pool.is_some(),
        Lift::Driver => class.driver_min.is_some(),
        Lift::Selector => class.selector.is_some(),
        Lift::Reservations => trial.view.reserved_jobs(trial.cell).any(|job| job != trial.id),
        Lift::Windows => class.reservation.is_some() || !trial.view.windows.is_empty(),
        Lift::Neighbours => trial.view.capacity().has_anti_affinity(),
        Lift::Numa => class.numa > NumaPolicy::BestEffort && ask.model.is_some(),
        Lift::Spread => class.topology.required_spread().is_some(),
        Lift::Host => ask.model.is_some() && (class.request.cpu_milli > 0 || class.request.memory_mib > 0),
        Lift::Topology => class.topology.required.is_some() || class.topology.segment_tasks.is_some(),
        Lift::Closed => {
            let closed =
                |node: &muster_model::Node| node.cell == trial.cell && !node.accepts_work() && has_model(ask, node);
            trial.view.capacity().nodes().values().any(|there| closed(&there.node))
        }
    }
}

fn opened(trial: &Trial) -> Trial {
    let mut opened = trial.clone();
    let closed = trial.view.capacity().nodes().values().filter(|there| there.node.cell == trial.cell);
    let closed: Vec<_> = closed.filter(|there| !there.node.accepts_work()).map(|there| there.node.id).collect();
    closed.into_iter().for_each(|node| opened.view.open_node(node));
    opened
}

/// Why there is no place for the job on one model, as it stands on the trial; nothing when the cell has no card of it at all.
pub(super) fn no_place(trial: &mut Trial, job: &Known, class: &JobClass, model: Option<GpuModel>) -> Vec<Why> {
    let ask = trial.ask(job, class, model);
    let nodes = || trial.view.capacity().nodes().values().map(|there| &there.node);
    if !nodes().any(|node| node.cell == ask.cell && has_model(&ask, node)) {
        return Vec::new();
    }
    if let Some(why) = never(&trial.view, &ask) {
        return vec![why];
    }
    let active: Vec<Lift> = Lift::ALL.into_iter().filter(|lift| is_active(*lift, trial, &ask)).collect();
    let lifts = Search { trial, opened: None, class, model }.in_the_way(&active);
    let mut whys: Vec<Why> = Vec::new();
    for (lift, others) in lifts {
        // What stands in the way together is told as if the rest of it did not.
        let class = class.edited(|key| others.iter().for_each(|other| other.lift(key)));
        let ask = trial.ask(job, &class, model);
        let supply = Supply::of(&trial.view, &ask);
        whys.extend(told(trial, &ask, lift, &supply));
    }
    if whys.is_empty() {
        let ask = trial.ask(job, class, model);
        let supply = Supply::of(&trial.view, &ask);
        whys.push(too_little(&trial.view, &ask, &supply));
    }
    whys
}

/// Rules that nothing which ends or opens would change: no node of the cell, open or not, is one that the job may use.
fn never(view: &View, ask: &Ask<'_>) -> Option<Why> {
    let nodes = || view.capacity().nodes().values().map(|there| &there.node);
    let all = || nodes().filter(|node| node.cell == ask.cell && has_model(ask, node));
    let pools: BTreeSet<&str> = all().map(|node| node.spec.pool.as_str()).collect();
    if !pools.iter().any(|pool| ask.pool_allows(&view.fleet, pool)) {
        let refusal = |pool: &&str| pool_refusal(view, ask, pool);
        let (cell, model) = (cell_name(view, ask.cell), ask.model);
        return Some(Why::NoPool { cell, model, refusals: pools.iter().map(refusal).collect() });
    }
    let of_pools = || all().filter(|node| ask.pool_allows(&view.fleet, &node.spec.pool));
    if of_pools().any(|node| ask.admits(node)) {
        let cell = cell_name(view, ask.cell);
        let why = |(model, what, pools)| Why::PinnedLayout { cell, model, what, pools };
        return pinned::all_pinned(view, ask).map(why);
    }
    let (model, cell) = (ask.model?, cell_name(view, ask.cell));
    match ask.class.driver_min {
        Some(needed) if !of_pools().any(|node| ask.has_driver(node)) => {
            let newest = of_pools().filter_map(|node| DriverVersion::reported(&node.spec.driver)).max();
            Some(Why::DriverTooOld { cell, model, needed, newest, everywhere: true })
        }
        _ => {
            let selector = ask.class.selector.as_ref()?.to_string();
            Some(Why::NotSelected { cell, model, selector, everywhere: true })
        }
    }
}

/// Why a pool does not take the job.
fn pool_refusal(view: &View, ask: &Ask<'_>, name: &str) -> PoolRefusal {
    let rules = view.capacity().pool_named(name);
    let mode = ask.class.request.devices.mode();
    PoolRefusal {
        pool: name.to_owned(),
        wanted: ask.class.pool.clone().filter(|wanted| wanted != name),
        mode: mode.filter(|mode| !rules.modes.contains(mode)),
        class: Some(ask.class.workload).filter(|class| !rules.classes.contains(class)),
        other: ask.class.eligibility().check_pool(name, rules).err().and_then(|refusal| refusal.beside_modes()),
    }
}

/// The reason with its figures.
fn told(trial: &mut Trial, ask: &Ask<'_>, lift: Lift, supply: &Supply) -> Option<Why> {
    let cell = cell_name(&trial.view, ask.cell);
    let Supply { free, largest, .. } = *supply;
    let needed = needed(ask);
    match lift {
        Lift::Pool => Some(Why::PoolFull { cell, model: ask.model, pool: ask.class.pool.clone()?, free, needed }),
        Lift::Driver => {
            let (model, needed) = (ask.model?, ask.class.driver_min?);
            Some(Why::DriverTooOld { cell, model, needed, newest: None, everywhere: false })
        }
        Lift::Selector => {
            let selector = ask.class.selector.as_ref()?.to_string();
            Some(Why::NotSelected { cell, model: ask.model?, selector, everywhere: false })
        }
        Lift::Reservations => reserved::in_the_way(trial, ask).map(Why::ReservedForGang),
        Lift::Windows => match windows::in_the_way(trial, ask) {
            Some(window) => Some(Why::InWindow(window)),
            None => ask.class.reservation.as_ref().map(|_| Why::reservation(ask.class, ReservationFault::Full)),
        },
        Lift::Neighbours => anti_affinity::anti_affinity_conflict(trial, ask).map(Why::AntiAffinityConflict),
        Lift::Numa => {
            let each = ask.class.request.devices.cards();
            Some(Why::NumaSplit { cell, model: ask.model?, policy: ask.class.numa, each })
        }
        Lift::Spread => anti_affinity::spread_out(trial, ask).map(Why::Spread),
        Lift::Host => {
            let without_cpu = ask.class.edited(|key| key.request.cpu_milli = 0);
            let cpu = trial.fits(&without_cpu, ask.model);
            let request = &ask.class.request;
            let (cpu_milli, memory_mib) = (request.cpu_milli, request.memory_mib);
            Some(Why::HostTooFull { cell, model: ask.model?, cpu, cpu_milli, memory_mib, host: supply.host.clone() })
        }
        Lift::Topology => {
            let (level, segment_tasks) = (ask.required_level(), ask.class.topology.segment_tasks);
            Some(Why::Topology { cell, model: ask.model, level, segment_tasks, free, largest, needed })
        }
        Lift::Closed => Some(Why::NodesClosed { cell, model: ask.model, free, needed, closed: supply.closed.clone() }),
    }
}

/// Cards or milli-CPUs that the whole gang takes.
fn needed(ask: &Ask<'_>) -> u64 {
    u64::from(ask.class.tasks) * supply::each(ask)
}

/// Nothing that is in force would help: there is too little, or it lies on too many nodes.
fn too_little(view: &View, ask: &Ask<'_>, supply: &Supply) -> Why {
    let (cell, model, needed) = (cell_name(view, ask.cell), ask.model, needed(ask));
    let Supply { open, free, reserved, largest_node, slots, slots_in_pool, .. } = *supply;
    let tasks = u64::from(ask.class.tasks);
    let closed = supply.closed.clone();
    let mode = ask.class.request.devices.mode();
    if matches!(mode, None | Some(SharingMode::Whole)) && !fits_when_empty(&view.fleet, ask) {
        return Why::LargerThanCell { cell, needed, model, open, level: ask.required_level(), closed };
    }
    match mode {
        Some(mode @ (SharingMode::Mig | SharingMode::Mps | SharingMode::TimeSlice)) => {
            Why::NoShare { cell, model, mode, what: super::share_in_words(ask), free, closed }
        }
        _ if slots >= tasks && slots_in_pool < tasks => {
            Why::SplitOverPools { cell, model, free, tasks, slots: slots_in_pool }
        }
        _ if free.saturating_sub(reserved) >= needed => {
            let each = supply::each(ask);
            Why::NodesTooFull { cell, model, free, largest_node, each, tasks, slots, needed }
        }
        _ => Why::NoFreeGpus { cell, model, open, free, reserved, largest_node, needed, closed },
    }
}
