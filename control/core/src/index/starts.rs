//! Live jobs by what decides when they may start: time, the jobs they depend on, and their names.
//!
//! What must stay true: whoever ends, starts or is looked for by time finds the jobs concerned without a scan.

use muster_model::ids::{JobId, TenantId};
use muster_model::{Job, JobPhase, ValidJobSpec};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartIndex {
    /// When time next decides something about a job, the earliest first.
    due: BTreeSet<(u64, JobId)>,
    /// Pending jobs by each job that they still depend on.
    dependents: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Live jobs by tenant, user and name, the oldest of each first.
    named: BTreeSet<Named>,
    /// Live tasks of each array that has some.
    tasks: BTreeMap<JobId, BTreeSet<JobId>>,
    /// How many of those are pending.
    pending: BTreeMap<JobId, usize>,
}

/// A job by its tenant, user and name. It shares the specification, whose texts it orders by.
#[derive(Clone, Debug)]
struct Named {
    tenant: TenantId,
    spec: ValidJobSpec,
    job: JobId,
}

impl Named {
    fn of(job: &Job) -> Self {
        Named { tenant: job.tenant, spec: job.spec.clone(), job: job.id }
    }

    fn key(&self) -> (TenantId, &str, &str, JobId) {
        (self.tenant, &self.spec.user, &self.spec.name, self.job)
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Named {}
impl PartialOrd for Named {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Named {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// Whether two jobs have the same tenant, user and name.
#[must_use]
pub fn same_name(one: &Job, other: &Job) -> bool {
    one.tenant == other.tenant && one.spec.user == other.spec.user && one.spec.name == other.spec.name
}

/// Whether it waits for other jobs.
fn depends(job: &Job) -> bool {
    !job.unmet.dependencies.is_empty() || job.array.as_ref().is_some_and(|array| !array.with_same_index.is_empty())
}

/// The jobs that it waits for, itself or task by task.
fn jobs_waited_for(job: &Job) -> impl Iterator<Item = JobId> + '_ {
    let arrays = job.array.iter().flat_map(|array| &array.with_same_index).filter(|on| !on.over).map(|on| on.array);
    job.unmet.dependencies.iter().map(|on| on.job).chain(arrays)
}

impl StartIndex {
    /// Jobs about which time has decided something by `now_ms`, the earliest first.
    pub fn due(&self, now_ms: u64) -> impl Iterator<Item = JobId> + '_ {
        self.due.iter().take_while(move |(due_ms, _)| *due_ms <= now_ms).map(|(_, job)| *job)
    }

    /// When time decides something next.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }

    /// Pending jobs that still depend on `job`.
    pub fn dependents_of(&self, job: JobId) -> impl Iterator<Item = JobId> + '_ {
        self.dependents.get(&job).into_iter().flatten().copied()
    }

    /// How many those are.
    #[must_use]
    pub fn dependent_count(&self, job: JobId) -> usize {
        self.dependents.get(&job).map_or(0, BTreeSet::len)
    }

    /// Live jobs of this tenant with the user and name of `spec`, the oldest first.
    pub fn named_as(&self, tenant: TenantId, spec: &ValidJobSpec) -> impl Iterator<Item = JobId> + '_ {
        let at = |job: u64| Named { tenant, spec: spec.clone(), job: JobId(job) };
        let within = (Bound::Included(at(0)), Bound::Included(at(u64::MAX)));
        self.named.range(within).map(|named| named.job)
    }

    /// Live jobs of an array's tasks.
    pub fn tasks_of(&self, array: JobId) -> impl Iterator<Item = JobId> + '_ {
        self.tasks.get(&array).into_iter().flatten().copied()
    }

    /// How many those are.
    #[must_use]
    pub fn live_tasks(&self, array: JobId) -> usize {
        self.tasks.get(&array).map_or(0, BTreeSet::len)
    }

    /// How many of them are pending.
    #[must_use]
    pub fn pending_tasks(&self, array: JobId) -> usize {
        self.pending.get(&array).copied().unwrap_or(0)
    }

    fn change_task(&mut self, old: Option<&Job>, new: Option<&Job>) {
        let place = |job: Option<&Job>| job.and_then(|job| Some((job.array_task?.array, job.id)));
        let waits = |job: Option<&Job>| job.is_some_and(|job| job.phase == JobPhase::Queued);
        if let Some((array, job)) = place(old) {
            if new.is_none() {
                super::remove_from(&mut self.tasks, &array, &job);
            }
            if waits(old)
                && let Some(count) = self.pending.get_mut(&array)
            {
                *count -= 1;
                if *count == 0 {
                    self.pending.remove(&array);
                }
            }
        }
        if let Some((array, job)) = place(new) {
            self.tasks.entry(array).or_default().insert(job);
            if waits(new) {
                *self.pending.entry(array).or_default() += 1;
            }
        }
    }

    pub(super) fn change(&mut self, old: Option<&Job>, new: Option<&Job>) {
        self.change_task(old, new);
        let (due_before, due_now) = (old.and_then(Job::due_ms), new.and_then(Job::due_ms));
        if due_before != due_now {
            if let (Some(due_ms), Some(job)) = (due_before, old) {
                self.due.remove(&(due_ms, job.id));
            }
            if let (Some(due_ms), Some(job)) = (due_now, new) {
                self.due.insert((due_ms, job.id));
            }
        }
        if old.is_some_and(depends) || new.is_some_and(depends) {
            if let Some(job) = old {
                for on in jobs_waited_for(job) {
                    super::remove_from(&mut self.dependents, &on, &job.id);
                }
            }
            if let Some(job) = new {
                for on in jobs_waited_for(job) {
                    self.dependents.entry(on).or_default().insert(job.id);
                }
            }
        }
        match (old, new) {
            (Some(old), Some(new)) if same_name(old, new) => {}
            _ => {
                if let Some(old) = old {
                    self.named.remove(&Named::of(old));
                }
                if let Some(new) = new {
                    self.named.insert(Named::of(new));
                }
            }
        }
    }
}
