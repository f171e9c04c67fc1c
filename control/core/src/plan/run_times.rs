//! Run times: what becomes known of a tenant's jobs when an attempt comes to its own end.
//!
//! What must stay true: only attempts that ran from the beginning of their work to their own end are counted, so one that was preempted, lost, cancelled or
//! resumed is not; nothing that decides who starts reads the record.

use super::level;
use crate::draft::Draft;
use muster_model::{Allocation, GpuUnits};

/// Counts an attempt that has come to its own end.
pub(super) fn note(draft: &mut Draft<'_>, held: &Allocation) {
    let known = draft.state.tenants.contains_key(&held.tenant);
    if !known || !level::has(draft.state, level::QUOTAS) {
        return;
    }
    let Some(job) = draft.job(held.job).filter(|job| job.preemptions == 0) else { return };
    let Some(started_ms) = job.started_ms else { return };
    let (limit_s, ran_ms) = (job.spec.time_limit_s, draft.now_ms.saturating_sub(started_ms));
    let gpus = held.charge.gpu_total().0.div_ceil(GpuUnits::CARD.0);
    if let Some(record) = draft.run_times_mut(held.tenant) {
        record.note(gpus, limit_s, ran_ms);
    }
}
