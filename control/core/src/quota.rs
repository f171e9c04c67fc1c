//! How the tenants of a state stand with their quota, for those who ask.

use crate::plan::charge_of;
use crate::state::State;
use muster_model::ids::TenantId;
use muster_model::{GpuModel, Job, JobPhase, JobSpec, ResourceVec};
use std::collections::BTreeMap;

/// What pending jobs of each tenant ask for, those of its descendants included. A job counts on the first model that it names; one that
/// takes any model on the first that the fleet has. A job with a claim is left out, since its tenant is charged already.
#[must_use]
pub fn waiting(state: &State) -> BTreeMap<TenantId, ResourceVec> {
    let any = state.capacity().healthy().gpus().next().map(|(model, _)| model);
    let mut own: BTreeMap<TenantId, ResourceVec> = BTreeMap::new();
    let waits = |job: &Job| matches!(job.phase, JobPhase::Queued) && job.claim.is_none();
    for job in state.jobs.values().filter(|job| waits(job)) {
        own.entry(job.tenant).or_default().add(&charge_of(&job.spec, first_model(&job.spec, any)));
    }
    let mut all: BTreeMap<TenantId, ResourceVec> = BTreeMap::new();
    for (tenant, asked) in own {
        for (above, _) in state.capacity().line_of(tenant) {
            all.entry(above).or_default().add(&asked);
        }
    }
    all
}

fn first_model(spec: &JobSpec, any: Option<GpuModel>) -> Option<GpuModel> {
    spec.request.devices.models().first().copied().or(any)
}
