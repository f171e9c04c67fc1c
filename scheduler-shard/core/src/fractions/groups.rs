//! The fleet as the fractional score sees it: nodes grouped by state, what stands on them, and the best place for a demand.
//!
//! What must stay true: a decision looks at each distinct state once, and what a state is worth to a demand is computed once per
//! epoch of the mix; the same history gives the same choice, and a fleet made anew from what stands and what came chooses the same
//! once both have looked ahead ([`NodeGroups::look_ahead`]); every node is in exactly the group of its state; a choice between states is by [`Score`], and only between
//! states equal in everything by the node's index.

use super::fill::{Fills, Outlook};
use super::mix::MICRO;
use super::mix::{Class, Mix};
use super::scarcity::{Prices, Supply};
use super::shape::{Demand, NodeState};
use super::waste::expected_waste_micro;
use std::collections::{BTreeMap, BTreeSet};

/// What a displaced milli-GPU of restricted demand weighs beside a wasted one: a refused pod loses the card and its work has to
/// wait for that very kind, waste loses the card alone. One, five and ten give results within 0.3 points of two.
const SCARCITY_WEIGHT: i64 = 2;

/// What a milli-GPU of a begun card that nobody will fill weighs beside one of a node's expected waste. The first is lost as long as
/// what stands there stays, the second only if the next demand is the wrong one. Three to thirty give results within 0.1 points.
const FILL_WEIGHT: i64 = 10;

/// The future is looked at anew once this part more has come. A sixteenth to a 512th give results within 0.05 points.
const LOOKS_PER_ARRIVALS: u64 = 64;

/// Scores that are kept, of a state to a demand: some 80 MB. Beyond, the demand is forgotten that has not come for longest.
const KEPT_MAX: usize = 1 << 19;

/// How well a place suits; the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Waste that is added on the node and on the card, and restricted demand that is displaced, in milli-GPU and millionths.
    pub cost_micro: i64,
    /// What is left of the card, in milli-GPU: the tightest card first.
    pub card_left_milli: u16,
    /// What is left of the node's cards: the tightest node first.
    pub node_left_milli: u64,
    /// What is left of its CPU.
    pub cpu_left_milli: u64,
}

/// A place: the node, and its cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Index of the node.
    pub node: u32,
    /// Indices of its cards.
    pub cards: Vec<u16>,
}

/// What stands somewhere.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) demand: Demand,
    pub(super) spot: Spot,
}

#[derive(Clone, Debug)]
struct Node {
    /// What is left of each card, by index.
    cards: Vec<u16>,
    group: usize,
    held: BTreeSet<u64>,
}

/// Nodes of one state. Empty groups are kept for the next state that appears.
#[derive(Clone, Debug)]
struct Group {
    /// Its place among the groups.
    number: usize,
    state: NodeState,
    nodes: BTreeSet<u32>,
    /// Counts the states this group has stood for; tells kept scores of an old one.
    version: u64,
    waste: Option<(u64, i64)>,
}

/// What a group is worth to a demand, while group and mix are what they were.
#[derive(Clone, Debug, Default)]
struct Kept {
    version: u64,
    epoch: u64,
    /// The node's waste and tightness by what is left of the cards that are taken.
    ways: Vec<(Score, u16)>,
}

/// Nodes, what stands on them, and the demand they expect.
#[derive(Clone, Debug, Default)]
pub struct NodeGroups {
    /// What is expected.
    mix: Mix,
    nodes: Vec<Node>,
    groups: Vec<Group>,
    by_state: BTreeMap<NodeState, usize>,
    empty: Vec<usize>,
    versions: u64,
    supply: Supply,
    /// What remainders are good for, as of the last look ahead.
    fills: Fills,
    look_at: u64,
    pub(super) held: BTreeMap<u64, Held>,
    kept: BTreeMap<Demand, Scores>,
    asked: u64,
}

/// What the groups are worth to one demand.
#[derive(Clone, Debug, Default)]
struct Scores {
    /// The question at which it was last asked.
    asked: u64,
    groups: Vec<Kept>,
}

impl NodeGroups {
    /// A node joins; its index is returned. Ties go to the lower index.
    pub fn join(&mut self, kind: u8, cards: Vec<u16>, cpu_milli: u64, memory_mib: u64) -> u32 {
        let index = self.nodes.len() as u32;
        let state = NodeState::new(kind, cards.clone(), cpu_milli, memory_mib);
        self.nodes.push(Node { cards, group: usize::MAX, held: BTreeSet::new() });
        self.enter(index, state);
        index
    }

    /// What has come so far.
    #[must_use]
    pub fn mix(&self) -> &Mix {
        &self.mix
    }

    /// A demand has come; it is counted whether it finds a place or not.
    pub fn arrived(&mut self, demand: &Demand) {
        self.mix.arrived(demand);
        // Counts are halved now and then: that is no reason to wait.
        if self.mix.seen() >= self.look_at || self.mix.seen() < self.look_at / 2 {
            self.look_ahead();
        }
    }

    /// The same where nothing is placed by it yet: nothing is looked at.
    pub fn count(&mut self, demand: &Demand) {
        self.mix.arrived(demand);
    }

    /// All nodes leave; what has come is remembered.
    pub fn empty_out(&mut self) {
        *self = NodeGroups { mix: std::mem::take(&mut self.mix), ..NodeGroups::default() };
    }

    /// A node has so much left now, whoever holds the rest.
    pub fn change(&mut self, node: u32, kind: u8, cards: Vec<u16>, cpu_milli: u64, memory_mib: u64) {
        self.leave(node);
        let state = NodeState::new(kind, cards.clone(), cpu_milli, memory_mib);
        self.nodes[node as usize].cards = cards;
        self.enter(node, state);
    }

    /// Looks at what stands and what is to come, and finds what remainders are good for. Done by itself as demand comes.
    pub fn look_ahead(&mut self) {
        let (shares, came_milli) = self.mix.shares();
        let (remainders, free_milli) = (self.supply.remainders().clone(), self.supply.all());
        self.fills = Fills::of(&Outlook { remainders, shares, came_milli, free_milli });
        self.look_at = self.mix.seen() + (self.mix.seen() / LOOKS_PER_ARRIVALS).max(1);
    }

    /// The state of a node.
    #[must_use]
    pub fn state(&self, node: u32) -> &NodeState {
        &self.groups[self.nodes[node as usize].group].state
    }

    /// How many distinct states the nodes are in.
    #[must_use]
    pub fn states(&self) -> usize {
        self.by_state.len()
    }

    /// Who stands on a node.
    pub(super) fn on(&self, node: u32) -> impl Iterator<Item = (u64, &Held)> {
        self.nodes[node as usize].held.iter().filter_map(|id| self.held.get(id).map(|held| (*id, held)))
    }

    /// The state of a node without one that stands there.
    pub(super) fn without(&self, held: &Held) -> NodeState {
        let (node, demand) = (&self.nodes[held.spot.node as usize], &held.demand);
        let mut cards = node.cards.clone();
        held.spot.cards.iter().for_each(|card| cards[usize::from(*card)] += demand.milli);
        let state = self.state(held.spot.node);
        NodeState::new(state.kind, cards, state.cpu_milli + demand.cpu_milli, state.memory_mib + demand.memory_mib)
    }

    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        0..self.nodes.len() as u32
    }

    /// The best place for `demand`; `None` when it fits nowhere.
    pub fn choose(&mut self, demand: &Demand) -> Option<Spot> {
        self.best(demand, None).map(|(_, spot)| spot)
    }

    /// The best place that is not on `except`, with its score.
    pub(super) fn best(&mut self, demand: &Demand, except: Option<u32>) -> Option<(Score, Spot)> {
        let mut best: Option<(Score, u32, u16)> = None;
        self.each_way(demand, |group, score, left| {
            let node = group.nodes.iter().find(|node| Some(**node) != except);
            if let Some(node) = node.filter(|node| best.is_none_or(|found| (score, **node) < (found.0, found.1))) {
                best = Some((score, *node, left));
            }
        });
        best.map(|(score, node, left)| (score, self.spot(node, demand, left)))
    }

    /// What `take` makes of the best place that it accepts: a node, and what is left of the card there; 0 without a card. Of nodes of
    /// one state the first goes first.
    pub fn choose_among<T>(&mut self, demand: &Demand, mut take: impl FnMut(u32, u16) -> Option<T>) -> Option<T> {
        let mut ways: Vec<(Score, u32, usize, u16)> = Vec::new();
        self.each_way(demand, |group, score, left| {
            let at = group.nodes.first().map(|node| (*node, group.number));
            ways.extend(at.map(|(first, number)| (score, first, number, left)));
        });
        // Nearly always the first is taken, so the rest is put in order only when it is not.
        let best = ways.iter().min().copied()?;
        let groups = &self.groups;
        let mut of = |(_, _, group, left): (Score, u32, usize, u16)| {
            groups[group].nodes.iter().find_map(|node| take(*node, left))
        };
        of(best).or_else(|| {
            ways.retain(|way| *way != best);
            ways.sort_unstable();
            ways.into_iter().find_map(of)
        })
    }

    /// Every way to place it on any state that is there, scored as the mix and prices stand.
    fn each_way(&mut self, demand: &Demand, mut with: impl FnMut(&Group, Score, u16)) {
        let prices = self.prices();
        self.forget_scores_for(demand);
        self.asked += 1;
        let scores = self.kept.entry(*demand).or_default();
        scores.asked = self.asked;
        scores.groups.resize(self.groups.len(), Kept::default());
        let (epoch, classes) = (self.mix.epoch(), self.mix.classes());
        for (group, kept) in self.groups.iter_mut().zip(&mut scores.groups).filter(|(group, _)| !group.nodes.is_empty())
        {
            if (kept.version, kept.epoch) != (group.version, epoch) {
                let waste = match group.waste {
                    Some((at, waste)) if at == epoch => waste,
                    _ => expected_waste_micro(&group.state, classes),
                };
                group.waste = Some((epoch, waste));
                *kept = Kept { version: group.version, epoch, ways: ways(&group.state, waste, demand, classes) };
            }
            for (score, left) in &kept.ways {
                let extra = beyond_the_node(&prices, &self.fills, group.state.kind, demand, *left);
                with(group, Score { cost_micro: score.cost_micro + extra, ..*score }, *left);
            }
        }
    }

    /// Makes room for the scores of `demand`.
    fn forget_scores_for(&mut self, demand: &Demand) {
        let others = |kept: &BTreeMap<Demand, Scores>| kept.len() - usize::from(kept.contains_key(demand));
        while others(&self.kept) > 0 && (others(&self.kept) + 1) * self.groups.len() > KEPT_MAX {
            let longest = self.kept.iter().filter(|(other, _)| *other != demand).min_by_key(|(_, scores)| scores.asked);
            let Some(longest) = longest.map(|(other, _)| *other) else { return };
            self.kept.remove(&longest);
        }
    }

    /// What a placement costs beyond the node, as prices stand.
    pub(super) fn beyond_the_node(&self, prices: &Prices, kind: u8, demand: &Demand, left: u16) -> i64 {
        beyond_the_node(prices, &self.fills, kind, demand, left)
    }

    /// Prices of kinds as they stand.
    pub(super) fn prices(&self) -> Prices {
        Prices::of(&self.mix, &self.supply)
    }

    /// Cards of `node` that have `left` each, the first ones.
    pub(super) fn spot(&self, node: u32, demand: &Demand, left: u16) -> Spot {
        let cards = self.nodes[node as usize].cards.iter().zip(0_u16..).filter(|(card, _)| **card == left);
        Spot { node, cards: cards.take(usize::from(demand.cards)).map(|(_, index)| index).collect() }
    }

    /// Whether `demand` can stand on `spot`.
    #[must_use]
    pub fn allows(&self, demand: &Demand, spot: &Spot) -> bool {
        let Some(node) = self.nodes.get(spot.node as usize) else { return false };
        let left = |card: &u16| node.cards.get(usize::from(*card)).is_some_and(|left| *left >= demand.milli);
        let distinct: BTreeSet<&u16> = spot.cards.iter().collect();
        self.state(spot.node).fits(demand)
            && distinct.len() == spot.cards.len()
            && spot.cards.len() == usize::from(demand.cards)
            && spot.cards.iter().all(left)
    }

    /// Puts `demand` on `spot` under `id`; false, and nothing changes, when it does not fit there or the id is taken.
    pub fn place(&mut self, id: u64, demand: &Demand, spot: &Spot) -> bool {
        if self.held.contains_key(&id) || !self.allows(demand, spot) {
            return false;
        }
        self.alter(
            spot,
            |left| left - demand.milli,
            |state| {
                state.cpu_milli -= demand.cpu_milli;
                state.memory_mib -= demand.memory_mib;
            },
        );
        self.nodes[spot.node as usize].held.insert(id);
        self.held.insert(id, Held { demand: *demand, spot: spot.clone() });
        true
    }

    /// Takes away what stands under `id`; false when nothing does.
    pub fn remove(&mut self, id: u64) -> bool {
        let Some(Held { demand, spot }) = self.held.remove(&id) else { return false };
        self.nodes[spot.node as usize].held.remove(&id);
        self.alter(
            &spot,
            |left| left + demand.milli,
            |state| {
                state.cpu_milli += demand.cpu_milli;
                state.memory_mib += demand.memory_mib;
            },
        );
        true
    }

    /// Moves what stands under `id`; false, and nothing changes, when it does not fit there.
    pub fn relocate(&mut self, id: u64, to: &Spot) -> bool {
        let Some(held) = self.held.get(&id).cloned() else { return false };
        self.remove(id);
        let moved = self.place(id, &held.demand, to);
        if !moved {
            let back = self.place(id, &held.demand, &held.spot);
            debug_assert!(back, "where it stood a moment ago is free");
        }
        moved
    }

    fn alter(&mut self, spot: &Spot, card: impl Fn(u16) -> u16, host: impl Fn(&mut NodeState)) {
        let old = self.leave(spot.node);
        let node = &mut self.nodes[spot.node as usize];
        for index in &spot.cards {
            let left = &mut node.cards[usize::from(*index)];
            *left = card(*left);
        }
        let mut state = NodeState::new(old.kind, node.cards.clone(), old.cpu_milli, old.memory_mib);
        host(&mut state);
        self.enter(spot.node, state);
    }

    fn leave(&mut self, node: u32) -> NodeState {
        let at = self.nodes[node as usize].group;
        let group = &mut self.groups[at];
        group.nodes.remove(&node);
        let state = group.state.clone();
        if group.nodes.is_empty() {
            self.by_state.remove(&state);
            self.empty.push(at);
        }
        self.supply.sub(&state);
        state
    }

    fn enter(&mut self, node: u32, state: NodeState) {
        self.supply.add(&state);
        let at = match self.by_state.get(&state) {
            Some(at) => *at,
            None => {
                self.versions += 1;
                let at = self.empty.pop().unwrap_or(self.groups.len());
                let (nodes, version) = (BTreeSet::new(), self.versions);
                let fresh = Group { number: at, state: state.clone(), nodes, version, waste: None };
                match self.groups.get_mut(at) {
                    Some(group) => *group = fresh,
                    None => self.groups.push(fresh),
                }
                self.by_state.insert(state, at);
                at
            }
        };
        self.groups[at].nodes.insert(node);
        self.nodes[node as usize].group = at;
    }
}

/// Every way to place it, with the node's own score.
fn ways(state: &NodeState, waste_micro: i64, demand: &Demand, classes: &[Class]) -> Vec<(Score, u16)> {
    if !state.fits(demand) {
        return Vec::new();
    }
    // What is taken is not wasted: the change is of what the next demand could not use of the rest.
    let scored = |left: u16| {
        let after = state.with(demand, left)?;
        let score = Score {
            cost_micro: expected_waste_micro(&after, classes) - waste_micro,
            card_left_milli: left.saturating_sub(demand.milli),
            node_left_milli: after.gpu_milli(),
            cpu_left_milli: after.cpu_milli,
        };
        Some((score, left))
    };
    state.ways(demand).filter_map(scored).collect()
}

/// What it displaces, and what of the card nobody will fill, when `demand` takes cards of `kind` that have `left` each.
fn beyond_the_node(prices: &Prices, fills: &Fills, kind: u8, demand: &Demand, left: u16) -> i64 {
    let card = if demand.cards == 1 { fills.added_milli(left, demand.milli) } else { 0 };
    SCARCITY_WEIGHT * prices.cost_micro(kind, demand.gpu_milli()) + FILL_WEIGHT * card * MICRO
}
