//! Where it matters which node a single task takes: what demand leaves of a cell's CPU beside its cards, and of its kinds of cards.
//!
//! Every job that comes to wait is counted. As long as what comes asks for far less CPU than stands beside the cards it asks for, and any
//! card will do for all of it, the tightest place loses nothing. Where that is not so, the cell's nodes are kept in groups of one
//! state, and a single task goes where least is lost to what comes next ([`crate::fractions`]). What must stay true: a
//! function of the changes and passes that the fleet has seen; what is kept of a node is what the capacity ledger says of it; whatever is
//! chosen is only a suggestion to [`crate::search`], which has the last word.

use super::index::CardState;
use super::learned::left_milli;
use super::{Fleet, PlacementPolicy};
#[cfg(test)]
use crate::fractions::NodeState;
use crate::fractions::{CARD_MILLI, Class, Demand, Kinds, MICRO, NodeGroups};
use crate::job_class::JobClass;
use muster_model::capacity::NodeUse;
use muster_model::request::SharingMode;
use muster_model::{CellId, Gpu, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// CPU is scarce once demand asks for more than this part of what stands beside the cards it asks for.
const SCARCE_PART: u128 = 2;
/// Nodes that are tried for one task; the usual search goes on from there.
const TRIES_MAX: usize = 256;
/// Groups that count as one step: looking at one is a comparison of two numbers.
const GROUPS_PER_STEP: u64 = 16;
/// The kind of a node without cards.
const NO_CARDS: u8 = 63;

/// What is known of all cells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Balance {
    cells: BTreeMap<CellId, Balanced>,
}

/// What is known of one cell.
#[derive(Clone, Debug, Default)]
struct Balanced {
    groups: NodeGroups,
    /// The weights it was last judged by.
    judged: u64,
    /// Whether nodes are kept; and if so, which and under what number.
    scarce: bool,
    numbers: BTreeMap<NodeId, u32>,
    ids: Vec<NodeId>,
    /// Nodes that have changed since they were taken over.
    changed: BTreeSet<NodeId>,
    /// What stands there, until a node comes, goes or is described anew.
    stands: Option<Stands>,
}

/// What a cell has, whoever holds it.
#[derive(Clone, Debug, Default)]
struct Stands {
    cpu_milli: u128,
    gpu_milli: u128,
    kinds: BTreeSet<u8>,
}

impl Balance {
    /// A job has come to wait in `cell`.
    pub(crate) fn came(&mut self, cell: CellId, class: &JobClass) {
        let cell = self.cells.entry(cell).or_default();
        let demand = class.demand();
        if cell.scarce { cell.groups.arrived(demand) } else { cell.groups.count(demand) }
    }

    /// A node of `cell` has come, gone, or is described anew.
    pub(super) fn refreshed(&mut self, cell: CellId, node: NodeId) {
        if let Some(known) = self.cells.get_mut(&cell) {
            known.stands = None;
        }
        self.touched(cell, node);
    }

    /// A node of `cell` holds more or less than before.
    pub(super) fn touched(&mut self, cell: CellId, node: NodeId) {
        if let Some(cell) = self.cells.get_mut(&cell).filter(|cell| cell.scarce) {
            cell.changed.insert(node);
        }
    }

    /// Goes on over a fresh picture of the fleet: what has come is remembered, every node is taken over anew.
    pub(super) fn resume(&mut self, nodes: impl Iterator<Item = (CellId, NodeId)>) {
        for known in self.cells.values_mut() {
            known.stands = None;
            known.changed.extend(known.ids.iter().filter(|_| known.scarce));
        }
        nodes.for_each(|(cell, node)| self.touched(cell, node));
    }

    /// A cell is no more.
    pub(super) fn forget(&mut self, cell: CellId) {
        self.cells.remove(&cell);
    }
}

impl Fleet {
    /// Judges anew whether anything of `cell` is scarce, once its demand is weighed anew.
    pub(crate) fn judge_scarcity(&mut self, cell: CellId) {
        let Some(known) = self.balance.cells.get(&cell) else { return };
        let (mix, epoch) = (known.groups.mix(), known.groups.mix().epoch());
        if known.judged == epoch {
            return;
        }
        let nodes = || self.capacity.nodes().values().filter(move |there| there.node.cell == cell);
        let stands = known.stands.clone().unwrap_or_else(|| Stands::of(nodes()));
        let scarce = stands.lacks_kinds(mix.claims().keys()) || stands.lacks_cpu(mix.classes());
        let all = || nodes().map(|there| there.node.id).collect();
        let changed = if scarce && !known.scarce { all() } else { BTreeSet::new() };
        let Some(known) = self.balance.cells.get_mut(&cell) else { return };
        known.stands = Some(stands);
        known.judged = epoch;
        if scarce != known.scarce {
            known.scarce = scarce;
            known.changed = changed;
            if !scarce {
                (known.numbers, known.ids) = (BTreeMap::new(), Vec::new());
                known.groups.empty_out();
            }
        }
    }

    /// Whether it matters which node a job of this class takes: something is scarce, and nothing but what is free decides its place.
    pub(crate) fn weighs_places(&self, cell: CellId, class: &JobClass) -> bool {
        let scarce = || self.balance.cells.get(&cell).is_some_and(|known| known.scarce);
        self.placement == PlacementPolicy::Topology && stands_alone(class) && scarce()
    }

    /// The nodes of `cell` for a single task, those first by which least is lost, with what they would have left: until `take` accepts one,
    /// or [`TRIES_MAX`] were refused.
    pub(crate) fn least_lost<R>(
        &mut self,
        cell: CellId,
        demand: &Demand,
        looked_at: &mut u64,
        take: impl Fn(&Fleet, &NodeUse, u16) -> Option<R>,
    ) -> Option<R> {
        let mut known = self.balance.cells.remove(&cell)?;
        known.catch_up(self, cell);
        *looked_at += known.groups.states() as u64 / GROUPS_PER_STEP;
        let mut tries = 0;
        let found = known.groups.choose_among(demand, |number, left| {
            tries += 1;
            *looked_at += 1;
            if tries > TRIES_MAX {
                return None;
            }
            take(self, self.capacity.nodes().get(&known.ids[number as usize])?, left)
        });
        self.balance.cells.insert(cell, known);
        found
    }
}

#[cfg(test)]
impl Fleet {
    /// Takes over what has changed so far.
    pub(crate) fn settle_balance(&mut self, cell: CellId) {
        let mut known = self.balance.cells.remove(&cell).expect("something has come");
        known.catch_up(self, cell);
        self.balance.cells.insert(cell, known);
    }

    /// Cells whose nodes are kept, with how often what is kept of a node is not what the capacity ledger says of it.
    pub(crate) fn kept_wrongly(&self) -> BTreeMap<CellId, usize> {
        let scarce = self.balance.cells.iter().filter(|(_, known)| known.scarce);
        let wrong = scarce.map(|(cell, known)| {
            let mut known = known.clone();
            known.catch_up(self, *cell);
            let nodes = self.capacity.nodes().values().filter(|there| there.node.cell == *cell);
            let right = |there: &&NodeUse| {
                let (kind, cards, cpu_milli, memory_mib) = state_of(self, there);
                let state = NodeState::new(kind, cards, cpu_milli, memory_mib);
                known.numbers.get(&there.node.id).is_some_and(|number| *known.groups.state(*number) == state)
            };
            (*cell, nodes.filter(|there| !right(there)).count())
        });
        wrong.collect()
    }
}

impl Balanced {
    /// Takes over the nodes that have changed.
    fn catch_up(&mut self, fleet: &Fleet, cell: CellId) {
        for id in std::mem::take(&mut self.changed) {
            let there = fleet.capacity.nodes().get(&id).filter(|there| there.node.cell == cell);
            let (kind, cards, cpu_milli, memory_mib) =
                there.map_or_else(|| (NO_CARDS, Vec::new(), 0, 0), |there| state_of(fleet, there));
            match self.numbers.get(&id) {
                Some(number) => self.groups.change(*number, kind, cards, cpu_milli, memory_mib),
                None => {
                    let number = self.groups.join(kind, cards, cpu_milli, memory_mib);
                    self.numbers.insert(id, number);
                    self.ids.push(id);
                }
            }
        }
    }
}

/// Single tasks whose place nothing but room decides: no gang, no neighbours to avoid. The start of a MIG instance is decided by its
/// card's geometry.
fn stands_alone(class: &JobClass) -> bool {
    let mode = class.request.devices.mode();
    class.tasks == 1 && !class.latency_critical && class.topology.spread.is_none() && mode != Some(SharingMode::Mig)
}

/// What a node has left, as placement of single tasks sees it: nothing where it takes no work, or is kept for a gang.
fn state_of(fleet: &Fleet, there: &NodeUse) -> (u8, Vec<u16>, u64, u64) {
    let (rules, kept) = (fleet.capacity.card_rules(&there.node), fleet.index.is_kept(there.node.id));
    let gpus = &there.node.spec.gpus;
    let Some(model) = gpus.first().map(|gpu| gpu.model) else {
        return host_of(there, kept, NO_CARDS, Vec::new());
    };
    let left = |(index, gpu): (u16, &Gpu)| {
        let pinned = there.is_pinned(index);
        let state = there.cards.get(usize::from(index)).and_then(|card| CardState::of(card, pinned));
        match state {
            _ if gpu.withheld.is_some() || gpu.model != model || pinned => 0,
            None if there.is_free(index) => CARD_MILLI,
            Some(state @ CardState::Mps { .. }) => left_milli(state, model, SharingMode::Mps, rules) as u16,
            Some(state @ CardState::TimeSlice { .. }) => left_milli(state, model, SharingMode::TimeSlice, rules) as u16,
            _ => 0,
        }
    };
    let cards = (0..).zip(gpus).map(left).collect();
    host_of(there, kept, model as u8, cards)
}

fn host_of(there: &NodeUse, kept: bool, kind: u8, cards: Vec<u16>) -> (u8, Vec<u16>, u64, u64) {
    if kept || !there.node.accepts_work() {
        return (kind, Vec::new(), 0, 0);
    }
    (kind, cards, there.cpu_free_milli.max(0) as u64, there.memory_free_mib.max(0) as u64)
}

impl Stands {
    fn of<'a>(nodes: impl Iterator<Item = &'a NodeUse>) -> Self {
        let mut stands = Stands::default();
        for there in nodes {
            let spec = &there.node.spec;
            stands.cpu_milli += u128::from(spec.cpu_milli);
            stands.gpu_milli += spec.gpus.len() as u128 * u128::from(CARD_MILLI);
            stands.kinds.extend(spec.gpus.iter().map(|gpu| gpu.model as u8));
        }
        stands
    }

    /// Whether some demand wants certain kinds of the cards that are there, and not others.
    fn lacks_kinds<'a>(&self, mut claims: impl Iterator<Item = &'a Kinds>) -> bool {
        claims.any(|claim| self.kinds.iter().any(|kind| !claim.admit(*kind)))
    }

    /// Whether demand asks for much of the CPU that stands beside the cards it asks for. Where only CPU has been asked for, it stands
    /// beside cards that somebody will ask for.
    fn lacks_cpu(&self, classes: &[Class]) -> bool {
        let asked = |of: fn(&Demand) -> u64| -> u128 {
            classes.iter().map(|class| class.weight_micro as u128 * u128::from(of(&class.demand))).sum()
        };
        let (cpu, gpu) = (asked(|demand| demand.cpu_milli), asked(Demand::gpu_milli));
        cpu / MICRO as u128 * self.gpu_milli * SCARCE_PART > self.cpu_milli * (gpu / MICRO as u128)
    }
}
