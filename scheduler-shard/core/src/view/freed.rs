//! What becomes free, and whom it may help: waiting groups are offered it, jobs with a reservation are tried again.
//!
//! What must stay true: whenever a node has more room than when a group was last tried, the node is offered; it is offered no longer once it has no
//! more room than before it was freed, since what was tried in vain before would be tried in vain again.

use super::View;
use crate::fleet::{FreeOn, Room};
use crate::queue::{CellQueue, Freed};
use muster_model::{Allocation, CellId, NodeId};

impl View {
    /// Charges an allocation.
    pub(crate) fn charge(&mut self, allocation: &Allocation) {
        self.fleet.charge(allocation);
        for tasks in allocation.tasks.chunk_by(|one, next| one.node == next.node) {
            self.node_taken(tasks[0].node, allocation.cell);
        }
        self.used_otherwise(allocation.tenant);
    }

    /// Releases an allocation, and wakes whom that may help.
    pub(crate) fn release(&mut self, allocation: &Allocation) {
        let nodes = || allocation.tasks.chunk_by(|one, next| one.node == next.node).map(|tasks| tasks[0].node);
        let before: Vec<Option<Room>> = match self.wakes_somebody(allocation.cell) {
            true => nodes().map(|node| self.fleet.room_on(node)).collect(),
            false => Vec::new(),
        };
        self.fleet.release(allocation);
        for (node, before) in nodes().zip(before) {
            self.has_more_room(node, allocation.cell, before);
            if self.fleet.capacity.has_anti_affinity() {
                self.domain_freed(node, allocation.cell);
            }
        }
        self.quota_changed(allocation.tenant);
    }

    /// More may be lent: what is free counts over the whole fleet, on nodes that take no work as well.
    pub(super) fn wake_not_lent(&mut self) {
        self.queues.values_mut().for_each(CellQueue::wake_not_lent);
    }

    fn wakes_somebody(&self, cell: CellId) -> bool {
        let blocked = self.queues.get(&cell).is_some_and(CellQueue::has_blocked);
        blocked || self.reserved_jobs(cell).next().is_some()
    }

    /// What a node may be used for has changed otherwise than by what runs on it.
    pub(super) fn node_freed(&mut self, node: NodeId, cell: CellId) {
        if self.wakes_somebody(cell) {
            self.has_more_room(node, cell, None);
        }
    }

    /// There is more room on a node than before; what it had then, where that is known.
    fn has_more_room(&mut self, node: NodeId, cell: CellId, before: Option<Room>) {
        let all = self.freed_on(node, cell);
        for freed in &all {
            self.helps_reserved(cell, node, freed, before.is_some());
            self.helps_tried(cell, freed);
        }
        // Freed twice, it offers what it did not have the first time.
        self.opened
            .entry(node)
            .and_modify(|first| *first = first.take().filter(|_| before.is_some()))
            .or_insert(before);
        if let Some(queue) = self.queues.get_mut(&cell).filter(|queue| queue.has_blocked()) {
            queue.offer(node, all, true);
        }
    }

    /// Something of a node is held that was free.
    fn node_taken(&mut self, node: NodeId, cell: CellId) {
        let Some(before) = self.opened.get(&node) else { return };
        let room = self.fleet.room_on(node);
        let has_more = match (&room, before) {
            (Some(room), Some(before)) => room.has_more_than(before),
            (Some(_), None) => true,
            (None, _) => false,
        };
        let freed = if has_more { self.freed_on(node, cell) } else { Vec::new() };
        if freed.is_empty() {
            self.opened.remove(&node);
            self.helps_reserved_no_more(cell, node);
        }
        if let Some(queue) = self.queues.get_mut(&cell) {
            queue.offer(node, freed, false);
        }
    }

    /// Nobody more is helped by what has become free in a cell.
    pub(crate) fn end_offers(&mut self, cell: CellId) {
        if let Some(queue) = self.queues.get_mut(&cell) {
            queue.end_offers();
        }
        self.untried_at_the_end(cell);
        let nodes = self.fleet.capacity.nodes();
        self.opened.retain(|node, _| nodes.get(node).is_some_and(|there| there.node.cell != cell));
    }

    /// The node is gone, or about to be.
    pub(super) fn withdraw(&mut self, node: NodeId, cell: CellId) {
        self.opened.remove(&node);
        if let Some(queue) = self.queues.get_mut(&cell) {
            queue.withdraw(node);
        }
    }

    fn freed_on(&self, node: NodeId, cell: CellId) -> Vec<Freed> {
        let (kept, lent_ms) = (self.fleet.index.is_kept(node), self.lent_ms(cell));
        let freed = |FreeOn { model, on_node, parts, in_all }| Freed { model, on_node, parts, in_all, kept, lent_ms };
        self.fleet.free_on(node, cell).into_iter().map(freed).filter(Freed::is_something).collect()
    }

    /// Who was kept off a whole NVLink domain may stand on any node of it now.
    fn domain_freed(&mut self, node: NodeId, cell: CellId) {
        let there = self.fleet.capacity.nodes().get(&node);
        let near: Vec<NodeId> = there.into_iter().flat_map(|there| self.fleet.capacity.near(&there.node)).collect();
        near.into_iter().for_each(|id| self.node_freed(id, cell));
    }

    /// Who is kept apart has changed: anything may fit now.
    pub(super) fn everything_freed(&mut self) {
        self.reserved_may_start();
        self.opened.clear();
        for queue in self.queues.values_mut() {
            queue.wake_all_without_room();
            queue.wake_by_guarantees();
        }
    }
}
