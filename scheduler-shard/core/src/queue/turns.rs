//! The tournament of everybody who waits in a cell, whether or not anything holds them back: in which order they would start.
//!
//! What must stay true: once the tenants that have changed are taken in, it equals one played anew; all shares in it are of one time; nothing is supposed in it
//! between two looks.

use super::CellQueue;
use super::order::{Head, Ledger, Order};
use muster_model::TenantId;
use std::collections::BTreeSet;

/// The kept tournament, and who has changed since it was last looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    pub(crate) order: Order,
    /// As of when past use counts in it.
    at_ms: u64,
    changed: BTreeSet<TenantId>,
}

impl Turns {
    /// The first job of a tenant, or what the tenant uses, may be another.
    pub(super) fn touch(&mut self, tenant: TenantId) {
        self.changed.insert(tenant);
    }

    /// It is played anew, among these.
    pub(crate) fn forget(&mut self, tenants: impl Iterator<Item = TenantId>) {
        self.order = Order::default();
        self.changed = tenants.collect();
    }

    /// Takes in who has changed.
    pub(crate) fn catch_up(&mut self, ledger: Ledger<'_>, queue: &CellQueue) {
        if self.at_ms != ledger.at_ms {
            self.at_ms = ledger.at_ms;
            self.forget(queue.tenants.keys().copied());
        }
        let changed = std::mem::take(&mut self.changed);
        self.order.update(ledger, changed.into_iter().map(|tenant| (tenant, queue.first(tenant))));
    }
}

impl CellQueue {
    /// The first job of a tenant, whether or not anything holds it back.
    pub(crate) fn first(&self, tenant: TenantId) -> Option<Head> {
        let groups = self.tenants.get(&tenant)?;
        let (queue_key, class) = groups.families.values().filter_map(BTreeSet::first).min()?;
        Some(Head::new(tenant, *queue_key, class.clone()))
    }

    /// Whoever takes them puts them back.
    pub(crate) fn take_turns(&mut self) -> Turns {
        std::mem::take(&mut self.turns)
    }

    pub(crate) fn put_turns(&mut self, turns: Turns) {
        self.turns = turns;
    }
}
