//! The tree as a command would leave it: what it changes over what there is.

use crate::state::State;
use muster_model::Tenant;
use muster_model::ids::TenantId;
use std::collections::{BTreeMap, BTreeSet};

/// The present tenants, with those that are added, changed, moved and removed.
pub(super) struct Tree<'a> {
    pub(super) state: &'a State,
    /// As they would be, by id.
    pub(super) new: BTreeMap<TenantId, Tenant>,
    new_ids: BTreeMap<String, TenantId>,
    new_children: BTreeMap<TenantId, BTreeSet<TenantId>>,
    pub(super) removed: BTreeSet<TenantId>,
    /// Where in the command each that changes was described: a fault is theirs.
    pub(super) place: BTreeMap<TenantId, usize>,
    /// The command's word for the list; for a single place the field itself.
    pub(super) list: &'static str,
}

impl<'a> Tree<'a> {
    pub(super) fn over(state: &'a State, list: &'static str) -> Self {
        let (new, new_ids) = (BTreeMap::new(), BTreeMap::new());
        let (new_children, removed, place) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Tree { state, new, new_ids, new_children, removed, place, list }
    }

    /// The tenant is this from now on.
    pub(super) fn insert(&mut self, tenant: Tenant) {
        self.new_ids.insert(tenant.path.clone(), tenant.id);
        if let Some(parent) = tenant.parent {
            self.new_children.entry(parent).or_default().insert(tenant.id);
        }
        self.new.insert(tenant.id, tenant);
    }

    pub(super) fn id_of(&self, path: &str) -> Option<TenantId> {
        let id = self.new_ids.get(path).or_else(|| self.state.index().tenant_ids.get(path))?;
        Some(*id).filter(|id| !self.removed.contains(id))
    }

    pub(super) fn get(&self, id: TenantId) -> Option<&Tenant> {
        let tenant = self.new.get(&id).or_else(|| self.state.tenants.get(&id));
        tenant.filter(|_| !self.removed.contains(&id))
    }

    pub(super) fn children(&self, parent: TenantId) -> BTreeSet<TenantId> {
        let old = self.state.index().tenant_children.get(&parent);
        let new = self.new_children.get(&parent);
        let there = |id: &&TenantId| self.get(**id).is_some_and(|child| child.parent == Some(parent));
        old.into_iter().chain(new).flatten().filter(there).copied().collect()
    }

    /// Where to point when the fault lies between `parent` and its children: at the parent if it changes, else at the first
    /// child that does.
    pub(super) fn field(&self, parent: TenantId, children: &BTreeSet<TenantId>, name: &str) -> String {
        let child = || children.iter().find_map(|child| self.place.get(child));
        match self.place.get(&parent).or_else(child) {
            Some(index) => format!("{}[{index}].{name}", self.list),
            None => self.list.to_owned(),
        }
    }

    /// The tenants that differ from what they are.
    pub(super) fn differing(&self) -> impl Iterator<Item = &Tenant> {
        self.new.values().filter(|tenant| self.state.tenants.get(&tenant.id) != Some(*tenant))
    }
}
