//! Queueing a job again because somebody asks, perhaps the job itself.
//!
//! What must stay true: it wins over the exit that follows, however the tasks end from then on; only a cancellation wins over it.

use super::attempts;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::ids::JobId;
use muster_model::{EndCause, JobPhase};

/// A running job is stopped; one that is being stopped is queued again afterwards; asking twice changes nothing.
pub(super) fn requeue(draft: &mut Draft<'_>, id: JobId) -> Result<Done, Reject> {
    let Some(job) = draft.job(id) else { return Err(Reject::not_found("job", id)) };
    if job.cancelled {
        return Err(Reject::field("job_id", format!("is {id}, which is being cancelled"), "submit the job again"));
    }
    let phase = job.phase.clone();
    if job.requeue_asked || phase == JobPhase::Queued {
        return Ok(Done::Ok);
    }
    if let Some(job) = draft.job_mut(id) {
        job.requeue_asked = true;
    }
    if let JobPhase::Starting(allocation) | JobPhase::Running(allocation) = phase {
        attempts::stop(draft, allocation, EndCause::Requeued);
    }
    Ok(Done::Ok)
}
