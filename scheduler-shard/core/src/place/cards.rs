//! Which cards of a node a task takes: consecutive ranks fill an island before they open the next.

use super::units::Units;
use super::{Ask, node};
use crate::view::View;
use muster_model::capacity::NodeUse;
use muster_model::{DeviceHold, GpuModel, HoldMode, Node, NodeId, NumaPolicy, Place, TaskPlacement, closeness};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes and how many tasks each takes.
pub(super) type Chosen = Vec<(NodeId, u64)>;

/// The free cards of `model` by island, in order of their index.
pub(super) fn free_by_island(there: &NodeUse, model: GpuModel) -> BTreeMap<u8, Vec<u16>> {
    let mut islands: BTreeMap<u8, Vec<u16>> = BTreeMap::new();
    for (index, gpu) in (0..).zip(&there.node.spec.gpus) {
        if gpu.model == model && there.is_free(index) {
            islands.entry(gpu.island).or_default().push(index);
        }
    }
    islands
}

/// Cards for `units` units of `tasks` tasks on one node: all in the tightest island that holds them, otherwise unit by unit in the
/// tightest island that holds the unit, and across islands only where none does. Inside that, a task's cards share a NUMA node
/// where its job cares.
pub(super) fn take_whole(
    there: &NodeUse,
    model: GpuModel,
    units: u64,
    tasks: u64,
    ask: &Ask<'_>,
) -> Vec<Vec<DeviceHold>> {
    let each = ask.class.request.devices.cards() as usize;
    let unit = tasks as usize * each;
    let mut islands = free_by_island(there, model);
    let mut current = tightest(&islands, units as usize * unit);
    let mut out: Vec<Vec<DeviceHold>> = Vec::with_capacity((units * tasks) as usize);
    for _ in 0..units {
        let still = current.filter(|id| islands.get(id).is_some_and(|free| free.len() >= unit));
        current = still.or_else(|| tightest(&islands, unit));
        let mut crossing;
        let free = match current.and_then(|id| islands.get_mut(&id)) {
            Some(free) => free,
            None => {
                crossing = fullest_first(&islands);
                &mut crossing
            }
        };
        for _ in 0..tasks {
            let cards = deal(&there.node, free, each, ask.class.numa);
            out.push(cards.into_iter().map(|gpu| DeviceHold { gpu, mode: HoldMode::Whole }).collect());
        }
        if current.is_none() {
            let dealt = &out[out.len() - tasks as usize..];
            let taken = |gpu: &u16| dealt.iter().flatten().any(|hold: &DeviceHold| hold.gpu == *gpu);
            islands.values_mut().for_each(|free| free.retain(|gpu| !taken(gpu)));
        }
    }
    out
}

/// The island with the fewest free cards that still has `count`.
fn tightest(islands: &BTreeMap<u8, Vec<u16>>, count: usize) -> Option<u8> {
    let holding = islands.iter().filter(|(_, free)| free.len() >= count);
    holding.min_by_key(|(id, free)| (free.len(), **id)).map(|(id, _)| *id)
}

/// All free cards, the fullest islands first, so that a task crosses as few as possible.
fn fullest_first(islands: &BTreeMap<u8, Vec<u16>>) -> Vec<u16> {
    let mut order: Vec<(&u8, &Vec<u16>)> = islands.iter().collect();
    order.sort_by_key(|(id, free)| (std::cmp::Reverse(free.len()), **id));
    order.into_iter().flat_map(|(_, free)| free.iter().copied()).collect()
}

/// The first `each` of `free`, or, where NUMA nodes matter, those of the tightest NUMA node that has as many, or of the fullest ones.
fn deal(node: &Node, free: &mut Vec<u16>, each: usize, numa: NumaPolicy) -> Vec<u16> {
    if numa == NumaPolicy::None {
        return free.drain(..each.min(free.len())).collect();
    }
    let mut by_numa: BTreeMap<u8, Vec<u16>> = BTreeMap::new();
    for gpu in free.iter() {
        by_numa.entry(node.spec.gpus[usize::from(*gpu)].numa).or_default().push(*gpu);
    }
    let from = match tightest(&by_numa, each) {
        Some(id) => by_numa.remove(&id).unwrap_or_default(),
        None => fullest_first(&by_numa),
    };
    let cards: Vec<u16> = from.into_iter().take(each).collect();
    free.retain(|gpu| !cards.contains(gpu));
    cards
}

/// Whether a task's cards lie on as few NUMA nodes as `policy` asks for.
pub(super) fn numa_allows(node: &Node, model: GpuModel, cards: &[DeviceHold], policy: NumaPolicy) -> bool {
    let on: BTreeSet<u8> =
        cards.iter().filter_map(|hold| node.spec.gpus.get(usize::from(hold.gpu))).map(|gpu| gpu.numa).collect();
    match policy {
        NumaPolicy::None | NumaPolicy::BestEffort => true,
        NumaPolicy::Restricted => on.len() <= closeness::numa_nodes_needed(node, model, cards.len()),
        NumaPolicy::SingleNumaNode => on.len() <= 1,
    }
}

/// Cards for each rank. Ranks follow the network: neighbours in rank are neighbours in leaf.
pub(super) fn fill(view: &View, ask: &Ask<'_>, units: Units, mut chosen: Chosen) -> Vec<TaskPlacement> {
    if chosen.len() > 1 {
        let place_of = |id: NodeId| node(view, id).map(|there| &there.node.spec.place);
        let mut placed: Vec<(Option<&Place>, NodeId, u64)> =
            chosen.into_iter().map(|(id, count)| (place_of(id), id, count)).collect();
        placed.sort_unstable();
        chosen = placed.into_iter().map(|(_, id, count)| (id, count)).collect();
    }
    let mut tasks = Vec::with_capacity(ask.class.tasks as usize);
    for (id, count) in chosen {
        let devices = match (ask.model, node(view, id)) {
            (Some(model), Some(there)) => {
                // Where NVLink goes on to other nodes a segment does too; elsewhere a node has whole ones.
                let spans = !there.node.spec.place.nvlink_domain.is_empty();
                let each = if spans { 1 } else { units.tasks };
                take_whole(there, model, count / each, each, ask)
            }
            _ => vec![Vec::new(); count as usize],
        };
        tasks.extend(devices.into_iter().map(|devices| TaskPlacement { node: id, devices }));
    }
    tasks
}
