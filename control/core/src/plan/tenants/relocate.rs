//! Moves and renames: a tenant gets another parent, another name or both, and everything below it goes along.
//!
//! What must stay true: ids stay, so whatever refers to a tenant by id (allocations, usage, requests) is untouched; whatever refers to it by path
//! (jobs that have not ended, anti-affinity rules, device classes) is changed in the same command. No law is broken at the
//! new place, and no card is shared between two organisations by a move (law 8). Jobs go on running.

use super::tree::Tree;
use crate::bounds::{MOVED_JOBS_MAX, TENANTS_PER_COMMAND_MAX};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::plan::{level, requests};
use crate::reject::Reject;
use crate::tier::tier_of;
use muster_model::ids::TenantId;
use muster_model::tenant::{TenantSpec, lies_under};
use muster_model::{DeviceClass, FieldError, Job, JobSpec, Object, PriorityClass, QuotaClass, Tenant, ValidJobSpec};
use std::collections::BTreeSet;

/// The field that is wrong when the new place is.
const TO: &str = "to";

pub(crate) fn relocate(draft: &mut Draft<'_>, path: &str, to: &str) -> Result<Done, Reject> {
    let state = draft.state;
    level::need(state, level::QUOTAS, TO)?;
    let Some(&id) = state.index().tenant_ids.get(path) else { return Err(Reject::not_found("tenant", path)) };
    let parent = new_parent(draft, path, to)?;
    let moved: BTreeSet<TenantId> = state.index().tenants_below(path, None).collect();
    let jobs: u64 = moved.iter().map(|id| state.index().jobs_of(*id).live).sum();
    for (what, count, limit) in [
        ("tenants below it", moved.len() as u64, TENANTS_PER_COMMAND_MAX as u64),
        ("jobs that have not ended", jobs, MOVED_JOBS_MAX),
    ] {
        if count > limit {
            let why = format!("it has {count} {what}, and one move takes at most {limit}; move its parts one by one");
            return Err(Reject::InUse { what: "tenant".to_owned(), id: path.to_owned(), why });
        }
    }
    let tree = with_move(draft, id, parent, (path, to))?;
    tree.check_guarantees()?;
    tree.check_trust()?;
    tree.check_anti_affinity()?;
    tree.check_promises()?;
    tree.check_users()?;
    check_max(&tree, id, parent)?;
    check_sharing(&tree, &moved, id, parent)?;
    // First: what else changes is reported as a consequence of the move.
    let changes = super::put_all(draft, tree);
    rename_elsewhere(draft, &moved, (path, to));
    leave_accounts(draft, &moved, parent);
    // Ids of requests that are still remembered name the old path: should another tenant get it, none of them may run again.
    for tenant in &moved {
        requests::tenant_goes(draft, *tenant);
    }
    Ok(Done::Tenants { changes, removed: Vec::new(), half_life_before_s: None })
}

/// The parent at the new place; none for an organisation.
fn new_parent(draft: &Draft<'_>, path: &str, to: &str) -> Result<Option<TenantId>, Reject> {
    let ids = &draft.state.index().tenant_ids;
    if lies_under(to, path) {
        let problem = format!("{to} is the tenant itself or below it");
        return Err(Reject::field(TO, problem, "name a path outside of the tenant that moves"));
    }
    if ids.contains_key(to) {
        let problem = format!("tenant {to} exists");
        return Err(Reject::field(TO, problem, format!("name a new path, such as {to}/{}", last_name(path))));
    }
    match Tenant::parent_path(to) {
        None => Ok(None),
        Some(parent) => match ids.get(parent) {
            Some(id) => Ok(Some(*id)),
            None => Err(Reject::field(TO, format!("parent {parent:?} does not exist"), "create the parent first")),
        },
    }
}

fn last_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The path after the move, if it changes.
fn renamed(path: &str, (from, to): (&str, &str)) -> Option<String> {
    lies_under(path, from).then(|| format!("{to}{}", &path[from.len()..]))
}

/// The tree after the move, each tenant in it checked by itself.
fn with_move<'a>(
    draft: &Draft<'a>,
    id: TenantId,
    parent: Option<TenantId>,
    paths: (&str, &str),
) -> Result<Tree<'a>, Reject> {
    let mut tree = Tree::over(draft.state, TO);
    for tenant in draft.state.tenants.values() {
        let mut after = tenant.clone();
        if let Some(path) = renamed(&tenant.path, paths) {
            after.path = path;
        }
        if tenant.id == id {
            after.parent = parent;
        }
        for rule in &mut after.anti_affinity {
            if let Some(path) = renamed(&rule.tenant, paths) {
                rule.tenant = path;
            }
        }
        after.anti_affinity.sort_unstable();
        if after == *tenant {
            continue;
        }
        if let Err(wrong) = TenantSpec::from(&after).validate() {
            let at = |error: FieldError| {
                let problem = format!("after the move {} of tenant {} {}", error.field, after.path, error.problem);
                FieldError::new(TO, problem, error.fix)
            };
            return Err(Reject::Invalid(wrong.into_iter().map(at).collect()));
        }
        tree.insert(after);
    }
    Ok(tree)
}

/// What the moved tenants use fits under every max that is new above them.
fn check_max(tree: &Tree<'_>, id: TenantId, parent: Option<TenantId>) -> Result<(), Reject> {
    let capacity = tree.state.capacity();
    let used = capacity.tenants().get(&id).map(|at| at.used).unwrap_or_default();
    let before: BTreeSet<TenantId> = capacity.line_of(id).map(|(above, _)| above).collect();
    let new =
        parent.into_iter().flat_map(|parent| capacity.line_of(parent)).filter(|(above, _)| !before.contains(above));
    for (_, at) in new {
        let over = used.nonzero().find_map(|(resource, used)| {
            let (max, sum) = (at.max.get(resource)?, at.used.get(resource) + used);
            (sum > max).then_some((resource, used, sum, max))
        });
        if let Some((resource, used, sum, max)) = over {
            let words = |amount| resource.in_words(amount);
            let problem = format!(
                "tenant {} would use {}, {} of it by {}, and its max is {}: {}",
                at.path,
                words(sum),
                words(used),
                tree.state.tenants.get(&id).map_or("", |tenant| &tenant.path),
                words(max),
                tree.users_of(id, resource),
            );
            let fix = format!("raise the max of {} to {}, or end some of these jobs first", at.path, words(sum));
            return Err(Reject::field(TO, problem, fix));
        }
    }
    Ok(())
}

/// Shares of one card belong to one organisation: whoever holds some stays in its own.
fn check_sharing(
    tree: &Tree<'_>,
    moved: &BTreeSet<TenantId>,
    id: TenantId,
    parent: Option<TenantId>,
) -> Result<(), Reject> {
    let capacity = tree.state.capacity();
    if parent.map_or(id, |parent| capacity.domain_of(parent)) == capacity.domain_of(id) {
        return Ok(());
    }
    match tree.sharing().into_iter().find(|(tenant, _)| moved.contains(tenant)) {
        None => Ok(()),
        Some((_, held)) => {
            let why = format!(
                "job {} shares a GPU in its organisation, and would be in another; end it first, or move the tenant later",
                held.job
            );
            Err(Reject::InUse { what: "allocation".to_owned(), id: held.id.to_string(), why })
        }
    }
}

/// Floor accounts that are not above the new place pay no longer for what the moved tenants hold and claim.
fn leave_accounts(draft: &mut Draft<'_>, moved: &BTreeSet<TenantId>, parent: Option<TenantId>) {
    let state = draft.state;
    let above: BTreeSet<TenantId> =
        parent.into_iter().flat_map(|parent| state.capacity().line_of(parent)).map(|(id, _)| id).collect();
    let leaves = |account: Option<TenantId>| account.is_some_and(|id| !moved.contains(&id) && !above.contains(&id));
    let now_ms = draft.now_ms;
    for held in state.allocations.values().filter(|held| moved.contains(&held.tenant) && leaves(held.account())) {
        let tier = tier_of(state, state.jobs.get(&held.job).map(AsRef::as_ref), held);
        if let Some(held) = draft.allocation_mut(held.id) {
            held.set_class(QuotaClass::Burst(tier), now_ms);
        }
    }
    for id in &state.index().claims {
        let charged = state.jobs.get(id).filter(|job| moved.contains(&job.tenant)).and_then(|job| job.claim.as_ref());
        if charged.is_some_and(|claim| leaves(claim.account))
            && let Some(claim) = draft.job_mut(*id).and_then(|job| job.claim.as_mut())
        {
            claim.account = None;
        }
    }
}

/// What refers to the moved tenants by path: live jobs, device classes and priority classes.
fn rename_elsewhere(draft: &mut Draft<'_>, moved: &BTreeSet<TenantId>, paths: (&str, &str)) {
    let state = draft.state;
    for job in state.jobs.values().filter(|job| moved.contains(&job.tenant)) {
        let Some(tenant) = renamed(&job.spec.tenant, paths) else { continue };
        let spec = JobSpec { tenant, ..JobSpec::clone(&job.spec) };
        draft.put(Object::Job(Job { spec: ValidJobSpec::from_control_plane(spec), ..Job::clone(job) }));
    }
    let renamed_all = |tenants: &BTreeSet<String>| -> Option<BTreeSet<String>> {
        let after = tenants.iter().map(|path| renamed(path, paths).unwrap_or_else(|| path.clone())).collect();
        (after != *tenants).then_some(after)
    };
    for class in state.device_classes.values() {
        if let Some(tenants) = renamed_all(&class.tenants) {
            draft.put(Object::DeviceClass(DeviceClass { tenants, ..class.clone() }));
        }
    }
    for class in state.priority_classes.values() {
        if let Some(tenants) = renamed_all(&class.tenants) {
            draft.put(Object::PriorityClass(PriorityClass { tenants, ..class.clone() }));
        }
    }
}
