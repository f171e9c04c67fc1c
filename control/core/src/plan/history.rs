//! Forgetting finished jobs: they are on disk only, so the command names them.
//!
//! What must stay true: a live job is never forgotten, and none twice; every replica forgets the same jobs at the same entry, whatever
//! its own settings are.

use crate::bounds::FORGET_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::object::{FinishedJob, Key};

pub(super) fn forget(draft: &mut Draft<'_>, forgotten: u64, jobs: &[FinishedJob]) -> Result<Done, Reject> {
    if forgotten != draft.meta.finished_forgotten {
        let problem = format!("is {forgotten}, but {} finished jobs were deleted", draft.meta.finished_forgotten);
        return Err(Reject::field("forgotten", problem, "read again which finished jobs are the oldest"));
    }
    let count = jobs.len() as u64;
    if jobs.len() > FORGET_MAX || count > draft.meta.finished_kept || !jobs.is_sorted_by(|a, b| a < b) {
        let problem = format!("names {count} jobs, but only {} are kept", draft.meta.finished_kept);
        return Err(Reject::field("jobs", problem, format!("name at most {FORGET_MAX}, in order, each once")));
    }
    let never_ended = |job: &&FinishedJob| draft.job(job.id).is_some() || job.id >= draft.meta.next_job;
    if let Some(job) = jobs.iter().find(never_ended) {
        return Err(Reject::field("jobs", format!("names job {}, which has not ended", job.id), "name finished jobs"));
    }
    for job in jobs {
        draft.delete(Key::Finished(*job));
    }
    draft.meta.finished_kept -= count;
    draft.meta.finished_forgotten += count;
    Ok(Done::Ok)
}
