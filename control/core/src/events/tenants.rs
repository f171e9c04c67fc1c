//! Tenants in the log: edits, moves, removals.
//!
//! What must stay true: tenants of one entry are told from the top down, so that a parent is there before its children, and a subtree moves once,
//! with all that is below it.

use super::event::{Event, TenantRecord};
use super::{Follower, Told};
use muster_model::object::Key;
use muster_model::{Change, Object, Tenant};

pub(super) fn is_of_tenant(change: &Change) -> bool {
    match change {
        Change::Put(object) => matches!(**object, Object::Tenant(_)),
        Change::Delete(key) => matches!(key, Key::Tenant(_)),
        Change::Retire(_) | Change::Audit(_) => false,
    }
}

impl Follower {
    pub(super) fn tenants_changed(&mut self, changes: &[Change], told: &mut Told) {
        let mut put: Vec<&Tenant> = Vec::new();
        for change in changes {
            match change {
                Change::Put(object) => put.extend(match &**object {
                    Object::Tenant(tenant) => Some(tenant),
                    _ => None,
                }),
                Change::Delete(Key::Tenant(id)) => {
                    if let Some(gone) = self.tenants.remove(id) {
                        told.say(Event::Tenant { record: (&gone).into(), removed: true });
                    }
                }
                _ => {}
            }
        }
        put.sort_by_key(|tenant| tenant.path.matches('/').count());
        for tenant in put {
            self.tenant_put(tenant, told);
        }
        self.tell_marks(told);
    }

    fn tenant_put(&mut self, tenant: &Tenant, told: &mut Told) {
        let before = self.tenants.get(&tenant.id).map(|before| before.path.clone());
        if let Some(path) = before.filter(|path| *path != tenant.path) {
            self.moved(&path, &tenant.path);
            told.say(Event::MoveTenant { path, to: tenant.path.clone() });
        }
        let record = TenantRecord::from(tenant);
        let known = self.tenants.insert(tenant.id, tenant.clone());
        if known.is_none_or(|known| TenantRecord::from(&known) != record) {
            told.say(Event::Tenant { record, removed: false });
        }
    }

    /// What is below a tenant goes along.
    fn moved(&mut self, from: &str, to: &str) {
        for tenant in self.tenants.values_mut() {
            let rest = tenant.path.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('/'));
            if let Some(rest) = rest {
                tenant.path = format!("{to}{rest}");
            }
        }
    }
}
