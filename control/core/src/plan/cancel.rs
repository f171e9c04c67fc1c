//! Cancellation.

use super::attempts;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::ids::JobId;
use muster_model::{EndCause, JobPhase, Outcome};

/// A waiting job is over at once; one that holds devices is stopped gracefully; asking twice changes nothing.
pub(super) fn cancel(draft: &mut Draft<'_>, id: JobId) -> Result<Done, Reject> {
    let Some(job) = draft.job(id) else { return Err(Reject::not_found("job", id)) };
    let phase = job.phase.clone();
    if job.cancelled {
        return Ok(Done::Ok);
    }
    if let Some(job) = draft.job_mut(id) {
        job.cancelled = true;
    }
    match phase {
        JobPhase::Queued => draft.retire(id, Outcome::Cancelled),
        JobPhase::Starting(allocation) | JobPhase::Running(allocation) => {
            attempts::stop(draft, allocation, EndCause::Cancelled);
        }
        JobPhase::Stopping(_) | JobPhase::Finished(_) => {}
    }
    Ok(Done::Ok)
}
