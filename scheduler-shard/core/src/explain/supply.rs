//! What a cell has for a job on one model: in all, closed, free, and where most of it is free.
//!
//! What must stay true: only nodes whose pool, driver and cards the job may use are counted; cards of nodes that take no work are counted as
//! closed and never as free. Amounts are cards, or milli-CPUs for a job without cards.

use crate::search::Ask;
use crate::view::View;
use muster_model::capacity::NodeUse;
use muster_model::{Node, NodeHealth, NodeId, TopologyLevel};
use std::collections::BTreeMap;

/// A node that has what the job wants and takes no work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedNode {
    /// Its id.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// An operator has drained it, or it is quarantined; both are lifted in the same way.
    pub drained: bool,
    /// It is quarantined.
    pub quarantined: bool,
    /// It has not proved what its pool needs.
    pub unproven: bool,
    /// It comes from a backup, and not all is clear yet.
    pub restored: bool,
    /// What the control plane thinks of it.
    pub health: NodeHealth,
    /// What it has.
    pub amount: u64,
}

/// The node with room for a task's cards that has most CPU, or memory, left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoom {
    /// Its name.
    pub node: String,
    /// Free cards on it.
    pub free: u64,
    /// Free milli-CPUs, and all it has.
    pub cpu_milli: (u64, u64),
    /// Free MiB, and all it has.
    pub memory_mib: (u64, u64),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Supply {
    /// On nodes that take work.
    pub(super) open: u64,
    pub(super) closed: Vec<ClosedNode>,
    pub(super) free: u64,
    /// Of what is free, on nodes that are reserved for others.
    pub(super) reserved: u64,
    /// Most that is free on one node.
    pub(super) largest_node: u64,
    /// Tasks for which there is room if each wanted nothing but its cards, or its CPU.
    pub(super) slots: u64,
    /// The same in the pool that has most: a gang stays inside one.
    pub(super) slots_in_pool: u64,
    /// Most that is free in one domain of the level that is required.
    pub(super) largest: u64,
    pub(super) host: Option<HostRoom>,
}

impl Supply {
    pub(super) fn of(view: &View, ask: &Ask<'_>) -> Self {
        let mut supply = Supply::default();
        let each = each(ask);
        let mut domains: BTreeMap<(&str, String), u64> = BTreeMap::new();
        let mut pools: BTreeMap<&str, u64> = BTreeMap::new();
        for there in in_cell(view, ask) {
            let node = &there.node;
            let (has, free) = on_node(ask, there);
            if has == 0 {
                continue;
            }
            if !node.accepts_work() {
                // A quarantine is lifted as a drain is.
                let quarantined = node.notes.quarantine.is_some();
                let drained = node.drained || quarantined;
                let (name, health, unproven) = (node.spec.name.clone(), node.health, !node.notes.lacks.is_empty());
                let restored = node.notes.restored.is_some();
                let (node, amount) = (node.id, has);
                let closed = ClosedNode { node, name, drained, quarantined, unproven, restored, health, amount };
                supply.closed.push(closed);
                continue;
            }
            supply.open += has;
            supply.free += free;
            if !ask.may_stay_on(&view.fleet, node.id) {
                supply.reserved += free;
                continue;
            }
            supply.largest_node = supply.largest_node.max(free);
            supply.slots += free / each.max(1);
            *pools.entry(&node.spec.pool).or_default() += free / each.max(1);
            if free > 0 {
                supply.count_domains(ask, there, free, &mut domains);
            }
            if free >= each {
                supply.note_host(there, free);
            }
        }
        supply.largest = domains.into_values().max().unwrap_or(0);
        supply.slots_in_pool = pools.into_values().max().unwrap_or(0);
        supply
    }

    /// Adds what is free to the domains of the required level, pool by pool.
    fn count_domains<'a>(
        &self,
        ask: &Ask<'_>,
        there: &'a NodeUse,
        free: u64,
        domains: &mut BTreeMap<(&'a str, String), u64>,
    ) {
        let (place, pool) = (&there.node.spec.place, there.node.spec.pool.as_str());
        let mut add = |domain: String, free: u64| *domains.entry((pool, domain)).or_default() += free;
        match ask.required_level() {
            None => add(String::new(), free),
            Some(TopologyLevel::Island) if place.nvlink_domain.is_empty() => {
                for (island, free) in free_by_island(ask, there) {
                    add(format!("{}/{island}", there.node.id), free);
                }
            }
            Some(TopologyLevel::Island) => add(place.spanning_island().unwrap_or_default(), free),
            Some(TopologyLevel::Node) => add(there.node.id.to_string(), free),
            Some(level) => add(place.domain(level), free),
        }
    }

    fn note_host(&mut self, there: &NodeUse, free: u64) {
        let spec = &there.node.spec;
        let room = HostRoom {
            node: spec.name.clone(),
            free,
            cpu_milli: (there.cpu_free_milli.max(0) as u64, spec.cpu_milli),
            memory_mib: (there.memory_free_mib.max(0) as u64, spec.memory_mib),
        };
        let more = |other: &HostRoom| (room.cpu_milli.0, room.memory_mib.0) > (other.cpu_milli.0, other.memory_mib.0);
        if self.host.as_ref().is_none_or(more) {
            self.host = Some(room);
        }
    }
}

/// What each task takes of its node's cards, or of its CPU.
pub(super) fn each(ask: &Ask<'_>) -> u64 {
    match ask.model {
        Some(_) => u64::from(ask.class.request.devices.cards()),
        None => ask.class.request.cpu_milli,
    }
}

/// Nodes of the cell, open or not, whose pool, driver and cards the job may use.
pub(super) fn in_cell<'a>(view: &'a View, ask: &'a Ask<'_>) -> impl Iterator<Item = &'a NodeUse> + 'a {
    view.fleet.capacity.nodes().values().filter(|there| {
        let node = &there.node;
        node.cell == ask.cell && ask.pool_allows(&view.fleet, &node.spec.pool) && ask.admits(node)
    })
}

/// Whether a node has cards of the asked model that nothing withholds; any node for a job without cards.
pub(super) fn has_model(ask: &Ask<'_>, node: &Node) -> bool {
    ask.model.is_none() || node.spec.gpus.iter().any(|gpu| Some(gpu.model) == ask.model && gpu.withheld.is_none())
}

/// What the node has, and what of it is free.
fn on_node(ask: &Ask<'_>, there: &NodeUse) -> (u64, u64) {
    let Some(model) = ask.model else {
        return (there.node.spec.cpu_milli, there.cpu_free_milli.max(0) as u64);
    };
    let cards = (0..).zip(&there.node.spec.gpus).filter(|(_, gpu)| gpu.model == model && gpu.withheld.is_none());
    cards.fold((0, 0), |(has, free), (at, _)| (has + 1, free + u64::from(there.is_free(at))))
}

fn free_by_island(ask: &Ask<'_>, there: &NodeUse) -> BTreeMap<u8, u64> {
    let mut islands = BTreeMap::new();
    for (at, gpu) in (0..).zip(&there.node.spec.gpus) {
        if Some(gpu.model) == ask.model && there.is_free(at) {
            *islands.entry(gpu.island).or_default() += 1;
        }
    }
    islands
}
