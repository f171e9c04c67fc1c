//! Capacity in the log: what the nodes have that are not down, without withheld cards, and which floors exceed it.
//!
//! What must stay true: whatever makes the control plane give up a claim on a node shows as lost capacity: the node goes down, or its epoch has
//! grown, which says that everything on it is gone, or it takes no work any more: then its capacity goes and comes back in one entry. The marks are
//! those that the state makes of the same tree and the same nodes.

use super::event::{Amounts, Event, Everything};
use super::seen::NodeSeen;
use super::{Follower, Told};
use muster_model::capacity::{healthy_of, unmet};
use muster_model::ids::{NodeId, TenantId};
use muster_model::{Node, Pool, ResourceVec, Tenant};
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
        let before = self.capacity;
        let was = self.nodes.get(&node.id).map(|was| (was.epoch, was.accepts_work, was.adds));
        self.put_node(node);
        let left = was.filter(|(epoch, accepted, adds)| {
            !adds.is_empty() && (*epoch != node.epoch || (*accepted && !node.accepts_work()))
        });
        if let Some((_, _, adds)) = left {
            // What was to be placed on it is given up.
            self.tell_capacity(before.less(&adds), told);
        }
        if left.is_some() || before != self.capacity {
            self.mark();
            self.tell_capacity(self.capacity, told);
        }
    }

    pub(super) fn node_gone(&mut self, id: NodeId, told: &mut Told) {
        let Some(gone) = self.nodes.remove(&id) else { return };
        if !gone.adds.is_empty() {
            self.capacity = self.capacity.less(&gone.adds);
            self.mark();
            self.tell_capacity(self.capacity, told);
        }
    }

    /// Takes over a node without a word.
    pub(super) fn put_node(&mut self, node: &Node) {
        let adds = healthy_of(node);
        let accepts_work = node.accepts_work();
        let seen = NodeSeen { pool: node.spec.pool.clone(), epoch: node.epoch, accepts_work, adds };
        let before = self.nodes.insert(node.id, seen).map(|before| before.adds).unwrap_or_default();
        self.capacity = self.capacity.less(&before).plus(&adds);
    }

    /// Marks anew what the capacity cannot meet of the floor accounts; whether that changed something.
    pub(super) fn mark(&mut self) -> bool {
        let mut handed_down: BTreeMap<TenantId, ResourceVec> = BTreeMap::new();
        for tenant in self.tenants.values() {
            if let Some(parent) = tenant.parent {
                handed_down.entry(parent).or_default().add(&tenant.guarantee);
            }
        }
        let account_of = |tenant: &Tenant| {
            let below = handed_down.get(&tenant.id).copied().unwrap_or_default();
            (tenant.id, tenant.guarantee.less(&below))
        };
        // The state marks nothing while the fleet has no node. A log does: its reader knows no nodes, and nothing can be charged then.
        let marks = unmet(&self.capacity, self.tenants.values().map(account_of));
        std::mem::replace(&mut self.marks, marks) != self.marks
    }

    /// The tree has changed: the marks are told if they have.
    pub(super) fn tell_marks(&mut self, told: &mut Told) {
        if self.mark() {
            self.tell_capacity(self.capacity, told);
        }
    }

    /// What the header calls the capacity. It cannot name marks: where some floors are unmet when the log begins, it has what would meet them, and the
    /// first event says how much of that is there.
    pub(super) fn capacity_at_first(&self) -> ResourceVec {
        let missing = self.marks.values().fold(ResourceVec::default(), |sum, missing| sum.plus(missing));
        self.capacity.plus(&missing)
    }

    pub(super) fn tell_capacity(&self, capacity: ResourceVec, told: &mut Told) {
        let unmet = self.marks.iter().map(|(id, missing)| (self.path(*id), Amounts(*missing))).collect();
        told.say(Event::Capacity { capacity: Everything(capacity), unmet });
    }
}
