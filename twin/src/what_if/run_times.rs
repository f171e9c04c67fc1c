//! How long each job of a run works: what the workload says, what is predicted from earlier jobs of its tenant, or its time limit.
//!
//! What must stay true: predictions are made from the records as the copy has them, never from what the run itself has simulated, so that both runs
//! assume the same.

use super::work::Work;
use super::{Options, RunTimeBasis};
use muster_control_core::State;
use muster_model::run_times::Prediction;
use muster_model::{Allocation, GpuUnits, Job, RunTimes, TenantId};
use std::collections::BTreeMap;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct RunTimeSource {
    options: Options,
    /// Of tenants; empty where nothing is to be predicted.
    records: BTreeMap<TenantId, RunTimes>,
}

impl RunTimeSource {
    pub(super) fn of(state: &State, options: &Options) -> Self {
        let records = match options.run_times {
            RunTimeBasis::Limits => BTreeMap::new(),
            RunTimeBasis::Predicted => state.run_times.clone(),
        };
        RunTimeSource { options: *options, records }
    }

    /// The work of a job that has not begun, and the prediction that it is taken from.
    pub(super) fn of_job(&self, job: &Job, units: GpuUnits, said_ms: Option<u64>) -> (Work, Option<Prediction>) {
        let found = if said_ms.is_some() { None } else { self.predict(job, units, 0) };
        let known_ms = said_ms.or(found.map(|found| found.run_ms));
        (Work::of(&job.spec, known_ms, &self.options), found)
    }

    /// The same of a job that has run since then.
    pub(super) fn of_running(
        &self,
        job: &Job,
        held: &Allocation,
        since_ms: u64,
        now_ms: u64,
    ) -> (Work, Option<Prediction>) {
        let found = self.predict(job, held.charge.gpu_total(), now_ms.saturating_sub(since_ms));
        let work = Work::of(&job.spec, found.map(|found| found.run_ms), &self.options);
        (work.running(since_ms), found)
    }

    fn predict(&self, job: &Job, units: GpuUnits, elapsed_ms: u64) -> Option<Prediction> {
        let gpus = units.0.div_ceil(GpuUnits::CARD.0);
        self.records.get(&job.tenant)?.predict(gpus, job.spec.time_limit_s, elapsed_ms)
    }
}
