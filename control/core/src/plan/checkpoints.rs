//! Checkpoints that tasks report: kept with the job for whoever stops it, and for its next attempt.
//!
//! What must stay true: the time only moves forward and is never ahead of the state's; a running job is written at most every
//! [`CHECKPOINT_EVERY_MS`], and what it saved on being stopped is always recorded.

use crate::draft::Draft;
use crate::task_report::TaskReport;
use muster_model::AllocationState;
use muster_model::checkpoint::{self, CHECKPOINT_EVERY_MS};

/// Takes over what `report`, of a task that is where it says, tells of a checkpoint; before its state is taken over.
pub(super) fn note(draft: &mut Draft<'_>, report: &TaskReport) {
    let Some(said) = &report.checkpoint else { return };
    let Some(held) = draft.allocation(report.allocation) else { return };
    let last = report.state.is_over() || held.state != AllocationState::Active;
    // A node's clock may be off: it was not made before the binding, nor later than now.
    let at_ms = said.at_ms.min(draft.now_ms).max(held.bound_ms);
    let id = held.job;
    let Some(job) = draft.job(id) else { return };
    let is_due = |before: u64| at_ms > before && (last || at_ms >= before.saturating_add(CHECKPOINT_EVERY_MS));
    if job.checkpoint_ms.is_none_or(is_due)
        && let Some(job) = draft.job_mut(id)
    {
        job.checkpoint_ms = Some(at_ms);
        job.checkpoint_note = checkpoint::note(&said.note);
    }
}
