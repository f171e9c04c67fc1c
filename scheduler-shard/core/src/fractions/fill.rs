//! What a begun card is still good for: how much of what is left of it nobody will ever fill.
//!
//! The expected waste asks whether *one* more demand could use a remainder. It cannot see that three hundred remainders of 0.19
//! compete for ten demands of 0.16, nor that 0.35 is worth keeping for the 0.32s that are on their way. So the future is packed as a
//! fluid: let what comes until the fleet is full be its free GPU in the proportions seen so far, `n(s)` cards' shares of size *s*, and
//! put them by best fit decreasing (largest size first, tightest remainder first, then new cards) onto the begun cards that stand
//! now. With `opened(R)` the new cards that this takes when the remainders are the multiset *R*, one remainder *r* is worth
//!
//! ```text
//! value(r) = ( opened(R − d·r) − opened(R + d·r) ) / 2d       d = 1 + ⌊√(number of r in R)⌋, no more taken away than there are
//! lost(r)  = r − value(r)                                     lost(0) = lost(1) = 0
//! ```
//!
//! the central difference over the spread that the counts have by chance, in place of a derivative that jumps. This is the shadow
//! price of a remainder in the cutting-stock program of the fleet (Gilmore and Gomory 1961), taken from its greedy solution.
//!
//! What must stay true: integers, a bounded number of steps ([`STEPS`]² for each remainder), `0 ≤ value(r) ≤ r` and growing with *r*.

use super::shape::CARD_MILLI;
use std::collections::BTreeMap;

/// Sizes and remainders are told apart by hundredths of a card, which is how shares are asked for.
pub const STEPS: usize = 100;
/// A step, in milli-GPU.
const STEP_MILLI: u16 = CARD_MILLI / STEPS as u16;
/// Cards are counted in this part of one, as shares of a fluid are no whole number.
const PARTS: i64 = 1_024;

/// What has been seen of shares, and what is left to fill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Begun cards by what is left of each, in milli-GPU.
    pub remainders: BTreeMap<u16, u64>,
    /// Shares that came, by size in milli-GPU.
    pub shares: BTreeMap<u16, u64>,
    /// Milli-GPU that came, of shares and of everything else.
    pub came_milli: u64,
    /// Milli-GPU that are free.
    pub free_milli: u64,
}

/// What each remainder is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fills {
    /// By the steps that are left.
    value_milli: Vec<i64>,
}

impl Default for Fills {
    /// As long as nothing is known of what comes, every remainder is lost: then the tightest card is the best.
    fn default() -> Self {
        let mut value_milli = vec![0; STEPS + 1];
        value_milli[STEPS] = i64::from(CARD_MILLI);
        Fills { value_milli }
    }
}

impl Fills {
    /// From what is known.
    #[must_use]
    pub fn of(outlook: &Outlook) -> Self {
        let shares = outlook.to_come();
        let Some((least, _)) = shares.last().copied() else { return Fills::default() };
        let mut cards = [0_i64; STEPS];
        for (left, count) in &outlook.remainders {
            // A remainder is at least what it is rounded to.
            let step = usize::from(left / STEP_MILLI);
            if (1..STEPS).contains(&step) {
                cards[step] += *count as i64 * PARTS;
            }
        }
        let mut fills = Fills::default();
        let mut highest = 0;
        for step in least..STEPS {
            let count = (cards[step] / PARTS) as u64;
            let spread = (1 + count.isqrt() as i64) * PARTS;
            let fewer = cards[step].min(spread);
            let with = |change: i64| {
                let mut cards = cards;
                cards[step] += change;
                opened(&mut cards, &shares)
            };
            let value = (with(-fewer) - with(spread)) * i64::from(CARD_MILLI) / (fewer + spread);
            highest = value.clamp(highest, step as i64 * i64::from(STEP_MILLI));
            fills.value_milli[step] = highest;
        }
        fills
    }

    /// What nobody will fill of a card that has so much left, in milli-GPU.
    #[must_use]
    pub fn lost_milli(&self, left_milli: u16) -> i64 {
        let left_milli = left_milli.min(CARD_MILLI);
        i64::from(left_milli) - self.value_milli[usize::from(left_milli / STEP_MILLI)]
    }

    /// What more is lost when `milli` of a card that has `left_milli` are taken; less than nothing when a gap is closed.
    #[must_use]
    pub fn added_milli(&self, left_milli: u16, milli: u16) -> i64 {
        self.lost_milli(left_milli.saturating_sub(milli)) - self.lost_milli(left_milli)
    }
}

impl Outlook {
    /// What is to come of each size, largest first: its step, and how many in parts.
    fn to_come(&self) -> Vec<(usize, i64)> {
        let mut by_step: BTreeMap<usize, u64> = BTreeMap::new();
        for (size, count) in &self.shares {
            let step = usize::from(size.div_ceil(STEP_MILLI));
            if (1..STEPS).contains(&step) {
                *by_step.entry(step).or_default() += count;
            }
        }
        let came = u128::from(self.came_milli.max(1));
        let expected = |count: u64| u128::from(self.free_milli) * u128::from(count) * PARTS as u128 / came;
        let all = by_step.into_iter().rev().map(|(step, count)| (step, expected(count) as i64));
        all.filter(|(_, count)| *count > 0).collect()
    }
}

/// New cards, in parts, that `shares` take beside what is left of `cards`.
fn opened(cards: &mut [i64; STEPS], shares: &[(usize, i64)]) -> i64 {
    let mut opened = 0;
    for (size, count) in shares {
        let mut count = *count;
        for left in *size..STEPS {
            if count == 0 {
                break;
            }
            let each = (left / size) as i64;
            let used = cards[left].min((count + each - 1) / each);
            cards[left] -= used;
            cards[left % size] += used;
            count -= (used * each).min(count);
        }
        let fresh = count / (STEPS / size) as i64;
        opened += fresh;
        cards[STEPS % size] += fresh;
    }
    opened
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outlook(remainders: &[(u16, u64)], shares: &[(u16, u64)], free_milli: u64) -> Outlook {
        let came_milli = shares.iter().map(|(size, count)| u64::from(*size) * count).sum();
        let (remainders, shares) = (remainders.iter().copied().collect(), shares.iter().copied().collect());
        Outlook { remainders, shares, came_milli, free_milli }
    }

    #[test]
    fn a_remainder_is_worth_what_it_saves() {
        let check = |remainders: &[(u16, u64)], shares: &[(u16, u64)], left, lost| {
            let free = 100_000 + remainders.iter().map(|(left, count)| u64::from(*left) * count).sum::<u64>();
            let found = Fills::of(&outlook(remainders, shares, free)).lost_milli(left);
            assert!((found - lost as i64).abs() <= 10, "{remainders:?} {shares:?} {left}: {found}, not {lost}");
        };
        check(&[], &[], 400, 400); // nothing known, nothing hoped for
        check(&[], &[(500, 10)], 500, 0); // a half saves half a card
        check(&[], &[(500, 10)], 400, 400); // too small for any
        check(&[], &[(500, 10)], 900, 400); // room for one
        check(&[(190, 900)], &[(810, 20), (160, 1)], 190, 190); // far more gaps than shares for them
        check(&[(600, 4)], &[(600, 20)], 600, 0); // a 0.6 takes a whole card otherwise: worth all of it
        check(&[], &[(500, 10)], 1_000, 0);
    }

    #[test]
    fn a_share_closes_the_gap_it_fits() {
        let fills = Fills::of(&outlook(&[(350, 5), (500, 5)], &[(650, 10), (320, 10), (500, 10)], 50_000));
        let cost = |left| fills.added_milli(left, 320);
        assert!(cost(350) < cost(500), "0.50 is kept for a 0.50");
        assert!(cost(350) < cost(1_000) && cost(500) > fills.added_milli(500, 500));
    }

    proptest! {
        /// Values are between nothing and everything, and what holds more is worth no less.
        #[test]
        fn values_are_bounded_and_grow(
            remainders in prop::collection::btree_map(1..1_000_u16, 0..500_u64, 0..40),
            shares in prop::collection::btree_map(1..1_000_u16, 0..500_u64, 0..40),
            others in 0..1_000_000_u64,
            free_milli in 0..10_000_000_u64,
        ) {
            let came_milli = others + shares.iter().map(|(size, count)| u64::from(*size) * count).sum::<u64>();
            let fills = Fills::of(&Outlook { remainders, shares, came_milli, free_milli });
            let mut before = 0;
            for step in 0..STEPS as u16 {
                let left = step * STEP_MILLI;
                let value = i64::from(left) - fills.lost_milli(left);
                prop_assert!(value >= before && value <= i64::from(left), "{left}: {value} after {before}");
                before = value;
            }
        }
    }
}
