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
use std::collections::{BTreeMap, BinaryHeap};
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
    let mut victims: Vec<Victim> = Vec::with_capacity(view.allocations.values_max());
    victims.extend(active.map(|held| victim(view, held, now_ms)));
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

/// The victims in the order in which they are tried for a job of `class`. What is not asked for is not sorted.
pub(super) fn in_order<'a>(
    view: &View,
    (job, class): (JobId, &JobClass),
    offer: &Offer,
    legal: &'a [&'a Victim],
) -> Box<dyn Iterator<Item = &'a Arc<Allocation>> + 'a> {
    if class.whole_cards_each() > 0 {
        return Box::new(by_node(view, (job, class), offer, legal));
    }
    let mut order: Vec<(Missed, u32)> =
        legal.iter().enumerate().map(|(at, victim)| (victim.missed, at as u32)).collect();
    order.sort_unstable();
    Box::new(order.into_iter().map(|(_, at)| &legal[at as usize].held))
}

/// What one victim holds of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    node: NodeId,
    /// Its place among the legal victims.
    victim: u32,
    cards: u32,
}

/// Victims on one node that together make room for one more task: those in this part of the list by node. The least goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Opening {
    minimum: bool,
    priority: i32,
    lost: u64,
    node: NodeId,
    begin: u32,
    end: u32,
}

fn by_node<'a>(
    view: &View,
    (job, class): (JobId, &JobClass),
    offer: &Offer,
    legal: &'a [&'a Victim],
) -> impl Iterator<Item = &'a Arc<Allocation>> + 'a {
    let mut on_node = held_by_node(legal);
    let mut openings = Vec::with_capacity(on_node.len());
    let mut begin = 0;
    for on_it in on_node.chunk_by_mut(|one, next| one.node == next.node) {
        on_it.sort_unstable_by_key(|held| legal[held.victim as usize].missed);
        // What leaves a node that is kept for another job makes no room for this one.
        let kept = on_it.first().and_then(|held| view.fleet.index.hold_of(held.node));
        if kept.is_none_or(|hold| hold.job == job) {
            open(view, class, offer, legal, (begin, on_it), &mut openings);
        }
        begin += on_it.len();
    }
    let mut seen = vec![false; legal.len()];
    let victims = by_domain(view, class, openings)
        .flat_map(move |opening| opening.begin..opening.end)
        .map(move |at| on_node[at as usize].victim as usize);
    victims.filter(move |victim| !std::mem::replace(&mut seen[*victim], true)).map(|victim| &legal[victim].held)
}

/// What each victim holds of each node, by node.
fn held_by_node(legal: &[&Victim]) -> Vec<Held> {
    let mut on_node: Vec<Held> = Vec::with_capacity(legal.len());
    for (victim, one) in legal.iter().enumerate() {
        for tasks in one.held.tasks.chunk_by(|one, next| one.node == next.node) {
            let cards = tasks.iter().map(|task| task.devices.len() as u32).sum();
            on_node.push(Held { node: tasks[0].node, victim: victim as u32, cards });
        }
    }
    on_node.sort_unstable();
    // The tasks of a gang need not stand together on a node.
    on_node.dedup_by(|next, held| {
        let same = (next.node, next.victim) == (held.node, held.victim);
        held.cards += if same { next.cards } else { 0 };
        same
    });
    on_node
}

/// Opens the places of one node one after the other: each time with as many victims as make one more task fit.
fn open(
    view: &View,
    class: &JobClass,
    offer: &Offer,
    legal: &[&Victim],
    (begin, on_it): (usize, &[Held]),
    openings: &mut Vec<Opening>,
) {
    let Some(node) = on_it.first().map(|held| held.node) else { return };
    let Some(there) = view.fleet.capacity.nodes().get(&node).filter(|there| there.node.accepts_work()) else { return };
    let each = class.whole_cards_each();
    let of_model = |gpu: u16| there.node.spec.gpus.get(usize::from(gpu)).map(|card| card.model) == offer.model;
    let mut free = (0..there.cards.len() as u16).filter(|gpu| of_model(*gpu) && there.is_free(*gpu)).count() as u32;
    let mut fit = free / each;
    let (mut minimum, mut priority, mut lost) = (false, i32::MIN, 0_u64);
    let (mut from, mut pending) = (begin, (false, i32::MIN, 0_u64));
    for (at, held) in on_it.iter().enumerate() {
        let missed = &legal[held.victim as usize].missed;
        free += held.cards;
        let (before, highest, sum) = pending;
        pending = (before | missed.is_minimum, highest.max(missed.priority), sum.saturating_add(missed.lost));
        if free / each > fit {
            fit = free / each;
            minimum |= pending.0;
            (priority, lost) = (priority.max(pending.1), lost.saturating_add(pending.2));
            let end = begin + at + 1;
            openings.push(Opening { minimum, priority, lost, node, begin: from as u32, end: end as u32 });
            (from, pending) = (end, (false, i32::MIN, 0));
        }
    }
}

/// Of a place the part that names a leaf, a block or a region.
type Domain = fn(&Place) -> (&str, &str, &str);

/// All openings, the cheapest first; of a gang that must stand in one leaf or block, those of the cheapest one first in which there are enough.
fn by_domain(view: &View, class: &JobClass, openings: Vec<Opening>) -> impl Iterator<Item = Opening> + use<> {
    let domain: Option<Domain> = match class.topology.required {
        Some(TopologyLevel::Leaf) => Some(|place| (&place.region, &place.block, &place.leaf)),
        Some(TopologyLevel::Block) => Some(|place| (&place.region, &place.block, "")),
        Some(TopologyLevel::Region) => Some(|place| (&place.region, "", "")),
        Some(TopologyLevel::Island | TopologyLevel::Node) | None => None,
    };
    let domains = match domain {
        Some(domain) => cheapest_domains_first(view, class.tasks as usize, domain, &openings),
        None => vec![openings],
    };
    domains.into_iter().flat_map(|openings| {
        let mut heap: BinaryHeap<Reverse<Opening>> = openings.into_iter().map(Reverse).collect();
        std::iter::from_fn(move || heap.pop().map(|Reverse(opening)| opening))
    })
}

fn cheapest_domains_first(view: &View, tasks: usize, domain: Domain, openings: &[Opening]) -> Vec<Vec<Opening>> {
    let nodes = view.fleet.capacity.nodes();
    let mut domains: BTreeMap<(&str, &str, &str), Vec<Opening>> = BTreeMap::new();
    for on_node in openings.chunk_by(|one, next| one.node == next.node) {
        if let Some(there) = nodes.get(&on_node[0].node) {
            domains.entry(domain(&there.node.spec.place)).or_default().extend(on_node);
        }
    }
    let cost = |openings: &mut Vec<Opening>| {
        if openings.len() > tasks {
            openings.select_nth_unstable(tasks);
        }
        let needed = || openings.iter().take(tasks);
        let priority = needed().map(|opening| opening.priority).max().unwrap_or(i32::MIN);
        (openings.len() < tasks, priority, needed().fold(0_u64, |sum, opening| sum.saturating_add(opening.lost)))
    };
    let mut domains: Vec<_> = domains.into_values().map(|mut openings| (cost(&mut openings), openings)).collect();
    domains.sort_by_key(|(cost, _)| *cost);
    domains.into_iter().map(|(_, openings)| openings).collect()
}
