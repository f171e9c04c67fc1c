//! What can be taken, and the order in which it is tried: what would be missed least goes first.
//!
//! What must stay true: growth of elastic gangs before any minimum, then priority, then what is lost (GPU time since the last checkpoint, and the cost of a restart), then the youngest first. For
//! gangs of whole cards this holds node by node, because a card alone opens no place for a task; where the gang must stand in one leaf or block,
//! also leaf by leaf or block by block.

use crate::job_class::{JobClass, Offer};
use crate::search::Steps;
use crate::view::View;
use muster_model::node::Place;
use muster_model::{Allocation, AllocationId, AllocationState, CellId, JobId, NodeId, TopologyLevel};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Victim {
    pub(super) held: Arc<Allocation>,
    missed: Missed,
}

/// How much something would be missed: the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Missed {
    /// Growth of elastic gangs goes before any gang's minimum.
    is_minimum: bool,
    priority: i32,
    /// GPU unit-milliseconds that would be done again.
    lost: u64,
    youngest: Reverse<u64>,
    id: AllocationId,
}

/// What runs in the cell and is committed, with how much it would be missed.
pub(super) fn in_cell(view: &View, cell: CellId, now_ms: u64, steps: &mut Steps) -> Vec<Victim> {
    let active = view.allocations.values().filter(|held| held.cell == cell && held.state == AllocationState::Active);
    let victims: Vec<Victim> = active.map(|held| victim(view, held, now_ms)).collect();
    steps.0 += victims.len() as u64 / 8;
    victims
}

/// The growth of elastic gangs in the cell, that which is ending included.
pub(super) fn growth_in_cell(view: &View, cell: CellId, now_ms: u64) -> impl Iterator<Item = Victim> + '_ {
    view.growth_in(cell).map(move |held| victim(view, held, now_ms))
}

fn victim(view: &View, held: &Arc<Allocation>, now_ms: u64) -> Victim {
    let job = view.jobs.get(held.job.0);
    let restart_ms = job.map_or(0, |job| 1_000 * job.restart_cost_s);
    let saved_ms = job.and_then(|job| job.checkpoint_ms).map_or(held.bound_ms, |at| at.max(held.bound_ms));
    let since_ms = now_ms.saturating_sub(saved_ms) + restart_ms;
    let lost = held.charge.gpu_total().0.saturating_mul(since_ms);
    let (is_minimum, youngest) = (!held.is_growth, Reverse(held.bound_ms));
    let missed = Missed { is_minimum, priority: held.priority, lost, youngest, id: held.id };
    Victim { held: held.clone(), missed }
}

/// The victims in the order in which they are tried for a job of `class`.
pub(super) fn in_order<'a>(
    view: &View,
    (job, class): (JobId, &JobClass),
    offer: &Offer,
    legal: &[&'a Victim],
) -> Vec<&'a Arc<Allocation>> {
    if class.whole_cards_each() > 0 {
        return by_node(view, (job, class), offer, legal);
    }
    let mut order: Vec<(Missed, u32)> =
        legal.iter().enumerate().map(|(at, victim)| (victim.missed, at as u32)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, at)| &legal[at as usize].held).collect()
}

/// Victims on one node that together make room for one more task: those in this part of the list by node.
struct Opening {
    minimum: bool,
    priority: i32,
    lost: u64,
    node: NodeId,
    part: std::ops::Range<usize>,
}

fn by_node<'a>(
    view: &View,
    (job, class): (JobId, &JobClass),
    offer: &Offer,
    legal: &[&'a Victim],
) -> Vec<&'a Arc<Allocation>> {
    let mut on_node: Vec<(NodeId, Missed, u32)> = Vec::with_capacity(legal.len());
    for (at, victim) in legal.iter().enumerate() {
        let mut last = None;
        let nodes = victim.held.tasks.iter().map(|task| task.node).filter(|node| last.replace(*node) != Some(*node));
        on_node.extend(nodes.map(|node| (node, victim.missed, at as u32)));
    }
    on_node.sort_unstable();
    // The tasks of a gang need not stand together on a node.
    on_node.dedup_by_key(|(node, _, at)| (*node, *at));
    let mut openings = Vec::new();
    let mut begin = 0;
    for on_it in on_node.chunk_by(|one, next| one.0 == next.0) {
        // What leaves a node that is kept for another job makes no room for this one.
        let kept = on_it.first().and_then(|(node, ..)| view.fleet.index.hold_of(*node));
        if kept.is_none_or(|hold| hold.job == job) {
            open(view, class, offer, legal, (begin, on_it), &mut openings);
        }
        begin += on_it.len();
    }
    let mut seen = vec![false; legal.len()];
    let mut order = Vec::with_capacity(legal.len());
    for opening in by_domain(view, class, openings) {
        for (_, _, at) in &on_node[opening.part] {
            if !std::mem::replace(&mut seen[*at as usize], true) {
                order.push(&legal[*at as usize].held);
            }
        }
    }
    order
}

/// Opens the places of one node one after the other: each time with as many victims as make one more task fit.
fn open(
    view: &View,
    class: &JobClass,
    offer: &Offer,
    legal: &[&Victim],
    (begin, on_it): (usize, &[(NodeId, Missed, u32)]),
    openings: &mut Vec<Opening>,
) {
    let Some((id, _, _)) = on_it.first().copied() else { return };
    let Some(there) = view.fleet.capacity.nodes().get(&id).filter(|there| there.node.accepts_work()) else { return };
    let each = class.whole_cards_each();
    let of_model = |gpu: u16| there.node.spec.gpus.get(usize::from(gpu)).map(|card| card.model) == offer.model;
    let mut free = (0..there.cards.len() as u16).filter(|gpu| of_model(*gpu) && there.is_free(*gpu)).count() as u32;
    let mut fit = free / each;
    let (mut minimum, mut priority, mut lost) = (false, i32::MIN, 0_u64);
    let (mut from, mut pending) = (begin, (false, i32::MIN, 0_u64));
    for (at, (_, missed, victim)) in on_it.iter().enumerate() {
        let here = legal[*victim as usize].held.tasks.iter().filter(|task| task.node == id);
        free += here.map(|task| task.devices.len() as u32).sum::<u32>();
        let (before, highest, sum) = pending;
        pending = (before | missed.is_minimum, highest.max(missed.priority), sum.saturating_add(missed.lost));
        if free / each > fit {
            fit = free / each;
            minimum |= pending.0;
            (priority, lost) = (priority.max(pending.1), lost.saturating_add(pending.2));
            openings.push(Opening { minimum, priority, lost, node: id, part: from..begin + at + 1 });
            (from, pending) = (begin + at + 1, (false, i32::MIN, 0));
        }
    }
}

/// All openings, the cheapest first; of a gang that must stand in one leaf or block, those of the cheapest one first in which there are enough.
fn by_domain(view: &View, class: &JobClass, mut openings: Vec<Opening>) -> Vec<Opening> {
    openings.sort_unstable_by_key(|opening| (opening.minimum, opening.priority, opening.lost, opening.node));
    let domain: fn(&Place) -> (&str, &str, &str) = match class.topology.required {
        Some(TopologyLevel::Leaf) => |place| (&place.region, &place.block, &place.leaf),
        Some(TopologyLevel::Block) => |place| (&place.region, &place.block, ""),
        Some(TopologyLevel::Region) => |place| (&place.region, "", ""),
        Some(TopologyLevel::Island | TopologyLevel::Node) | None => return openings,
    };
    let nodes = view.fleet.capacity.nodes();
    let mut domains: BTreeMap<(&str, &str, &str), Vec<Opening>> = BTreeMap::new();
    for opening in openings {
        if let Some(there) = nodes.get(&opening.node) {
            domains.entry(domain(&there.node.spec.place)).or_default().push(opening);
        }
    }
    let cost = |openings: &[Opening]| {
        let needed = || openings.iter().take(class.tasks as usize);
        let too_few = openings.len() < class.tasks as usize;
        let priority = needed().map(|opening| opening.priority).max().unwrap_or(i32::MIN);
        (too_few, priority, needed().fold(0_u64, |sum, opening| sum.saturating_add(opening.lost)))
    };
    let mut domains: Vec<Vec<Opening>> = domains.into_values().collect();
    domains.sort_by_cached_key(|openings| cost(openings));
    domains.into_iter().flatten().collect()
}
