//! Removal of tenants: one, or all that a tree no longer names.
//!
//! What must stay true: nothing hangs on a tenant that goes: no child that stays, no live job, no rule. What it used stays in the usage totals under its id, and what it was in its history.

use super::tree::Tree;
use super::versions;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::plan::{requests, secrets};
use crate::reject::Reject;
use crate::state::State;
use muster_model::Tenant;
use muster_model::ids::TenantId;
use muster_model::object::Key;
use muster_model::tenant::TenantSpec;
use std::collections::BTreeSet;

/// Removes a tenant that nothing hangs on.
pub(crate) fn delete(draft: &mut Draft<'_>, path: &str) -> Result<Done, Reject> {
    let state = draft.state;
    let Some(&id) = state.index().tenant_ids.get(path) else { return Err(Reject::not_found("tenant", path)) };
    if let Some(children) = state.index().tenant_children.get(&id) {
        return in_use(path, format!("it has {} children; delete them first", children.len()));
    }
    check_jobs(state, id, path, "cancel them first")?;
    let named = |tenant: &&Tenant| tenant.anti_affinity.iter().any(|other| other.tenant == path);
    if let Some(other) = state.tenants.values().find(named) {
        return in_use(path, format!("anti_affinity of tenant {} names it; remove that rule first", other.path));
    }
    requests::tenant_goes(draft, id);
    goes(draft, id);
    Ok(Done::Ok)
}

/// The tenant goes, with what is known of how long its jobs ran and what it used.
fn goes(draft: &mut Draft<'_>, id: TenantId) {
    if draft.state.run_times.contains_key(&id) {
        draft.delete(Key::RunTimes(id));
    }
    if draft.state.use_histories.contains_key(&id) {
        draft.delete(Key::UseHistory(id));
    }
    secrets::tenant_goes(draft, id);
    versions::note_removed(draft, id);
    draft.delete(Key::Tenant(id));
}

fn in_use<T>(path: &str, why: String) -> Result<T, Reject> {
    Err(Reject::InUse { what: "tenant".to_owned(), id: path.to_owned(), why })
}

fn check_jobs(state: &State, id: TenantId, path: &str, fix: &str) -> Result<(), Reject> {
    match state.index().jobs_of(id).live {
        0 => Ok(()),
        jobs => in_use(path, format!("some of its jobs have not ended ({jobs}); {fix}")),
    }
}

/// Marks the tenants below the roots of the tree that it does not name as removed. A root is a named tenant that is below no other.
pub(super) fn mark_unnamed(tree: &mut Tree<'_>, specs: &[TenantSpec]) -> Result<(), Reject> {
    let state = tree.state;
    let named: BTreeSet<&str> = specs.iter().map(|spec| spec.path.as_str()).collect();
    for spec in specs {
        let mut above = std::iter::successors(Tenant::parent_path(&spec.path), |path| Tenant::parent_path(path));
        if above.any(|path| named.contains(path)) {
            continue;
        }
        let below = state.index().tenants_below(&spec.path, None);
        let unnamed: Vec<TenantId> = below.filter(|id| !tree.new.contains_key(id)).collect();
        tree.removed.extend(unnamed);
    }
    for id in &tree.removed {
        let Some(tenant) = state.tenants.get(id) else { continue };
        check_jobs(state, *id, &tenant.path, "name the tenant in the tree, or cancel them first")?;
        if let Some(child) = tree.new.values().find(|child| child.parent == Some(*id)) {
            return in_use(&tenant.path, format!("the tree names {}, which is below it; name it too", child.path));
        }
    }
    let gone = |path: &str| state.index().tenant_ids.get(path).is_some_and(|id| tree.removed.contains(id));
    let stays = state.tenants.keys().filter(|id| !tree.removed.contains(id)).filter_map(|id| tree.get(*id));
    for tenant in stays {
        if let Some(rule) = tenant.anti_affinity.iter().find(|rule| gone(&rule.tenant)) {
            return in_use(
                &rule.tenant,
                format!("anti_affinity of tenant {} names it; remove that rule first", tenant.path),
            );
        }
    }
    Ok(())
}

/// Removes what was marked, the lowest first, and answers what it was in the order of the tree.
pub(super) fn remove_marked(draft: &mut Draft<'_>, tree: &Tree<'_>) -> Vec<TenantSpec> {
    let state = draft.state;
    let mut gone: Vec<&Tenant> = tree.removed.iter().filter_map(|id| state.tenants.get(id)).collect();
    gone.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
    for tenant in gone.iter().rev() {
        requests::tenant_goes(draft, tenant.id);
        goes(draft, tenant.id);
    }
    gone.into_iter().map(TenantSpec::from).collect()
}
