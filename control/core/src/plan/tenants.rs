//! The quota tree.
//!
//! What must stay true (law 3): children's guarantees sum to at most the parent's, per resource; no max is set below what is in use; the
//! organisations together are guaranteed no more than healthy capacity. And law 8: no tenant is trusted more than its parent, and none becomes
//! untrusted while it shares cards. An edit is merged here, with the state that it changes, so that two at one time lose nothing.

mod checks;
mod half_life;
mod limits;
mod relocate;
mod remove;
mod tree;
mod users;
mod versions;

pub(super) use relocate::relocate;
pub(super) use remove::delete;
pub(super) use versions::{begin as begin_versions, forget as forget_versions};

use crate::bounds::{TENANTS_MAX, TENANTS_PER_COMMAND_MAX};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::plan::level;
use crate::reject::Reject;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::{TenantChange, TenantEdit};
use muster_model::{AntiAffinity, FieldError, Object, Tenant};
use std::collections::BTreeSet;
use tree::Tree;

/// Adds and changes tenants as they are described, all or none.
pub(super) fn apply(draft: &mut Draft<'_>, specs: &[TenantSpec]) -> Result<Done, Reject> {
    put(draft, "tenants", specs, false)
}

/// Adds and changes tenants in what the edits name, all or none; with `prune` it also removes those below them that they do not name. With
/// `half_life_s` past use counts by it from now on.
pub(super) fn edit(
    draft: &mut Draft<'_>,
    edits: &[TenantEdit],
    prune: bool,
    half_life_s: Option<u64>,
) -> Result<Done, Reject> {
    let state = draft.state;
    let present = |path: &String| state.tenants.get(state.index().tenant_ids.get(path)?);
    let specs: Vec<TenantSpec> = edits.iter().map(|edit| edit.on(present(&edit.path))).collect();
    let Some(half_life_s) = half_life_s else { return put(draft, "edits", &specs, prune) };
    let (mut changes, mut removed) = (Vec::new(), Vec::new());
    if !specs.is_empty() {
        (changes, removed) = put_tree(draft, "edits", &specs, prune)?;
    }
    let half_life_before_s = half_life::set(draft, half_life_s)?;
    Ok(Done::Tenants { changes, removed, half_life_before_s })
}

/// `list` is where faults are, in the words of the call.
fn put(draft: &mut Draft<'_>, list: &'static str, specs: &[TenantSpec], prune: bool) -> Result<Done, Reject> {
    let (changes, removed) = put_tree(draft, list, specs, prune)?;
    Ok(Done::Tenants { changes, removed, half_life_before_s: None })
}

/// What differs then, and what is gone.
fn put_tree(
    draft: &mut Draft<'_>,
    list: &'static str,
    specs: &[TenantSpec],
    prune: bool,
) -> Result<(Vec<TenantChange>, Vec<TenantSpec>), Reject> {
    if specs.is_empty() || specs.len() > TENANTS_PER_COMMAND_MAX {
        return Err(Reject::field(list, format!("has {}", specs.len()), "apply 1 to 10,000 tenants at once"));
    }
    check_each(list, specs)?;
    let mut tree = Tree::over(draft.state, list);
    let mut order: Vec<usize> = (0..specs.len()).collect();
    order.sort_by_key(|&index| specs[index].path.matches('/').count());
    for index in order {
        describe(draft, &mut tree, index, &specs[index])?;
    }
    if prune {
        level::need(draft.state, level::QUOTAS, "prune")?;
        remove::mark_unnamed(&mut tree, specs)?;
    }
    let added = tree.new.keys().filter(|id| !draft.state.tenants.contains_key(id)).count();
    if draft.state.tenants.len() + added > TENANTS_MAX {
        return Err(Reject::Full { what: "the table of tenants".to_owned(), limit: TENANTS_MAX as u64 });
    }
    tree.check_guarantees()?;
    tree.check_trust()?;
    tree.check_anti_affinity()?;
    tree.check_limits()?;
    tree.check_users()?;
    let removed = remove::remove_marked(draft, &tree);
    Ok((put_all(draft, tree), removed))
}

/// Puts what differs, and answers it in the order of the tree.
fn put_all(draft: &mut Draft<'_>, tree: Tree<'_>) -> Vec<TenantChange> {
    let mut changes = Vec::new();
    for (id, tenant) in tree.new {
        let before = draft.state.tenants.get(&id);
        if before != Some(&tenant) {
            changes.push(TenantChange { before: before.map(Into::into), after: (&tenant).into() });
            versions::note(draft, &tenant);
            draft.put(Object::Tenant(tenant));
        }
    }
    changes.sort_by(|a, b| a.after.path.split('/').cmp(b.after.path.split('/')));
    changes
}

fn check_each(list: &str, specs: &[TenantSpec]) -> Result<(), Reject> {
    let mut wrong: Vec<FieldError> = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, spec) in specs.iter().enumerate() {
        let prefix = format!("{list}[{index}]");
        if let Err(errors) = spec.validate() {
            wrong.extend(errors.into_iter().map(|error| error.under(&prefix)));
        }
        if !seen.insert(spec.path.as_str()) {
            let problem = format!("{:?} is listed twice", spec.path);
            wrong.push(FieldError::new("path", problem, "list each tenant once").under(&prefix));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Reject::Invalid(wrong)) }
}

fn describe(draft: &mut Draft<'_>, tree: &mut Tree<'_>, index: usize, spec: &TenantSpec) -> Result<(), Reject> {
    let parent = match Tenant::parent_path(&spec.path) {
        None => None,
        Some(path) => Some(tree.id_of(path).ok_or_else(|| {
            let problem = format!("parent {path:?} does not exist");
            Reject::field(
                format!("{}[{index}].path", tree.list),
                problem,
                "create the parent first or in the same call",
            )
        })?),
    };
    let id = match tree.id_of(&spec.path) {
        Some(id) => id,
        None => draft.next_tenant(),
    };
    if spec.run_as.is_some() {
        level::need(draft.state, level::QUOTAS, "run_as")?;
    }
    let tenant = Tenant {
        id,
        path: spec.path.clone(),
        parent,
        guarantee: spec.guarantee,
        max: spec.max.clone(),
        weight: spec.weight,
        trust: spec.trust,
        anti_affinity: in_order(&spec.anti_affinity),
        lend: spec.lend,
        weights: spec.weights.clone(),
        lends: spec.lends.clone(),
        run_as: spec.run_as,
    };
    if draft.state.tenants.get(&id) != Some(&tenant) {
        tree.place.insert(id, index);
    }
    tree.insert(tenant);
    Ok(())
}

/// One order for what means the same.
fn in_order(anti_affinity: &[AntiAffinity]) -> Vec<AntiAffinity> {
    let mut anti_affinity = anti_affinity.to_vec();
    anti_affinity.sort_unstable();
    anti_affinity
}
