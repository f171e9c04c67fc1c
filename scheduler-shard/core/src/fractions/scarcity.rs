//! How scarce each kind of card is: the share of what is left of it that will be claimed by demand with nowhere else to go.
//!
//! With *D* the free GPU of the fleet, let what comes until it is full be *D* in the proportions seen so far. The part of it that
//! admits only a set *S* of kinds spreads over *S* in proportion to what is free there:
//!
//! ```text
//! claim(k) = Σ over S ∋ k, S ≠ any:  D · share(S) · free(k) / free(S)
//! price(k) = min( 1, claim(k) / free(k) )
//! ```
//!
//! A milli-GPU taken of *k* displaces `price(k)` milli-GPU of later demand; that is what a placement is charged. Where nothing is
//! restricted every price is 0 and the term vanishes.

use super::mix::Mix;
use super::shape::Kinds;
use super::waste::MICRO;

/// Kinds there can be.
const KINDS: usize = 64;

/// The price of each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices([i64; KINDS]);

impl Prices {
    /// Prices while `free_milli` is left of each kind.
    #[must_use]
    pub fn of(mix: &Mix, free_milli: &[u64; KINDS]) -> Self {
        let free_all: u64 = free_milli.iter().sum();
        let seen: u64 = mix.claims().values().sum();
        let mut prices = [0_i64; KINDS];
        for (kinds, milli) in mix.claims().iter().filter(|(kinds, _)| **kinds != Kinds::ANY) {
            let admitted = || (0..KINDS).filter(|kind| kinds.admit(*kind as u8));
            let free_there: u64 = admitted().map(|kind| free_milli[kind]).sum();
            if free_there == 0 {
                continue;
            }
            // claim(k) / free(k) is the same for every kind of the set.
            let load = u128::from(free_all) * u128::from(*milli) * MICRO as u128
                / (u128::from(seen) * u128::from(free_there)).max(1);
            let load = load.min(MICRO as u128) as i64;
            admitted().for_each(|kind| prices[kind] = (prices[kind] + load).min(MICRO));
        }
        Prices(prices)
    }

    /// The price of a kind, in millionths of itself; 0 for one that is not known.
    #[must_use]
    pub fn micro(&self, kind: u8) -> i64 {
        self.0.get(usize::from(kind)).copied().unwrap_or(0)
    }
}
