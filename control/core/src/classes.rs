//! Promotion and demotion: what follows, in the same log entry, when a floor account gets something back or shrinks.
//!
//! What must stay true: at the end of an entry, and before anything is bound in it, no burst allocation is left that a floor account on its path
//! covers, no claim that was made in the entry is burst although one covers it, and no account is charged more than it holds. What runs is
//! promoted before claims; both by priority, then age. An allocation that is being preempted is never promoted; nothing is demoted
//! unless its account has shrunk.

use crate::level;
use crate::state::State;
use crate::tier::tier_of;
use muster_model::ids::{AllocationId, JobId, TenantId};
use muster_model::resources::Resource;
use muster_model::{Allocation, Change, Job, Object, QuotaClass, ResourceVec};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Makes what is due; answers the changes, which are applied already. `raised`: the feature level has been raised, so every account is looked at.
/// `first_new`: the first allocation id that the entry could give; claims from it on are the entry's own.
pub(crate) fn settle(state: &mut State, now_ms: u64, raised: bool, first_new: AllocationId) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut freed = state.take_freed();
    // Levels are raised once in a while: from then on whatever a floor covers is guaranteed.
    if raised {
        freed = state.tenants.keys().copied().collect();
    }
    if freed.is_empty() || !level::has(state, level::QUOTAS) {
        return changes;
    }
    for account in freed.clone() {
        while state.capacity().is_overcharged(account) {
            let Some(tenant) = demote_one(state, account, now_ms, &mut changes) else { break };
            // Another account on its path may cover it.
            freed.extend(state.capacity().line_of(tenant).map(|(id, _)| id));
        }
    }
    freed.append(&mut state.take_freed());
    for account in deepest_first(state, freed) {
        while let Some(id) = state.index().classes.first_covered(state.capacity(), account) {
            set_account(state, id, Some(account), now_ms, &mut changes);
        }
    }
    cover_new_claims(state, first_new, &mut changes);
    state.take_freed();
    changes
}

/// A preemption may stop what a floor paid for after another command of the entry made a burst claim: the floor pays for that claim then.
fn cover_new_claims(state: &mut State, first_new: AllocationId, changes: &mut Vec<Change>) {
    let claim_of = |id: &JobId| {
        let job = state.jobs.get(id)?;
        let claim = job.claim.as_ref().filter(|claim| claim.account.is_none() && claim.allocation >= first_new)?;
        Some((Reverse(job.spec.priority), job.submitted_ms, claim.allocation, job.id))
    };
    let mut claims: Vec<_> = state.index().claims.iter().filter_map(claim_of).collect();
    claims.sort_unstable();
    for (_, _, _, id) in claims {
        let Some(mut job) = state.jobs.get(&id).map(|job| Job::clone(job)) else { continue };
        let Some(claim) = &mut job.claim else { continue };
        claim.account = state.capacity().account_for(job.tenant, &claim.charge);
        if claim.account.is_some() {
            apply(state, Object::Job(job), changes);
        }
    }
}

/// An account closer to the tenant pays before one further up, which more tenants may need.
fn deepest_first(state: &State, accounts: BTreeSet<TenantId>) -> Vec<TenantId> {
    let depth = |id: &TenantId| state.capacity().line_of(*id).count();
    let mut accounts: Vec<TenantId> = accounts.into_iter().collect();
    accounts.sort_by_key(|id| (Reverse(depth(id)), *id));
    accounts
}

/// Takes one allocation, or when there is none one claim, off an account that has shrunk; answers whose it is.
fn demote_one(state: &mut State, account: TenantId, now_ms: u64, changes: &mut Vec<Change>) -> Option<TenantId> {
    // Only what gives back something of what is charged too much.
    let too_much: Vec<Resource> = state.capacity().overcharged(account).collect();
    let helps = |charge: &ResourceVec| too_much.iter().any(|resource| charge.get(*resource) > 0);
    let held = |id: &AllocationId| state.allocations.get(id).is_some_and(|held| helps(&held.charge));
    let last = state.index().classes.last_of(account).find(held);
    if let Some(id) = last {
        set_account(state, id, None, now_ms, changes);
        return state.allocations.get(&id).map(|held| held.tenant);
    }
    let charged = |id: &JobId| {
        let claim = state.jobs.get(id)?.claim.as_ref()?;
        claim.account.filter(|_| helps(&claim.charge))
    };
    let id = state.index().claims.iter().copied().rev().find(|id| charged(id) == Some(account))?;
    let mut job = state.jobs.get(&id).map(|job| Job::clone(job))?;
    let tenant = job.tenant;
    if let Some(claim) = &mut job.claim {
        claim.account = None;
    }
    apply(state, Object::Job(job), changes);
    Some(tenant)
}

fn set_account(state: &mut State, id: AllocationId, account: Option<TenantId>, now_ms: u64, changes: &mut Vec<Change>) {
    let Some(mut held) = state.allocations.get(&id).map(|held| Allocation::clone(held)) else { return };
    let tier = tier_of(state, state.jobs.get(&held.job).map(AsRef::as_ref), &held);
    held.set_class(QuotaClass::of(account, tier), now_ms);
    apply(state, Object::Allocation(held), changes);
}

fn apply(state: &mut State, object: Object, changes: &mut Vec<Change>) {
    let change = Change::put(object);
    state.apply(&change);
    changes.push(change);
}
