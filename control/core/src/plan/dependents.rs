//! Jobs that wait for another one: decided when it ends or starts.

use crate::draft::Draft;
use muster_model::ids::{JobId, TenantId};
use muster_model::start::Verdict;
use muster_model::{Dependency, ValidJobSpec};

/// Decides what depends on `id`.
pub(super) fn decide(draft: &mut Draft<'_>, id: JobId, decide: impl Fn(&Dependency) -> Verdict) {
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
pub(super) fn next_of_name(draft: &mut Draft<'_>, tenant: TenantId, spec: &ValidJobSpec) {
    let state = draft.state;
    let live = |job: &JobId| draft.job(*job).is_some_and(|now| now.tenant == tenant && now.spec.name == spec.name);
    let oldest = state.index().starts.named_as(tenant, spec).find(live);
    if let Some(oldest) = oldest.filter(|oldest| draft.job(*oldest).is_some_and(|job| job.unmet.singleton))
        && let Some(job) = draft.job_mut(oldest)
    {
        job.unmet.singleton = false;
    }
}
