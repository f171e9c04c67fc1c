//! Preemptions one after the other, where many at once could not save their work in time.
//!
//! What must stay true: where a pool says what its storage takes, a preemption waits while those that are already being stopped there and its own
//! victims together could not write their checkpoints within the shortest grace among the new ones. One that is alone is never held back.

use crate::view::View;
use muster_model::{Allocation, AllocationId, AllocationState, EndCause};
use std::collections::BTreeMap;

const BYTES_PER_MIB: u64 = 1 << 20;

/// Whether these victims should be stopped later.
pub(super) fn must_wait(view: &View, victims: &[AllocationId]) -> bool {
    let mut new: BTreeMap<&str, Writes> = BTreeMap::new();
    for held in victims.iter().filter_map(|id| view.allocation(*id)) {
        note(view, held, &mut new);
    }
    new.retain(|_, writes| writes.mib_per_s.is_some() && writes.bytes > 0);
    if new.is_empty() {
        return false;
    }
    let mut under_way = BTreeMap::new();
    let preempted = |held: &&std::sync::Arc<Allocation>| {
        matches!(held.state, AllocationState::Stopping(EndCause::Preempted { .. }))
    };
    view.allocations.values().filter(preempted).for_each(|held| note(view, held, &mut under_way));
    new.iter().any(|(pool, writes)| {
        let before = under_way.get(pool).map_or(0, |writes: &Writes| writes.bytes);
        let per_s = writes.mib_per_s.unwrap_or(0).saturating_mul(BYTES_PER_MIB).max(1);
        before > 0 && (before + writes.bytes).div_ceil(per_s) > writes.grace_s
    })
}

/// What is written in one pool.
struct Writes {
    bytes: u64,
    /// The shortest grace.
    grace_s: u64,
    /// What the storage takes.
    mib_per_s: Option<u64>,
}

/// A gang that stands in several pools writes in the first.
fn note<'a>(view: &'a View, held: &'a Allocation, pools: &mut BTreeMap<&'a str, Writes>) {
    let Some(job) = view.jobs.get(held.job.0) else { return };
    let Some(pool) = view.fleet.capacity.pools_under(held).next() else { return };
    let at = pools.entry(pool.name.as_str()).or_insert(Writes {
        bytes: 0,
        grace_s: u64::MAX,
        mib_per_s: pool.checkpoint_mib_per_s,
    });
    at.bytes = at.bytes.saturating_add(job.checkpoint_bytes);
    at.grace_s = at.grace_s.min(job.preempt_grace_ms / 1_000);
}
