//! One task on a node that has been chosen already. What must stay true: every rule that a search keeps is kept here too.

use super::cards::{Within, free_by_island};
use super::fill::fill;
use super::units::Units;
use super::{Ask, shares, within_bounds};
use crate::fleet::Fleet;
use muster_model::TaskPlacement;
use muster_model::capacity::NodeUse;
use muster_model::request::SharingMode;

/// The task on this node, a share on a card that has `left` milli-GPU; `None` when that may not be.
pub(crate) fn on_node(fleet: &Fleet, ask: &Ask<'_>, there: &NodeUse, left: u16) -> Option<Vec<TaskPlacement>> {
    if !ask.may_stand_on(fleet, &there.node) {
        return None;
    }
    let found = match ask.class.request.devices.mode() {
        None | Some(SharingMode::Whole) => whole_on_node(fleet, ask, there),
        Some(SharingMode::Mps | SharingMode::TimeSlice) => shares::on_node(fleet, ask, there, left),
        Some(SharingMode::Mig) => None,
    };
    found.filter(|tasks| within_bounds(fleet, ask, tasks))
}

/// All of it on this node and, where it has cards, in one island; `None` when that may not be, or when an island of several nodes
/// would have to be weighed.
fn whole_on_node(fleet: &Fleet, ask: &Ask<'_>, there: &NodeUse) -> Option<Vec<TaskPlacement>> {
    let units = Units::of(ask)?;
    if let Some(model) = ask.model {
        let islands = free_by_island(there, model);
        let spans = !there.node.spec.place.nvlink_domain.is_empty();
        if spans || !islands.values().any(|free| free.len() as u64 >= units.all()) {
            return None;
        }
    }
    let holds = units.held(fleet, ask, there, units.count, Within::OneIsland) == units.count;
    holds.then(|| fill(fleet, ask, units, vec![(there.node.id, units.count * units.tasks)]))
}
