//! Elastic gangs: parts beyond the minimum are bound, taken back, and end with their attempt.
//!
//! A shard planned this against its own view; everything is proved again here: the lease, that the gang runs and may grow so far, the shape together
//! with what it has, and the capacity ledger. What must stay true:
//! - a part is burst for ever, has the model, cell, tenant and attempt of its minimum, and is never bound while that is being stopped (law 2);
//! - nothing is taken back before it is proved that the waiting gang fits once the parts are gone;
//! - a part that ends leaves the rest of the gang alone; the minimum takes all parts with it, and is released with or after the last of them, so that
//!   the next attempt overlaps nothing (laws 5 and 6).

use super::bind::waiting_in;
use super::charge::charge_of;
use super::{cells, level, ports, shape};
use crate::draft::Draft;
use crate::growth_fault::GrowthFault;
use crate::leased_binding::LeasedBinding;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::tier::tier_of;
use crate::windows;
use muster_model::capacity::{Ended, Misfit};
use muster_model::elastic::GROWTH_ENDS_MAX;
use muster_model::ids::{AllocationId, JobId, NodeId};
use muster_model::{
    Allocation, AllocationState, EndCause, Epoch, Job, JobPhase, Object, QuotaClass, TaskPlacement, TaskState,
};
use std::collections::{BTreeMap, BTreeSet};

/// Binds more workers of a gang that runs, as parts of one unit each.
pub(super) fn grow(draft: &mut Draft<'_>, binding: &LeasedBinding) -> Result<Done, Reject> {
    let state = draft.state;
    level::need(state, level::QUOTAS, "grow")?;
    cells::held_at(state, binding.cell, binding.epoch)?;
    let Some(job) = state.jobs.get(&binding.job) else { return Err(Reject::not_found("job", binding.job)) };
    let minimum = may_grow(draft, job, binding).map_err(|why| Reject::CannotGrow { job: job.id, why })?;
    let mut tasks = minimum.tasks.clone();
    for part in job.growth.parts.iter().filter_map(|id| draft.allocation(*id)) {
        tasks.extend_from_slice(if part.state == AllocationState::Active { &part.tasks } else { &[] });
    }
    shape::check_growth(state, job, tasks, binding)?;
    // It is over when its gang is.
    windows::check(state, job, binding.tasks.iter().map(|task| task.node), minimum.bound_ms)?;
    let unit = job.spec.growth_unit();
    let each = job.spec.request.charge_on(binding.model.unwrap_or(muster_model::GpuModel::ALL[0]));
    let charge = each.times(binding.tasks.len() as u64);
    let (cpu_milli, memory_mib) = (job.spec.request.cpu_milli, job.spec.request.memory_mib);
    state.capacity().prove(job.tenant, &binding.tasks, cpu_milli, memory_mib, &charge)?;
    state.capacity().lending_allows(&Ended::default(), job.tenant, &charge).map_err(Misfit::from)?;

    let (now_ms, priority, submitted_ms) = (draft.now_ms, minimum.priority, job.submitted_ms);
    let first = draft.meta.next_allocation;
    let of_gang = minimum.ports.block();
    for tasks in binding.tasks.chunks(unit as usize) {
        let id = draft.next_allocation();
        let mut part = Allocation {
            id,
            job: job.id,
            attempt: job.attempt,
            tenant: job.tenant,
            cell: binding.cell,
            cell_epoch: binding.epoch,
            model: binding.model,
            cpu_milli,
            memory_mib,
            charge: each.times(u64::from(unit)),
            tasks: tasks.to_vec(),
            task_states: vec![TaskState::Pending; tasks.len()],
            node_epochs: epochs_of(draft, tasks),
            state: AllocationState::Active,
            bound_ms: now_ms,
            failures: Vec::new(),
            classes: Default::default(),
            priority,
            submitted_ms,
            is_growth: true,
            cleaning: Default::default(),
            cleaned_ms: 0,
            topology: job.spec.topology.to_require(),
            ports: Default::default(),
        };
        part.ports = ports::assign(draft, &part, of_gang);
        part.set_class(QuotaClass::Burst(tier_of(state, Some(job), &part)), now_ms);
        draft.put(Object::Allocation(part));
        if let Some(job) = draft.job_mut(binding.job) {
            job.growth.parts.insert(id);
        }
    }
    if let Some(job) = draft.job_mut(binding.job) {
        job.growth.tasks += binding.tasks.len() as u32;
        job.growth.generation += 1;
        job.growth.grown_ms = now_ms;
    }
    Ok(Done::Bound { allocation: first })
}

fn epochs_of(draft: &Draft<'_>, tasks: &[TaskPlacement]) -> BTreeMap<NodeId, Epoch> {
    tasks.iter().filter_map(|task| Some((task.node, draft.state.nodes.get(&task.node)?.epoch))).collect()
}

/// The allocation of the minimum, if the gang may grow by what is proposed.
fn may_grow<'a>(draft: &Draft<'a>, job: &Job, binding: &LeasedBinding) -> Result<&'a Allocation, GrowthFault> {
    let minimum = match job.phase {
        JobPhase::Running(id) => draft.state.allocations.get(&id),
        _ => None,
    };
    let runs = |held: &&std::sync::Arc<Allocation>| held.state == AllocationState::Active && !held.has_ended();
    let Some(minimum) = minimum.filter(runs).filter(|_| job.attempt == binding.attempt) else {
        return Err(GrowthFault::NotRunning { phase: job.phase.word().to_owned() });
    };
    let more = binding.tasks.len() as u64;
    let (now, max) = (u64::from(job.spec.tasks) + u64::from(job.growth.tasks), u64::from(job.spec.tasks_max()));
    if more == 0 || now + more > max || !more.is_multiple_of(u64::from(job.spec.growth_unit())) {
        return Err(GrowthFault::TooLarge { now, more, max });
    }
    if job.growth.ends >= GROWTH_ENDS_MAX {
        return Err(GrowthFault::Ended { ends: job.growth.ends });
    }
    if minimum.cell != binding.cell || minimum.model != binding.model {
        return Err(GrowthFault::Elsewhere);
    }
    Ok(minimum)
}

/// Takes parts back for a gang that waits, fits once they are gone, and has no right to preempt: it is started in its turn when they have ended.
pub(super) fn shrink(draft: &mut Draft<'_>, binding: &LeasedBinding, parts: &[AllocationId]) -> Result<Done, Reject> {
    let state = draft.state;
    level::need(state, level::QUOTAS, "shrink")?;
    cells::held_at(state, binding.cell, binding.epoch)?;
    let job = waiting_in(draft, binding.cell, binding.job, Some(binding.attempt))?;
    shape::check(state, job, binding)?;
    let cannot = |why| Reject::CannotGrow { job: job.id, why };
    let mut seen = BTreeSet::new();
    let part = |id: &AllocationId| {
        let held = state.allocations.get(id).filter(|held| held.is_growth && held.cell == binding.cell);
        let may_end = |held: &&std::sync::Arc<Allocation>| is_free_for(held, job.id);
        held.filter(may_end).filter(|_| seen.insert(*id)).map(|held| &**held)
    };
    let held: Option<Vec<&Allocation>> = parts.iter().map(part).collect();
    let held = held.filter(|held| !held.is_empty()).ok_or_else(|| cannot(GrowthFault::NoParts))?;
    let mut all_ended = Ended::default();
    held.iter().for_each(|part| state.capacity().note_ended(&mut all_ended, part));
    let charge = charge_of(&job.spec, binding.model);
    state.capacity().max_allows_without(&all_ended, job.tenant, &charge).map_err(Misfit::from)?;
    if state.capacity().account_for_without(&all_ended, job.tenant, &charge).is_none() {
        state.capacity().lending_allows(&all_ended, job.tenant, &charge).map_err(Misfit::from)?;
    }
    let (cpu_milli, memory_mib) = (job.spec.request.cpu_milli, job.spec.request.memory_mib);
    state.capacity().prove_without(&held, job.tenant, &binding.tasks, cpu_milli, memory_mib)?;
    for id in parts {
        stop_part(draft, *id, EndCause::Shrunk { by: Some(binding.job) });
    }
    Ok(Done::Ok)
}

/// Whether the devices of a part may be freed for `job`: it runs, or is being stopped for that job already.
fn is_free_for(part: &Allocation, job: JobId) -> bool {
    match part.state {
        AllocationState::Active => true,
        AllocationState::Stopping(EndCause::Shrunk { by }) => by == Some(job),
        AllocationState::Stopping(_) => false,
    }
}

/// Begins to stop one part, or says for whom it is stopped now that it is being stopped already; the gang runs on.
pub(super) fn stop_part(draft: &mut Draft<'_>, id: AllocationId, cause: EndCause) {
    let Some(part) = draft.allocation_mut(id) else { return };
    let (job, tasks) = (part.job, part.tasks.len() as u32);
    let ran = part.state == AllocationState::Active;
    if part.state != AllocationState::Stopping(cause.clone()) {
        part.state = AllocationState::Stopping(cause);
    }
    let now_ms = draft.now_ms;
    if ran && let Some(job) = draft.job_mut(job) {
        job.growth.tasks = job.growth.tasks.saturating_sub(tasks);
        job.growth.generation += 1;
        job.growth.shrunk_ms = now_ms;
    }
}

/// Begins to stop every part that runs: the attempt ends.
pub(super) fn stop_all(draft: &mut Draft<'_>, job: JobId, cause: &EndCause) {
    for id in parts_of(draft, job) {
        if draft.allocation(id).is_some_and(|part| part.state == AllocationState::Active) {
            stop_part(draft, id, cause.clone());
        }
    }
}

/// The parts of a job, those that are being stopped included.
pub(super) fn parts_of(draft: &Draft<'_>, job: JobId) -> Vec<AllocationId> {
    draft.job(job).map(|job| job.growth.parts.iter().copied().collect()).unwrap_or_default()
}

/// What a preemption ends together with these victims: the parts of each that still pay, before the minimum that they belong to.
pub(super) fn with_parts(draft: &Draft<'_>, victims: &[AllocationId]) -> Vec<AllocationId> {
    let named: BTreeSet<AllocationId> = victims.iter().copied().collect();
    let mut all = Vec::with_capacity(victims.len());
    for id in victims {
        let job = draft.allocation(*id).filter(|held| !held.is_growth).map(|held| held.job);
        for part in job.map(|job| parts_of(draft, job)).unwrap_or_default() {
            let pays = draft.allocation(part).is_some_and(Allocation::pays);
            if pays && !named.contains(&part) {
                all.push(part);
            }
        }
        all.push(*id);
    }
    all
}
