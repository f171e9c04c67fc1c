//! Arrays: one record holds the tasks that have not started; a task gets a job of its own when it may start.
//!
//! What must stay true:
//! - an index is left in the record, or has exactly one live job, or has ended (and the record says how);
//! - an array never gets more live jobs than its limit allows, nor more pending ones than [`ARRAY_PENDING_MAX`], so that ten thousand
//!   tasks weigh as much as a few in every queue;
//! - the record ends in the entry that ends its last task, so what depends on the array is decided there.

use super::dependents;
use crate::bounds::ARRAY_PENDING_MAX;
use crate::draft::Draft;
use muster_model::array::ArrayTask;
use muster_model::ids::{Attempt, JobId};
use muster_model::{Dependency, DependencyKind, EndedJob, Job, JobPhase, Object, Outcome};
use std::collections::BTreeMap;

/// How the live and the pending jobs of an array have changed in this draft.
#[derive(Clone, Copy, Default)]
struct Delta {
    live: i64,
    pending: i64,
}

/// Brings every array up to date of which `touched` names the record or a task.
pub(super) fn settle(draft: &mut Draft<'_>, touched: &[JobId]) {
    let mut arrays: BTreeMap<JobId, Delta> = BTreeMap::new();
    let mut ended: Vec<(ArrayTask, bool)> = Vec::new();
    for id in touched {
        let before = draft.state.jobs.get(id).map(AsRef::as_ref);
        let (now, over) = (draft.job(*id), draft.ended(*id));
        let Some(job) = now.or(over).or(before) else { continue };
        if job.array.is_some() {
            arrays.entry(*id).or_default();
        }
        let Some(task) = job.array_task else { continue };
        let delta = arrays.entry(task.array).or_default();
        let pending = |job: Option<&Job>| i64::from(job.is_some_and(|job| job.phase == JobPhase::Queued));
        delta.live += i64::from(now.is_some()) - i64::from(before.is_some());
        delta.pending += pending(now) - pending(before);
        ended.extend(over.map(|over| (task, over.phase == JobPhase::Finished(Outcome::Completed))));
    }
    for (task, completed) in ended {
        record(draft, task, completed);
        for dependent in dependent_arrays(draft, task.array) {
            arrays.entry(dependent).or_default();
        }
    }
    // Whatever follows from the end of an array concerns later ones alone.
    while let Some((array, delta)) = arrays.pop_first() {
        if refill(draft, array, delta) {
            for dependent in dependent_arrays(draft, array) {
                arrays.entry(dependent).or_default();
            }
        }
    }
}

fn dependent_arrays(draft: &Draft<'_>, array: JobId) -> Vec<JobId> {
    let is_array = |id: &JobId| draft.job(*id).is_some_and(|job| job.array.is_some());
    draft.state.index().starts.dependents_of(array).filter(is_array).collect()
}

/// A task is over: its array notes how, and so do arrays that wait for it index by index.
fn record(draft: &mut Draft<'_>, task: ArrayTask, completed: bool) {
    if let Some(array) = draft.job_mut(task.array).and_then(|job| job.array.as_mut()) {
        if completed { array.completed.insert(task.index) } else { array.failed.insert(task.index) }
    }
    for dependent in dependent_arrays(draft, task.array) {
        let Some(array) = draft.job_mut(dependent).and_then(|job| job.array.as_mut()) else { continue };
        for on in array.with_same_index.iter_mut().filter(|on| completed && on.array == task.array) {
            on.completed.insert(task.index);
        }
    }
}

/// Gives tasks that may start their jobs, and ends the array when none is left and none is live. Says whether it ended.
fn refill(draft: &mut Draft<'_>, id: JobId, delta: Delta) -> bool {
    let Some(record) = draft.job(id) else { return false };
    let Some(array) = record.array.as_deref() else { return false };
    let index = &draft.state.index().starts;
    let count = |now: usize, delta: i64| u64::try_from(now as i64 + delta).unwrap_or(0);
    let (mut live, mut pending) =
        (count(index.live_tasks(id), delta.live), count(index.pending_tasks(id), delta.pending));
    let most = u64::from(array.max_running.unwrap_or(u32::MAX)).saturating_sub(live);
    let room = most.min(ARRAY_PENDING_MAX.saturating_sub(pending));
    let may_start = record.array_may_start() && room > 0;
    let next: Vec<u32> = if may_start { array.ready().take(room as usize).collect() } else { Vec::new() };
    let record = record.clone();
    for index in next {
        if let Some(array) = draft.job_mut(id).and_then(|job| job.array.as_mut()) {
            array.left.remove(index);
        }
        let task = task_of(draft, &record, index);
        draft.put(Object::Job(task));
        live += 1;
        pending += 1;
    }
    note_stuck(draft, id);
    let Some(array) = draft.job(id).and_then(|job| job.array.as_deref()) else { return false };
    if !array.left.is_empty() || pending > 0 {
        return false;
    }
    if live == 0 {
        end(draft, id);
        return true;
    }
    if record.started_ms.is_none() {
        // Every task has started: so has the array, for those that wait for that.
        let now_ms = draft.now_ms;
        if let Some(job) = draft.job_mut(id) {
            job.started_ms = Some(now_ms);
            let now = job.clone();
            dependents::decide(draft, id, |on| on.on_live(&now));
        }
    }
    false
}

/// The job of one task. It shares the array's specification, and its place in the queue by age.
fn task_of(draft: &mut Draft<'_>, record: &Job, index: u32) -> Job {
    Job {
        id: draft.next_job(),
        submitted_ms: record.submitted_ms,
        routed_ms: draft.now_ms,
        array: None,
        array_task: Some(ArrayTask { array: record.id, index }),
        unmet: Default::default(),
        attempt: Attempt(0),
        cell: None,
        ..Job::clone(record)
    }
}

/// An array whose tasks wait for tasks that will never complete says so.
fn note_stuck(draft: &mut Draft<'_>, id: JobId) {
    let Some(record) = draft.job(id) else { return };
    let stuck = record.array.as_deref().and_then(|array| array.stuck());
    if let Some((_, on)) = stuck
        && record.unmet.never.is_none()
        && let Some(job) = draft.job_mut(id)
    {
        job.unmet.never = Some(Dependency { kind: DependencyKind::AfterCorr, job: on, delay_s: 0 });
    }
}

/// All its tasks are over: the array has completed if all of them have.
fn end(draft: &mut Draft<'_>, id: JobId) {
    let Some(record) = draft.job(id).cloned() else { return };
    let Some(array) = record.array.as_deref() else { return };
    let (completed, failed) = (array.completed.len(), array.failed.len());
    let outcome = match failed {
        _ if record.cancelled => Outcome::Cancelled,
        0 => Outcome::Completed,
        _ => {
            let reason = format!("{failed} of {} tasks did not complete", completed + failed);
            Outcome::Failed { reason }
        }
    };
    draft.retire(id, outcome);
    let Some(ended) = draft.ended(id).map(EndedJob::of) else { return };
    dependents::decide(draft, id, |on| on.on_ended(&ended));
    dependents::next_of_name(draft, record.tenant, &record.spec);
    for dependent in dependent_arrays(draft, id) {
        let Some(array) = draft.job_mut(dependent).and_then(|job| job.array.as_mut()) else { continue };
        for on in array.with_same_index.iter_mut().filter(|on| on.array == id) {
            on.over = true;
        }
    }
}

/// Tasks without a job that will never get one: all of them, or those alone that wait for tasks that never complete.
pub(super) fn give_up(draft: &mut Draft<'_>, id: JobId, all: bool) {
    let Some(job) = draft.job_mut(id) else { return };
    let Some(array) = job.array.as_mut() else { return };
    let never = |index: &u32| all || array.with_same_index.iter().any(|on| on.over && !on.completed.contains(*index));
    let gone: Vec<u32> = array.left.iter().filter(never).collect();
    for index in gone {
        array.left.remove(index);
        array.failed.insert(index);
    }
    job.unmet.never = None;
}
