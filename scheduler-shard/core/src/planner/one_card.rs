//! Opening one card for a task that asks for a part of one: a MIG slice, an MPS share, a time-slice.
//!
//! Every set of the movable jobs on a card is looked at, and the sets without which the part can stand on the card are proved in order of what they
//! lose. What is claimed, and tested against a search over all sets of small fleets: no set of jobs of one card opens it for less when each moved job
//! goes, one after the other in any order, where there is room already. A moved job may go to another part of the same card. Where a card has more
//! than [`EXACT_MAX`] movable jobs, or a bound is reached, nothing is claimed.

use super::Budget;
use super::one_place::Opened;
use super::report::NoPlan;
use super::trial::{Trial, Wanted};
use super::victims::{Victim, Victims};
use muster_model::capacity::{CardUse, NodeUse};
use muster_model::mig::MigPlacement;
use muster_model::request::SharingMode;
use muster_model::{AllocationId, DeviceRequest, GpuUnits, HoldMode, NodeId};
use std::collections::BTreeSet;

/// Movable jobs of one card of which every set is looked at: a card has at most seven slices, and eight sharers in the standard pool.
const EXACT_MAX: usize = 8;
/// Sets that are proved at most: each proof is some placements.
const PROOFS_MAX: usize = 256;

/// A set of a card's jobs without which the part can stand on it. The least goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Set {
    lost: u64,
    jobs: Vec<AllocationId>,
    node: NodeId,
    gpu: u16,
    units: GpuUnits,
}

/// Whether the job is one task that asks for a part of a card.
pub(super) fn is_for(wanted: &Wanted<'_>) -> bool {
    wanted.class.tasks == 1 && wanted.class.request.devices.mode().is_some_and(|mode| mode != SharingMode::Whole)
}

/// Opens a card for `wanted` by moving at most `budget`; the trial is then as after the plan.
pub(super) fn open(
    trial: &mut Trial<'_>,
    wanted: &Wanted<'_>,
    victims: &Victims,
    budget: Budget,
) -> Result<Opened, NoPlan> {
    let (mut sets, exact) = sets(trial, wanted, victims);
    if sets.is_empty() {
        return Err(NoPlan::TooLittleMovable);
    }
    sets.sort_unstable();
    let within = sets.iter().filter(|set| budget.allows(set.jobs.len() as u64, set.units, set.lost));
    for (tried, set) in within.clone().enumerate() {
        if tried == PROOFS_MAX {
            return Err(NoPlan::NotLookedAt);
        }
        let chosen: Vec<&Victim> = set.jobs.iter().filter_map(|id| victims.get(id)).collect();
        if let Some(proof) = trial.prove(Some(wanted), &chosen, false) {
            return Ok(Opened { proof, cheapest: exact });
        }
    }
    let smallest = sets.iter().map(|set| set.units).min().unwrap_or(GpuUnits(0));
    if within.count() > 0 { Err(NoPlan::NoPlaceForMoved) } else { Err(budget.beyond(smallest)) }
}

/// The sets of every card that the task may stand on; and whether all of them were looked at.
fn sets(trial: &mut Trial<'_>, wanted: &Wanted<'_>, victims: &Victims) -> (Vec<Set>, bool) {
    let ask = wanted.ask();
    let modes = modes(wanted);
    // A job that holds whole cards goes to free ones alone.
    let some_free = trial.free_cards(wanted.cell, wanted.model) > 0;
    let (mut found, mut exact, mut looked) = (Vec::new(), true, 0);
    for there in trial.fleet.capacity.nodes().values() {
        let node = &there.node;
        looked += 1;
        let open = node.cell == wanted.cell && node.accepts_work();
        if !open || !ask.pool_allows(&trial.fleet, &node.spec.pool) || !ask.admits(node) {
            continue;
        }
        for gpu in 0..there.cards.len() as u16 {
            let card = &there.cards[usize::from(gpu)];
            if matches!(card, CardUse::Free) || matches!(card, CardUse::Whole(_)) && !some_free {
                continue;
            }
            let (sets, all) = sets_of_card(trial, wanted, victims, &modes, (there, gpu));
            looked += 1 << EXACT_MAX.min(card.holders().len());
            found.extend(sets);
            exact &= all;
        }
    }
    trial.steps.0 += looked;
    (found, exact)
}

/// How the part may be held: a slice may begin at several places of a card.
fn modes(wanted: &Wanted<'_>) -> Vec<HoldMode> {
    match &wanted.class.request.devices {
        DeviceRequest::None | DeviceRequest::Whole { .. } => Vec::new(),
        DeviceRequest::Mps { percent, memory_mib, .. } => {
            vec![HoldMode::Mps { percent: *percent, memory_mib: *memory_mib }]
        }
        DeviceRequest::TimeSlice { memory_mib, .. } => vec![HoldMode::TimeSlice { memory_mib: *memory_mib }],
        request @ DeviceRequest::Mig { .. } => {
            let family = wanted.model.facts().mig;
            let Some((shape, family)) = request.mig_shape(wanted.model).zip(family) else { return Vec::new() };
            let at = |start: &u8| HoldMode::Mig(MigPlacement { shape, start: *start });
            shape.starts(family).iter().map(at).collect()
        }
    }
}

/// The least sets of a card's movable jobs without which it takes the part: no one of them holds another.
fn sets_of_card(
    trial: &Trial<'_>,
    wanted: &Wanted<'_>,
    victims: &Victims,
    modes: &[HoldMode],
    (there, gpu): (&NodeUse, u16),
) -> (Vec<Set>, bool) {
    let at = usize::from(gpu);
    let (Some(card), Some(spec)) = (there.cards.get(at), there.node.spec.gpus.get(at)) else {
        return (Vec::new(), true);
    };
    if spec.model != wanted.model || spec.withheld.is_some() {
        return (Vec::new(), true);
    }
    let capacity = &trial.fleet.capacity;
    let (domain, rules) = (capacity.domain_of(wanted.job.tenant), capacity.card_rules(&there.node));
    let fits = |card: &CardUse| {
        let mode_fits = |mode: &HoldMode| {
            card.can_take(domain, *mode, spec, Some(rules)).is_ok() && there.pin_allows(gpu, *mode, rules.pool).is_ok()
        };
        modes.iter().any(mode_fits)
    };
    let mut jobs: Vec<(u64, AllocationId)> =
        card.holders().into_iter().filter_map(|id| Some((victims.get(&id)?.loss.unit_seconds, id))).collect();
    jobs.sort_unstable();
    let all = jobs.len() <= EXACT_MAX;
    jobs.truncate(EXACT_MAX);
    let mut least: Vec<u32> = Vec::new();
    let mut masks: Vec<u32> = (1..1_u32 << jobs.len()).collect();
    masks.sort_by_key(|mask| mask.count_ones());
    for mask in masks {
        let is_more = least.iter().any(|smaller| mask & smaller == *smaller);
        if !is_more && fits(&without(card, &chosen(&jobs, mask))) {
            least.push(mask);
        }
    }
    let set = |mask: u32| {
        let ids = chosen(&jobs, mask);
        let of = || ids.iter().filter_map(|id| victims.get(id));
        let lost = of().fold(0_u64, |sum, victim| sum.saturating_add(victim.loss.unit_seconds));
        let units = GpuUnits(of().map(|victim| victim.units.0).sum());
        Set { lost, jobs: ids.into_iter().collect(), node: there.node.id, gpu, units }
    };
    (least.into_iter().map(set).collect(), all)
}

fn chosen(jobs: &[(u64, AllocationId)], mask: u32) -> BTreeSet<AllocationId> {
    jobs.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0).map(|(_, (_, id))| *id).collect()
}

/// The card once these have left.
fn without(card: &CardUse, gone: &BTreeSet<AllocationId>) -> CardUse {
    let mut left = card.clone();
    let empty = match &mut left {
        CardUse::Free => true,
        CardUse::Whole(holder) => gone.contains(holder),
        CardUse::Mig(instances) => {
            instances.retain(|(_, holder)| holder.is_none_or(|holder| !gone.contains(&holder)));
            instances.is_empty()
        }
        CardUse::Mps { shares, .. } | CardUse::TimeSlice { shares, .. } => {
            shares.retain(|share| !gone.contains(&share.allocation));
            shares.is_empty()
        }
    };
    if empty { CardUse::Free } else { left }
}
