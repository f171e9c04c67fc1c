//! Which families of waiting jobs a pass tries to preempt for, and when those that it tried in vain are tried again.
//!
//! Groups of one tenant that differ in their time limit alone are a family: what one cannot take, the others cannot either, as a rule. What must
//! stay true:
//! - a pass costs little while nothing can be taken: a family that was tried in vain is left alone for a while that doubles;
//! - it is tried sooner where something has changed for it: it found no place once more, something was freed that may help it, or a cool-down has ended that alone protected a victim;
//! - families that are due and were not tried, because a pass tries only so many, have a time at which the shard passes again.

use crate::job_class::{JobClass, Offer};
use crate::queue::JobGroups;
use crate::queue::order::Head;
use crate::view::{Known, ReclaimFamily, ReclaimTried, View, first_of};
use muster_model::capacity::TenantUse;
use muster_model::{CellId, JobId, TenantId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A job that was tried in vain is tried again after this, then after twice as long, up to [`AGAIN_MS_MAX`].
pub(super) const AGAIN_MS: u64 = 1_000;
/// Sides grow in minutes.
const AGAIN_MS_MAX: u64 = muster_model::preemption::RECLAIM_AGAIN_MS_MAX;
/// Where something has changed since for the job, it is tried again after this at the latest.
const CHANGED_MS: u64 = 5_000;

/// The first jobs of families that are due, at most `tried_max`: as if they alone waited, who is next first.
pub(super) fn candidates(view: &mut View, cell: CellId, tried_max: usize, now_ms: u64) -> Vec<JobId> {
    note_changes(view, cell);
    let nothing_runs = view.allocations.values().next().is_none();
    if nothing_runs || !view.queues.get(&cell).is_some_and(crate::queue::CellQueue::has_blocked) {
        return Vec::new();
    }
    let (found, next) = first_of(view, due_heads(view, cell, now_ms), tried_max);
    if let Some(next) = next {
        rest(view, (cell, next.tenant, next.class.without_limit()), now_ms, AGAIN_MS);
    }
    found.into_iter().map(|head| head.queue_key.job).collect()
}

/// Forgets families that wait no more, and brings forward those that found no place once more: what was in vain then may not be now.
fn note_changes(view: &mut View, cell: CellId) {
    let queues = &view.queues;
    view.reclaims_tried.retain(|family, tried| {
        let blocked_at = queues.get(&family.0).and_then(|queue| queue.family_blocked_at(family.1, &family.2));
        let changed = blocked_at.is_some() && (blocked_at != tried.blocked_at || tried.freed);
        if family.0 == cell && changed {
            (tried.blocked_at, tried.freed) = (blocked_at, false);
            tried.again_ms = tried.again_ms.min(tried.tried_ms.saturating_add(tried.wait_ms.min(CHANGED_MS)));
        }
        queues.get(&family.0).is_some_and(|queue| queue.has_family(family.1, &family.2))
    });
}

/// The first job of each family that found no place, may take devices from others and was not tried a moment ago; by tenant, the last goes first.
fn due_heads(view: &View, cell: CellId, now_ms: u64) -> BTreeMap<TenantId, Vec<Head>> {
    let mut due: BTreeMap<TenantId, Vec<Head>> = BTreeMap::new();
    let means = Means::of(view);
    let tenants = view.queues.get(&cell).into_iter().flat_map(|queue| &queue.tenants);
    for (tenant, groups) in tenants.filter(|(tenant, groups)| means.may_preempt_at_all(view, **tenant, groups)) {
        let rests = |family: &Arc<JobClass>| {
            let tried = view.reclaims_tried.get(&(cell, *tenant, family.clone()));
            tried.is_some_and(|tried| tried.again_ms > now_ms)
        };
        for family in groups.families.keys().filter(|family| !rests(family)) {
            let Some((queue_key, class)) = groups.first_blocked(family) else { continue };
            let may = |job: &Known| may_preempt(view, job, class) && view.stays_in(cell, job, now_ms);
            if view.jobs.get(queue_key.job.0).is_some_and(|job| may(job)) {
                due.entry(*tenant).or_default().push(Head::new(*tenant, *queue_key, class.clone()));
            }
        }
    }
    for heads in due.values_mut() {
        heads.sort_unstable_by_key(|head| Reverse(head.queue_key));
    }
    due
}

/// By what anybody may preempt.
struct Means {
    /// Tenants whose floor accounts have something left.
    accounts: BTreeSet<TenantId>,
    /// Some priority class is marked over others.
    marked: bool,
}

impl Means {
    fn of(view: &View) -> Self {
        let capacity = &view.fleet.capacity;
        let has_room = |id: TenantId, at: &TenantUse| {
            at.guarantee.nonzero().any(|(resource, _)| capacity.account_free(id, resource) > 0)
        };
        let tenants = capacity.tenants().iter().filter(|(_, at)| !at.guarantee.is_empty());
        let accounts = tenants.filter(|(id, at)| has_room(**id, at)).map(|(id, _)| *id).collect();
        let marked = view.priority_classes.values().any(|class| !class.preempts.is_empty());
        Means { accounts, marked }
    }

    /// Whether any job of the tenant could preempt anything: most tenants have used up what their floors hold, and then their groups are not looked at.
    fn may_preempt_at_all(&self, view: &View, tenant: TenantId, groups: &JobGroups) -> bool {
        let account = |(id, _)| self.accounts.contains(&id);
        groups.highest_priority().is_some_and(|priority| view.runs_below(tenant, priority))
            || self.marked
            || !self.accounts.is_empty() && view.fleet.capacity.line_of(tenant).any(account)
    }
}

/// Whether a floor account covers it, or something of its own tenant with a lower priority may run.
fn may_preempt(view: &View, job: &Known, class: &JobClass) -> bool {
    let covered = |offer: &Offer| view.fleet.capacity.account_for(job.tenant, &offer.charge).is_some();
    let own = view.runs_below(job.tenant, job.queue_key.priority());
    let marks = || job.priority_class.as_deref().and_then(|name| view.priority_classes.get(name));
    !job.barred
        && (own || class.offers().iter().any(covered) || marks().is_some_and(|class| !class.preempts.is_empty()))
}

/// Nothing could be taken for this family. `cool_at_ms`: the first end of a cool-down that alone protects something.
pub(super) fn tried_in_vain(view: &mut View, family: ReclaimFamily, now_ms: u64, cool_at_ms: Option<u64>) {
    let before = view.reclaims_tried.get(&family).map_or(0, |tried| tried.wait_ms);
    let wait_ms = (2 * before).clamp(AGAIN_MS, AGAIN_MS_MAX);
    rest(view, family.clone(), now_ms, wait_ms);
    if let (Some(cool_at_ms), Some(tried)) = (cool_at_ms, view.reclaims_tried.get_mut(&family)) {
        tried.again_ms = tried.again_ms.min(cool_at_ms.max(now_ms.saturating_add(AGAIN_MS)));
    }
}

/// The family is left alone for so long.
fn rest(view: &mut View, family: ReclaimFamily, now_ms: u64, wait_ms: u64) {
    let blocked_at = view.queues.get(&family.0).and_then(|queue| queue.family_blocked_at(family.1, &family.2));
    view.reclaims_tried.insert(family, ReclaimTried::in_vain(now_ms, wait_ms, blocked_at));
}

/// Families that are due and were not tried in this pass are tried later: a time that has passed would wake the shard again at once, for ever.
pub(super) fn put_off(view: &mut View, cell: CellId, now_ms: u64) {
    let due = view.reclaims_tried.iter_mut().filter(|(family, tried)| family.0 == cell && tried.again_ms <= now_ms);
    for (_, tried) in due {
        tried.again_ms = now_ms.saturating_add(AGAIN_MS);
    }
}
