//! Which cards of a node a task takes: consecutive ranks fill an island before they open the next.

use muster_model::capacity::{CardUse, NodeUse};
use muster_model::{DeviceHold, GpuModel, HoldMode};
use std::collections::BTreeMap;

/// The free cards of `model` by island, in order of their index.
pub(super) fn free_by_island(there: &NodeUse, model: GpuModel) -> BTreeMap<u8, Vec<u16>> {
    let mut islands: BTreeMap<u8, Vec<u16>> = BTreeMap::new();
    for (index, (card, gpu)) in there.cards.iter().zip(&there.node.spec.gpus).enumerate() {
        if matches!(card, CardUse::Free) && gpu.withheld.is_none() && gpu.model == model {
            islands.entry(gpu.island).or_default().push(index as u16);
        }
    }
    islands
}

/// Cards for `tasks` tasks of `each` cards on one node: all in the tightest island that holds them, otherwise task by task in the
/// tightest island that holds the task, and across islands only where none does.
pub(super) fn take_whole(there: &NodeUse, model: GpuModel, tasks: u64, each: u32) -> Vec<Vec<DeviceHold>> {
    let mut islands = free_by_island(there, model);
    let mut current = tightest(&islands, tasks as usize * each as usize);
    (0..tasks)
        .map(|_| {
            let still = current.filter(|id| islands.get(id).is_some_and(|free| free.len() >= each as usize));
            current = still.or_else(|| tightest(&islands, each as usize));
            let cards = match current.and_then(|id| islands.get_mut(&id)) {
                Some(free) => free.drain(..each as usize).collect(),
                None => across(&mut islands, each as usize),
            };
            cards.into_iter().map(|gpu| DeviceHold { gpu, mode: HoldMode::Whole }).collect()
        })
        .collect()
}

/// The island with the fewest free cards that still has `count`.
pub(super) fn tightest(islands: &BTreeMap<u8, Vec<u16>>, count: usize) -> Option<u8> {
    let holding = islands.iter().filter(|(_, free)| free.len() >= count);
    holding.min_by_key(|(id, free)| (free.len(), **id)).map(|(id, _)| *id)
}

/// `count` cards from the fullest islands first, so that as few as possible are crossed.
fn across(islands: &mut BTreeMap<u8, Vec<u16>>, count: usize) -> Vec<u16> {
    let mut order: Vec<u8> = islands.keys().copied().collect();
    order.sort_by_key(|id| (std::cmp::Reverse(islands[id].len()), *id));
    let mut taken = Vec::with_capacity(count);
    for id in order {
        let Some(free) = islands.get_mut(&id) else { continue };
        let some = free.len().min(count - taken.len());
        taken.extend(free.drain(..some));
    }
    taken
}
