//! From nodes with a number of tasks each to the cards of each rank.
//!
//! What must stay true: ranks follow the network, so neighbours in rank are neighbours in leaf; a node is given at most what
//! [`super::cards::most`] counts on it.

use super::cards::take_whole;
use super::units::Units;
use super::{Ask, node};
use crate::fleet::Fleet;
use muster_model::{NodeId, Place, TaskPlacement};

/// Nodes and how many tasks each takes.
pub(super) type Chosen = Vec<(NodeId, u64)>;

/// Cards for each rank. Ranks follow the network: neighbours in rank are neighbours in leaf.
pub(super) fn fill(fleet: &Fleet, ask: &Ask<'_>, units: Units, mut chosen: Chosen) -> Vec<TaskPlacement> {
    if chosen.len() > 1 {
        let place_of = |id: NodeId| node(fleet, id).map(|there| &there.node.spec.place);
        let mut placed: Vec<(Option<&Place>, NodeId, u64)> =
            chosen.into_iter().map(|(id, count)| (place_of(id), id, count)).collect();
        placed.sort_unstable();
        chosen = placed.into_iter().map(|(_, id, count)| (id, count)).collect();
    }
    let mut tasks = Vec::with_capacity(ask.class.tasks as usize);
    for (id, count) in chosen {
        let devices = match (ask.model, node(fleet, id)) {
            (Some(model), Some(there)) => {
                // Where NVLink goes on to other nodes a segment does too; elsewhere a node has whole ones.
                let spans = !there.node.spec.place.nvlink_domain.is_empty();
                let each = if spans { 1 } else { units.tasks };
                take_whole(there, model, count / each, each, ask)
            }
            _ => vec![Vec::new(); count as usize],
        };
        tasks.extend(devices.into_iter().map(|devices| TaskPlacement { node: id, devices }));
    }
    tasks
}
