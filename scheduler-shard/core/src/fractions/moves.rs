//! Planned moves: when a demand fits nowhere, the one move of something that stands, after which it does.
//!
//! What must stay true: proof first: a plan is returned only when the moved one fits at its new place and the demand fits at the place
//! that becomes free, both at once; nothing is touched here. The search looks at each held demand once and is bounded by
//! [`TRIALS_MAX`] full evaluations.

use super::groups::{NodeGroups, Score, Spot};
use super::shape::{Demand, NodeState};
use super::waste::expected_waste_micro;
use std::collections::BTreeMap;

/// Candidates that are evaluated in full, those first that move least.
pub const TRIALS_MAX: usize = 512;

/// A move and what it makes room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// What moves.
    pub moved: u64,
    /// Where to.
    pub to: Spot,
    /// Where the demand goes afterwards.
    pub spot: Spot,
}

/// Finds the move that makes room for `demand` at the least cost: what is moved is light, and what remains is worth most.
pub fn make_room(fleet: &mut NodeGroups, demand: &Demand) -> Option<Room> {
    let mut trials = candidates(fleet, demand);
    trials.sort_by_key(|trial| (trial.moved_demand.gpu_milli(), trial.moved_demand.cpu_milli, trial.moved));
    trials.truncate(TRIALS_MAX);
    let prices = fleet.prices();
    let mut elsewhere: BTreeMap<(Demand, u32), Option<(Score, Spot)>> = BTreeMap::new();
    let mut best: Option<(i64, u64, u16, Spot, u32)> = None;
    for trial in trials {
        let there = elsewhere.entry((trial.moved_demand, trial.node));
        let found = there.or_insert_with(|| fleet.best(&trial.moved_demand, Some(trial.node))).clone();
        let Some((score, to)) = found else { continue };
        let classes = fleet.mix().classes();
        let before = expected_waste_micro(fleet.state(trial.node), classes);
        let way = |left| {
            let after = expected_waste_micro(&trial.without.with(demand, left)?, classes);
            Some((after + fleet.beyond_the_node(&prices, trial.without.kind, demand, left), left))
        };
        let Some((after, left)) = trial.without.ways(demand).filter_map(way).min() else { continue };
        let cost = after - before + score.cost_micro;
        if best.as_ref().is_none_or(|found| (cost, trial.moved) < (found.0, found.1)) {
            best = Some((cost, trial.moved, left, to, trial.node));
        }
    }
    let (_, moved, left, to, node) = best?;
    prove(fleet, demand, moved, &to, (node, left))
}

/// Tries the move, sees where the demand would stand, and takes the move back.
fn prove(fleet: &mut NodeGroups, demand: &Demand, moved: u64, to: &Spot, (node, left): (u32, u16)) -> Option<Room> {
    let held = fleet.held.get(&moved)?.clone();
    fleet.remove(moved);
    let moves = fleet.place(moved, &held.demand, to);
    let spot = fleet.spot(node, demand, left);
    let fits = moves && fleet.allows(demand, &spot);
    if moves {
        fleet.remove(moved);
    }
    let back = fleet.place(moved, &held.demand, &held.spot);
    debug_assert!(back, "where it stood a moment ago is free");
    fits.then(|| Room { moved, to: to.clone(), spot })
}

struct Trial {
    node: u32,
    moved: u64,
    moved_demand: Demand,
    without: NodeState,
}

/// Everything that stands where the demand would fit without it.
fn candidates(fleet: &NodeGroups, demand: &Demand) -> Vec<Trial> {
    let mut trials = Vec::new();
    for node in fleet.indices() {
        let state = fleet.state(node);
        if demand.cards > 0 && !demand.kinds.admit(state.kind) {
            continue;
        }
        for (id, held) in fleet.on(node) {
            let host = state.cpu_milli + held.demand.cpu_milli >= demand.cpu_milli
                && state.memory_mib + held.demand.memory_mib >= demand.memory_mib;
            // What is as large as the demand makes room for it only by being refused itself.
            let smaller = held.demand.gpu_milli() < demand.gpu_milli() || held.demand.cpu_milli < demand.cpu_milli;
            if !host || !smaller {
                continue;
            }
            let without = fleet.without(held);
            if without.fits(demand) {
                trials.push(Trial { node, moved: id, moved_demand: held.demand, without });
            }
        }
    }
    trials
}
