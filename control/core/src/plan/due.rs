//! What the passing of time decides about jobs: a begin time that has come, a deadline that cannot be kept, and jobs that can never
//! start and are to be cancelled then. Windows begin and end in the same command ([`windows::due`]).
//!
//! What must stay true: the entry's time decides, never a clock; one command decides a bounded number of jobs, and the leader asks again
//! while more are due.

use super::{arrays, attempts, windows};
use crate::bounds::DUE_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::ids::JobId;
use muster_model::{EndCause, Job, JobPhase, Outcome};

pub(super) fn decide(draft: &mut Draft<'_>) -> Result<Done, Reject> {
    let state = draft.state;
    for id in state.index().starts.due(draft.now_ms).take(DUE_MAX) {
        decide_one(draft, id);
    }
    windows::due::decide(draft);
    Ok(Done::Ok)
}

fn decide_one(draft: &mut Draft<'_>, id: JobId) {
    let now_ms = draft.now_ms;
    let Some(job) = draft.job(id) else { return };
    match job.phase {
        // An array ends with its last live task.
        JobPhase::Queued if job.array.is_some() && (job.is_to_be_killed() || is_late(job, now_ms)) => {
            let all = is_late(job, now_ms) || !job.never_is_of_some_tasks();
            arrays::give_up(draft, id, all);
        }
        JobPhase::Queued if job.is_to_be_killed() => {
            if let Some(job) = draft.job_mut(id) {
                job.cancelled = true;
            }
            draft.retire(id, Outcome::Cancelled);
        }
        JobPhase::Queued if is_late(job, now_ms) => {
            draft.retire(id, Outcome::DeadlineMissed);
        }
        JobPhase::Queued => {
            if let Some(job) = draft.job_mut(id) {
                job.unmet.begin_ms = job.unmet.begin_ms.filter(|begin_ms| *begin_ms > now_ms);
            }
        }
        JobPhase::Starting(allocation) | JobPhase::Running(allocation) => {
            attempts::stop(draft, allocation, EndCause::Deadline);
        }
        JobPhase::Stopping(_) | JobPhase::Finished(_) => {}
    }
}

/// Whether a job that started now could not end by its deadline.
fn is_late(job: &Job, now_ms: u64) -> bool {
    job.spec.latest_start_ms().is_some_and(|latest_ms| latest_ms < now_ms)
}
