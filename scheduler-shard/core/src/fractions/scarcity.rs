//! How scarce each kind of card is: the share of what is left of it that will be claimed by demand with nowhere else to go.
//!
//! A *claim* is the set *S* of kinds that a demand admits. With *D* the free GPU of the fleet, let what comes until it is full be *D*
//! in the proportions seen so far:
//!
//! ```text
//! load(S)     = min( 1, D · share(S) / free GPU of the kinds in S )
//! price(kind) = min( 1, Σ load(S) over the claims S that admit it )
//! ```
//!
//! A milli-GPU of a kind that is taken displaces `price(kind)` milli-GPU of later demand. Demand that any kind will do for claims
//! nothing, so where nothing is restricted the term vanishes.

use super::mix::MICRO;
use super::mix::Mix;
use super::shape::{Kinds, NodeState};
use std::collections::BTreeMap;

/// Kinds there can be.
const KINDS: usize = 64;

/// What is left of the fleet, by what prices depend on.
#[derive(Clone, Debug, Default)]
pub struct Supply {
    /// Milli-GPU by kind.
    milli: BTreeMap<u8, u64>,
    /// Cards that are begun and not full, by what is left of each.
    remainders: BTreeMap<u16, u64>,
}

impl Supply {
    /// A node of this state is there now.
    pub(super) fn add(&mut self, state: &NodeState) {
        *self.milli.entry(state.kind).or_default() += state.gpu_milli();
        state.begun().for_each(|left| *self.remainders.entry(left).or_default() += 1);
    }

    /// A node of this state is there no more.
    pub(super) fn sub(&mut self, state: &NodeState) {
        *self.milli.entry(state.kind).or_default() -= state.gpu_milli();
        state.begun().for_each(|left| *self.remainders.entry(left).or_default() -= 1);
    }

    /// Milli-GPU that are free.
    pub(super) fn all(&self) -> u64 {
        self.milli.values().sum()
    }

    /// Cards that are begun and not full, by what is left of each.
    pub(super) fn remainders(&self) -> &BTreeMap<u16, u64> {
        &self.remainders
    }

    fn of(&self, kinds: Kinds) -> u64 {
        self.milli.iter().filter(|(kind, _)| kinds.admit(**kind)).map(|(_, milli)| milli).sum()
    }
}

/// The prices as they stand: of a milli-GPU of each kind, in millionths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices([i64; KINDS]);

impl Prices {
    /// Prices while this is left.
    #[must_use]
    pub fn of(mix: &Mix, supply: &Supply) -> Self {
        let all = u128::from(supply.all());
        let seen: u128 = mix.claims().values().map(|milli| u128::from(*milli)).sum();
        let mut prices = [0_i64; KINDS];
        for (kinds, milli) in mix.claims() {
            let there = supply.of(*kinds);
            if there == 0 || *kinds == Kinds::ANY {
                continue;
            }
            let load = all * u128::from(*milli) * MICRO as u128 / (seen * u128::from(there)).max(1);
            let load = load.min(MICRO as u128) as i64;
            for (_, price) in (0..).zip(&mut prices).filter(|(kind, _)| kinds.admit(*kind)) {
                *price = (*price + load).min(MICRO);
            }
        }
        Prices(prices)
    }

    /// What it displaces, in milli-GPU and millionths, to take `milli` of `kind`.
    #[must_use]
    pub fn cost_micro(&self, kind: u8, milli: u64) -> i64 {
        self.0.get(usize::from(kind)).copied().unwrap_or(0) * milli as i64
    }
}
