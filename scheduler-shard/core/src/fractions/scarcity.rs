//! How scarce each kind of card is, and each size of node: the share of what is left of it that will be claimed by demand with
//! nowhere else to go.
//!
//! A *need* is what makes demand hard to place: the set *S* of kinds that it admits, and how many whole cards of one node it takes.
//! With *D* the free GPU of the fleet, let what comes until it is full be *D* in the proportions seen so far. A node with *e* whole
//! cards of an admitted kind can serve `⌊e/cards⌋·cards` cards to a need of several cards, and whatever is free to one of a single card:
//!
//! ```text
//! supply(need) = Σ over nodes: what it can serve         load(need) = min( 1, D · share(need) / supply(need) )
//! price        = Σ over needs: load · (what the node can serve before − after the placement)
//! ```
//!
//! A milli-GPU that a node can serve no more displaces `load` milli-GPU of later demand. Needs of one card of any kind are never
//! scarce in this sense and are left out, so where nothing is restricted the term vanishes.

use super::mix::Mix;
use super::shape::{CARD_MILLI, Kinds, NodeState};
use super::waste::MICRO;
use std::collections::BTreeMap;

/// Kinds there can be.
const KINDS: usize = 64;

/// What makes a demand hard to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// Kinds of cards that will do.
    pub kinds: Kinds,
    /// Whole cards of one node; 1 for a fraction too.
    pub cards: u16,
}

/// What is left of the fleet, by what scarcity depends on.
#[derive(Clone, Debug, Default)]
pub struct Supply {
    /// Milli-GPU by kind.
    milli: BTreeMap<u8, u64>,
    /// Nodes by kind and by how many of their cards are whole.
    whole: BTreeMap<u8, BTreeMap<u16, u64>>,
}

impl Supply {
    /// A node of this state is there now.
    pub(super) fn add(&mut self, state: &NodeState) {
        *self.milli.entry(state.kind).or_default() += state.gpu_milli();
        *self.whole.entry(state.kind).or_default().entry(state.whole()).or_default() += 1;
    }

    /// A node of this state is there no more.
    pub(super) fn sub(&mut self, state: &NodeState) {
        *self.milli.entry(state.kind).or_default() -= state.gpu_milli();
        *self.whole.entry(state.kind).or_default().entry(state.whole()).or_default() -= 1;
    }

    fn all(&self) -> u64 {
        self.milli.values().sum()
    }

    /// What can be served to a need, in milli-GPU.
    fn of(&self, need: Need) -> u64 {
        let admitted = |kind: &u8| need.kinds.admit(*kind);
        if need.cards <= 1 {
            return self.milli.iter().filter(|(kind, _)| admitted(kind)).map(|(_, milli)| milli).sum();
        }
        let nodes = self.whole.iter().filter(|(kind, _)| admitted(kind)).flat_map(|(_, nodes)| nodes);
        nodes.map(|(whole, count)| served(*whole, need.cards) * count).sum()
    }
}

/// Milli-GPU that a node with so many whole cards serves to a need of several.
fn served(whole: u16, cards: u16) -> u64 {
    u64::from(whole / cards * cards) * u64::from(CARD_MILLI)
}

/// The prices as they stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Of a milli-GPU of each kind, in millionths.
    kinds: [i64; KINDS],
    /// Loads of the needs of several cards, in millionths.
    sizes: Vec<(Need, i64)>,
}

impl Prices {
    /// Prices while this is left.
    #[must_use]
    pub fn of(mix: &Mix, supply: &Supply) -> Self {
        let all = u128::from(supply.all());
        let seen: u128 = mix.claims().values().map(|milli| u128::from(*milli)).sum();
        let mut prices = Prices { kinds: [0; KINDS], sizes: Vec::new() };
        for (need, milli) in mix.claims() {
            let there = supply.of(*need);
            if there == 0 || (need.cards <= 1 && need.kinds == Kinds::ANY) {
                continue;
            }
            let load = all * u128::from(*milli) * MICRO as u128 / (seen * u128::from(there)).max(1);
            let load = load.min(MICRO as u128) as i64;
            if need.cards > 1 {
                prices.sizes.push((*need, load));
                continue;
            }
            for (kind, price) in (0..).zip(&mut prices.kinds).filter(|(kind, _)| need.kinds.admit(*kind)) {
                debug_assert!(usize::from(kind) < KINDS, "the index is below the length");
                *price = (*price + load).min(MICRO);
            }
        }
        prices
    }

    /// What it displaces, in milli-GPU and millionths, to take `milli` of a node of `kind` that has `before` whole cards and `after`
    /// afterwards.
    #[must_use]
    pub fn cost_micro(&self, kind: u8, milli: u64, before: u16, after: u16) -> i64 {
        let price = self.kinds.get(usize::from(kind)).copied().unwrap_or(0);
        let sizes = self.sizes.iter().filter(|(need, _)| need.kinds.admit(kind));
        let lost = |need: &Need| served(before, need.cards) as i64 - served(after, need.cards) as i64;
        price * milli as i64 + sizes.map(|(need, load)| load * lost(need)).sum::<i64>() * sw() / 100
    }
}

fn sw() -> i64 { use std::sync::OnceLock; static P: OnceLock<i64> = OnceLock::new(); *P.get_or_init(|| super::fleet::par("SW", 0)) }
