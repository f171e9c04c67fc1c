//! What follows from a command for the jobs it touched and for those that depend on them, in the same entry.
//!
//! Every command ends here, so no operation has to think of it. What must stay true:
//! - when a job ends or starts, those that depend on it are decided in the entry that says so;
//! - a pending job that is not eligible has no cell and no reservation, so no shard plans it and nobody hands it over; one that becomes
//!   eligible gets its cell at once;
//! - the work is bounded by the jobs that were touched and their dependents. Nothing here ends a job: what follows from an end is left
//!   to [`super::due`], in portions.

use super::{arrays, dependents, move_records};
use crate::draft::Draft;
use crate::index::same_name;
use crate::routing::{Router, models_of};
use muster_model::ids::JobId;
use muster_model::{EndedJob, Job, JobPhase};

/// Draws them all.
pub(super) fn draw(draft: &mut Draft<'_>) {
    let touched = draft.touched_jobs();
    for id in &touched {
        let before = draft.state.jobs.get(id).cloned();
        let ended = draft.ended(*id).map(EndedJob::of);
        match (&ended, draft.job(*id)) {
            (Some(ended), _) => dependents::decide(draft, *id, |on| on.on_ended(ended)),
            (None, Some(now)) if started(before.as_deref(), now) => {
                let now = now.clone();
                dependents::decide(draft, *id, |on| on.on_live(&now));
            }
            _ => {}
        }
        let renamed = |before: &Job| draft.job(*id).is_none_or(|now| !same_name(before, now));
        if let Some(before) = before.filter(|before| renamed(before)) {
            let (tenant, spec) = (before.tenant, before.spec.clone());
            dependents::next_of_name(draft, tenant, &spec);
        }
    }
    arrays::settle(draft, &draft.touched_jobs());
    move_records::settle(draft, &touched);
    let mut router = Router::new(draft.state);
    for id in draft.touched_jobs() {
        place(draft, &mut router, id);
    }
}

/// Whether a job has been seen running that had not been before in its present attempt.
fn started(before: Option<&Job>, now: &Job) -> bool {
    now.started_ms.is_some() && before.is_some_and(|before| before.started_ms != now.started_ms)
}

/// Gives a job that has become eligible a cell, and takes it from one that is pending and is not.
fn place(draft: &mut Draft<'_>, router: &mut Router<'_>, id: JobId) {
    let Some(job) = draft.job(id).filter(|job| job.phase == JobPhase::Queued) else { return };
    if !job.is_eligible() {
        if (job.cell.is_some() || job.reserved.is_some())
            && let Some(job) = draft.job_mut(id)
        {
            withdraw(job);
        }
        return;
    }
    let was_eligible = draft.state.jobs.get(&id).is_some_and(|before| before.is_eligible());
    if was_eligible || job.cell.is_some() {
        return;
    }
    let cell = router.route(&job.spec, &models_of(&job.spec));
    let now_ms = draft.now_ms;
    if let Some(cell) = cell
        && let Some(job) = draft.job_mut(id)
    {
        job.cell = Some(cell);
        job.routed_ms = now_ms;
    }
}

/// No cell plans it any more.
fn withdraw(job: &mut Job) {
    job.cell = None;
    job.visited.clear();
    job.reserved = None;
    job.bypassed_cards = 0;
}
