//! What an answer about a job tells of the jobs of other tenants: nothing that names them.
//!
//! What must stay true: whoever sees the fleet is told everything; to others a job that they do not see is as if it had no number and no tenant. A job that is over and
//! has left memory counts as one that they do not see, since nobody looks it up here.

use muster_control_core::State;
use muster_control_core::authz::Visibility;
use muster_model::{JobId, TenantId};
use muster_proto::v1;
use muster_proto::v1::end_cause::Cause;
use muster_scheduler_core::explain::{Names, without_others};

pub(super) fn sees_job(state: &State, sees: &Visibility, job: JobId) -> bool {
    sees.shows_fleet() || state.jobs.get(&job).is_some_and(|job| sees.shows(state, job.tenant))
}

/// The path of a tenant whose limits are shown.
pub(super) fn sees_tenant(state: &State, sees: &Visibility, path: &str) -> bool {
    state.index().tenant_ids.get(path).is_some_and(|id| sees.shows_limits(state, *id))
}

/// Does something with what a caller may know of.
pub(super) fn with_names<T>(state: &State, sees: &Visibility, does: impl FnOnce(&Names<'_>) -> T) -> T {
    let (job, tenant) = (|job| sees_job(state, sees, job), |path: &str| sees_tenant(state, sees, path));
    does(&Names { job: &job, tenant: &tenant })
}

/// Takes what names jobs of others out of a job.
pub(super) fn job(state: &State, sees: &Visibility, job: &mut v1::Job) {
    if sees.shows_fleet() {
        return;
    }
    text(state, sees, &mut job.requeue_reason);
    for record in &mut job.attempts {
        text(state, sees, &mut record.reason);
        let Some(by) = &mut record.preempted else { continue };
        let is_own = by.tenant.is_some_and(|tenant| sees.shows(state, TenantId(tenant)));
        if !is_own {
            (by.job, by.tenant) = (None, None);
        }
        by.account = by.account.filter(|account| sees.shows_limits(state, TenantId(*account)));
    }
}

/// The same of what it holds.
pub(super) fn allocation(state: &State, sees: &Visibility, held: &mut v1::Allocation) {
    if sees.shows_fleet() {
        return;
    }
    let by = match held.stopping.as_mut().and_then(|cause| cause.cause.as_mut()) {
        Some(Cause::Window(window)) => return window.name.clear(),
        Some(Cause::Preempted(preempted)) => &mut preempted.by,
        Some(Cause::Shrunk(shrunk)) => &mut shrunk.by,
        _ => return,
    };
    *by = by.filter(|by| sees_job(state, sees, JobId(*by)));
}

fn text(state: &State, sees: &Visibility, text: &mut String) {
    *text = without_others(text, &|job| sees_job(state, sees, job));
}
