//! Packing: emptying shared cards whose sharers all find room on cards that are shared already.
//!
//! What must stay true: a packing frees at least one whole card and opens none; what is moved stays inside the share.

use super::Budget;
use super::report::{Move, Packing};
use super::trial::Trial;
use super::victims::{Victim, Victims};
use crate::fleet::index::CardState;
use muster_model::capacity::{CardUse, NodeUse};
use muster_model::{AllocationId, CellId, GpuModel, GpuUnits, NodeId};
use std::collections::BTreeSet;

/// Cards that are tried, those first that lose least: more than an operator reads.
const TRIES_MAX: usize = 256;

/// A shared card that moves could empty. The least goes first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    lost: u64,
    node: NodeId,
    gpu: u16,
    model: GpuModel,
    sharers: BTreeSet<AllocationId>,
}

/// Packs as much as `budget` allows; what was moved leaves `victims`.
pub(super) fn pack(trial: &mut Trial<'_>, cell: CellId, victims: &mut Victims, budget: &mut Budget) -> Vec<Packing> {
    let mut candidates: Vec<Candidate> = Vec::new();
    for (id, there) in trial.fleet.capacity.nodes() {
        trial.steps.0 += 1;
        if there.node.cell == cell && there.node.accepts_work() {
            candidates.extend(shared_cards(*id, there, victims));
        }
    }
    candidates.sort_unstable();
    candidates.truncate(TRIES_MAX);
    let mut packings = Vec::new();
    for candidate in candidates {
        let chosen: Vec<&Victim> = candidate.sharers.iter().filter_map(|id| victims.get(id)).collect();
        let units = GpuUnits(chosen.iter().map(|victim| victim.units.0).sum());
        // One of them may have been moved for another card.
        if chosen.len() < candidate.sharers.len() || units > budget.left() {
            continue;
        }
        let Some(packing) = try_one(trial, cell, candidate.model, &chosen) else { continue };
        budget.moved.0 += units.0;
        victims.retain(|id, _| !candidate.sharers.contains(id));
        packings.push(packing);
    }
    packings
}

/// The cards of a node that are shared by movable work alone.
fn shared_cards(id: NodeId, there: &NodeUse, victims: &Victims) -> Vec<Candidate> {
    let cards = there.cards.iter().zip(&there.node.spec.gpus).enumerate();
    cards
        .filter(|(at, (card, gpu))| {
            // An empty pinned card is free for nothing else.
            CardState::of(card, false).is_some() && gpu.withheld.is_none() && !there.is_pinned(*at as u16)
        })
        .filter_map(|(index, (card, gpu))| {
            let sharers = card.holders();
            let lost = sharers
                .iter()
                .try_fold(0_u64, |sum, sharer| Some(sum.saturating_add(victims.get(sharer)?.loss.unit_seconds)))?;
            Some(Candidate { lost, node: id, gpu: index as u16, model: gpu.model, sharers })
        })
        .collect()
}

fn try_one(trial: &mut Trial<'_>, cell: CellId, model: GpuModel, chosen: &[&Victim]) -> Option<Packing> {
    let before = trial.free_cards(cell, model);
    let before_moves = trial.savepoint();
    let proof = trial.prove(None, chosen, false)?;
    if trial.free_cards(cell, model) <= before {
        trial.roll_back_to(before_moves);
        return None;
    }
    let cards = emptied(trial, &proof.moves);
    Some(Packing { model, cards, moves: proof.moves })
}

/// The cards that the moves left empty.
fn emptied(trial: &Trial<'_>, moves: &[Move]) -> Vec<(NodeId, u16)> {
    let left = moves.iter().flat_map(|made| &made.from);
    let cards: BTreeSet<(NodeId, u16)> =
        left.flat_map(|task| task.devices.iter().map(|hold| (task.node, hold.gpu))).collect();
    let is_free = |(node, gpu): &(NodeId, u16)| {
        let there = trial.fleet.capacity.nodes().get(node);
        there.and_then(|there| there.cards.get(usize::from(*gpu))).is_some_and(|card| *card == CardUse::Free)
    };
    cards.into_iter().filter(is_free).collect()
}
