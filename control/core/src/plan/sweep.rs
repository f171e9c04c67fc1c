//! Sweeping: what has passed its horizon is forgotten, and jobs without a cell get another chance. Each kind is bounded per
//! sweep, so that no log entry is large; the rest waits for the next.

use super::{access, nodes, requests, tenants, withholding};
use crate::bounds::{RELEASED_USAGE_MAX, REROUTE_MAX, SWEEP_MAX, USAGE_HORIZON_MS};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::routing::{Router, models_of};
use muster_model::ids::JobId;
use muster_model::object::Key;

pub(super) fn sweep(draft: &mut Draft<'_>) -> Result<Done, Reject> {
    requests::forget(draft);
    forget_usage(draft);
    nodes::forget(draft);
    withholding::follow_spared(draft);
    tenants::forget_versions(draft);
    access::forget(draft);
    reroute(draft);
    Ok(Done::Ok)
}

fn forget_usage(draft: &mut Draft<'_>) {
    let before = draft.now_ms.saturating_sub(USAGE_HORIZON_MS);
    let state = draft.state;
    let released = &state.index().released_usage;
    let excess = released.len().saturating_sub(RELEASED_USAGE_MAX);
    for (place, (released_ms, id)) in released.iter().enumerate().take(SWEEP_MAX) {
        if place >= excess && *released_ms >= before {
            break;
        }
        draft.delete(Key::AllocationUsage(*id));
    }
}

/// Looks at a bounded number of the jobs that no cell could hold so far, beginning at a place that wanders with time, so that
/// none is passed over for ever.
fn reroute(draft: &mut Draft<'_>) {
    let state = draft.state;
    let Some(waiting) = state.index().queued.get(&None) else { return };
    let first = JobId(draft.now_ms % state.meta.next_job.0.max(1));
    let from_there = waiting.range(first..).chain(waiting.range(..first)).take(REROUTE_MAX);
    let mut router = Router::new(state);
    let now_ms = draft.now_ms;
    for &id in from_there {
        let Some(spec) = draft.job(id).map(|job| job.spec.clone()) else { continue };
        let Some(cell) = router.route(&spec, &models_of(&spec)) else { continue };
        if let Some(job) = draft.job_mut(id) {
            job.cell = Some(cell);
            job.routed_ms = now_ms;
        }
    }
}
