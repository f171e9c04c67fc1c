//! Cancellation.

use super::{arrays, attempts};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::ids::JobId;
use muster_model::{EndCause, JobPhase, Outcome};

/// A waiting job is over at once; one that holds devices is stopped gracefully; asking twice changes nothing.
pub(super) fn cancel(draft: &mut Draft<'_>, id: JobId) -> Result<Done, Reject> {
    if draft.job(id).is_none() {
        return Err(Reject::not_found("job", id));
    }
    one(draft, id);
    Ok(Done::Ok)
}

/// A job that is live; nothing where there is none.
pub(super) fn one(draft: &mut Draft<'_>, id: JobId) {
    let Some(job) = draft.job(id).filter(|job| !job.cancelled) else { return };
    let (phase, is_array) = (job.phase.clone(), job.array.is_some());
    if let Some(job) = draft.job_mut(id) {
        job.cancelled = true;
    }
    match phase {
        JobPhase::Queued if is_array => whole_array(draft, id),
        JobPhase::Queued => draft.retire(id, Outcome::Cancelled),
        JobPhase::Starting(allocation) | JobPhase::Running(allocation) => {
            attempts::stop(draft, allocation, EndCause::Cancelled);
        }
        JobPhase::Stopping(_) | JobPhase::Finished(_) => {}
    }
}

/// What is left of an array will not start, and its live tasks are stopped. The array ends with the last of them.
fn whole_array(draft: &mut Draft<'_>, id: JobId) {
    arrays::give_up(draft, id, true);
    let state = draft.state;
    for task in state.index().starts.tasks_of(id) {
        one(draft, task);
    }
}
