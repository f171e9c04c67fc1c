//! What a person changes about an array: some of its tasks are cancelled, or its limit changes.

use super::{cancel, level};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::array::IndexSet;
use muster_model::ids::JobId;
use std::collections::BTreeSet;

/// Cancels some tasks of an array; those that are over stay as they are.
pub(super) fn cancel_tasks(draft: &mut Draft<'_>, id: JobId, indices: &IndexSet) -> Result<Done, Reject> {
    level::need(draft.state, level::QUOTAS, "cancelling tasks of an array")?;
    if !indices.is_sound() || indices.is_empty() {
        return Err(Reject::field("tasks", format!("is {indices}"), "name tasks such as 0-9,12"));
    }
    let state = draft.state;
    let array = array_mut(draft, id)?;
    let left: Vec<u32> = indices.iter().filter(|index| array.left.contains(*index)).collect();
    for index in left {
        array.left.remove(index);
        array.failed.insert(index);
    }
    let named = |task: &JobId| {
        let task = state.jobs.get(task).and_then(|job| job.array_task);
        task.is_some_and(|task| indices.contains(task.index))
    };
    let live: BTreeSet<JobId> = state.index().starts.tasks_of(id).filter(named).collect();
    for task in live {
        cancel::one(draft, task);
    }
    Ok(Done::Ok)
}

/// Changes how many tasks are live at once. Those beyond a lower limit go on.
pub(super) fn set_limit(draft: &mut Draft<'_>, id: JobId, max_running: Option<u32>) -> Result<Done, Reject> {
    level::need(draft.state, level::QUOTAS, "changing the limit of an array")?;
    if max_running == Some(0) {
        return Err(Reject::field(
            "max_running",
            "is 0",
            "use at least 1; to keep the tasks from starting, hold the array",
        ));
    }
    array_mut(draft, id)?.max_running = max_running;
    Ok(Done::Ok)
}

fn array_mut<'d>(draft: &'d mut Draft<'_>, id: JobId) -> Result<&'d mut muster_model::ArrayState, Reject> {
    let Some(job) = draft.job(id) else { return Err(Reject::not_found("job", id)) };
    if job.array.is_none() {
        let problem = match job.array_task {
            Some(task) => format!("is {id}, which is task {} of array {}", task.index, task.array),
            None => format!("is {id}, which is no array"),
        };
        return Err(Reject::field("job_id", problem, "name the id that the submission of the array answered"));
    }
    let array = draft.job_mut(id).and_then(|job| job.array.as_deref_mut());
    array.ok_or_else(|| Reject::not_found("job", id))
}
