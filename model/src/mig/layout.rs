//! Pinned layouts: the instances that a pool keeps on its cards of one model, as `mig-parted` files have them.
//!
//! What must stay true: a [`PinnedLayout`] is legal on the model it was made for, so whoever has one need not look again; the same
//! slices always get the same starts, on every replica.

use super::worth::{ShapeCounts, fits, fullest_sets};
use super::{MigPlacement, MigShape, Occupied, can_stand_on, parse_profile, profile_name};
use crate::field_error::FieldError;
use crate::gpu::{GpuModel, MigFamily};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Instances at their places, on all or the first so many cards of a model on each node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedLayout {
    slots: Vec<MigPlacement>,
    cards_per_node: Option<u16>,
}

impl PinnedLayout {
    /// The layout of so many slices by their usual names, on the first `cards_per_node` cards of `model` on each node (by index), or on
    /// all of them.
    ///
    /// # Errors
    /// A model without MIG, a profile that it does not have, or slices that do not fit on one card together, with the nearest that do.
    pub fn new(
        model: GpuModel,
        slices: &BTreeMap<String, u32>,
        cards_per_node: Option<u16>,
    ) -> Result<Self, FieldError> {
        let field = |what: &str| format!("mig_layouts[{model}].{what}");
        let Some(family) = model.facts().mig else {
            return Err(FieldError::new(field("model"), "has no MIG", "give layouts only for models with MIG"));
        };
        if cards_per_node == Some(0) {
            let fix = "use 1 or more, or leave it out for all GPUs of the model";
            return Err(FieldError::new(field("cards_per_node"), "is 0", fix));
        }
        let mut counts = [0_u32; MigShape::ALL.len()];
        for (name, count) in slices {
            let Some(shape) = parse_profile(model, name) else {
                let known: Vec<String> = MigShape::ALL.into_iter().filter_map(|s| profile_name(model, s)).collect();
                let short: String = name.chars().take(60).collect();
                let problem = format!("{short:?} is not a profile of {model}");
                return Err(FieldError::new(field("slices"), problem, format!("use {}", known.join(", "))));
            };
            counts[shape as usize] = counts[shape as usize].saturating_add(*count);
        }
        if counts.iter().all(|count| *count == 0) {
            let all = in_words(model, &nearest(family, &[7, 0, 0, 0, 0, 0, 0, 0]));
            return Err(FieldError::new(field("slices"), "is empty", format!("give the slices, such as {all}")));
        }
        let legal = counts.map(|count| u8::try_from(count).unwrap_or(u8::MAX));
        if !fits(family, Occupied::default(), &legal) {
            let problem = format!("{} do not fit on one {model}", in_words(model, &counts));
            let fix = format!("use a layout that fits, such as {}", in_words(model, &nearest(family, &counts)));
            return Err(FieldError::new(field("slices"), problem, fix));
        }
        let mut slots = Vec::new();
        stand(family, &legal, Occupied::default(), &mut slots);
        slots.sort_by_key(|place| place.start);
        Ok(PinnedLayout { slots, cards_per_node })
    }

    /// Its instances, in order of their starts.
    #[must_use]
    pub fn slots(&self) -> &[MigPlacement] {
        &self.slots
    }

    /// On how many cards of each node, the first by index; none: on all.
    #[must_use]
    pub const fn cards_per_node(&self) -> Option<u16> {
        self.cards_per_node
    }

    /// Slots of `shape` on one card.
    #[must_use]
    pub fn count(&self, shape: MigShape) -> usize {
        self.slots.iter().filter(|slot| slot.shape == shape).count()
    }

    /// The lowest slot of `shape` that is open on a card of which this is taken.
    #[must_use]
    pub fn open_slot(&self, family: MigFamily, occupied: Occupied, shape: MigShape) -> Option<MigPlacement> {
        self.slots.iter().copied().find(|slot| slot.shape == shape && can_stand_on(family, occupied, *slot))
    }

    /// How many of each profile, by their names on `model`.
    #[must_use]
    pub fn slices(&self, model: GpuModel) -> BTreeMap<String, u32> {
        let mut slices = BTreeMap::new();
        for name in self.slots.iter().filter_map(|slot| profile_name(model, slot.shape)) {
            *slices.entry(name).or_default() += 1;
        }
        slices
    }

    /// In words: `3g.40gb x1, 1g.10gb x2`, the largest first.
    #[must_use]
    pub fn in_words(&self, model: GpuModel) -> String {
        in_words(model, &MigShape::ALL.map(|shape| self.count(shape) as u32))
    }
}

/// Puts what is left of `set` beside `occupied`, the largest first at the lowest starts; answers whether all of it stands.
fn stand(family: MigFamily, set: &ShapeCounts, occupied: Occupied, slots: &mut Vec<MigPlacement>) -> bool {
    let Some(at) = (0..set.len()).rev().find(|at| set[*at] > 0) else { return true };
    let shape = MigShape::ALL[at];
    let mut rest = *set;
    rest[at] -= 1;
    for place in shape.starts(family).iter().map(|&start| MigPlacement { shape, start }) {
        let after = occupied.with(place);
        if can_stand_on(family, occupied, place) && fits(family, after, &rest) {
            slots.push(place);
            return stand(family, &rest, after, slots);
        }
    }
    false
}

/// The legal set that differs in fewest slices; of equals the one that is charged most, then the one of larger slices.
fn nearest(family: MigFamily, asked: &[u32; MigShape::ALL.len()]) -> [u32; MigShape::ALL.len()] {
    // The nearest part of each fullest set is that of what was asked, and of these the nearest is the one with most of it.
    let part = |full: &ShapeCounts| {
        let mut part = *asked;
        part.iter_mut().zip(full).for_each(|(count, fits)| *count = (*count).min(u32::from(*fits)));
        // Nothing of what was asked fits here: the whole of it is as near as any other.
        if part.iter().all(|count| *count == 0) { full.map(u32::from) } else { part }
    };
    let charged = |set: &[u32; MigShape::ALL.len()]| -> u64 {
        set.iter().zip(MigShape::ALL).map(|(count, shape)| u64::from(*count) * shape.charge(family).0).sum()
    };
    let far = |set: &[u32; MigShape::ALL.len()]| {
        set.iter().zip(asked).map(|(a, b)| a.abs_diff(*b)).fold(0, u32::saturating_add)
    };
    let larger = |set: &[u32; MigShape::ALL.len()]| set.iter().rev().copied().collect::<Vec<u32>>();
    let parts = fullest_sets(family).iter().map(part);
    parts
        .min_by_key(|set| (far(set), std::cmp::Reverse(charged(set)), std::cmp::Reverse(larger(set))))
        .unwrap_or_default()
}

fn in_words(model: GpuModel, counts: &[u32; MigShape::ALL.len()]) -> String {
    let each = counts.iter().zip(MigShape::ALL).rev().filter(|(count, _)| **count > 0);
    let words: Vec<String> =
        each.map(|(count, shape)| format!("{} x{count}", profile_name(model, shape).unwrap_or_default())).collect();
    words.join(", ")
}
