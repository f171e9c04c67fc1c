//! Changing an accepted job.
//!
//! What must stay true: a pending job is held to what a submission is held to, so that no change leads around a rule; a job
//! that runs, or waits for those that it preempts, keeps its tenant, because its devices are charged there; its place in the queue goes by when it was submitted, as before.

use super::level;
use super::submit::{readmit, waiting_room};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::ids::JobId;
use muster_model::{JobPhase, JobSpec, JobUpdate, ValidJobSpec, utc};

pub(super) fn update(draft: &mut Draft<'_>, id: JobId, update: &JobUpdate) -> Result<Done, Reject> {
    let Some(job) = draft.job(id) else { return Err(Reject::not_found("job", id)) };
    if update.is_empty() {
        return Err(Reject::field("update", "changes nothing", "name at least one field to change"));
    }
    if update.comment.is_some() {
        level::need(draft.state, level::ACCESS, "comment")?;
    }
    let moves = update.tenant.as_ref().is_some_and(|tenant| *tenant != job.spec.tenant);
    let is_over = job.cancelled || matches!(job.phase, JobPhase::Stopping(_));
    if is_over && !job.requeue_asked {
        let problem = format!("is {id}, which is {}", job.phase.word());
        return Err(Reject::field("job_id", problem, "wait until it is pending or running again"));
    }
    // A job that waits for those that it preempts is charged for their devices already.
    let waits = job.phase == JobPhase::Queued && job.claim.is_none();
    if moves && !waits {
        let is = if job.claim.is_some() { "about to start" } else { job.phase.word() };
        let problem = format!("cannot change: job {id} is {is} and charged to {}", job.spec.tenant);
        return Err(Reject::field("tenant", problem, "requeue the job first, or leave the tenant out"));
    }
    if let Some(class) = job.spec.priority_class.as_ref().filter(|_| update.priority.is_some()) {
        let problem = format!("cannot change: priority class {class} sets it");
        return Err(Reject::field("priority", problem, "leave it out, or submit the job without the class"));
    }
    let spec = update.on(&job.spec).validate().map_err(Reject::Invalid)?;
    if !waits {
        stays_before_windows(draft, id, &spec)?;
        if let Some(job) = draft.job_mut(id) {
            job.spec = spec;
        }
        return Ok(Done::Ok);
    }
    let (state, now_ms) = (draft.state, draft.now_ms);
    let (tenant, cell) = readmit(state, &spec, moves).map_err(|fault| Reject::Invalid(vec![fault]))?;
    if moves {
        waiting_room(state, tenant)?;
    }
    if let Some(job) = draft.job_mut(id) {
        if cell != job.cell {
            job.visited.clear();
            job.routed_ms = now_ms;
        }
        (job.tenant, job.cell, job.spec) = (tenant, cell, spec);
        // What was kept for it was planned for another length.
        job.reserved = None;
    }
    Ok(Done::Ok)
}

/// A longer time limit must not lead into a window that the job was placed to end before.
fn stays_before_windows(draft: &Draft<'_>, id: JobId, spec: &ValidJobSpec) -> Result<(), Reject> {
    let state = draft.state;
    let Some(job) = draft.job(id) else { return Ok(()) };
    let held = job.phase.allocation().and_then(|held| draft.allocation(held));
    // One that waits for those that it preempts begins now at the earliest.
    let place = held.map(|held| (&held.tasks, held.bound_ms));
    let place = place.or_else(|| Some((&job.claim.as_ref()?.tasks, draft.now_ms)));
    let Some((tasks, begin_ms)) = place.filter(|_| !state.windows.is_empty()) else { return Ok(()) };
    let over_ms = |spec: &JobSpec| begin_ms.saturating_add(spec.stays_at_most_ms());
    let (before_ms, after_ms) = (over_ms(&job.spec), over_ms(spec));
    let windows = tasks.iter().flat_map(|task| state.windows_on(task.node));
    let broken = windows.map(|window| (window, window.times())).find(|(window, times)| {
        let named = spec.reservation.as_deref();
        let until_ms = match window.is_named_by(spec.reservation.as_deref()) {
            true if window.flex => return false,
            true => window.end_ms.unwrap_or(u64::MAX),
            false => times.start_ms,
        };
        !times.is_reservation(named) && times.open || before_ms <= until_ms && after_ms > until_ms
    });
    match broken.filter(|_| after_ms > before_ms) {
        None => Ok(()),
        Some((window, _)) => {
            let problem =
                format!("leads into {} {}, which begins at {}", window.kind, window.name, utc::show(window.start_ms));
            Err(Reject::field("time_limit_s", problem, "use a time limit that ends before it, or requeue the job"))
        }
    }
}
