//! Where a gang can stand: the tightest place that holds all of it, or none.
//!
//! A gang stays inside one pool and, where it has cards, on one model. What must stay true: a placement is for the whole gang or
//! there is none (law 2); it passes [`muster_model::capacity::Capacity::prove`] on the same fleet; the same fleet gives the same placement. The fleet is read, never changed; who waits is not known
//! here.

pub(crate) mod cards;
mod fill;
mod infeasible;
mod lent;
mod shares;
pub(crate) mod single_task;
mod topology_unaware;
pub(crate) mod units;
mod whole;

pub(crate) use lent::nodes_to_lend;

use crate::fleet::index::bucket::Bucket;
use crate::fleet::index::{Hold, Partition};
use crate::fleet::{Fleet, PlacementPolicy};
use crate::job_class::JobClass;
use muster_model::capacity::NodeUse;
use muster_model::mig::ShapeCounts;
use muster_model::request::SharingMode;
use muster_model::{
    CellId, GpuModel, JobId, Node, NodeId, NumaPolicy, Spread, TaskPlacement, TenantId, TopologyLevel, WindowTimes,
    closeness,
};

/// One question to the fleet.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) cell: CellId,
    pub(crate) tenant: TenantId,
    pub(crate) class: &'a JobClass,
    pub(crate) model: Option<GpuModel>,
    /// When it would be over at the latest, in ms of the state's clock; the end of time when nothing bounds it.
    pub(crate) over_ms: u64,
    /// The same, as windows are told: an explanation lifts what is kept for gangs, and not these.
    pub(crate) ends_ms: u64,
    /// Which job it is, if it is one: what is kept for it is its own.
    pub(crate) job: Option<JobId>,
    /// The MIG slices of each shape that others wait for on this model.
    pub(crate) slices_waiting: ShapeCounts,
}

impl<'a> Ask<'a> {
    /// For something that may run for ever.
    pub(crate) fn lasting(cell: CellId, tenant: TenantId, class: &'a JobClass, model: Option<GpuModel>) -> Self {
        Ask {
            cell,
            tenant,
            class,
            model,
            over_ms: u64::MAX,
            ends_ms: u64::MAX,
            job: None,
            slices_waiting: ShapeCounts::default(),
        }
    }

    /// The buckets that it may use: of the pools that let it run, without what is kept for gangs that start before it is over.
    pub(crate) fn buckets<'v>(
        &self,
        fleet: &'v Fleet,
    ) -> impl Iterator<Item = (&'v Partition, &'v Bucket)> + use<'v, '_, 'a> {
        let may = |partition: &Partition| self.may_stay_in(partition) && self.pool_allows(fleet, &partition.pool);
        fleet.index.buckets(self.cell, self.model).filter(move |(partition, _)| may(partition))
    }

    /// Whether the node takes work of its cell and pool, and is not kept for a gang that would find it there.
    pub(crate) fn may_stand_on(&self, fleet: &Fleet, node: &Node) -> bool {
        let open = node.cell == self.cell && node.accepts_work() && self.pool_allows(fleet, &node.spec.pool);
        open && self.may_stay_on(fleet, node.id)
    }

    /// Whether neither what is kept for a gang nor a window keeps it off nodes of this partition.
    pub(crate) fn may_stay_in(&self, partition: &Partition) -> bool {
        self.may_stay(partition.hold) && self.windows_allow(&partition.windows)
    }

    /// The same of one node.
    pub(crate) fn may_stay_on(&self, fleet: &Fleet, node: NodeId) -> bool {
        self.may_stay(fleet.index.hold_of(node)) && self.windows_allow(fleet.index.windows_of(node))
    }

    /// Whether a node's windows let it stand there: all of them, and that of the reservation that it names is among them.
    pub(crate) fn windows_allow(&self, windows: &[WindowTimes]) -> bool {
        let named = self.class.reservation.as_deref();
        if windows.is_empty() {
            return named.is_none() || !self.class.heeds_windows;
        }
        let on_its_own = named.is_none() || windows.iter().any(|times| times.is_reservation(named));
        !self.class.heeds_windows || on_its_own && windows.iter().all(|times| times.allows(named, self.ends_ms))
    }

    /// Whether it is over before a node that is kept so is wanted, or it is kept for itself.
    pub(crate) fn may_stay(&self, hold: Option<Hold>) -> bool {
        hold.is_none_or(|hold| self.over_ms <= hold.until_ms || self.job == Some(hold.job))
    }

    /// Whether a pool's rules let the gang run in it. A pool that has not been described has the standard rules.
    pub(crate) fn pool_allows(&self, fleet: &Fleet, name: &str) -> bool {
        self.class.eligibility().check_pool(name, fleet.capacity.pool_named(name)).is_ok()
    }

    /// Whether the node is of a kind that the job can run on at all, whatever runs there.
    pub(crate) fn admits(&self, node: &Node) -> bool {
        self.class.eligibility().admits(node, self.model)
    }

    /// Whether the node's driver is new enough.
    pub(crate) fn has_driver(&self, node: &Node) -> bool {
        self.class.eligibility().has_driver_on(node)
    }

    /// How many tasks a node's CPU and memory hold; none on a node that the job cannot run on, or that its tenant is kept off.
    pub(crate) fn host_slots(&self, fleet: &Fleet, there: &NodeUse) -> u64 {
        if !self.admits(&there.node) || self.is_kept_off(fleet, there) {
            return 0;
        }
        let request = &self.class.request;
        let of = |free: i64, each: u64| (free.max(0) as u64).checked_div(each).unwrap_or(u64::MAX);
        of(there.cpu_free_milli, request.cpu_milli).min(of(there.memory_free_mib, request.memory_mib))
    }

    /// Whether a tenant is there that admins keep apart from this one.
    pub(crate) fn is_kept_off(&self, fleet: &Fleet, there: &NodeUse) -> bool {
        self.class.heeds_neighbours && fleet.capacity.kept_off_node(self.tenant, there).is_some()
    }

    /// Whether a tenant holds a part of the card that admins keep apart from this one.
    pub(crate) fn is_kept_off_card(&self, fleet: &Fleet, there: &NodeUse, gpu: u16) -> bool {
        self.class.heeds_neighbours && fleet.capacity.kept_off_card(self.tenant, there, gpu).is_some()
    }

    /// The widest level that the gang may spread over; `None` is the whole cell.
    pub(crate) fn required_level(&self) -> Option<TopologyLevel> {
        self.class.topology.required
    }
}

/// Looked at so far; a pass stops at its bound, between two decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Steps(pub(crate) u64);

/// A place for every rank, or none that there is: inside one domain of the level that it prefers, if there is any.
pub(crate) fn place(fleet: &Fleet, ask: &Ask<'_>, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    if let Some(class) = ask.class.as_close_as_preferred()
        && let Some(found) = place_required(fleet, &Ask { class: &class, ..*ask }, steps)
        // An island of several nodes is closer than a node, and yet does not lie inside one.
        && within_bounds(fleet, ask, &found)
    {
        return Some(found);
    }
    place_required(fleet, ask, steps)
}

fn place_required(fleet: &Fleet, ask: &Ask<'_>, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    match ask.class.topology.spread.filter(|spread| !spread.required) {
        Some(spread) => as_spread_as_there_is_room(fleet, ask, spread, steps),
        None => place_so(fleet, ask, steps),
    }
}

fn place_so(fleet: &Fleet, ask: &Ask<'_>, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    if fleet.placement != PlacementPolicy::Topology {
        return topology_unaware::place(fleet, ask, steps).filter(|tasks| within_bounds(fleet, ask, tasks));
    }
    let found = match ask.class.request.devices.mode() {
        None | Some(SharingMode::Whole) => whole::place(fleet, ask, steps),
        Some(SharingMode::Mig | SharingMode::Mps | SharingMode::TimeSlice) => shares::place(fleet, ask, steps),
    };
    found.filter(|tasks| close_enough(fleet, ask, tasks))
}

/// With as few tasks in one domain of the preferred level as any place allows, but not fewer than it says: halving finds that number,
/// since whatever fits with some fits with more.
fn as_spread_as_there_is_room(
    fleet: &Fleet,
    ask: &Ask<'_>,
    spread: Spread,
    steps: &mut Steps,
) -> Option<Vec<TaskPlacement>> {
    let mut with = |tasks_max: u32| {
        let class = ask.class.spread(Some(Spread { tasks_max, required: true, ..spread }));
        place_so(fleet, &Ask { class: &class, ..*ask }, steps)
    };
    let all = ask.class.tasks.max(spread.tasks_max);
    if let Some(found) = with(spread.tasks_max) {
        return Some(found);
    }
    let mut found = with(all)?;
    let (mut too_few, mut enough) = (spread.tasks_max, all);
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        match with(middle) {
            Some(closer) => (found, enough) = (closer, middle),
            None => too_few = middle,
        }
    }
    Some(found)
}

/// Whether the control plane will find the placement as close as the job asks.
fn close_enough(fleet: &Fleet, ask: &Ask<'_>, tasks: &[TaskPlacement]) -> bool {
    let (topology, numa) = (&ask.class.topology, ask.class.numa);
    let spread = topology.required_spread();
    if topology.segment_tasks.is_none() && spread.is_none() && numa <= NumaPolicy::BestEffort {
        // Levels are what the search itself goes by.
        return true;
    }
    within_bounds(fleet, ask, tasks)
}

/// The same for a placement that was found by something else than levels.
fn within_bounds(fleet: &Fleet, ask: &Ask<'_>, tasks: &[TaskPlacement]) -> bool {
    let (topology, numa) = (&ask.class.topology, ask.class.numa);
    let ground: Option<Vec<&Node>> = tasks.iter().map(|task| Some(&*node(fleet, task.node)?.node)).collect();
    ground.is_some_and(|ground| closeness::check(topology, numa, tasks, &ground).is_ok())
}

/// Whether the gang would fit if nothing ran in the cell: keeping cards for one that never fits would waste them.
pub(crate) fn fits_when_empty(fleet: &Fleet, ask: &Ask<'_>) -> bool {
    infeasible::fits_when_empty(fleet, ask)
}

fn node(fleet: &Fleet, id: NodeId) -> Option<&NodeUse> {
    fleet.capacity.nodes().get(&id)
}
