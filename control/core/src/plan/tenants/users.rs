//! The users of nodes that tenants' tasks run as.
//!
//! What must stay true (law SL8): tenants of two trust domains never run as one user, or each could read and signal what is the other's.

use super::tree::Tree;
use crate::reject::Reject;
use muster_model::Tenant;
use muster_model::ids::TenantId;
use std::collections::{BTreeMap, BTreeSet};

impl Tree<'_> {
    /// Only what a tenant says itself is looked at: what it takes over is of its own domain.
    pub(super) fn check_users(&self) -> Result<(), Reject> {
        if self.new.values().all(|tenant| tenant.run_as.is_none()) {
            return Ok(());
        }
        let old = self.state.tenants.keys().filter(|id| !self.new.contains_key(id));
        let all = old.chain(self.new.keys()).filter_map(|id: &TenantId| self.get(*id));
        let mut users: BTreeMap<u32, &Tenant> = BTreeMap::new();
        for tenant in all {
            let Some(user) = tenant.run_as else { continue };
            let Some(other) = users.insert(user, tenant) else { continue };
            if Tenant::domain_of(&other.path) == Tenant::domain_of(&tenant.path) {
                continue;
            }
            let (one, two) = if self.place.contains_key(&tenant.id) { (tenant, other) } else { (other, tenant) };
            let problem = format!(
                "is {user} for {}, and for {} of another organisation: each could read and signal what is the other's",
                one.path, two.path
            );
            let field = self.field(one.id, &BTreeSet::new(), "run_as");
            return Err(Reject::field(field, problem, "use a user of its own for each organisation"));
        }
        Ok(())
    }
}
