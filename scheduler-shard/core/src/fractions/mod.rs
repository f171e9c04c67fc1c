//! Where a fraction of a card goes, so that what remains is worth most to the demand expected next.
//!
//! The measure is the expected fragmentation of Weng et al., "Beware of Fragmentation" (USENIX ATC'23), with four changes that
//! `docs/decisions/0011-fractions.md` argues and weighs: the demand mix is learned from what has come so far instead of being given;
//! what a class could use of a node is bounded by the node's CPU in the class's own proportion, not only by whether one more fits;
//! cards that few may use are priced by the demand that has nowhere else to go; and what is left of a begun card is worth what the
//! shares still to come will really fill, in competition with everything else that is left.
//!
//! - [`Mix`] learns the demand; [`expected_waste_micro`] is the measure; [`Prices`] the scarcity of kinds of cards;
//!   [`Fills`] what a remainder is good for;
//! - [`NodeGroups`] groups nodes of equal state, so that a decision compares distinct states and not nodes;
//! - [`make_room`] finds the one planned move after which a blocked demand fits.
//!
//! What must stay true: integers only, bounded memory, and the same history gives the same choice. Names and the order of nodes
//! decide only between states that are equal in everything.

mod fill;
mod groups;
mod mix;
mod moves;
mod scarcity;
mod shape;
#[cfg(test)]
mod tests;
mod waste;

pub use fill::{Fills, Outlook, STEPS};
pub use groups::{NodeGroups, Score, Spot};
pub use mix::{CLAIMS_MAX, CLASSES_MAX, Class, HALVED_AT, MICRO, Mix};
pub use moves::{Room, TRIALS_MAX, make_room};
pub use scarcity::{Prices, Supply};
pub use shape::{CARD_MILLI, Demand, Kinds, NodeState};
pub use waste::expected_waste_micro;

use muster_model::GpuUnits;

/// Units of a card as milli-GPU, rounded up.
pub(crate) fn milli_of(units: GpuUnits) -> u64 {
    (units.0 * u64::from(CARD_MILLI)).div_ceil(GpuUnits::CARD.0)
}
