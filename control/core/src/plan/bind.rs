//! Bindings: a gang gets devices, whole or not at all.
//!
//! A shard planned this against its own view; everything is proved again here (laws 1, 2, 3, 5, 7 and 8): the lease, the job's
//! turn, the shape of the placement, and then the capacity ledger.

use super::charge::charge_of;
use super::{cells, claims, level, ports, shape};
use crate::draft::Draft;
use crate::leased_binding::LeasedBinding;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::windows;
use muster_model::capacity::{Ended, Misfit};
use muster_model::ids::{Attempt, CellId, JobId};
use muster_model::{Job, Object};
use std::collections::BTreeSet;

pub(super) fn bind(draft: &mut Draft<'_>, binding: &LeasedBinding) -> Result<Done, Reject> {
    let state = draft.state;
    cells::held_at(state, binding.cell, binding.epoch)?;
    let job = waiting_in(draft, binding.cell, binding.job, Some(binding.attempt))?;
    shape::check(state, job, binding)?;
    windows::check(state, job, binding.tasks.iter().map(|task| task.node), draft.now_ms)?;
    let (cpu_milli, memory_mib) = (job.spec.request.cpu_milli, job.spec.request.memory_mib);
    let charge = charge_of(&job.spec, binding.model);
    state.capacity().prove(job.tenant, &binding.tasks, cpu_milli, memory_mib, &charge)?;
    let account = state.capacity().account_for(job.tenant, &charge);
    if account.is_none() && level::has(state, level::QUOTAS) {
        state.capacity().lending_allows(&Ended::default(), job.tenant, &charge).map_err(Misfit::from)?;
    }
    let found = claims::on(draft, binding, (charge, account), BTreeSet::new());
    let (id, now_ms, classes) = (found.allocation, draft.now_ms, level::has(state, level::QUOTAS));
    if let Some(job) = draft.job_mut(binding.job) {
        let mut held = claims::begin_attempt(state, job, &found, now_ms);
        if !classes {
            (held.classes, held.priority, held.submitted_ms, held.topology) = Default::default();
        }
        held.ports = ports::assign(draft, &held, None);
        draft.put(Object::Allocation(held));
    }
    Ok(Done::Bound { allocation: id })
}

/// The job, if it waits in `cell` and `attempt`, where one is given, is its next.
pub(super) fn waiting_in<'a>(
    draft: &Draft<'a>,
    cell: CellId,
    id: JobId,
    attempt: Option<Attempt>,
) -> Result<&'a Job, Reject> {
    let Some(job) = draft.state.jobs.get(&id) else { return Err(Reject::not_found("job", id)) };
    let next = job.attempt.next();
    let got = attempt.unwrap_or(next);
    if job.is_eligible() && job.claim.is_none() && job.cell == Some(cell) && got == next {
        return Ok(job);
    }
    let place = job.cell.map(|cell| format!(" in {}", cells::name(draft.state, cell))).unwrap_or_default();
    Err(Reject::NotWaiting { job: id, phase: format!("{}{place}", job.phase.word()), next, got })
}
