//! What follows from a command for the jobs it touched and for those that depend on them, in the same entry.
//!
//! Every command ends here, so no operation has to think of it. What must stay true:
//! - when a job ends or starts, those that depend on it are decided in the entry that says so;
//! - a pending job that is not eligible has no cell and no reservation, so no shard plans it and nobody hands it over; one that becomes
//!   eligible gets its cell at once;
//! - the work is bounded by the jobs that were touched and their dependents. Nothing here ends a job: what follows from an end is left
//!   to [`super::due`], in portions.

use crate::draft::Draft;
use crate::index::same_name;
use crate::routing::{Router, models_of};
use muster_model::ids::{JobId, TenantId};
use muster_model::start::Verdict;
use muster_model::{Dependency, EndedJob, Job, JobPhase, ValidJobSpec};

/// Draws them all.
pub(super) fn draw(draft: &mut Draft<'_>) {
    let touched = draft.touched_jobs();
    for id in &touched {
        let before = draft.state.jobs.get(id).cloned();
        let ended = draft.ended(*id).map(EndedJob::of);
        match (&ended, draft.job(*id)) {
            (Some(ended), _) => decide_dependents(draft, *id, |on| on.on_ended(ended)),
            (None, Some(now)) if started(before.as_deref(), now) => {
                let now = now.clone();
                decide_dependents(draft, *id, |on| on.on_live(&now));
            }
            _ => {}
        }
        let renamed = |before: &Job| draft.job(*id).is_none_or(|now| !same_name(before, now));
        if let Some(before) = before.filter(|before| renamed(before)) {
            let (tenant, spec) = (before.tenant, before.spec.clone());
            next_of_name(draft, tenant, &spec);
        }
    }
    let mut router = Router::new(draft.state);
    for id in draft.touched_jobs() {
        place(draft, &mut router, id);
    }
}

/// Whether a job has been seen running that had not been before in its present attempt.
fn started(before: Option<&Job>, now: &Job) -> bool {
    now.started_ms.is_some() && before.is_some_and(|before| before.started_ms != now.started_ms)
}

fn decide_dependents(draft: &mut Draft<'_>, id: JobId, decide: impl Fn(&Dependency) -> Verdict) {
    let state = draft.state;
    for dependent in state.index().starts.dependents_of(id) {
        let Some(job) = draft.job(dependent) else { continue };
        let on_it: Vec<Dependency> = job.unmet.dependencies.iter().filter(|on| on.job == id).copied().collect();
        for on in on_it {
            let verdict = decide(&on);
            if verdict != Verdict::Waits
                && let Some(job) = draft.job_mut(dependent)
            {
                job.unmet.decide(on, verdict);
            }
        }
    }
}

/// The oldest live job of a name waits for no other of that name any more.
fn next_of_name(draft: &mut Draft<'_>, tenant: TenantId, spec: &ValidJobSpec) {
    let state = draft.state;
    let live = |job: &JobId| draft.job(*job).is_some_and(|now| now.tenant == tenant && now.spec.name == spec.name);
    let oldest = state.index().starts.named_as(tenant, spec).find(live);
    if let Some(oldest) = oldest.filter(|oldest| draft.job(*oldest).is_some_and(|job| job.unmet.singleton))
        && let Some(job) = draft.job_mut(oldest)
    {
        job.unmet.singleton = false;
    }
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
