//! Laws 2, 4 and 12 over random histories with preemptions, and promotion; each shown to be caught when it is broken on purpose.

#[allow(dead_code, reason = "the histories are shared with other tests, which look at more of each step")]
mod common;

use common::{Step, catches, holds};
use muster_control_core::{Executed, State};
use muster_model::ids::JobId;
use muster_model::{Allocation, AllocationState, EndCause, Job, Object, PreemptReason};
use std::collections::BTreeMap;
use std::sync::Arc;

type Watched = Result<(), String>;

/// The preemptions of a step: by beneficiary, the victims as they were before, with the rule.
fn preempted<'a>(step: &'a Step<'_>) -> BTreeMap<JobId, Vec<(&'a Allocation, PreemptReason)>> {
    let mut found: BTreeMap<JobId, Vec<(&Allocation, PreemptReason)>> = BTreeMap::new();
    for held in step.after.allocations.values() {
        let Some(before) = step.before.allocations.get(&held.id) else { continue };
        if let (AllocationState::Active, AllocationState::Stopping(EndCause::Preempted { by: Some(by), reason })) =
            (&before.state, &held.state)
        {
            found.entry(*by).or_default().push((before, *reason));
        }
    }
    found
}

fn units(held: &Allocation) -> u64 {
    held.charge.gpu_total().0
}

/// Law 4: what a floor pays for is preempted for a higher priority of its own tenant alone.
fn floors_are_kept(step: &Step<'_>) -> Watched {
    for (by, victims) in preempted(step) {
        let Some(job) = step.after.jobs.get(&by) else { continue };
        for (held, reason) in victims {
            let own =
                reason == PreemptReason::Priority && held.tenant == job.tenant && held.priority < job.spec.priority;
            if held.account().is_some() && !own {
                return Err(format!("law 4: allocation {} is guaranteed and was preempted for job {by}", held.id));
            }
        }
    }
    step.after.check().map_err(|broken| broken.to_string())
}

/// Law 4: a claim of which the entry that made it leaves a floor free is charged to that floor.
fn new_claims_are_covered(step: &Step<'_>) -> Watched {
    for job in step.after.jobs.values() {
        let Some(claim) = job.claim.as_ref().filter(|claim| claim.account.is_none()) else { continue };
        if claim.allocation < step.before.meta.next_allocation {
            continue;
        }
        if let Some(account) = step.after.capacity().account_for(job.tenant, &claim.charge) {
            return Err(format!("law 4: the new claim of job {} is burst, but tenant {account} covers it", job.id));
        }
    }
    Ok(())
}

/// Law 12: a reclaim raises the use that floors cover by more than it ends; any other preemption is of a strictly lower priority.
fn potential_rises(step: &Step<'_>) -> Watched {
    for (by, victims) in preempted(step) {
        let Some(job) = step.after.jobs.get(&by) else { continue };
        let Some(claim) = &job.claim else { continue };
        let lost: u64 = victims.iter().filter(|(held, _)| held.account().is_some()).map(|(held, _)| units(held)).sum();
        let reclaims = victims.iter().any(|(_, reason)| *reason == PreemptReason::Reclaim);
        let gained = if claim.account.is_some() { claim.charge.gpu_total().0 } else { 0 };
        if reclaims && gained <= lost {
            return Err(format!("law 12: the reclaim of job {by} covers {gained} units more and {lost} less"));
        }
        let same = victims
            .iter()
            .find(|(held, reason)| *reason != PreemptReason::Reclaim && held.priority >= job.spec.priority);
        if let Some((held, _)) = same {
            return Err(format!("law 12: job {by} preempted allocation {} of no lower priority", held.id));
        }
    }
    Ok(())
}

/// Law 2: what a claim becomes is the whole gang at the places that were claimed; a victim ends whole.
fn preempted_whole(step: &Step<'_>) -> Watched {
    for job in step.before.jobs.values() {
        let Some(claim) = &job.claim else { continue };
        if let Some(held) = step.after.allocations.get(&claim.allocation)
            && (held.tasks != claim.tasks || held.tasks.len() != job.spec.tasks as usize)
        {
            return Err(format!(
                "law 2: job {} claimed {} tasks and got {}",
                job.id,
                claim.tasks.len(),
                held.tasks.len()
            ));
        }
    }
    for held in step.after.allocations.values().filter(|held| !held.pays()) {
        let job = step.after.jobs.get(&held.job);
        if held.tasks.len() != job.map_or(0, |job| job.spec.tasks as usize) {
            return Err(format!("law 2: allocation {} was preempted in part", held.id));
        }
    }
    step.after.check().map_err(|broken| broken.to_string())
}

/// A job of which three attempts that preempted others have failed preempts nobody any more.
fn the_breaker_holds(step: &Step<'_>) -> Watched {
    for by in preempted(step).into_keys() {
        if let Some(job) = step.before.jobs.get(&by).filter(|job| job.preemptor.failures >= 3) {
            return Err(format!("breaker: job {by} preempts after {} failures", job.preemptor.failures));
        }
    }
    Ok(())
}

fn change_one(state: &mut State, which: impl Fn(&Allocation) -> bool, change: impl FnOnce(&mut Allocation)) {
    if let Some(held) = state.allocations.values().find(|held| which(held)) {
        let mut held = Allocation::clone(held);
        change(&mut held);
        state.allocations.insert(held.id, Arc::new(held));
    }
}

#[test]
fn law_4_a_floor_is_not_preempted_for_another_tenant() {
    holds("law_4", || floors_are_kept);
    // A guaranteed allocation is stopped for whoever waits.
    catches(
        "law 4",
        || floors_are_kept,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let by = state.jobs.values().find(|job| job.phase == muster_model::JobPhase::Queued).map(|job| job.id);
                let cause = EndCause::Preempted { by, reason: PreemptReason::Reclaim };
                let now_ms = state.meta.now_ms;
                let guaranteed = |held: &Allocation| {
                    held.account().is_some() && held.state == AllocationState::Active && held.bound_ms < now_ms
                };
                change_one(state, guaranteed, |held| held.state = AllocationState::Stopping(cause));
            }
        },
    );
}

#[test]
fn law_12_each_reclaim_raises_what_floors_cover() {
    holds("law_12", || potential_rises);
    // The beneficiary's claim is not covered by a floor after all.
    catches(
        "law 12",
        || potential_rises,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let claims: Vec<JobId> = state.index().claims.iter().copied().collect();
                for id in claims {
                    let Some(mut job) = state.jobs.get(&id).map(|job| Job::clone(job)) else { continue };
                    if let Some(claim) = &mut job.claim {
                        claim.account = None;
                    }
                    state.jobs.insert(id, Arc::new(job));
                }
            }
        },
    );
}

#[test]
fn law_2_gangs_are_preempted_whole() {
    holds("law_2", || preempted_whole);
    catches(
        "law 2",
        || preempted_whole,
        || {
            |_, state: &mut State, _: &mut Executed| {
                change_one(
                    state,
                    |held| !held.pays() && held.tasks.len() > 1,
                    |held| {
                        drop((held.tasks.pop(), held.task_states.pop()));
                    },
                );
            }
        },
    );
}

#[test]
fn jobs_that_keep_failing_do_not_preempt() {
    holds("breaker", || the_breaker_holds);
    // One of them preempts all the same.
    catches(
        "breaker",
        || the_breaker_holds,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let failing = |job: &Job| job.preemptor.failures >= 3 && job.phase == muster_model::JobPhase::Queued;
                if let Some(by) = state.jobs.values().find(|job| failing(job)).map(|job| job.id) {
                    let cause = EndCause::Preempted { by: Some(by), reason: PreemptReason::Reclaim };
                    let now_ms = state.meta.now_ms;
                    let active = |held: &Allocation| held.state == AllocationState::Active && held.bound_ms < now_ms;
                    change_one(state, active, |held| held.state = AllocationState::Stopping(cause));
                }
                for job in state.jobs.values_mut().filter(|job| job.phase == muster_model::JobPhase::Queued) {
                    let mut failing = Job::clone(job);
                    failing.preemptor.failures = 3;
                    *job = Arc::new(failing);
                }
            }
        },
    );
}

#[test]
fn promotion_is_complete_and_only_then() {
    // A promotion that is forgotten: what a floor covers is burst.
    catches(
        "is burst, but the account of",
        || floors_are_kept,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let guaranteed = |held: &Allocation| held.account().is_some() && held.pays();
                change_one(state, guaranteed, |held| held.set_class(None.into(), held.bound_ms));
            }
        },
    );
    holds("promotion", || new_claims_are_covered);
    catches(
        "law 4: the new claim",
        || new_claims_are_covered,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let claims: Vec<JobId> = state.index().claims.iter().copied().collect();
                for id in claims {
                    let Some(mut job) = state.jobs.get(&id).map(|job| Job::clone(job)) else { continue };
                    let paid = job.claim.as_mut().and_then(|claim| claim.account.take());
                    if paid.is_some() {
                        state.apply(&muster_model::Change::put(Object::Job(job)));
                    }
                }
            }
        },
    );
    // More is charged to a floor than it holds.
    catches(
        "law 4 is broken: the account of",
        || floors_are_kept,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let account = state.tenants.values().find(|tenant| tenant.guarantee.is_empty()).map(|tenant| tenant.id);
                let of_it = |held: &Allocation| Some(held.tenant) == account && held.pays() && held.account().is_none();
                change_one(state, of_it, |held| held.set_class(account.into(), held.bound_ms));
            }
        },
    );
}

/// The histories do what is judged here: preemptions by each rule, claims that are bound, promotions.
#[test]
fn histories_have_preemptions_of_each_kind() {
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 1..=90 {
        let mut count = |step: &Step<'_>| {
            for (_, reason) in preempted(step).into_values().flatten() {
                let kind = match reason {
                    PreemptReason::Reclaim => "reclaim",
                    PreemptReason::Class => "class",
                    _ => "priority",
                };
                *seen.entry(kind).or_default() += 1;
            }
            for job in step.before.jobs.values() {
                let bound =
                    job.claim.as_ref().is_some_and(|claim| step.after.allocations.contains_key(&claim.allocation));
                *seen.entry("bound").or_default() += u32::from(bound);
            }
            for change in step.changes {
                let muster_model::Change::Put(object) = change else { continue };
                let Object::Allocation(held) = &**object else { continue };
                let promoted = held.classes.segments.len() > 1 && held.account().is_some();
                *seen.entry("promoted").or_default() += u32::from(promoted);
            }
            Ok(())
        };
        common::run(seed, 300, &mut count, &mut |_, _, _| {}).expect("nothing is judged");
    }
    for kind in ["reclaim", "priority", "class", "bound", "promoted"] {
        assert!(seen.get(kind).copied().unwrap_or(0) >= 5, "{kind}: {seen:?}");
    }
}
