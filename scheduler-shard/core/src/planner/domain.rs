//! Opening a leaf, a block, a region or the cell for a gang of several tasks.
//!
//! On each node of a domain the sets of movable jobs are weighed by what a further task costs; the cheapest are taken until the domain
//! may hold the whole gang, what turns out not to be needed is put back, and the rest is proved. Nothing is claimed of what is found but that
//! it is proved: the cheapest set over many nodes is a hard problem, and this is a bounded search for a good one.

use super::Budget;
use super::one_place::Opened;
use super::report::NoPlan;
use super::trial::{Trial, Wanted};
use super::victims::{Victim, Victims};
use crate::fleet::index::{GROUP_LEVELS, group_of};
use muster_model::capacity::{CardUse, NodeUse};
use muster_model::gang::Gang;
use muster_model::{AllocationId, GpuUnits, NodeId, Place};
use std::collections::{BTreeMap, BTreeSet};

/// Movable jobs of a node whose sets are looked at, the cheapest.
const JOBS_MAX: usize = 8;
/// Domains in which a plan is proved, those first that seem cheapest.
const DOMAINS_MAX: usize = 16;
/// Jobs that one plan moves at most: each is an interruption to somebody.
const MOVES_MAX: usize = 64;

/// What a domain would take.
struct Guess {
    lost: u64,
    units: GpuUnits,
    domain: Place,
    moving: BTreeSet<AllocationId>,
}

/// A way to gain tasks on a node.
struct Way {
    /// Unit-seconds for each task gained.
    each: u64,
    node: NodeId,
    gained: u64,
    moving: Vec<AllocationId>,
}

/// Opens a domain for `wanted` by moving at most `budget`; the trial is then as after the plan.
pub(super) fn open(
    trial: &mut Trial<'_>,
    wanted: &Wanted<'_>,
    victims: &Victims,
    budget: Budget,
) -> Result<Opened, NoPlan> {
    let mut guesses: Vec<Guess> = Vec::new();
    for (domain, nodes) in domains(trial, wanted) {
        guesses.extend(guess(trial, wanted, victims, domain, &nodes));
    }
    if guesses.is_empty() {
        return Err(NoPlan::TooLittleMovable);
    }
    guesses.sort_by(|a, b| (a.lost, a.moving.len(), &a.domain).cmp(&(b.lost, b.moving.len(), &b.domain)));
    let smallest = guesses.iter().map(|guess| guess.units).min().unwrap_or(GpuUnits(0));
    let within: Vec<&Guess> = guesses
        .iter()
        .filter(|guess| budget.allows(guess.moving.len() as u64, guess.units, guess.lost))
        .take(DOMAINS_MAX)
        .collect();
    for guess in &within {
        let chosen: Vec<&Victim> = guess.moving.iter().filter_map(|id| victims.get(id)).collect();
        if let Some(proof) = trial.prove(Some(wanted), &chosen, true) {
            return Ok(Opened { proof, cheapest: false });
        }
    }
    if within.is_empty() { Err(budget.beyond(smallest)) } else { Err(NoPlan::NoPlaceForMoved) }
}

/// The nodes that the gang may stand on, by domain of the level it requires; the cell is one domain.
fn domains(trial: &mut Trial<'_>, wanted: &Wanted<'_>) -> BTreeMap<Place, Vec<NodeId>> {
    let ask = wanted.ask();
    let level = wanted.class.topology.required.filter(|level| GROUP_LEVELS.contains(level));
    let mut domains: BTreeMap<Place, Vec<NodeId>> = BTreeMap::new();
    for (id, there) in trial.fleet.capacity.nodes() {
        let node = &there.node;
        trial.steps.0 += 1;
        let open = node.cell == wanted.cell && node.accepts_work();
        if open && ask.pool_allows(&trial.fleet, &node.spec.pool) && ask.admits(node) {
            // A gang stays inside one pool; the pool stands in for the zone of the domain's name.
            let mut domain = level.map_or_else(Place::default, |level| group_of(&node.spec.place, level));
            domain.zone = format!("{}\n{}", domain.zone, node.spec.pool);
            domains.entry(domain).or_default().push(*id);
        }
    }
    domains
}

/// Takes the cheapest ways until the domain may hold the gang.
fn guess(
    trial: &mut Trial<'_>,
    wanted: &Wanted<'_>,
    victims: &Victims,
    domain: Place,
    nodes: &[NodeId],
) -> Option<Guess> {
    let needed = u64::from(wanted.class.tasks);
    let mut held = 0;
    let mut ways: Vec<Way> = Vec::new();
    for id in nodes {
        let there = trial.fleet.capacity.nodes().get(id)?;
        let now = tasks_on(there, wanted, &BTreeSet::new());
        held += now;
        let (found, sets) = ways_on(there, wanted, victims, now);
        ways.extend(found);
        trial.steps.0 += sets;
    }
    ways.sort_by(|a, b| (a.each, a.node, &a.moving).cmp(&(b.each, b.node, &b.moving)));
    let mut moving: BTreeSet<AllocationId> = BTreeSet::new();
    let mut used: BTreeSet<NodeId> = BTreeSet::new();
    for way in ways {
        if held >= needed || moving.len() >= MOVES_MAX {
            break;
        }
        if used.insert(way.node) {
            moving.extend(way.moving);
            held += way.gained;
        }
    }
    if held < needed || moving.is_empty() {
        return None;
    }
    let chosen = || moving.iter().filter_map(|id| victims.get(id));
    let lost = chosen().fold(0_u64, |sum, victim| sum.saturating_add(victim.loss.unit_seconds));
    let units = GpuUnits(chosen().map(|victim| victim.units.0).sum());
    Some(Guess { lost, units, domain, moving })
}

/// For each number of tasks that a node may gain, the cheapest set of its movable jobs; and how many sets were looked at.
fn ways_on(there: &NodeUse, wanted: &Wanted<'_>, victims: &Victims, now: u64) -> (Vec<Way>, u64) {
    let on: BTreeSet<AllocationId> =
        there.cards.iter().flat_map(CardUse::holders).filter(|holder| victims.contains_key(holder)).collect();
    let mut jobs: Vec<(u64, AllocationId)> =
        on.iter().filter_map(|id| victims.get(id)).map(|v| (v.loss.unit_seconds, v.allocation.id)).collect();
    jobs.sort_unstable();
    jobs.truncate(JOBS_MAX);
    let mut best: BTreeMap<u64, (u64, Vec<AllocationId>)> = BTreeMap::new();
    for set in 1..1_u32 << jobs.len() {
        let chosen = jobs.iter().enumerate().filter(|(bit, _)| set & (1 << bit) != 0).map(|(_, job)| job);
        let moving: BTreeSet<AllocationId> = chosen.clone().map(|(_, id)| *id).collect();
        let lost = chosen.fold(0_u64, |sum, (lost, _)| sum.saturating_add(*lost));
        let gained = tasks_on(there, wanted, &moving).saturating_sub(now);
        if gained > 0 && best.get(&gained).is_none_or(|(least, _)| lost < *least) {
            best.insert(gained, (lost, moving.into_iter().collect()));
        }
    }
    let node = there.node.id;
    let ways = best.into_iter().map(|(gained, (lost, moving))| Way { each: lost / gained, node, gained, moving });
    (ways.collect(), 1 << jobs.len())
}

/// How many tasks of the gang the node's cards would hold without `moving`; whole segments where it has any.
fn tasks_on(there: &NodeUse, wanted: &Wanted<'_>, moving: &BTreeSet<AllocationId>) -> u64 {
    let class = wanted.class;
    let Some(gang) = Gang::of(class.tasks, &class.topology, &class.request, true) else { return 0 };
    let mut free: BTreeMap<u8, u64> = BTreeMap::new();
    for (at, (card, gpu)) in there.cards.iter().zip(&there.node.spec.gpus).enumerate() {
        let usable = gpu.model == wanted.model && gpu.withheld.is_none() && !there.is_pinned(at as u16);
        if usable && card.holders().iter().all(|holder| moving.contains(holder)) {
            *free.entry(gpu.island).or_default() += 1;
        }
    }
    let inside: u64 = free.values().map(|free| free / gang.each).sum();
    // A task may cross islands; a segment only where no island could hold it, which the proof finds out.
    let crossing: u64 = free.values().sum::<u64>() / gang.each;
    let units = if !gang.may_cross && inside > 0 { inside } else { crossing };
    units * gang.tasks
}
