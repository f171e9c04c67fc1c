//! Where a gang can stand: the tightest place that holds all of it, or none.
//!
//! A gang stays inside one pool and, where it has cards, on one model. What must stay true: a placement is for the whole gang or
//! there is none (law 2); it passes [`muster_model::capacity::Capacity::prove`] on the same view; the same view gives the same placement.

mod blind;
mod cards;
mod shares;
mod whole;

use crate::shape::Shape;
use crate::view::{Policy, View};
use muster_model::capacity::NodeUse;
use muster_model::request::SharingMode;
use muster_model::{
    CellId, GpuModel, Node, NodeId, NumaPolicy, Pool, TaskPlacement, TenantId, TopologyLevel, closeness,
};

/// One question to the view.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) cell: CellId,
    pub(crate) tenant: TenantId,
    pub(crate) shape: &'a Shape,
    pub(crate) model: Option<GpuModel>,
}

impl Ask<'_> {
    /// Whether a pool's rules let the gang run in it. A pool that has not been described has the standard rules.
    pub(crate) fn pool_allows(&self, view: &View, name: &str) -> bool {
        if self.shape.pool.as_deref().is_some_and(|wanted| wanted != name) {
            return false;
        }
        let pool = view.capacity.pools().get(name).unwrap_or_else(|| Pool::standard_rules());
        let mode = self.shape.request.devices.mode();
        mode.is_none_or(|mode| pool.modes.contains(&mode)) && pool.classes.contains(&self.shape.class)
    }

    /// Whether the node is of a kind that the job can run on at all, whatever runs there.
    pub(crate) fn admits(&self, node: &Node) -> bool {
        self.has_driver(node)
            && match (&self.shape.selector, self.model) {
                (Some(selector), Some(model)) => selector.admits_all(model, node),
                _ => true,
            }
    }

    /// Whether the node's driver is new enough.
    pub(crate) fn has_driver(&self, node: &Node) -> bool {
        self.shape.driver_min.is_none_or(|min| node.driver_is_at_least(min))
    }

    /// How many tasks a node's CPU and memory hold; none on a node that the job cannot run on.
    pub(crate) fn host_slots(&self, there: &NodeUse) -> u64 {
        if !self.admits(&there.node) {
            return 0;
        }
        let request = &self.shape.request;
        let of = |free: i64, each: u64| (free.max(0) as u64).checked_div(each).unwrap_or(u64::MAX);
        of(there.cpu_free_milli, request.cpu_milli).min(of(there.memory_free_mib, request.memory_mib))
    }

    /// The widest level that the gang may spread over; `None` is the whole cell.
    pub(crate) fn widest(&self) -> Option<TopologyLevel> {
        self.shape.topology.required
    }
}

/// Looked at so far; a pass stops at its bound, between two decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps(pub(crate) u64);

/// A place for every rank, or none that this view knows of.
pub(crate) fn place(view: &View, ask: &Ask<'_>, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    if view.policy != Policy::Topology {
        return blind::place(view, ask, steps).filter(|tasks| within_bounds(view, ask, tasks));
    }
    let found = match ask.shape.request.devices.mode() {
        None | Some(SharingMode::Whole) => whole::place(view, ask, steps),
        Some(SharingMode::Mig | SharingMode::Mps | SharingMode::TimeSlice) => shares::place(view, ask, steps),
    };
    found.filter(|tasks| close_enough(view, ask, tasks))
}

/// Whether the control plane will find the placement as close as the job asks.
fn close_enough(view: &View, ask: &Ask<'_>, tasks: &[TaskPlacement]) -> bool {
    let (topology, numa) = (&ask.shape.topology, ask.shape.numa);
    if topology.segment_tasks.is_none() && numa <= NumaPolicy::BestEffort {
        // Levels are what the search itself goes by.
        return true;
    }
    within_bounds(view, ask, tasks)
}

/// The same for a placement that was found by something else than levels.
fn within_bounds(view: &View, ask: &Ask<'_>, tasks: &[TaskPlacement]) -> bool {
    let (topology, numa) = (&ask.shape.topology, ask.shape.numa);
    let ground: Option<Vec<&Node>> = tasks.iter().map(|task| Some(&*node(view, task.node)?.node)).collect();
    ground.is_some_and(|ground| closeness::check(topology, numa, tasks, &ground).is_ok())
}

/// Whether the gang would fit if nothing ran in the cell: keeping cards for one that never fits would waste them.
pub(crate) fn fits_when_empty(view: &View, ask: &Ask<'_>) -> bool {
    whole::fits_when_empty(view, ask)
}

fn node(view: &View, id: NodeId) -> Option<&NodeUse> {
    view.capacity.nodes().get(&id)
}
