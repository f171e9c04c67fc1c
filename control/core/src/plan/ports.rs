//! Which ports an allocation gets.
//!
//! What must stay true: no two live allocations on one node have the same block, and none of one NVLink domain either, since the block's number is also that of
//! the gang's channel there; the choice is a function of the state; growth has the ports of its gang wherever it can.

use crate::draft::Draft;
use crate::level;
use muster_model::ids::NodeId;
use muster_model::ports::PORT_BLOCKS;
use muster_model::{Allocation, PortBlock, Ports};
use std::collections::BTreeSet;

/// The first block that nobody has on the nodes of `held`, or in their NVLink domains. Where to begin goes by the number of the allocation, so that a block
/// is not given again soon after it was let go.
pub(super) fn assign(draft: &Draft<'_>, held: &Allocation, of_gang: Option<PortBlock>) -> Ports {
    if !level::has(draft.state, level::QUOTAS) {
        return Ports::Unassigned;
    }
    let taken = taken(draft, held);
    let first = (held.id.0 % u64::from(PORT_BLOCKS)) as u16;
    let in_turn = (0..PORT_BLOCKS).map(|step| PortBlock((first + step) % PORT_BLOCKS));
    let free = |block: &PortBlock| !taken.contains(block);
    of_gang.into_iter().chain(in_turn).find(free).map_or(Ports::NoneFree, Ports::Block)
}

/// Blocks that others have where `held` stands.
fn taken(draft: &Draft<'_>, held: &Allocation) -> BTreeSet<PortBlock> {
    let state = draft.state;
    let own: BTreeSet<NodeId> = held.tasks.iter().map(|task| task.node).collect();
    let mut nodes = own.clone();
    for node in own.iter().filter_map(|id| state.nodes.get(id)) {
        if !node.spec.place.nvlink_domain.is_empty() {
            nodes.extend(state.capacity().near(node));
        }
    }
    let known = nodes.iter().flat_map(|node| state.index().allocations_on(*node));
    let known = known.filter_map(|id| draft.allocation(id));
    let is_there = |other: &&Allocation| other.tasks.iter().any(|task| nodes.contains(&task.node));
    let new = draft.new_allocations().filter(is_there);
    // The parts of one gang may have the same.
    known.chain(new).filter(|other| other.job != held.job).filter_map(|other| other.ports.block()).collect()
}
