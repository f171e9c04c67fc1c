//! A ledger as if some allocations had ended.
//!
//! What must stay true: it is a difference to a ledger that is not changed, as large as what has ended and not as the fleet.

use crate::ids::TenantId;
use crate::resources::{Resource, ResourceVec};
use std::collections::BTreeMap;

/// Allocations that are taken to pay no more, on top of a ledger that still has them: what their tenants used, and what was charged to accounts.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    pub(super) used: BTreeMap<TenantId, ResourceVec>,
    pub(super) floor_charged: BTreeMap<TenantId, ResourceVec>,
}

impl Ended {
    pub(super) fn of(&self, amounts: &BTreeMap<TenantId, ResourceVec>, id: TenantId, resource: Resource) -> u64 {
        amounts.get(&id).map_or(0, |amount| amount.get(resource))
    }
}
