//! Who stands in a job's way: the place where it lacks least, and who holds what it lacks there.
//!
//! What must stay true: the place is one that the job could stand on if nobody else did; the list is bounded; the same view names the
//! same holders.

use crate::index::{GROUP_LEVELS, group_of};
use crate::place::Ask;
use crate::view::View;
use muster_model::capacity::{CardUse, NodeUse};
use muster_model::request::SharingMode;
use muster_model::{AllocationId, JobId, NodeId, Place, TopologyLevel};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Holders that an explanation names at most: what fits on a screen beside the reason.
const BLOCKERS_MAX: usize = 5;

/// A job that holds what is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The job.
    pub job: JobId,
    /// Cards, instances or shares it holds in the place.
    pub cards: u64,
    /// The first node of the place that it stands on.
    pub node: String,
    /// Whether it may be moved.
    pub movable: bool,
}

/// What a place has, if nobody held any of it, and who holds how much.
#[derive(Default)]
struct Ground {
    usable: u64,
    free: u64,
    holders: BTreeMap<AllocationId, (u64, NodeId)>,
}

/// A place: a domain, a node, an island or a card.
type Key = (Place, Option<NodeId>, Option<u16>);

/// The holders of the place where the job lacks least, those of most first.
pub(super) fn of(view: &View, ask: &Ask<'_>) -> Vec<Blocker> {
    let Some(model) = ask.model else { return hosts(view, ask) };
    let shares = !matches!(ask.class.request.devices.mode(), None | Some(SharingMode::Whole));
    let needed = if shares { 1 } else { ask.class.cards() };
    let mut places: BTreeMap<Key, Ground> = BTreeMap::new();
    for there in open_nodes(view, ask) {
        let cards = there.cards.iter().zip(&there.node.spec.gpus).enumerate();
        for (at, (card, gpu)) in cards.filter(|(_, (_, gpu))| gpu.model == model && gpu.withheld.is_none()) {
            if !shares && there.is_pinned(at as u16) {
                continue;
            }
            let key = if shares { card_key(there, at as u16) } else { key(ask, there, gpu.island) };
            let ground = places.entry(key).or_default();
            ground.usable += 1;
            ground.free += u64::from(*card == CardUse::Free);
            for holder in card.holders() {
                ground.holders.entry(holder).or_insert((0, there.node.id)).0 += 1;
            }
        }
    }
    let could = places.into_iter().filter(|(_, ground)| ground.usable >= needed && !ground.holders.is_empty());
    // Cards that fewest share come first where a share is wanted.
    let best = could.min_by_key(|(key, ground)| (Reverse(ground.free), ground.holders.len(), key.clone()));
    best.map(|(_, ground)| named(view, ground.holders)).unwrap_or_default()
}

fn open_nodes<'a>(view: &'a View, ask: &'a Ask<'_>) -> impl Iterator<Item = &'a NodeUse> + 'a {
    view.capacity.nodes().values().filter(|there| {
        let node = &there.node;
        node.cell == ask.cell && node.accepts_work() && ask.pool_allows(view, &node.spec.pool) && ask.admits(node)
    })
}

fn key(ask: &Ask<'_>, there: &NodeUse, island: u8) -> Key {
    let on_node = (Place::default(), Some(there.node.id));
    let place = &there.node.spec.place;
    match ask.widest() {
        Some(TopologyLevel::Island) if !place.nvlink_domain.is_empty() => (place.clone(), None, None),
        Some(TopologyLevel::Island) => (on_node.0, on_node.1, Some(u16::from(island))),
        Some(TopologyLevel::Node) => (on_node.0, on_node.1, None),
        _ if ask.class.tasks == 1 => (on_node.0, on_node.1, None),
        Some(level) if GROUP_LEVELS.contains(&level) => (group_of(place, level), None, None),
        _ => (Place::default(), None, None),
    }
}

fn card_key(there: &NodeUse, gpu: u16) -> Key {
    (Place::default(), Some(there.node.id), Some(gpu))
}

/// The jobs that hold most CPU in the cell, for a job without cards.
fn hosts(view: &View, ask: &Ask<'_>) -> Vec<Blocker> {
    let nodes: BTreeSet<NodeId> = open_nodes(view, ask).map(|there| there.node.id).collect();
    let here = view.allocations.values().filter(|held| held.cell == ask.cell && held.model.is_none());
    let mut holders: BTreeMap<AllocationId, (u64, NodeId)> = BTreeMap::new();
    for held in here {
        let on = held.tasks.iter().filter(|task| nodes.contains(&task.node));
        for task in on {
            holders.entry(held.id).or_insert((0, task.node)).0 += 1;
        }
    }
    named(view, holders)
}

/// The largest holders with their names; stand-ins of proposals have no allocation and are left out.
fn named(view: &View, holders: BTreeMap<AllocationId, (u64, NodeId)>) -> Vec<Blocker> {
    let mut holders: Vec<Blocker> = holders
        .into_iter()
        .filter_map(|(id, (cards, node))| {
            let job = view.allocations.get(id.0)?.job;
            let node = view.capacity.nodes().get(&node).map(|there| there.node.spec.name.clone()).unwrap_or_default();
            let movable = view.jobs.get(job.0).is_some_and(|job| job.movable.is_some());
            Some(Blocker { job, cards, node, movable })
        })
        .collect();
    holders.sort_by_key(|blocker| (Reverse(blocker.cards), blocker.job));
    holders.truncate(BLOCKERS_MAX);
    holders
}
