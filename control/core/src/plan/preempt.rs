//! Preemption: a waiting gang gets devices that others hold, as soon as these have ended.
//!
//! A shard planned this against its own view; everything is proved again here: the lease, the job's turn, the shape, that each victim may be taken,
//! in the order of the plan, and that the gang fits once all of them are gone. What must stay true:
//! - law 2: a victim is a whole attempt with all of its growth, or a part of growth; the claim is bound whole or not at all;
//! - law 4: what is charged to a floor is taken for a higher priority of the same tenant only;
//! - law 12: a reclaim raises the use that floors cover; a priority preempts strictly lower ones, across tenants only burst, and only where the
//!   classes are marked so;
//! - from this entry on the claim is charged to the beneficiary, and the victims pay no quota.

use super::bind::waiting_in;
use super::charge::charge_of;
use super::{attempts, cells, claims, growth, level, shape};
use crate::draft::Draft;
use crate::leased_binding::LeasedBinding;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::victim_fault::VictimFault;
use crate::windows;
use muster_model::capacity::{Ended, Misfit};
use muster_model::ids::{AllocationId, TenantId};
use muster_model::preemption::STOP_MS_MAX;
use muster_model::priority_class::class_preempts;
use muster_model::{Allocation, AllocationState, EndCause, Job, PreemptReason, ResourceVec};
use std::collections::BTreeSet;

/// Who asks, and what it is charged.
struct Beneficiary<'a> {
    job: &'a Job,
    charge: &'a ResourceVec,
    /// The account that covers it once the victims have ended.
    account: Option<TenantId>,
}

pub(super) fn preempt(
    draft: &mut Draft<'_>,
    binding: &LeasedBinding,
    victims: &[AllocationId],
) -> Result<Done, Reject> {
    let state = draft.state;
    cells::held_at(state, binding.cell, binding.epoch)?;
    let job = waiting_in(draft, binding.cell, binding.job, Some(binding.attempt))?;
    level::need(state, level::QUOTAS, "preempt")?;
    if job.preemptor.is_barred() {
        let (allocation, failures) = (victims.first().copied().unwrap_or_default(), job.preemptor.failures);
        return Err(Reject::NotPreemptible { allocation, why: VictimFault::Barred { failures } });
    }
    shape::check(state, job, binding)?;
    let charge = charge_of(&job.spec, binding.model);
    let victims = &growth::with_parts(draft, victims);
    let held = live(draft, binding, victims)?;
    let mut all_ended = Ended::default();
    held.iter().for_each(|victim| state.capacity().note_ended(&mut all_ended, victim));
    // It begins when the last victim has left, at the latest after its grace.
    let graces = held
        .iter()
        .filter_map(|held| state.jobs.get(&held.job))
        .map(|job| job.spec.preemption.grace_s(job.spec.grace_s));
    let begin_ms = draft.now_ms.saturating_add(1_000 * graces.max().unwrap_or(0) + STOP_MS_MAX);
    windows::check(state, job, binding.tasks.iter().map(|task| task.node), begin_ms)?;
    let account = state.capacity().account_for_without(&all_ended, job.tenant, &charge);
    let asks = Beneficiary { job, charge: &charge, account };
    let reasons = judge(draft, &asks, &held)?;
    state.capacity().max_allows_without(&all_ended, job.tenant, &charge).map_err(Misfit::from)?;
    if account.is_none() {
        state.capacity().lending_allows(&all_ended, job.tenant, &charge).map_err(Misfit::from)?;
    }
    let (cpu_milli, memory_mib) = (job.spec.request.cpu_milli, job.spec.request.memory_mib);
    state.capacity().prove_without(&held, job.tenant, &binding.tasks, cpu_milli, memory_mib)?;

    let claim = claims::on(draft, binding, (charge, account), victims.iter().copied().collect());
    let id = claim.allocation;
    for (victim, reason) in victims.iter().zip(reasons) {
        attempts::stop(draft, *victim, EndCause::Preempted { by: Some(binding.job), reason });
    }
    if let Some(job) = draft.job_mut(binding.job) {
        job.claim = Some(Box::new(claim));
        job.reserved = None;
    }
    Ok(Done::Bound { allocation: id })
}

/// The victims, each of which still runs for another job in the cell.
pub(super) fn live<'a>(
    draft: &Draft<'a>,
    binding: &LeasedBinding,
    victims: &[AllocationId],
) -> Result<Vec<&'a Allocation>, Reject> {
    let mut seen = BTreeSet::new();
    if victims.is_empty() {
        return Err(Reject::field("victims", "is empty", "bind the job instead"));
    }
    let of = |id: &AllocationId| {
        let fault = |fault| Reject::NotPreemptible { allocation: *id, why: fault };
        let held = draft.state.allocations.get(id).ok_or_else(|| fault(VictimFault::Ended))?;
        let fits = |held: &Allocation| held.cell == binding.cell && held.job != binding.job;
        match held.state {
            AllocationState::Active if fits(held) && seen.insert(*id) => Ok(&**held),
            // Growth that is being stopped still pays, and goes with its minimum at the latest.
            AllocationState::Stopping(_) if held.is_growth && held.pays() && fits(held) && seen.insert(*id) => {
                Ok(&**held)
            }
            _ => Err(fault(VictimFault::Ended)),
        }
    };
    victims.iter().map(of).collect()
}

/// Whether the class of the job is marked over that of the victim's.
fn is_marked(draft: &Draft<'_>, job: &Job, victim: &Allocation) -> bool {
    let theirs = draft.state.jobs.get(&victim.job).and_then(|job| job.spec.priority_class.as_deref());
    class_preempts(&draft.state.priority_classes, job.spec.priority_class.as_deref(), theirs)
}

/// Whether it has run for the cool-down of its pools, and has not been preempted as often as they allow.
pub(super) fn pools_allow(draft: &Draft<'_>, victim: &Allocation) -> Result<(), VictimFault> {
    let capacity = draft.state.capacity();
    let preempted = draft.state.jobs.get(&victim.job).map_or(0, |job| job.preemptions);
    if let Some(most) = capacity.preemptions_max(victim).filter(|most| preempted >= *most) {
        return Err(VictimFault::TooOften { most });
    }
    let until_ms = victim.bound_ms.saturating_add(capacity.cool_down_ms(victim));
    if victim.account().is_none() && draft.now_ms < until_ms {
        return Err(VictimFault::CoolDown { until_ms });
    }
    Ok(())
}

/// By which rule each victim may be taken, each after those before it are gone.
fn judge(draft: &Draft<'_>, asks: &Beneficiary<'_>, victims: &[&Allocation]) -> Result<Vec<PreemptReason>, Reject> {
    let capacity = draft.state.capacity();
    let (mut ended, mut lost_floor, mut reasons) = (Ended::default(), 0, Vec::new());
    for victim in victims {
        let fault = |fault| Reject::NotPreemptible { allocation: victim.id, why: fault };
        let reason = if victim.tenant == asks.job.tenant && victim.priority < asks.job.spec.priority {
            PreemptReason::Priority
        } else if victim.account().is_some() {
            return Err(fault(VictimFault::Guaranteed));
        } else if asks.account.is_some() && capacity.may_reclaim(&ended, (asks.job.tenant, asks.charge), victim) {
            PreemptReason::Reclaim
        } else if victim.priority < asks.job.spec.priority && is_marked(draft, asks.job, victim) {
            PreemptReason::Class
        } else if asks.account.is_none() {
            return Err(fault(VictimFault::NotCovered));
        } else {
            return Err(fault(VictimFault::WithinGuarantee));
        };
        // Growth has no cool-down, and taking it is no preemption of its job.
        if victim.is_growth {
            capacity.note_ended(&mut ended, victim);
            reasons.push(reason);
            continue;
        }
        pools_allow(draft, victim).map_err(fault)?;
        if victim.account().is_some() {
            lost_floor += victim.charge.potential();
        }
        capacity.note_ended(&mut ended, victim);
        reasons.push(reason);
    }
    if reasons.contains(&PreemptReason::Reclaim) && asks.charge.potential() <= lost_floor {
        let allocation = victims.first().map(|victim| victim.id).unwrap_or_default();
        return Err(Reject::NotPreemptible { allocation, why: VictimFault::NothingGained });
    }
    Ok(reasons)
}
