//! What becomes of each job in a run: when it starts, whether it is evicted, what it holds, and why it waits.
//!
//! What must stay true: a job has the same key in both runs, whatever id it gets there, so that the two can be compared.

use super::Options;
use super::run_times::RunTimeSource;
use super::usage::Usage;
use super::work::{Lost, Work};
use muster_control_core::State;
use muster_model::run_times::Prediction;
use muster_model::{
    Allocation, AllocationId, AllocationState, Change, EndCause, GpuUnits, Job, JobId, JobPhase, Key, Object, Outcome,
    PreemptReason,
};
use std::collections::{BTreeMap, BTreeSet};

/// What names a job in both runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobKey {
    /// It was there before.
    Live(JobId),
    /// A task of an array that was there before.
    Task(JobId, u32),
    /// It is one of the workload.
    Added(usize),
    /// A task of an array of the workload.
    AddedTask(usize, u32),
}

/// A job is stopped for another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Eviction {
    pub(super) at_ms: u64,
    pub(super) by: Option<JobKey>,
    pub(super) reason: PreemptReason,
    /// Unit-milliseconds that are done again.
    pub(super) lost: u128,
    /// When it starts again.
    pub(super) again_ms: Option<u64>,
}

/// One job.
#[derive(Clone, Debug)]
pub(super) struct Forecast {
    pub(super) id: JobId,
    pub(super) tenant: String,
    pub(super) name: String,
    pub(super) user: String,
    /// It is the record of an array.
    pub(super) is_array: bool,
    /// What it holds, or asks for.
    pub(super) units: GpuUnits,
    pub(super) held_at_begin: bool,
    /// When it first gets devices in this run.
    pub(super) start_ms: Option<u64>,
    pub(super) waits: bool,
    pub(super) outcome: Option<Outcome>,
    pub(super) evictions: Vec<Eviction>,
    /// Units times milliseconds held in this run.
    pub(super) unit_ms: u128,
    /// Why it waits.
    pub(super) why: Option<(String, String)>,
    work: Work,
    /// What its run time is taken from, where it was predicted.
    pub(super) prediction: Option<Prediction>,
}

/// Evictions of one job that are kept.
const EVICTIONS_MAX: usize = 64;

/// What the nodes do because of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// They start the tasks.
    Start(AllocationId),
    /// They stop the tasks; those may take so long.
    Stop(AllocationId, u64),
}

/// Every job of a run.
#[derive(Clone, Debug)]
pub(super) struct Stories {
    pub(super) jobs: BTreeMap<JobKey, Forecast>,
    pub(super) usage: Usage,
    run_times: RunTimeSource,
    keys: BTreeMap<JobId, JobKey>,
    /// Allocations with their units and since when they are held.
    held: BTreeMap<AllocationId, (JobKey, u64, u64)>,
    stopping: BTreeSet<AllocationId>,
}

impl Stories {
    /// Of what is there at the beginning.
    pub(super) fn begin(state: &State, now_ms: u64, options: &Options) -> Self {
        let mut forecasts = Stories {
            jobs: BTreeMap::new(),
            usage: Usage::begin(now_ms),
            run_times: RunTimeSource::of(state, options),
            keys: BTreeMap::new(),
            held: BTreeMap::new(),
            stopping: BTreeSet::new(),
        };
        for job in state.jobs.values() {
            let key = forecasts.key_of(job);
            forecasts.tell(key, job, None);
        }
        for held in state.allocations.values() {
            let Some(job) = state.jobs.get(&held.job) else { continue };
            let Some(key) = forecasts.keys.get(&held.job).copied() else { continue };
            forecasts.usage.take(now_ms, held, job);
            forecasts.held.insert(held.id, (key, held.charge.gpu_total().0, now_ms));
            let runs = matches!(job.phase, JobPhase::Running(id) if id == held.id || held.is_growth);
            if let Some(forecast) = forecasts.jobs.get_mut(&key).filter(|_| !held.is_growth) {
                // One that is being stopped starts again, if at all.
                forecast.held_at_begin = held.state == AllocationState::Active;
                forecast.units = held.charge.gpu_total();
                if runs {
                    let since_ms = job.started_ms.unwrap_or(held.bound_ms);
                    (forecast.work, forecast.prediction) = forecasts.run_times.of_running(job, held, since_ms, now_ms);
                }
            }
            forecasts.usage.runs(now_ms, held.id, runs && held.state == AllocationState::Active);
            if held.state != AllocationState::Active {
                forecasts.stopping.insert(held.id);
            }
        }
        forecasts
    }

    /// What run times were taken from, where they were predicted.
    pub(super) fn predictions(&self) -> Vec<Prediction> {
        self.jobs.values().filter_map(|forecast| forecast.prediction).collect()
    }

    fn key_of(&mut self, job: &Job) -> JobKey {
        if let Some(key) = self.keys.get(&job.id) {
            return *key;
        }
        let key = match job.array_task {
            None => JobKey::Live(job.id),
            Some(task) => match self.keys.get(&task.array) {
                Some(JobKey::Added(added)) => JobKey::AddedTask(*added, task.index),
                _ => JobKey::Task(task.array, task.index),
            },
        };
        self.keys.insert(job.id, key);
        key
    }

    /// A job of the workload was accepted.
    pub(super) fn accepted(&mut self, id: JobId, index: usize) {
        self.keys.insert(id, JobKey::Added(index));
    }

    /// Begins the forecast of a job, or goes on with it.
    fn tell(&mut self, key: JobKey, job: &Job, said_ms: Option<u64>) {
        let units = job.spec.possible_models().map(|model| job.spec.charge_on(model).gpu_total()).max();
        let run_times = &self.run_times;
        let told = || run_times.of_job(job, units.unwrap_or_default(), said_ms);
        let forecast = self.jobs.entry(key).or_insert_with(|| {
            let (work, prediction) = told();
            Forecast {
                id: job.id,
                tenant: job.spec.tenant.clone(),
                name: job.spec.name.clone(),
                user: job.spec.user.clone(),
                is_array: job.array.is_some(),
                units: units.unwrap_or_default(),
                held_at_begin: false,
                start_ms: None,
                waits: false,
                outcome: None,
                evictions: Vec::new(),
                unit_ms: 0,
                why: None,
                work,
                prediction,
            }
        });
        forecast.waits = job.phase == JobPhase::Queued;
    }

    /// Takes over a change; `said_ms` says how long a job of the workload works, where that is known. What the nodes do because of it.
    pub(super) fn follow(
        &mut self,
        now_ms: u64,
        change: &Change,
        state: &State,
        said_ms: impl Fn(usize) -> Option<u64>,
    ) -> Option<Reaction> {
        match change {
            Change::Put(object) => match &**object {
                Object::Job(job) => {
                    let key = self.key_of(job);
                    let added =
                        if let JobKey::Added(index) | JobKey::AddedTask(index, _) = key { Some(index) } else { None };
                    self.tell(key, job, added.and_then(said_ms));
                    if let JobPhase::Running(id) = job.phase
                        && !self.stopping.contains(&id)
                    {
                        self.usage.runs(now_ms, id, true);
                    }
                    None
                }
                Object::Allocation(held) => self.allocation(now_ms, held, state),
                _ => None,
            },
            Change::Delete(Key::Allocation(id)) => {
                self.usage.give(now_ms, *id);
                self.stopping.remove(id);
                if let Some((key, units, since_ms)) = self.held.remove(id)
                    && let Some(forecast) = self.jobs.get_mut(&key)
                {
                    forecast.unit_ms += u128::from(units) * u128::from(now_ms - since_ms);
                }
                None
            }
            Change::Delete(_) | Change::Audit(_) => None,
            Change::Retire(job) => {
                let key = self.key_of(job);
                if let (Some(forecast), JobPhase::Finished(outcome)) = (self.jobs.get_mut(&key), &job.phase) {
                    (forecast.waits, forecast.outcome) = (false, Some(outcome.clone()));
                }
                None
            }
        }
    }

    fn allocation(&mut self, now_ms: u64, held: &Allocation, state: &State) -> Option<Reaction> {
        let key = *self.keys.get(&held.job)?;
        let job = state.jobs.get(&held.job);
        let mut reaction = None;
        if !self.held.contains_key(&held.id) && !held.is_over() {
            let units = held.charge.gpu_total();
            self.held.insert(held.id, (key, units.0, now_ms));
            if let Some(job) = job {
                self.usage.take(now_ms, held, job);
            }
            if let Some(forecast) = self.jobs.get_mut(&key).filter(|_| !held.is_growth) {
                forecast.units = units;
                if !forecast.held_at_begin {
                    forecast.start_ms.get_or_insert(now_ms);
                }
                if let Some(last) = forecast.evictions.last_mut() {
                    last.again_ms.get_or_insert(now_ms);
                }
            }
            reaction = Some(Reaction::Start(held.id));
        }
        let AllocationState::Stopping(cause) = &held.state else { return reaction };
        if !self.stopping.insert(held.id) {
            return reaction;
        }
        self.usage.runs(now_ms, held.id, false);
        let job = job?;
        let grace_s = match cause {
            EndCause::Preempted { .. } | EndCause::Requeued | EndCause::Window { .. } | EndCause::Shrunk { .. } => {
                job.spec.preemption.grace_s(job.spec.grace_s)
            }
            _ => job.spec.grace_s,
        };
        let by = match cause {
            EndCause::Preempted { by, .. } => by.and_then(|by| self.keys.get(&by).copied()),
            _ => None,
        };
        let forecast = self.jobs.get_mut(&key)?;
        let stops = matches!(cause, EndCause::Preempted { .. } | EndCause::Requeued | EndCause::Window { .. });
        if stops && !held.is_growth {
            let Lost { ms } = forecast.work.stopped(job, now_ms);
            let reason = match cause {
                EndCause::Preempted { reason, .. } => Some(*reason),
                EndCause::Window { kind, .. } => Some(PreemptReason::from(*kind)),
                _ => None,
            };
            if let Some(reason) = reason
                && forecast.evictions.len() < EVICTIONS_MAX
            {
                let lost = u128::from(held.charge.gpu_total().0) * u128::from(ms);
                forecast.evictions.push(Eviction { at_ms: now_ms, by, reason, lost, again_ms: None });
            }
        }
        Some(Reaction::Stop(held.id, grace_s.saturating_mul(1_000)))
    }

    /// The tasks of an attempt begin; when their work is done.
    pub(super) fn begins(&mut self, now_ms: u64, job: JobId) -> Option<u64> {
        let forecast = self.jobs.get_mut(self.keys.get(&job)?)?;
        forecast.work.begins(now_ms);
        Some(forecast.work.done_ms(now_ms))
    }

    /// When the work of an attempt that runs already is done.
    pub(super) fn done_ms(&self, now_ms: u64, job: JobId) -> Option<u64> {
        Some(self.jobs.get(self.keys.get(&job)?)?.work.done_ms(now_ms))
    }

    pub(super) fn of(&mut self, job: JobId) -> Option<&mut Forecast> {
        self.jobs.get_mut(self.keys.get(&job)?)
    }

    /// Counts what is still held.
    pub(super) fn settle(&mut self, now_ms: u64) {
        for (key, units, since_ms) in self.held.values_mut() {
            if let Some(forecast) = self.jobs.get_mut(key) {
                forecast.unit_ms += u128::from(*units) * u128::from(now_ms.saturating_sub(*since_ms));
                *since_ms = now_ms;
            }
        }
    }
}
