//! Floor accounts as they stand: how much of each is in use, idle, lent, and missing.
//!
//! An account is the part of a tenant's guarantee that it has not handed down. Use within it is *busy*; what is left of it is *idle*, and burst may use
//! that. Burst takes first what nobody is guaranteed, and then from the idle parts of all accounts, in proportion, as it is paid for: from those that
//! lend, and only where they do not suffice from those that do not (they have said so since). What must stay true: busy, idle and unmet are the whole account, unless
//! jobs run on what lost hardware leaves unmet; lent is a part of idle; all accounts together lend what burst uses beyond what nobody is guaranteed.

use crate::capacity::{Capacity, TenantUse};
use crate::ids::TenantId;
use crate::quota_tree::in_proportion;
use crate::resources::{Resource, ResourceVec};
use std::collections::BTreeMap;

/// One account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FloorAccount {
    /// What it holds by the tree.
    pub size: ResourceVec,
    /// Charged to it.
    pub busy: ResourceVec,
    /// Charged by nobody, of what hardware can meet.
    pub idle: ResourceVec,
    /// The part of the idle one that burst uses.
    pub lent: ResourceVec,
    /// What healthy hardware cannot meet.
    pub unmet: ResourceVec,
}

/// Every account that holds something, or to which something is charged.
#[must_use]
pub fn floor_accounts(capacity: &Capacity) -> BTreeMap<TenantId, FloorAccount> {
    let mut accounts = BTreeMap::new();
    // Only what some organisation guarantees is in any account.
    let counted: Vec<Resource> = capacity.guaranteed_total().nonzero().map(|(resource, _)| resource).collect();
    let only = |amounts: &ResourceVec| {
        let mut out = ResourceVec::default();
        counted.iter().for_each(|resource| out.set(*resource, amounts.get(*resource)));
        out
    };
    let has_something = |at: &TenantUse| !at.guarantee.is_empty() || !at.floor_charged.is_empty();
    for (id, at) in capacity.tenants().iter().filter(|(_, at)| has_something(at)) {
        let (size, busy) = (capacity.account_of(*id), only(&at.floor_charged));
        if size.is_empty() && busy.is_empty() {
            continue;
        }
        let unmet = capacity.unmet_floors().get(id).copied().unwrap_or_default();
        let idle = size.less(&unmet).less(&busy);
        accounts.insert(*id, FloorAccount { size, busy, idle, lent: ResourceVec::default(), unmet });
    }
    counted.iter().for_each(|resource| lend(capacity, *resource, &mut accounts));
    accounts
}

/// Shares what burst uses of one resource, beyond what nobody is guaranteed, among the idle parts.
fn lend(capacity: &Capacity, resource: Resource, accounts: &mut BTreeMap<TenantId, FloorAccount>) {
    let organisations = capacity.tenants().values().filter(|at| at.parent.is_none());
    let burst: u64 = organisations.map(|at| at.burst().get(resource)).sum();
    let met: u64 = accounts.values().map(|account| account.size.less(&account.unmet).get(resource)).sum();
    let mut left = burst.saturating_sub(capacity.healthy().get(resource).saturating_sub(met));
    let lends = |id: &TenantId| capacity.line_of(*id).all(|(_, at)| at.lends(resource));
    let (lenders, others): (Vec<TenantId>, Vec<TenantId>) = accounts.keys().partition(|id| lends(id));
    for group in [lenders, others] {
        let idle: Vec<u64> = group.iter().map(|id| accounts[id].idle.get(resource)).collect();
        for (id, share) in group.iter().zip(in_proportion(left, &idle)) {
            left -= share;
            if let Some(account) = accounts.get_mut(id) {
                account.lent.set(resource, share);
            }
        }
    }
}
