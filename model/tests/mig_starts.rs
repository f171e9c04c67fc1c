//! Where instances go, over every state of every family: which layouts are reached, and which request sequences are accepted.
//!
//! A *legal sequence* is any order of the requests of a set that fits on one empty card. The searches here are written from the
//! geometry alone and share nothing with the tables under test.

use muster_model::GpuModel;
use muster_model::gpu::MigFamily;
use muster_model::mig::{
    MigPlacement, MigShape, Occupied, ShapeCounts, best_start, best_start_before, can_stand, fits, legal_layouts, worth,
};
use std::collections::{BTreeMap, BTreeSet};

const FAMILIES: [MigFamily; 2] = [MigFamily::Four, MigFamily::Eight];
const NONE: ShapeCounts = [0; MigShape::ALL.len()];

fn shapes(family: MigFamily) -> Vec<MigShape> {
    MigShape::ALL.into_iter().filter(|shape| !shape.starts(family).is_empty()).collect()
}

fn counts(layout: &[MigPlacement]) -> ShapeCounts {
    let mut counts = NONE;
    layout.iter().for_each(|place| counts[place.shape as usize] += 1);
    counts
}

fn more(set: &ShapeCounts, shape: MigShape) -> ShapeCounts {
    let mut set = *set;
    set[shape as usize] += 1;
    set
}

fn less(set: &ShapeCounts, shape: MigShape) -> ShapeCounts {
    let mut set = *set;
    set[shape as usize] -= 1;
    set
}

/// A way to choose starts: the layout so far, the request, and everything that is still to come.
type Policy<'a> = &'a dyn Fn(&[MigPlacement], MigShape, &ShapeCounts) -> Option<MigPlacement>;

/// What requests one by one lead to, and how many of the legal sequences are accepted to their end.
struct Game {
    family: MigFamily,
    shapes: Vec<MigShape>,
    /// The sets that fit on an empty card.
    legal: BTreeSet<ShapeCounts>,
}

impl Game {
    fn of(family: MigFamily) -> Self {
        let shapes = shapes(family);
        let legal = legal_layouts(family, &shapes).iter().map(|layout| counts(layout)).collect();
        Game { family, shapes, legal }
    }

    /// The requests that may follow `set`.
    fn next<'a>(&'a self, set: &'a ShapeCounts) -> impl Iterator<Item = MigShape> + 'a {
        self.shapes.iter().copied().filter(|shape| self.legal.contains(&more(set, *shape)))
    }

    /// All legal sequences that go on from `set`, `set` itself not counted.
    fn sequences(&self, set: &ShapeCounts) -> u64 {
        self.next(set).map(|shape| 1 + self.sequences(&more(set, shape))).sum()
    }

    /// How many of them the best of all policies accepts that see one request at a time and may remember everything: every start is
    /// tried at every point.
    fn best(&self, layout: &[MigPlacement], known: &mut BTreeMap<Vec<MigPlacement>, u64>) -> u64 {
        if let Some(best) = known.get(layout) {
            return *best;
        }
        let set = counts(layout);
        let mut sum = 0;
        for shape in self.next(&set) {
            let starts = shape.starts(self.family).iter().map(|&start| MigPlacement { shape, start });
            let open: Vec<MigPlacement> = starts.filter(|place| can_stand(self.family, layout, *place)).collect();
            sum += open.into_iter().map(|place| 1 + self.best(&with(layout, place), known)).max().unwrap_or(0);
        }
        known.insert(layout.to_vec(), sum);
        sum
    }

    /// How many of them `policy` accepts; every layout that it reaches goes into `reached`.
    fn accepted(&self, layout: &[MigPlacement], policy: Policy<'_>, reached: &mut BTreeSet<Vec<MigPlacement>>) -> u64 {
        reached.insert(layout.to_vec());
        let set = counts(layout);
        let mut sum = 0;
        for shape in self.next(&set) {
            if let Some(place) = policy(layout, shape, &NONE) {
                assert!(can_stand(self.family, layout, place), "{place} beside {layout:?}");
                sum += 1 + self.accepted(&with(layout, place), policy, reached);
            }
        }
        sum
    }
}

fn with(layout: &[MigPlacement], place: MigPlacement) -> Vec<MigPlacement> {
    let mut layout = layout.to_vec();
    layout.push(place);
    layout.sort_by_key(|place| place.start);
    layout
}

fn engine(family: MigFamily) -> impl Fn(&[MigPlacement], MigShape, &ShapeCounts) -> Option<MigPlacement> {
    move |layout, shape, _| best_start(family, Occupied::by(layout.iter().copied()), shape).map(|start| start.place)
}

fn lowest(family: MigFamily) -> impl Fn(&[MigPlacement], MigShape, &ShapeCounts) -> Option<MigPlacement> {
    move |layout, shape, _| muster_model::mig::free_starts(family, layout, shape).next()
}

/// No policy that sees requests one by one accepts every legal sequence of the eight-slice family; the engine's accepts as many as the
/// best does. On the A30 both accept all of them.
#[test]
fn one_by_one_no_policy_accepts_more_sequences_than_the_engine() {
    // Legal sequences, what the best accepts, what lowest-start-first accepts.
    for (family, legal, most, naive) in [(MigFamily::Four, 38, 38, 38), (MigFamily::Eight, 1_322, 1_231, 882)] {
        let game = Game::of(family);
        assert_eq!(game.sequences(&NONE), legal, "{family:?}");
        assert_eq!(game.best(&[], &mut BTreeMap::new()), most, "{family:?}: the best of all policies");
        assert_eq!(game.accepted(&[], &engine(family), &mut BTreeSet::new()), most, "{family:?}: the engine");
        assert_eq!(game.accepted(&[], &lowest(family), &mut BTreeSet::new()), naive, "{family:?}: the lowest start");
    }
}

/// The conflict itself, for the record: whatever is done with a first 1g, one of these two is lost.
#[test]
fn a_first_single_slice_shuts_out_one_of_two_sets_wherever_it_goes() {
    use MigShape::{G1, G2, G3};
    for &start in G1.starts(MigFamily::Eight) {
        let after = Occupied::by([MigPlacement { shape: G1, start }]);
        let rest = |shapes: &[MigShape]| shapes.iter().fold(NONE, |set, shape| more(&set, *shape));
        let pair = [rest(&[G2, G2, G2]), rest(&[G1, G2, G3])];
        assert!(pair.iter().all(|set| fits(MigFamily::Eight, Occupied::default(), &more(set, G1))));
        assert!(pair.iter().any(|set| !fits(MigFamily::Eight, after, set)), "start {start}");
    }
}

/// Every set that fits is accepted in the order of its sizes, the largest first.
#[test]
fn every_legal_set_is_accepted_in_its_best_order() {
    for family in FAMILIES {
        for set in &Game::of(family).legal {
            let mut layout = Vec::new();
            for shape in MigShape::ALL.into_iter().rev() {
                for _ in 0..set[shape as usize] {
                    let place = engine(family)(&layout, shape, &NONE).unwrap_or_else(|| panic!("{set:?}: {shape:?}"));
                    layout = with(&layout, place);
                }
            }
        }
    }
}

/// With what else waits known, every set that fits is accepted in every order.
#[test]
fn every_legal_set_that_waits_together_is_accepted_in_every_order() {
    fn play(family: MigFamily, layout: &[MigPlacement], rest: &ShapeCounts) -> u64 {
        let mut orders = u64::from(*rest == NONE);
        for shape in MigShape::ALL.into_iter().filter(|shape| rest[*shape as usize] > 0) {
            let waiting = less(rest, shape);
            let occupied = Occupied::by(layout.iter().copied());
            let start = best_start_before(family, occupied, shape, &waiting);
            let place = start.unwrap_or_else(|| panic!("{shape:?} beside {layout:?}, {waiting:?} to come")).place;
            assert!(can_stand(family, layout, place));
            orders += play(family, &with(layout, place), &waiting);
        }
        orders
    }
    for (family, legal) in [(MigFamily::Four, 39), (MigFamily::Eight, 1_323)] {
        let orders: u64 = Game::of(family).legal.iter().map(|set| play(family, &[], set)).sum();
        assert_eq!(orders, legal, "{family:?}: every sequence, and the empty one");
        assert_eq!(worth(family, Occupied::default()), legal, "which is what an empty card is worth");
    }
}

/// Every layout that the engine reaches on any card of the catalogue, by any sequence, with or without knowledge, is in the legal table.
#[test]
fn every_layout_reached_is_in_the_legal_table() {
    for model in GpuModel::ALL {
        let Some(family) = model.facts().mig else { continue };
        let table: BTreeSet<Vec<MigPlacement>> = legal_layouts(family, &shapes(family)).into_iter().collect();
        assert_eq!(table.len(), if family == MigFamily::Four { 76 } else { 2_319 });
        // Arrivals and departures: from every layout reached, one more comes or any one goes.
        let mut reached: BTreeSet<Vec<MigPlacement>> = BTreeSet::new();
        let mut open = vec![Vec::new()];
        while let Some(layout) = open.pop() {
            if !reached.insert(layout.clone()) {
                continue;
            }
            assert!(table.contains(&layout), "{model}: {layout:?}");
            let occupied = Occupied::by(layout.iter().copied());
            for shape in MigShape::ALL {
                let alone = best_start(family, occupied, shape);
                assert_eq!(alone.is_some(), muster_model::mig::free_starts(family, &layout, shape).count() > 0);
                for waits in shapes(family) {
                    let known = best_start_before(family, occupied, shape, &more(&NONE, waits));
                    assert_eq!(known.is_some(), alone.is_some());
                    open.extend(known.map(|start| with(&layout, start.place)));
                }
                open.extend(alone.map(|start| with(&layout, start.place)));
            }
            for gone in 0..layout.len() {
                let mut layout = layout.clone();
                layout.remove(gone);
                open.push(layout);
            }
        }
        assert!(reached.len() > table.len() / 2, "{model}: {} of {}", reached.len(), table.len());
    }
}

/// Worth and fits are what they say, for every legal layout: the sets that can be added are found by laying the whole table over it, and
/// their sequences are counted one by one.
#[test]
fn worth_counts_the_sequences_that_still_fit() {
    fn sequences(set: &ShapeCounts, sets: &BTreeSet<ShapeCounts>) -> u64 {
        let next = MigShape::ALL.into_iter().map(|shape| more(set, shape)).filter(|set| sets.contains(set));
        1 + next.map(|set| sequences(&set, sets)).sum::<u64>()
    }
    for family in FAMILIES {
        let table: Vec<(Occupied, ShapeCounts)> = legal_layouts(family, &shapes(family))
            .iter()
            .map(|layout| (Occupied::by(layout.iter().copied()), counts(layout)))
            .collect();
        let legal: BTreeSet<ShapeCounts> = table.iter().map(|(_, set)| *set).collect();
        let occupancies: BTreeSet<Occupied> = table.iter().map(|(occupied, _)| *occupied).collect();
        for occupied in occupancies {
            let beside = |other: &Occupied| occupied.slices & other.slices == 0 && !(occupied.media && other.media);
            let sets: BTreeSet<ShapeCounts> =
                table.iter().filter(|(other, _)| beside(other)).map(|(_, set)| *set).collect();
            for set in &legal {
                assert_eq!(fits(family, occupied, set), sets.contains(set), "{set:?} beside {occupied:?}");
            }
            assert_eq!(worth(family, occupied), sequences(&NONE, &sets), "{occupied:?}");
            for shape in shapes(family) {
                let Some(start) = best_start(family, occupied, shape) else { continue };
                assert_eq!(start.left, worth(family, occupied.with(start.place)));
                assert_eq!(start.lost, worth(family, occupied) - start.left);
                assert!(start.lost > 0, "{shape:?} on {occupied:?} costs nothing");
            }
        }
    }
}
