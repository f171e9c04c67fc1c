//! What the free slices of a card are worth, and where an instance goes so that they stay worth most.
//!
//! The worth of a remainder is the number of *request sequences* that it could still hold, the empty one included: for every set of
//! instances that fits beside what stands, the orders in which its requests may come, n! / (k₁! k₂! …) for kᵢ of each profile. So a
//! hole that fits no profile counts nothing, and a profile that many sets need keeps its places. What must stay true (exhaustive tests
//! in `tests/mig_starts.rs`, decision 0014): among all policies that see requests one by one, none accepts more of the legal sequences
//! than taking the start whose remainder is worth most; with the waiting requests known, every set that fits is accepted in any order.
//! Everything is a table by occupancy, made once: a choice is a look or two.

use super::{MigPlacement, MigShape, can_stand_on};
use crate::gpu::MigFamily;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// How many of each shape, in the order of [`MigShape::ALL`].
pub type ShapeCounts = [u8; MigShape::ALL.len()];

/// What is taken of a card under MIG, as far as it decides what else can stand there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Occupied {
    /// Memory slices, bit 0 is slice 0.
    pub slices: u8,
    /// The media engines, which exist once.
    pub media: bool,
}

impl Occupied {
    /// By these instances.
    #[must_use]
    pub fn by(standing: impl IntoIterator<Item = MigPlacement>) -> Self {
        standing.into_iter().fold(Occupied::default(), Occupied::with)
    }

    /// And by this one too.
    #[must_use]
    pub fn with(self, place: MigPlacement) -> Self {
        Occupied { slices: self.slices | place.shape.mask(place.start), media: self.media || place.shape.has_media() }
    }

    fn index(self) -> usize {
        usize::from(self.slices) | usize::from(self.media) << 8
    }

    fn all() -> impl Iterator<Item = Self> {
        [false, true].into_iter().flat_map(|media| (0..=u8::MAX).map(move |slices| Occupied { slices, media }))
    }
}

/// The place that suits best, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Where.
    pub place: MigPlacement,
    /// What the remainder is worth less than before, in sequences.
    pub lost: u64,
    /// What it is worth then, in sequences.
    pub left: u64,
}

/// The tables of one family.
struct Tables {
    /// By occupancy.
    worth: Vec<u64>,
    /// By occupancy: the sets that can be added and grow no further.
    fullest: Vec<Vec<ShapeCounts>>,
    /// By occupancy and shape.
    starts: Vec<[Option<Start>; MigShape::ALL.len()]>,
}

fn tables(family: MigFamily) -> &'static Tables {
    static FOUR: LazyLock<Tables> = LazyLock::new(|| Tables::of(MigFamily::Four));
    static EIGHT: LazyLock<Tables> = LazyLock::new(|| Tables::of(MigFamily::Eight));
    match family {
        MigFamily::Four => &FOUR,
        MigFamily::Eight => &EIGHT,
    }
}

impl Tables {
    fn of(family: MigFamily) -> Self {
        let (mut worth, mut fullest) = (Vec::new(), Vec::new());
        for occupied in Occupied::all() {
            let mut sets = BTreeSet::new();
            grow(family, occupied, 0, [0; MigShape::ALL.len()], &mut sets);
            worth.push(sets.iter().map(orders).sum());
            let maximal = |set: &&ShapeCounts| {
                let grown = |at: usize| {
                    let mut more = **set;
                    more[at] += 1;
                    sets.contains(&more)
                };
                !(0..set.len()).any(grown)
            };
            fullest.push(sets.iter().filter(maximal).copied().collect());
        }
        let mut tables = Tables { worth, fullest, starts: Vec::new() };
        tables.starts = Occupied::all()
            .map(|occupied| MigShape::ALL.map(|shape| tables.best(family, occupied, shape, |_| 0)))
            .collect();
        tables
    }

    /// The start with the highest `first`, then the highest worth left, then the lowest.
    fn best(
        &self,
        family: MigFamily,
        occupied: Occupied,
        shape: MigShape,
        first: impl Fn(Occupied) -> u64,
    ) -> Option<Start> {
        let before = self.worth[occupied.index()];
        let places = shape.starts(family).iter().map(|&start| MigPlacement { shape, start });
        places
            .filter(|place| can_stand_on(family, occupied, *place))
            .map(|place| {
                let after = occupied.with(place);
                let left = self.worth[after.index()];
                (first(after), left, Start { place, lost: before - left, left })
            })
            .max_by_key(|(first, left, start)| (*first, *left, std::cmp::Reverse(start.place.start)))
            .map(|(.., start)| start)
    }
}

/// Every set of instances that can be added at `from` or beyond, as counts.
fn grow(family: MigFamily, occupied: Occupied, from: u8, set: ShapeCounts, out: &mut BTreeSet<ShapeCounts>) {
    out.insert(set);
    for (at, shape) in MigShape::ALL.into_iter().enumerate() {
        for &start in shape.starts(family).iter().filter(|start| **start >= from) {
            let place = MigPlacement { shape, start };
            if can_stand_on(family, occupied, place) {
                let mut more = set;
                more[at] += 1;
                grow(family, occupied.with(place), start + shape.memory_slices(), more, out);
            }
        }
    }
}

/// In how many orders the requests of a set may come.
fn orders(set: &ShapeCounts) -> u64 {
    let factorial = |n: u64| (1..=n).product::<u64>();
    let all = set.iter().map(|count| u64::from(*count)).sum();
    set.iter().fold(factorial(all), |orders, count| orders / factorial(u64::from(*count)))
}

/// What the remainder of a card is worth, in request sequences; 1 when nothing fits.
#[must_use]
pub fn worth(family: MigFamily, occupied: Occupied) -> u64 {
    tables(family).worth[occupied.index()]
}

/// Where `shape` goes when nothing is known of what comes: the start whose remainder is worth most, the lowest of equals. None where it
/// does not fit.
#[must_use]
pub fn best_start(family: MigFamily, occupied: Occupied, shape: MigShape) -> Option<Start> {
    tables(family).starts[occupied.index()][shape as usize]
}

/// The same when `waiting` are known to come next: first of all as much of them as can be must still fit, by what they are charged.
#[must_use]
pub fn best_start_before(
    family: MigFamily,
    occupied: Occupied,
    shape: MigShape,
    waiting: &ShapeCounts,
) -> Option<Start> {
    if waiting.iter().all(|count| *count == 0) {
        return best_start(family, occupied, shape);
    }
    let tables = tables(family);
    let held = |set: &ShapeCounts| -> u64 {
        let each = set.iter().zip(waiting).zip(MigShape::ALL);
        each.map(|((fits, waits), shape)| u64::from(*fits.min(waits)) * shape.charge(family).0).sum()
    };
    // Whatever fits is part of a fullest set, and every part of one fits.
    let served = |after: Occupied| tables.fullest[after.index()].iter().map(held).max().unwrap_or(0);
    tables.best(family, occupied, shape, served)
}

/// Whether all of `set` can be added.
#[must_use]
pub fn fits(family: MigFamily, occupied: Occupied, set: &ShapeCounts) -> bool {
    let holds = |full: &ShapeCounts| full.iter().zip(set).all(|(fits, asked)| fits >= asked);
    tables(family).fullest[occupied.index()].iter().any(holds)
}

/// The sets that fit on an empty card and grow no further.
#[must_use]
pub fn fullest_sets(family: MigFamily) -> &'static [ShapeCounts] {
    &tables(family).fullest[Occupied::default().index()]
}
