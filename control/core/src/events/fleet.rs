//! Capacity in the log: what the nodes that take work have, without cards that are withheld.
//!
//! What must stay true: whatever makes the control plane give up a claim on a node shows as lost capacity: the node takes no work any more, or its
//! epoch has grown, which says that everything on it is gone.

use super::event::{Event, Everything};
use super::seen::NodeSeen;
use super::{Follower, Told};
use muster_model::ids::NodeId;
use muster_model::{GpuUnits, Node, Pool, ResourceVec};
use std::collections::BTreeMap;

impl Follower {
    pub(super) fn put_pool(&mut self, pool: &Pool) {
        self.cool_downs_ms.insert(pool.name.clone(), 1_000 * pool.cool_down_s);
        self.bounds.insert(pool.name.clone(), pool.preemptions_max);
    }

    /// The cool-down of a pool.
    pub(super) fn cool_down_ms(&self, pool: &str) -> u64 {
        self.cool_downs_ms.get(pool).copied().unwrap_or(1_000 * Pool::standard_rules().cool_down_s)
    }

    pub(super) fn node_put(&mut self, node: &Node, told: &mut Told) {
        let (before, was) = (self.capacity, self.nodes.get(&node.id).map(|was| (was.epoch, was.adds)));
        self.put_node(node);
        if let Some((epoch, adds)) = was
            && epoch != node.epoch
            && !adds.is_empty()
        {
            // It went and came back.
            self.tell_capacity(before.less(&adds), told);
        }
        if before != self.capacity || was.is_some_and(|(epoch, _)| epoch != node.epoch) {
            self.tell_capacity(self.capacity, told);
        }
    }

    pub(super) fn node_gone(&mut self, id: NodeId, told: &mut Told) {
        let Some(gone) = self.nodes.remove(&id) else { return };
        if !gone.adds.is_empty() {
            self.capacity = self.capacity.less(&gone.adds);
            self.tell_capacity(self.capacity, told);
        }
    }

    /// Takes over a node without a word.
    pub(super) fn put_node(&mut self, node: &Node) {
        let adds = adds(node);
        let seen = NodeSeen { pool: node.spec.pool.clone(), epoch: node.epoch, adds };
        let before = self.nodes.insert(node.id, seen).map(|before| before.adds).unwrap_or_default();
        self.capacity = self.capacity.less(&before).plus(&adds);
    }

    fn tell_capacity(&self, capacity: ResourceVec, told: &mut Told) {
        // Floor accounts that the fleet cannot meet are named here once the state marks them.
        told.say(Event::Capacity { capacity: Everything(capacity), unmet: BTreeMap::new() });
    }
}

fn adds(node: &Node) -> ResourceVec {
    if !node.accepts_work() {
        return ResourceVec::default();
    }
    let cards = node.spec.gpus.iter().filter(|card| card.withheld.is_none());
    cards.fold(ResourceVec::of_host(node.spec.cpu_milli, node.spec.memory_mib), |sum, card| {
        sum.plus(&ResourceVec::of_gpu(card.model, GpuUnits::CARD))
    })
}
