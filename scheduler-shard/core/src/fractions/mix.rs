//! The demand mix, learned from what has come so far.
//!
//! A *class* is a demand without its memory. Each arrival counts one; a class's weight is its share of the arrivals. Until something
//! has come, the prior is one whole card with no CPU: then the measure says "keep cards whole", which is tightest fit.
//!
//! What must stay true: bounded and deterministic. At most [`CLASSES_MAX`] classes are kept, by the space-saving rule of Metwally et
//! al. (ICDT'05): when a new class comes and the table is full it takes the place, and the count, of the rarest. Counts are halved
//! when [`HALVED_AT`] have come, so that the mix follows the times. The weights in use change only once an eighth more has come than
//! they were made of (an *epoch*), so that what was computed under them holds for a while.

use super::shape::{CARD_MILLI, Demand, Kinds};
use std::collections::BTreeMap;

/// One, in the fixed point of weights and wastes.
pub const MICRO: i64 = 1_000_000;
/// Distinct classes kept: the public traces have 150 to 460, of which the commonest 100 make 95 % of the pods.
pub const CLASSES_MAX: usize = 512;
/// Distinct sets of kinds kept for scarcity; arrivals with others count as content with any kind.
pub const CLAIMS_MAX: usize = 64;
/// Arrivals after which all counts are halved: weeks of a large fleet, and far more than the classes need to be told apart.
pub const HALVED_AT: u64 = 1 << 16;

/// One class of the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// What it asks for, with no memory.
    pub demand: Demand,
    /// Its share of the arrivals, in millionths.
    pub weight_micro: i64,
}

/// What comes, as far as is known.
#[derive(Clone, Debug)]
pub struct Mix {
    counts: BTreeMap<Demand, u64>,
    seen: u64,
    /// Milli-GPU that came for each set of kinds.
    claims: BTreeMap<Kinds, u64>,
    classes: Vec<Class>,
    epoch: u64,
    renew_at: u64,
}

impl Default for Mix {
    fn default() -> Self {
        let prior = Demand { cards: 1, milli: CARD_MILLI, kinds: Kinds::ANY, cpu_milli: 0, memory_mib: 0 };
        let classes = vec![Class { demand: prior, weight_micro: MICRO }];
        Mix { counts: BTreeMap::new(), seen: 0, claims: BTreeMap::new(), classes, epoch: 0, renew_at: 1 }
    }
}

impl Mix {
    /// One more has come, wherever it will be placed and whether or not it is.
    pub fn arrived(&mut self, demand: &Demand) {
        self.claim(demand);
        self.count(Demand { memory_mib: 0, ..*demand });
        self.seen += 1;
        if self.seen >= self.renew_at {
            self.renew();
        }
        if self.seen >= HALVED_AT {
            self.halve();
        }
    }

    fn claim(&mut self, demand: &Demand) {
        if demand.cards == 0 {
            return;
        }
        let known = self.claims.len() < CLAIMS_MAX || self.claims.contains_key(&demand.kinds);
        let kinds = if known { demand.kinds } else { Kinds::ANY };
        *self.claims.entry(kinds).or_default() += demand.gpu_milli();
    }

    fn count(&mut self, class: Demand) {
        if let Some(count) = self.counts.get_mut(&class) {
            *count += 1;
            return;
        }
        let mut count = 1;
        if self.counts.len() >= CLASSES_MAX
            && let Some((rarest, its)) = self.counts.iter().min_by_key(|(_, count)| **count)
        {
            let (rarest, its) = (*rarest, *its);
            self.counts.remove(&rarest);
            count += its;
        }
        self.counts.insert(class, count);
    }

    fn renew(&mut self) {
        let total: u64 = self.counts.values().sum();
        let weight = |count: u64| (u128::from(count) * MICRO as u128 / u128::from(total.max(1))) as i64;
        self.classes =
            self.counts.iter().map(|(demand, count)| Class { demand: *demand, weight_micro: weight(*count) }).collect();
        self.epoch += 1;
        self.renew_at = self.seen + (self.seen / 8).max(1);
    }

    fn halve(&mut self) {
        for count in self.counts.values_mut().chain(self.claims.values_mut()) {
            *count /= 2;
        }
        self.counts.retain(|_, count| *count > 0);
        self.claims.retain(|_, milli| *milli > 0);
        self.seen /= 2;
        self.renew_at = self.seen + self.seen / 8;
    }

    /// The classes in use; their weights add up to at most a million.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Which set of weights is in use; what was computed under another no longer holds.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Milli-GPU that came, by the set of kinds that would do.
    #[must_use]
    pub fn claims(&self) -> &BTreeMap<Kinds, u64> {
        &self.claims
    }

    /// Arrivals so far; those before the last halving count half.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Shares of a card that came, by size in milli-GPU, and the milli-GPU that came of everything.
    pub(super) fn shares(&self) -> (BTreeMap<u16, u64>, u64) {
        let (mut shares, mut came_milli) = (BTreeMap::new(), 0);
        for (class, count) in &self.counts {
            came_milli += class.gpu_milli() * count;
            if class.cards == 1 && class.milli < CARD_MILLI {
                *shares.entry(class.milli).or_default() += count;
            }
        }
        (shares, came_milli)
    }
}
