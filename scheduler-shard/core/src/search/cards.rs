//! Which cards of a node a task takes: consecutive ranks fill an island before they open the next.
//!
//! What must stay true: what is counted here ([`most`]) is what is dealt here ([`take_whole`]); where a task's cards must share a NUMA node, tasks
//! are dealt as long as any NUMA node has the cards for one, so cards that become held never make a place that was not there before.

use super::Ask;
use muster_model::capacity::NodeUse;
use muster_model::{DeviceHold, GpuModel, HoldMode, Node, NumaPolicy, closeness};
use std::collections::{BTreeMap, BTreeSet};

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

/// What the cards of units on one node have to stay within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Within {
    /// All units in one island.
    OneIsland,
    /// Each unit in one island.
    Islands,
    Node,
}

impl Within {
    pub(crate) fn crossing(cross: bool) -> Self {
        if cross { Within::Node } else { Within::Islands }
    }
}

/// Cards for `units` units of `tasks` tasks on one node: all in the tightest island that holds them, otherwise unit by unit in the
/// tightest island that holds the unit, and across islands only where none does. Inside that, a task's cards share a NUMA node
/// where its job cares; an island that has them on other NUMA nodes than the job insists on does not hold it.
pub(super) fn take_whole(
    there: &NodeUse,
    model: GpuModel,
    units: u64,
    tasks: u64,
    ask: &Ask<'_>,
) -> Vec<Vec<DeviceHold>> {
    let each = ask.class.request.devices.cards() as usize;
    let holds = |free: &[u16], tasks: u64| tasks_on(&there.node, model, free, ask) >= tasks;
    let mut islands = free_by_island(there, model);
    let mut current = tightest(&islands, |free| holds(free, units * tasks));
    let mut out: Vec<Vec<DeviceHold>> = Vec::with_capacity((units * tasks) as usize);
    for _ in 0..units {
        let still = current.filter(|id| islands.get(id).is_some_and(|free| holds(free, tasks)));
        current = still.or_else(|| tightest(&islands, |free| holds(free, tasks)));
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

/// How many units of `tasks` tasks can be dealt on one node, of at most `wanted`.
pub(super) fn most(
    there: &NodeUse,
    model: GpuModel,
    (wanted, tasks): (u64, u64),
    ask: &Ask<'_>,
    within: Within,
) -> u64 {
    if within == Within::Node {
        let dealt = take_whole(there, model, wanted, tasks, ask);
        let lies_well = |cards: &&Vec<DeviceHold>| {
            let cards: Vec<u16> = cards.iter().map(|hold| hold.gpu).collect();
            numa_allows(&there.node, model, &cards, ask.class.numa)
        };
        return dealt.iter().take_while(lies_well).count() as u64 / tasks;
    }
    let islands = free_by_island(there, model);
    let held = islands.values().map(|free| tasks_on(&there.node, model, free, ask) / tasks);
    let held = if within == Within::OneIsland { held.max().unwrap_or(0) } else { held.sum() };
    held.min(wanted)
}

/// How many tasks these cards of a node are enough for. With more NUMA nodes to a task than one, and fewer than all, it may be fewer than the best
/// deal would come to.
fn tasks_on(node: &Node, model: GpuModel, free: &[u16], ask: &Ask<'_>) -> u64 {
    let (each, numa) = (ask.class.request.devices.cards() as usize, ask.class.numa);
    let by_count = free.len().checked_div(each).unwrap_or(usize::MAX);
    if numa <= NumaPolicy::BestEffort {
        return by_count as u64;
    }
    let mut left = free.to_vec();
    let lies_well = |_: &usize| numa_allows(node, model, &deal(node, &mut left, each, numa), numa);
    (0..by_count).take_while(lies_well).count() as u64
}

/// The island, or NUMA node, with the fewest free cards that `holds` what is wanted.
fn tightest(islands: &BTreeMap<u8, Vec<u16>>, holds: impl Fn(&[u16]) -> bool) -> Option<u8> {
    let holding = islands.iter().filter(|(_, free)| holds(free));
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
    let from = match tightest(&by_numa, |free| free.len() >= each) {
        Some(id) => by_numa.remove(&id).unwrap_or_default(),
        None => fullest_first(&by_numa),
    };
    let cards: Vec<u16> = from.into_iter().take(each).collect();
    free.retain(|gpu| !cards.contains(gpu));
    cards
}

/// Whether a task's cards lie on as few NUMA nodes as `policy` asks for.
fn numa_allows(node: &Node, model: GpuModel, cards: &[u16], policy: NumaPolicy) -> bool {
    let on: BTreeSet<u8> =
        cards.iter().filter_map(|gpu| node.spec.gpus.get(usize::from(*gpu))).map(|gpu| gpu.numa).collect();
    match policy {
        NumaPolicy::None | NumaPolicy::BestEffort => true,
        NumaPolicy::Restricted => on.len() <= closeness::numa_nodes_needed(node, model, cards.len()),
        NumaPolicy::SingleNumaNode => on.len() <= 1,
    }
}
