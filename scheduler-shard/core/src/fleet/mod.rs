//! What is free, and what is learned of demand: the capacity ledger, the indices over it, and what comes to wait.
//!
//! A [`Fleet`] is changed by nodes, pools and tenants that come, go or are described anew, and by allocations that are charged and released.
//! What must stay true:
//! - indices and balance follow from the ledger: whatever changes the ledger changes them in the same call, and undoing a change gives what was
//!   there before ([`Transaction`]);
//! - a fleet knows no job that waits and wakes nobody: who changes it asks what has become free ([`Fleet::free_on`]) and tells the queue;
//! - a fleet knows nothing of [`crate::search`], which reads it.

mod balance;
pub(crate) mod index;
mod learned;
mod transaction;

use balance::Balance;
use index::{CardsLeft, Hold, Index, Windows};
use muster_model::capacity::Capacity;
use muster_model::{Allocation, CellId, GpuModel, Node, NodeId, Pool, ResourceVec, Tenant, TenantId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

pub(crate) use learned::{Learned, left_milli};
pub(crate) use transaction::{Savepoint, Transaction, UndoLog};

/// How places are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementPolicy {
    /// The tightest place in the network; parts of cards where least is lost. What a fleet runs.
    #[default]
    Topology,
    /// Nodes in the order of their ids, the network unseen: to compare with.
    FirstFit,
    /// The fullest node first, the network unseen: to compare with.
    BestFit,
}

impl PlacementPolicy {
    /// How places are chosen, after "places are chosen".
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            PlacementPolicy::Topology => "by topology, parts of cards where least is lost",
            PlacementPolicy::FirstFit => "first-fit: nodes in the order of their ids, the network unseen",
            PlacementPolicy::BestFit => "best-fit: the fullest node first, the network unseen",
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) capacity: Capacity,
    pub(crate) index: Index,
    /// What has been learned of shares of cards.
    pub(crate) learned: Learned,
    /// What is scarce where, and what that says of single tasks.
    pub(crate) balance: Balance,
    /// Everything the fleet has, by resource: the denominators of dominant shares.
    pub(crate) totals: ResourceVec,
    pub(crate) placement: PlacementPolicy,
}

/// A node that serves one search beside those that are free for everybody.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lent {
    pub(crate) node: NodeId,
    /// For whom it is kept.
    pub(crate) hold: Option<Hold>,
    /// Its windows, and those that it is taken to be in meanwhile; none when they stay.
    pub(crate) windows: Option<(Windows, Windows)>,
}

/// Whole cards of one model that are free on a node, and in its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeOn {
    pub(crate) model: Option<GpuModel>,
    pub(crate) on_node: u32,
    /// A card of the model may have room for a part of one; without a model: CPU is free.
    pub(crate) parts: bool,
    pub(crate) in_all: u64,
}

/// What a node has left, as far as placement tells nodes apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    cards: CardsLeft,
    cpu_milli: i64,
    memory_mib: i64,
}

impl Room {
    /// Whether something may be placed there that could not be placed before.
    pub(crate) fn has_more_than(&self, before: &Room) -> bool {
        self.cpu_milli > before.cpu_milli
            || self.memory_mib > before.memory_mib
            || self.cards.has_other_than(&before.cards)
    }
}

impl Fleet {
    /// Charges an allocation.
    pub(crate) fn charge(&mut self, allocation: &Allocation) {
        self.capacity.charge(allocation);
        self.touch(allocation);
    }

    /// Releases what an allocation holds.
    pub(crate) fn release(&mut self, allocation: &Allocation) {
        self.capacity.release(allocation);
        self.touch(allocation);
    }

    /// Keeps the indices in step with a charge or release: neighbours in rank share a node, and only their cards have changed.
    fn touch(&mut self, allocation: &Allocation) {
        for tasks in allocation.tasks.chunk_by(|one, next| one.node == next.node) {
            let id = tasks[0].node;
            let Some(there) = self.capacity.nodes().get(&id) else { continue };
            self.index.touch(id, there, tasks.iter().flat_map(|task| task.devices.iter().map(|hold| hold.gpu)));
            self.balance.touched(there.node.cell, id);
        }
    }

    /// What is free on a node that takes work, model by model.
    pub(crate) fn free_on(&self, node: NodeId, cell: CellId) -> Vec<FreeOn> {
        let of_model = |(model, on_node, parts)| {
            let in_all = self.index.buckets(cell, model).map(|(_, bucket)| bucket.free()).sum();
            FreeOn { model, on_node, parts, in_all }
        };
        self.index.free_on(node).map(of_model).collect()
    }

    /// What a node that takes work has left.
    pub(crate) fn room_on(&self, node: NodeId) -> Option<Room> {
        let there = self.capacity.nodes().get(&node)?;
        let (cpu_milli, memory_mib) = (there.cpu_free_milli, there.memory_free_mib);
        Some(Room { cards: self.index.cards_left(node)?, cpu_milli, memory_mib })
    }

    /// Takes over a node. Answers whether the fleet has more or less than before.
    pub(crate) fn put_node(&mut self, node: Node) -> bool {
        let (id, cell) = (node.id, node.cell);
        let old = self.capacity.nodes().get(&id).map(|old| (amount_of(&old.node), old.node.cell));
        let (old_amount, old_cell) = old.unwrap_or((ResourceVec::default(), cell));
        let changed = self.change_totals(&old_amount, &amount_of(&node));
        self.capacity.put_node(Arc::new(node));
        self.balance.refreshed(old_cell, id);
        self.refresh(id, cell);
        changed
    }

    /// Forgets a node. Answers whether the fleet has less than before.
    pub(crate) fn remove_node(&mut self, id: NodeId) -> bool {
        let old = self.capacity.nodes().get(&id).map(|old| (amount_of(&old.node), old.node.cell));
        let Some((amount, cell)) = old else { return false };
        let changed = self.change_totals(&amount, &ResourceVec::default());
        self.capacity.remove_node(id);
        self.refresh(id, cell);
        changed
    }

    fn change_totals(&mut self, old: &ResourceVec, new: &ResourceVec) -> bool {
        self.totals.sub(old);
        self.totals.add(new);
        old != new
    }

    fn refresh(&mut self, node: NodeId, cell: CellId) {
        self.index.refresh(node, self.capacity.nodes().get(&node));
        self.balance.refreshed(cell, node);
    }

    /// A pool has these rules from now on; without any, the standard ones. Cards may be pinned by them, or no longer.
    pub(crate) fn set_pool(&mut self, name: &str, rules: Option<Pool>) {
        match rules {
            Some(rules) => self.capacity.put_pool(rules),
            None => self.capacity.remove_pool(name),
        }
        for (id, there) in self.capacity.nodes().iter().filter(|(_, there)| there.node.spec.pool == name) {
            self.index.refresh(*id, Some(there));
            self.balance.refreshed(there.node.cell, *id);
        }
    }

    /// Takes over a tenant, and begins to count who is where once that is of interest: `held` is everything that is charged.
    pub(crate) fn put_tenant<'a>(&mut self, tenant: &Tenant, held: impl Iterator<Item = &'a Allocation>) {
        self.capacity.put_tenant(tenant);
        self.count_tenants(held);
    }

    /// Jobs of this tenant suffer from neighbours: from now on it is known which nodes nobody else is on.
    pub(crate) fn watch_neighbours<'a>(&mut self, tenant: TenantId, held: impl Iterator<Item = &'a Allocation>) {
        self.capacity.watch_tenants();
        self.count_tenants(held);
        self.index.watch(tenant, self.capacity.nodes());
    }

    fn count_tenants<'a>(&mut self, held: impl Iterator<Item = &'a Allocation>) {
        if self.capacity.wants_tenants_counted() {
            self.capacity.count_tenants(held);
        }
    }

    /// Some job wants no card: from now on it is known what CPU is free where.
    pub(crate) fn watch_hosts(&mut self) {
        self.index.watch_hosts(self.capacity.nodes());
    }

    /// This is a fresh picture of the fleet: what `old` has learned of demand is kept.
    pub(crate) fn go_on_from(&mut self, old: Fleet) {
        self.learned = old.learned;
        self.balance = old.balance;
        self.balance.resume(self.capacity.nodes().values().map(|there| (there.node.cell, there.node.id)));
    }

    /// A cell is no more.
    pub(crate) fn forget_cell(&mut self, cell: CellId) {
        self.learned.forget(cell);
        self.balance.forget(cell);
    }

    /// Keeps a node for a job from now on.
    pub(crate) fn hold(&mut self, node: NodeId, hold: Hold) {
        self.set_anti_affinity(node, hold);
        self.hold_changed(node);
    }

    /// Keeps it for that job no longer.
    pub(crate) fn let_go(&mut self, node: NodeId, hold: Hold) {
        self.put_back(node, hold);
        self.hold_changed(node);
    }

    fn hold_changed(&mut self, node: NodeId) {
        if let Some(there) = self.capacity.nodes().get(&node) {
            self.balance.touched(there.node.cell, node);
        }
    }

    /// The node is in these windows from now on.
    pub(crate) fn set_windows(&mut self, node: NodeId, windows: Windows) {
        self.index.set_windows(node, windows, self.capacity.nodes().get(&node));
        self.hold_changed(node);
    }

    /// Puts nodes that are kept for others, or in windows, beside the free ones for one search; [`Fleet::take_back`] ends it.
    pub(crate) fn lend(&mut self, nodes: &[Lent]) {
        for Lent { node, hold, windows } in nodes {
            if let Some(hold) = hold {
                self.put_back(*node, *hold);
            }
            if let Some((_, meanwhile)) = windows {
                self.index.set_windows(*node, meanwhile.clone(), self.capacity.nodes().get(node));
            }
        }
    }

    /// Sets them apart again.
    pub(crate) fn take_back(&mut self, nodes: &[Lent]) {
        for Lent { node, hold, windows } in nodes {
            if let Some(hold) = hold {
                self.set_anti_affinity(*node, *hold);
            }
            if let Some((before, _)) = windows {
                self.index.set_windows(*node, before.clone(), self.capacity.nodes().get(node));
            }
        }
    }

    fn set_anti_affinity(&mut self, node: NodeId, hold: Hold) {
        self.index.hold(node, hold, self.capacity.nodes().get(&node));
    }

    fn put_back(&mut self, node: NodeId, hold: Hold) {
        self.index.let_go(node, hold, self.capacity.nodes().get(&node));
    }
}

fn amount_of(node: &Node) -> ResourceVec {
    let mut amount = ResourceVec::of_host(node.spec.cpu_milli, node.spec.memory_mib);
    for gpu in &node.spec.gpus {
        amount.add(&ResourceVec::of_gpu(gpu.model, muster_model::GpuUnits::CARD));
    }
    amount
}
