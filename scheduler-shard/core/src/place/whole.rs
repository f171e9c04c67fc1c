//! Gangs of whole cards, and of CPU alone.
//!
//! Levels are tried from the tightest to the widest that the gang allows; at each, the group that would have the fewest free
//! units left is tried first. Inside a group the nodes with most room are filled first and the remainder goes where it leaves
//! least behind, so large nodes stay whole and ranks that follow each other share a node.

use super::cards::{free_by_island, take_whole, tightest};
use super::{Ask, Steps, node};
use crate::index::{ByFree, Shelf, free_of, group_of};
use crate::view::View;
use muster_model::{GpuModel, NodeId, Place, TaskPlacement, TopologyLevel};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How well a group suits; the least goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    free_left: u64,
    group: Option<Arc<Place>>,
}

/// Where the search stands: how wide the gang is spread, tightest first. `Cell` only when no level is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Island,
    Node,
    Group(usize),
    Cell,
}

fn reaches(widest: Option<TopologyLevel>) -> impl Iterator<Item = Reach> {
    let all = [Reach::Island, Reach::Node, Reach::Group(0), Reach::Group(1), Reach::Group(2), Reach::Cell];
    let count = match widest {
        Some(TopologyLevel::Island) => 1,
        Some(TopologyLevel::Node) => 2,
        Some(TopologyLevel::Leaf) => 3,
        Some(TopologyLevel::Block) => 4,
        Some(TopologyLevel::Region) => 5,
        None => 6,
    };
    all.into_iter().take(count)
}

/// What one task takes of a shelf's free units: cards, or milli-CPUs where there are none.
fn each(ask: &Ask<'_>) -> u64 {
    match ask.model {
        Some(_) => u64::from(ask.shape.request.devices.cards()),
        None => ask.shape.request.cpu_milli,
    }
    .max(1)
}

pub(super) fn place(view: &View, ask: &Ask<'_>, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    for reach in reaches(ask.widest()) {
        for (_, shelf) in view.index.shelves(ask.cell, ask.model).filter(|(pool, _)| ask.pool_allows(view, pool)) {
            let found = match reach {
                Reach::Island | Reach::Node => on_one_node(view, ask, shelf, reach, steps),
                Reach::Group(level) => in_groups(view, ask, &shelf.groups[level], steps),
                Reach::Cell => in_group(view, ask, &shelf.by_free, steps),
            };
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// The node with the fewest free units that holds the whole gang.
fn on_one_node(
    view: &View,
    ask: &Ask<'_>,
    shelf: &Shelf,
    reach: Reach,
    steps: &mut Steps,
) -> Option<Vec<TaskPlacement>> {
    let tasks = u64::from(ask.shape.tasks);
    let needed = each(ask) * tasks;
    for id in shelf.by_free.range(needed..).flat_map(|(_, nodes)| nodes) {
        steps.0 += 1;
        let Some(there) = node(view, *id) else { continue };
        let island = |model: GpuModel| tightest(&free_by_island(there, model), needed as usize).is_some();
        let close_enough = reach != Reach::Island || ask.model.is_none_or(island);
        if ask.host_slots(there) >= tasks && close_enough {
            return Some(fill(view, ask, &[(*id, tasks)]));
        }
    }
    None
}

/// The group that holds the gang with the fewest free units left.
fn in_groups(
    view: &View,
    ask: &Ask<'_>,
    groups: &BTreeMap<Arc<Place>, ByFree>,
    steps: &mut Steps,
) -> Option<Vec<TaskPlacement>> {
    steps.0 += groups.len() as u64;
    let mut fits: Vec<Fit> = groups
        .iter()
        .filter(|(_, by_free)| slots_at_most(ask, by_free) >= u64::from(ask.shape.tasks))
        .map(|(group, by_free)| Fit { free_left: free_of(by_free), group: Some(group.clone()) })
        .collect();
    fits.sort();
    fits.iter().find_map(|fit| in_group(view, ask, groups.get(fit.group.as_ref()?)?, steps))
}

/// Tasks that the group would hold if CPU and memory sufficed everywhere.
fn slots_at_most(ask: &Ask<'_>, by_free: &ByFree) -> u64 {
    by_free.iter().map(|(free, nodes)| free / each(ask) * nodes.len() as u64).sum()
}

fn in_group(view: &View, ask: &Ask<'_>, by_free: &ByFree, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    let tasks = u64::from(ask.shape.tasks);
    if slots_at_most(ask, by_free) < tasks {
        return None;
    }
    let mut rooms: Vec<(Reverse<u64>, NodeId)> = Vec::new();
    for (free, id) in by_free.iter().rev().flat_map(|(free, nodes)| nodes.iter().map(move |id| (*free, *id))) {
        steps.0 += 1;
        let slots = node(view, id).map_or(0, |there| ask.host_slots(there).min(free / each(ask)));
        if slots > 0 {
            rooms.push((Reverse(slots), id));
        }
    }
    rooms.sort();
    let mut left = tasks;
    let mut chosen: Vec<(NodeId, u64)> = Vec::new();
    for (place, (Reverse(slots), id)) in rooms.iter().enumerate() {
        if *slots >= left {
            // The remainder goes to the least room that still holds it: the last such one in this order.
            let after = rooms[place..].partition_point(|(Reverse(slots), _)| *slots >= left);
            chosen.push((least(&rooms[place..place + after]).unwrap_or(*id), left));
            left = 0;
            break;
        }
        chosen.push((*id, *slots));
        left -= slots;
    }
    if left > 0 {
        return None;
    }
    // Ranks follow the network: neighbours in rank are neighbours in leaf.
    chosen.sort_by_cached_key(|(id, _)| (node(view, *id).map(|there| there.node.spec.place.clone()), *id));
    Some(fill(view, ask, &chosen))
}

/// Of rooms in descending order, the smallest, and of equals the lowest id.
fn least(rooms: &[(Reverse<u64>, NodeId)]) -> Option<NodeId> {
    let (smallest, _) = rooms.last()?;
    rooms.iter().find(|(slots, _)| slots == smallest).map(|(_, id)| *id)
}

fn fill(view: &View, ask: &Ask<'_>, chosen: &[(NodeId, u64)]) -> Vec<TaskPlacement> {
    let mut tasks = Vec::with_capacity(ask.shape.tasks as usize);
    for (id, count) in chosen {
        let devices = match (ask.model, node(view, *id)) {
            (Some(model), Some(there)) => take_whole(there, model, *count, ask.shape.request.devices.cards()),
            _ => vec![Vec::new(); *count as usize],
        };
        tasks.extend(devices.into_iter().map(|devices| TaskPlacement { node: *id, devices }));
    }
    tasks
}

/// Whether the open nodes of the cell would hold the gang if nothing ran on them.
pub(super) fn fits_when_empty(view: &View, ask: &Ask<'_>) -> bool {
    let mut slots: BTreeMap<(String, Place, Option<NodeId>), u64> = BTreeMap::new();
    let nodes = view.capacity.nodes().values().map(|there| &there.node).filter(|node| node.cell == ask.cell);
    for node in nodes.filter(|node| node.accepts_work() && ask.admits(node) && ask.pool_allows(view, &node.spec.pool)) {
        let request = &ask.shape.request;
        let cards = node.spec.gpus.iter().filter(|gpu| gpu.withheld.is_none() && Some(gpu.model) == ask.model).count();
        let by_cards = if ask.model.is_some() { cards as u64 / each(ask) } else { u64::MAX };
        let by_host = |all: u64, one: u64| all.checked_div(one).unwrap_or(u64::MAX);
        let room = by_cards
            .min(by_host(node.spec.cpu_milli, request.cpu_milli))
            .min(by_host(node.spec.memory_mib, request.memory_mib));
        let (group, alone) = match ask.widest() {
            None => (Place::default(), None),
            Some(TopologyLevel::Island | TopologyLevel::Node) => (Place::default(), Some(node.id)),
            Some(level) => (group_of(&node.spec.place, level), None),
        };
        let sum = slots.entry((node.spec.pool.clone(), group, alone)).or_default();
        *sum = sum.saturating_add(room);
    }
    slots.values().any(|slots| *slots >= u64::from(ask.shape.tasks))
}
