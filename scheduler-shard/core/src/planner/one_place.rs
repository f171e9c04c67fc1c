//! Opening one island or node for a gang that must stand on one: the cheapest set of movable work of that place.
//!
//! Every set of the movable jobs that stand on the place is looked at, of every place, and the sets that free enough cards are proved in
//! order of what they lose. What is claimed, and tested against a search that knows no ledger: no set of jobs of one place opens it for less
//! when each moved job goes, one after the other in any order, to room that is there already. Not looked for are chains, in which a job moves
//! so that another can take its room. Where a place has more than [`EXACT_MAX`] movable jobs, or a bound is reached, nothing is claimed.

use super::Budget;
use super::report::NoPlan;
use super::trial::{Proof, Trial, Wanted};
use super::victims::{Victim, Victims};
use muster_model::capacity::NodeUse;
use muster_model::{AllocationId, GpuUnits, NodeId, TopologyLevel};
use std::collections::{BTreeMap, BTreeSet};

/// Movable jobs of one place of which every set is looked at: an eight-card node of one-card jobs has 256 sets.
const EXACT_MAX: usize = 10;
/// Places whose sets are listed, those first that may open for least.
const PLACES_MAX: usize = 256;
/// Sets that are proved at most: each proof is some placements.
const PROOFS_MAX: usize = 512;

/// One island or node.
struct Place {
    node: NodeId,
    island: Option<u8>,
    free: u64,
    /// Movable jobs on it, the cheapest first.
    jobs: Vec<AllocationId>,
    /// For each card that moves can free: which of `jobs` hold it, bit by bit.
    cards: Vec<u32>,
    /// All its movable jobs are in `jobs`.
    exact: bool,
}

/// A set of a place's jobs that frees enough. The least goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Set {
    lost: u64,
    jobs: u32,
    node: NodeId,
    island: Option<u8>,
    set: u32,
    units: GpuUnits,
    place: usize,
}

/// What came of it.
pub(super) struct Opened {
    pub(super) proof: Proof,
    pub(super) cheapest: bool,
}

/// Whether the gang stands on one island or node wherever it stands.
pub(super) fn is_for(wanted: &Wanted<'_>) -> bool {
    let level = wanted.class.topology.required;
    wanted.class.tasks == 1 || matches!(level, Some(TopologyLevel::Island | TopologyLevel::Node))
}

/// Opens a place for `wanted` by moving at most `budget`; the trial is then as after the plan.
pub(super) fn open(
    trial: &mut Trial<'_>,
    wanted: &Wanted<'_>,
    victims: &Victims,
    budget: Budget,
) -> Result<Opened, NoPlan> {
    let needed = wanted.class.cards();
    let places = places(trial, wanted, victims, needed);
    // The least that each place may open for; a place that cannot open is left out.
    let mut least: Vec<(u64, usize)> = Vec::new();
    for (at, place) in places.iter().enumerate() {
        let sets = sets(place, at, needed, victims);
        trial.steps.0 += 1 << place.jobs.len();
        least.extend(sets.map(|set| set.lost).min().map(|lost| (lost, at)));
    }
    least.sort_unstable();
    let beyond = least.get(PLACES_MAX).map(|(lost, _)| *lost);
    let near = least.iter().take(PLACES_MAX);
    let mut sets: Vec<Set> = near.flat_map(|(_, at)| sets(&places[*at], *at, needed, victims)).collect();
    if sets.is_empty() {
        return Err(NoPlan::TooLittleMovable);
    }
    sets.sort_unstable();
    // An NVLink domain of several nodes is a place too, whose sets are not listed.
    let listed = wanted.class.tasks == 1 || !may_span(trial, wanted);
    let exact = listed && places.iter().all(|place| place.exact);
    let within = sets.iter().filter(|set| budget.allows(u64::from(set.jobs), set.units, set.lost));
    for (tried, set) in within.clone().enumerate() {
        if tried == PROOFS_MAX {
            return Err(NoPlan::NotLookedAt);
        }
        let chosen = chosen(&places[set.place], set.set, victims);
        if let Some(proof) = trial.prove(Some(wanted), &chosen, false) {
            let cheapest = exact && beyond.is_none_or(|beyond| set.lost <= beyond);
            return Ok(Opened { proof, cheapest });
        }
    }
    let smallest = sets.iter().map(|set| set.units).min().unwrap_or(GpuUnits(0));
    if within.count() > 0 { Err(NoPlan::NoPlaceForMoved) } else { Err(budget.beyond(smallest)) }
}

/// Whether the gang may stand on an island of several nodes.
fn may_span(trial: &Trial<'_>, wanted: &Wanted<'_>) -> bool {
    let here = trial.fleet.capacity.nodes().values().filter(|there| there.node.cell == wanted.cell);
    let mut spanning = here.filter(|there| !there.node.spec.place.nvlink_domain.is_empty());
    wanted.class.topology.required == Some(TopologyLevel::Island) && spanning.next().is_some()
}

fn chosen<'v>(place: &Place, set: u32, victims: &'v Victims) -> Vec<&'v Victim> {
    let jobs = place.jobs.iter().enumerate().filter(|(bit, _)| set & (1 << bit) != 0);
    jobs.filter_map(|(_, id)| victims.get(id)).collect()
}

/// The sets of the place's jobs that free enough cards.
fn sets<'a>(place: &'a Place, at: usize, needed: u64, victims: &'a Victims) -> impl Iterator<Item = Set> + 'a {
    (1..1_u32 << place.jobs.len()).filter_map(move |set| {
        let freed = place.cards.iter().filter(|holders| **holders & !set == 0).count() as u64;
        if place.free + freed < needed {
            return None;
        }
        let (mut lost, mut units) = (0_u64, GpuUnits(0));
        for victim in chosen(place, set, victims) {
            lost = lost.saturating_add(victim.loss.unit_seconds);
            units.0 += victim.units.0;
        }
        let (node, island) = (place.node, place.island);
        Some(Set { lost, jobs: set.count_ones(), node, island, set, units, place: at })
    })
}

/// The places that the gang may stand on and that moves alone could open.
fn places(trial: &mut Trial<'_>, wanted: &Wanted<'_>, victims: &Victims, needed: u64) -> Vec<Place> {
    let ask = wanted.ask();
    let by_island = wanted.class.topology.required == Some(TopologyLevel::Island);
    let mut found = Vec::new();
    for (id, there) in trial.fleet.capacity.nodes() {
        let node = &there.node;
        if node.cell != wanted.cell || !node.accepts_work() {
            continue;
        }
        trial.steps.0 += 1;
        if !ask.pool_allows(&trial.fleet, &node.spec.pool) || !ask.admits(node) {
            continue;
        }
        let islands: BTreeSet<Option<u8>> = if by_island {
            node.spec.gpus.iter().filter(|gpu| gpu.model == wanted.model).map(|gpu| Some(gpu.island)).collect()
        } else {
            [None].into()
        };
        found.extend(islands.into_iter().filter_map(|island| place(*id, there, island, wanted, victims, needed)));
    }
    found
}

fn place(
    id: NodeId,
    there: &NodeUse,
    island: Option<u8>,
    wanted: &Wanted<'_>,
    victims: &Victims,
    needed: u64,
) -> Option<Place> {
    let mut free = 0;
    let mut openable: Vec<BTreeSet<AllocationId>> = Vec::new();
    for (at, (card, gpu)) in there.cards.iter().zip(&there.node.spec.gpus).enumerate() {
        let inside = gpu.model == wanted.model && island.is_none_or(|island| island == gpu.island);
        if !inside || gpu.withheld.is_some() || there.is_pinned(at as u16) {
            continue;
        }
        let holders = card.holders();
        if holders.is_empty() {
            free += 1;
        } else if holders.iter().all(|holder| victims.contains_key(holder)) {
            openable.push(holders);
        }
    }
    if free + (openable.len() as u64) < needed {
        return None;
    }
    let mut cost: BTreeMap<AllocationId, u64> = BTreeMap::new();
    for holder in openable.iter().flatten() {
        cost.entry(*holder).or_insert_with(|| victims.get(holder).map_or(u64::MAX, |victim| victim.loss.unit_seconds));
    }
    let mut jobs: Vec<(u64, AllocationId)> = cost.into_iter().map(|(id, cost)| (cost, id)).collect();
    jobs.sort_unstable();
    let exact = jobs.len() <= EXACT_MAX;
    let jobs: Vec<AllocationId> = jobs.into_iter().take(EXACT_MAX).map(|(_, id)| id).collect();
    let bits = |holders: &BTreeSet<AllocationId>| {
        holders.iter().try_fold(0_u32, |bits, holder| Some(bits | 1 << jobs.iter().position(|job| job == holder)?))
    };
    let cards = openable.iter().filter_map(bits).collect();
    Some(Place { node: id, island, free, jobs, cards, exact })
}
