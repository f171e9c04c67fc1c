//! Hold and release: a person keeps a pending job from starting.
//!
//! What must stay true: only a pending job is held, and none for which others are being preempted; what an administrator holds, only an administrator releases. Whether the job leaves
//! its queue or comes back follows in [`super::consequences`].

use super::level;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::ids::JobId;
use muster_model::{Holder, JobPhase};

/// Asking twice changes nothing; an administrator's hold takes the place of a user's.
pub(super) fn hold(draft: &mut Draft<'_>, id: JobId, by: Holder) -> Result<Done, Reject> {
    level::need(draft.state, level::QUOTAS, "holding a job")?;
    let Some(job) = draft.job(id) else { return Err(Reject::not_found("job", id)) };
    if job.phase != JobPhase::Queued {
        let why = format!("it is {}; only a pending job can be held", job.phase.word());
        return Err(in_use(id, why));
    }
    // Others are told to stop for it already. A job that is moved stays where it is until it has ended there, and may wait then.
    if job.claim.is_some() && job.moving.is_none() {
        let why = "others are being preempted for it, and it starts when they have ended; cancel it, or requeue it when it has started";
        return Err(in_use(id, why.to_owned()));
    }
    let held = job.unmet.held.max(Some(by));
    if job.unmet.held != held
        && let Some(job) = draft.job_mut(id)
    {
        job.unmet.held = held;
    }
    Ok(Done::Ok)
}

/// A job that nobody holds stays as it is.
pub(super) fn release(draft: &mut Draft<'_>, id: JobId, by: Holder) -> Result<Done, Reject> {
    level::need(draft.state, level::QUOTAS, "releasing a job")?;
    let Some(job) = draft.job(id) else { return Err(Reject::not_found("job", id)) };
    match job.unmet.held {
        None => return Ok(Done::Ok),
        Some(held) if held > by => {
            return Err(in_use(id, "an administrator holds it; ask an administrator to release it".to_owned()));
        }
        Some(_) => {}
    }
    if let Some(job) = draft.job_mut(id) {
        job.unmet.held = None;
    }
    Ok(Done::Ok)
}

fn in_use(id: JobId, why: String) -> Reject {
    Reject::InUse { what: "job".to_owned(), id: id.to_string(), why }
}
