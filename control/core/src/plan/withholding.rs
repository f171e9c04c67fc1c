//! How many cards may be withheld by verdicts on their health: a monitor that is wrong, or a driver that is, must not take the fleet away.
//!
//! The bound is that of a pool's cards in one cell. What must stay true: a verdict is followed only while fewer cards are withheld there than the pool
//! allows, and one that is followed stays so until the agent lifts it; what is withheld for another cause than a verdict always is; what is spared is
//! kept with its reason, and is followed once others have come back.

use crate::bounds::SWEEP_MAX;
use crate::draft::Draft;
use crate::level;
use crate::routing::rules;
use muster_model::ids::CellId;
use muster_model::node::{Verdicts, Withheld};
use muster_model::{Gpu, Node, Object};
use std::collections::BTreeSet;

/// Sets what of the node's cards is withheld, of what its agent says.
pub(super) fn apply(draft: &Draft<'_>, node: &mut Node, told: &[Withheld]) {
    let told = told.iter().filter(|one| usize::from(one.gpu) < node.spec.gpus.len());
    let (verdicts, certain): (Vec<&Withheld>, Vec<&Withheld>) = told.partition(|one| one.by_verdict);
    let mut withheld: Vec<Withheld> = certain.into_iter().cloned().collect();
    let before = std::mem::take(&mut node.notes.verdicts.followed);
    let mut parted = Verdicts::default();
    if level::has(draft.state, level::ENROLMENT) && !verdicts.is_empty() {
        let mut room = Room::of(draft, node);
        room.take(withheld.iter().map(|one| one.gpu));
        let (followed, new): (Vec<&Withheld>, Vec<&Withheld>) =
            verdicts.iter().partition(|one| before.contains(&one.gpu));
        room.take(followed.iter().map(|one| one.gpu));
        for one in followed.into_iter().chain(new) {
            if room.has(one.gpu) {
                room.take([one.gpu]);
                parted.followed.insert(one.gpu);
                withheld.push(one.clone());
            } else {
                parted.spared.push(one.clone());
            }
        }
    } else {
        withheld.extend(verdicts.into_iter().cloned());
    }
    node.spec.gpus = node.spec.withholding(&withheld);
    node.notes.verdicts = parted;
}

/// An agent that has just joined names everything as withheld, and says right after which of it is a verdict: until then what was spared is. What it does
/// not name any more has been lifted. Neither does it say what is to be done about a card: until then that is as it was `before`, if it is the same card.
pub(super) fn joins(node: &mut Node, before: &[Gpu]) {
    let mut withheld = node.spec.withheld();
    let verdicts = &mut node.notes.verdicts;
    let same = |one: &Withheld, other: &Withheld| (one.gpu, one.slice) == (other.gpu, other.slice);
    verdicts.followed.retain(|gpu| withheld.iter().any(|one| one.gpu == *gpu));
    verdicts.spared.retain(|spared| withheld.iter().any(|one| same(one, spared)));
    withheld.retain(|one| !verdicts.spared.iter().any(|spared| same(one, spared)));
    node.spec.gpus = node.spec.withholding(&withheld);
    for (gpu, before) in node.spec.gpus.iter_mut().zip(before) {
        if gpu.has_withheld() && gpu.uuid == before.uuid {
            gpu.repair = before.repair;
        }
    }
}

/// Follows verdicts that were spared, the lowest nodes first, where cards have come back or the pool allows more.
pub(super) fn follow_spared(draft: &mut Draft<'_>) {
    let state = draft.state;
    // Where one node finds no room, no other of its pool in that cell does: each is looked through once.
    let mut full: BTreeSet<(CellId, String)> = BTreeSet::new();
    let mut changed = 0;
    for id in &state.index().sparing {
        let Some(known) = draft.node(*id) else { continue };
        let place = (known.cell, known.spec.pool.clone());
        if changed >= SWEEP_MAX || full.contains(&place) {
            continue;
        }
        let known = known.clone();
        let mut told = known.spec.withheld();
        for one in &mut told {
            one.by_verdict = known.notes.verdicts.followed.contains(&one.gpu);
        }
        told.extend(known.notes.verdicts.spared.iter().cloned());
        let mut node = known.clone();
        apply(draft, &mut node, &told);
        if !node.notes.verdicts.spared.is_empty() {
            full.insert(place);
        }
        if node != known {
            changed += 1;
            draft.put(Object::Node(node));
        }
    }
}

/// Cards that may still be withheld.
struct Room {
    limit: usize,
    /// Withheld on other nodes.
    elsewhere: usize,
    /// Withheld on this one.
    here: BTreeSet<u16>,
}

impl Room {
    /// That of a node's pool in its cell.
    fn of(draft: &Draft<'_>, node: &Node) -> Self {
        let rules = rules(draft.state, &node.spec.pool);
        let (mut cards, mut elsewhere) = (node.spec.gpus.len(), 0);
        let cell = draft.state.index().cells.get(&node.cell);
        for id in cell.iter().flat_map(|cell| &cell.nodes).filter(|id| **id != node.id) {
            let Some(other) = draft.node(*id).filter(|other| other.spec.pool == node.spec.pool) else { continue };
            cards += other.spec.gpus.len();
            elsewhere += other.spec.gpus.iter().filter(|gpu| gpu.has_withheld()).count();
        }
        Room { limit: rules.withheld_limit(cards), elsewhere, here: BTreeSet::new() }
    }

    fn take(&mut self, cards: impl IntoIterator<Item = u16>) {
        self.here.extend(cards);
    }

    /// A card counts once, however many of its slices are withheld.
    fn has(&self, card: u16) -> bool {
        self.here.contains(&card) || self.elsewhere + self.here.len() < self.limit
    }
}
