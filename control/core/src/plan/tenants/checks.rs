//! What the tree itself must keep: guarantees that fit into the parent's (law 3), trust that no child exceeds (law 8), and rules about
//! tenants that exist.

use super::tree::Tree;
use crate::reject::Reject;
use muster_model::ids::TenantId;
use muster_model::request::SharingMode;
use muster_model::{Allocation, ResourceVec, Tenant, Trust};
use std::collections::{BTreeMap, BTreeSet};

impl Tree<'_> {
    pub(super) fn check_guarantees(&self) -> Result<(), Reject> {
        let parents: BTreeSet<TenantId> =
            self.new.values().flat_map(|tenant| tenant.parent.into_iter().chain([tenant.id])).collect();
        for id in parents {
            let Some(parent) = self.get(id) else { continue };
            let children = self.children(id);
            let mut sum = ResourceVec::default();
            for child in children.iter().filter_map(|child| self.get(*child)) {
                sum.add(&child.guarantee);
            }
            if let Some(resource) = sum.first_excess_over(&parent.guarantee) {
                let path = &parent.path;
                let (sum, own) = (sum.get(resource), parent.guarantee.get(resource));
                let (sum, own) = (resource.in_words(sum), resource.in_words(own));
                let problem = format!("the children of {path} have guarantees of {sum} together, but {path} has {own}");
                let fix = "raise the parent's guarantee or lower the children's";
                return Err(Reject::field(self.field(id, &children, "guarantee"), problem, fix));
            }
        }
        Ok(())
    }

    /// Whoever a tenant is kept apart from exists: a rule about nobody would be a slip of the pen.
    pub(super) fn check_anti_affinity(&self) -> Result<(), Reject> {
        for tenant in self.new.values() {
            if let Some(other) = tenant.anti_affinity.iter().find(|other| self.id_of(&other.tenant).is_none()) {
                let problem = format!("names {}, which does not exist", other.tenant);
                let field = self.field(tenant.id, &BTreeSet::new(), "anti_affinity");
                return Err(Reject::field(field, problem, "create it first or in the same call"));
            }
        }
        Ok(())
    }

    pub(super) fn check_trust(&self) -> Result<(), Reject> {
        let mut sharing = None;
        for tenant in self.new.values() {
            let parent = tenant.parent.and_then(|parent| self.get(parent));
            if tenant.trust == Trust::Trusted && parent.is_some_and(|parent| parent.trust == Trust::Untrusted) {
                let problem = format!("{} is trusted, but its parent is not", tenant.path);
                let field = self.field(tenant.id, &BTreeSet::new(), "trust");
                return Err(Reject::field(field, problem, "make it untrusted, or trust the parent"));
            }
            if tenant.trust == Trust::Untrusted {
                self.check_distrust(tenant, sharing.get_or_insert_with(|| self.sharing()))?;
            }
        }
        Ok(())
    }

    /// Who shares a card now, by any of its allocations that do.
    pub(super) fn sharing(&self) -> BTreeMap<TenantId, &Allocation> {
        let shares = |mode: SharingMode| matches!(mode, SharingMode::Mps | SharingMode::TimeSlice);
        let held = self.state.allocations.values().map(AsRef::as_ref);
        let sharing = held.filter(|held: &&Allocation| {
            held.tasks.iter().flat_map(|task| &task.devices).any(|hold| shares(hold.mode.mode()))
        });
        sharing.map(|held| (held.tenant, held)).collect()
    }

    /// An untrusted tenant has no trusted children and shares no card now.
    fn check_distrust(&self, tenant: &Tenant, sharing: &BTreeMap<TenantId, &Allocation>) -> Result<(), Reject> {
        let children = self.children(tenant.id);
        let trusted = children.iter().filter_map(|child| self.get(*child)).find(|child| child.trust == Trust::Trusted);
        if let Some(child) = trusted {
            let problem = format!("{} would be untrusted, but its child {} is trusted", tenant.path, child.path);
            let fix = "make its children untrusted in the same call";
            return Err(Reject::field(self.field(tenant.id, &children, "trust"), problem, fix));
        }
        let before = self.state.tenants.get(&tenant.id);
        if before.is_none_or(|before| before.trust == Trust::Untrusted) {
            return Ok(());
        }
        match sharing.get(&tenant.id) {
            None => Ok(()),
            Some(held) => {
                let why = format!("it shares a GPU for tenant {}; cancel job {} first", tenant.path, held.job);
                Err(Reject::InUse { what: "allocation".to_owned(), id: held.id.to_string(), why })
            }
        }
    }
}
