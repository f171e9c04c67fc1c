//! Which jobs are tasks of arrays, and which task gets a job when one of them ends.
//!
//! What must stay true: only copies that explanations play on use it; the task that comes next is the one that the control plane would make; records of
//! arrays without tasks that may get a job are not kept.

use super::View;
use muster_model::array::ArrayTask;
use muster_model::{Attempt, Job, JobId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// To which cell a task that gets a job is routed is not known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTasks {
    /// To the one whose queue is played.
    InTheQueue,
    /// To another.
    Elsewhere,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrays {
    /// Live tasks that have a job, with their arrays.
    tasks: BTreeMap<JobId, JobId>,
    /// Records of arrays with tasks that may get a job.
    records: BTreeMap<JobId, Arc<Job>>,
}

impl Arrays {
    /// Takes over a job, if it is a task or the record of an array.
    pub(super) fn put(&mut self, job: &Job) {
        match job.array_task {
            Some(task) => _ = self.tasks.insert(job.id, task.array),
            None if job.array_may_start() => _ = self.records.insert(job.id, Arc::new(job.clone())),
            None => _ = self.records.remove(&job.id),
        }
    }

    pub(super) fn delete(&mut self, id: JobId) {
        self.tasks.remove(&id);
        self.records.remove(&id);
    }

    /// The task that gets a job when this one ends; `waits` says that it has not started. Without a limit on tasks at once only the end of one that
    /// waits brings the next.
    fn next_after(&mut self, ended: JobId, waits: bool) -> Option<Job> {
        let id = *self.tasks.get(&ended)?;
        let record = self.records.get_mut(&id)?;
        let array = record.array.as_deref()?;
        let index = array.ready().next().filter(|_| waits || array.max_running.is_some())?;
        let record = Arc::make_mut(record);
        record.array.as_mut()?.left.remove(index);
        let array_task = Some(ArrayTask { array: id, index });
        Some(Job { array: None, array_task, unmet: Default::default(), attempt: Attempt(0), ..record.clone() })
    }
}

impl View {
    /// What the control plane does when this task of an array has ended: the next one gets a job. Answers whether there is one.
    pub(super) fn make_next_task(&mut self, ended: JobId, waits: bool, where_to: NextTasks) -> bool {
        let Some(next) = self.arrays.next_after(ended, waits) else { return false };
        if where_to == NextTasks::InTheQueue {
            let cell = self.queues.keys().next().copied();
            self.put_job(Job { id: JobId(self.jobs.beyond()), cell, ..next });
        }
        true
    }
}
