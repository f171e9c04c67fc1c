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
    /// Until the storage of checkpoints can take more: as if everything of burst that holds devices of the pool now were preempted before, in seconds;
    /// 0 where the pool does not say what its storage takes.
    pub stagger_s: u64,
}

/// What the burst jobs of a pool would write if all were preempted.
#[derive(Clone, Copy, Debug)]
struct Written {
    bytes: u128,
    shortest_grace_s: u64,
}

/// The shard looks again after so long whether the storage can take more, in seconds.
const STAGGER_LOOK_S: u64 = 1;

/// The longest wait for the storage. Two waves of preemptions that follow each other write more than the storage takes within the shortest grace,
/// otherwise they would have been one; each is over after the longest grace and the time to stop.
fn stagger_s(mib_per_s: u64, written: Written, wait: &FloorWait) -> u64 {
    let in_one = u128::from(mib_per_s) * (1 << 20) * u128::from(written.shortest_grace_s);
    if written.bytes <= in_one {
        return 0;
    }
    let waves = (2 * written.bytes).div_ceil(in_one.max(1));
    u64::try_from(waves).unwrap_or(u64::MAX).saturating_mul(wait.grace_s + wait.stop_s + STAGGER_LOOK_S)
}

/// The same of every pool, by name.
#[must_use]
pub fn floor_waits(state: &State) -> BTreeMap<String, FloorWait> {
    let stop_s = STOP_MS_MAX / 1_000;
    let of = |pool: &Pool| {
        let cool_down_s = pool.cool_down_s;
        let retry_s = if cool_down_s > 0 { RECLAIM_COOLED_MS_MAX / 1_000 } else { 0 };
        (pool.name.clone(), FloorWait { cool_down_s, grace_s: 0, retry_s, stop_s, stagger_s: 0 })
    };
    let mut waits: BTreeMap<String, FloorWait> = state.all_pools().map(of).collect();
    let mut written: BTreeMap<&str, Written> = BTreeMap::new();
    for held in state.allocations.values().filter(|held| held.account().is_none()) {
        let Some(job) = state.jobs.get(&held.job) else { continue };
        let grace_s = job.spec.preemption.grace_s(job.spec.grace_s);
        let first = held.tasks.first().and_then(|task| state.nodes.get(&task.node));
        if let Some(node) = first.filter(|_| job.spec.preemption.checkpoint_bytes > 0) {
            let none = Written { bytes: 0, shortest_grace_s: u64::MAX };
            let at = written.entry(node.spec.pool.as_str()).or_insert(none);
            at.bytes += u128::from(job.spec.preemption.checkpoint_bytes);
            at.shortest_grace_s = at.shortest_grace_s.min(grace_s);
        }
        let mut last = None;
        for task in held.tasks.iter().filter(|task| last.replace(task.node) != Some(task.node)) {
            let pool = state.nodes.get(&task.node).and_then(|node| waits.get_mut(&node.spec.pool));
            if let Some(wait) = pool {
                wait.grace_s = wait.grace_s.max(grace_s);
            }
        }
    }
    for pool in state.all_pools() {
        let (Some(mib_per_s), Some(written)) = (pool.checkpoint_mib_per_s, written.get(pool.name.as_str())) else {
            continue;
        };
        if let Some(wait) = waits.get_mut(&pool.name) {
            wait.stagger_s = stagger_s(mib_per_s, *written, wait);
        }
    }
    waits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_the_storage_waits_for_waves() {
        let wait = FloorWait { cool_down_s: 0, grace_s: 60, retry_s: 0, stop_s: 10, stagger_s: 0 };
        // 10 GiB/s and a shortest grace of 30 s: 300 GiB are saved at once.
        let of = |gib: u128| stagger_s(10 << 10, Written { bytes: gib << 30, shortest_grace_s: 30 }, &wait);
        assert_eq!((of(0), of(300)), (0, 0));
        assert_eq!((of(301), of(450), of(600)), (3 * 71, 3 * 71, 4 * 71));
        assert_eq!(stagger_s(10, Written { bytes: 1 << 20, shortest_grace_s: 0 }, &wait), (2 << 20) * 71);
    }
}
