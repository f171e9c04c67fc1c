//! How the tenants of a state stand with their quota, for those who ask.

use crate::plan::charge_of;
use crate::state::State;
use muster_model::ids::TenantId;
use muster_model::preemption::{RECLAIM_COOLED_MS_MAX, STOP_MS_MAX};
use muster_model::{GpuModel, Job, JobPhase, JobSpec, Pool, ResourceVec};
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

pub(crate) fn first_model(spec: &JobSpec, any: Option<GpuModel>) -> Option<GpuModel> {
    spec.request.devices.models().first().copied().or(any)
}

/// What a job that a floor covers waits at most for devices of a pool that others borrow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FloorWait {
    /// For which burst work runs at least, in seconds.
    pub cool_down_s: u64,
    /// The longest grace of the burst work that holds devices of the pool now, in seconds.
    pub grace_s: u64,
    /// Until the shard tries again after a cool-down has ended, in seconds; 0 without a cool-down.
    pub retry_s: u64,
    /// To stop tasks that ignore their signal and to clean up, in seconds.
    pub stop_s: u64,
}

/// The same of every pool, by name.
#[must_use]
pub fn floor_waits(state: &State) -> BTreeMap<String, FloorWait> {
    let stop_s = STOP_MS_MAX / 1_000;
    let of = |pool: &Pool| {
        let cool_down_s = pool.cool_down_s;
        let retry_s = if cool_down_s > 0 { RECLAIM_COOLED_MS_MAX / 1_000 } else { 0 };
        (pool.name.clone(), FloorWait { cool_down_s, grace_s: 0, retry_s, stop_s })
    };
    let mut waits: BTreeMap<String, FloorWait> = state.all_pools().map(of).collect();
    for held in state.allocations.values().filter(|held| held.account().is_none()) {
        let Some(job) = state.jobs.get(&held.job) else { continue };
        let grace_s = job.spec.preemption.grace_s(job.spec.grace_s);
        let mut last = None;
        for task in held.tasks.iter().filter(|task| last.replace(task.node) != Some(task.node)) {
            let pool = state.nodes.get(&task.node).and_then(|node| waits.get_mut(&node.spec.pool));
            if let Some(wait) = pool {
                wait.grace_s = wait.grace_s.max(grace_s);
            }
        }
    }
    waits
}
