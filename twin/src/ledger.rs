//! Every job of a replay and what became of it.

use crate::estimates::Estimated;
use crate::gauge::Gauge;
use crate::import::{EndState, TraceDevices, TraceJob};
use crate::queue::Queues;
use crate::reservations::Told;
use crate::shape::Shaper;
use muster_control_core::events::{CARD_UNITS_OF_MIG_MAX, CARD_UNITS_OF_SHARES_MAX};
use muster_model::tenant::TenantSpec;
use muster_model::{AllocationId, FieldError, GpuModel, GpuUnits, JobId, Outcome, ValidJobSpec};
use std::collections::BTreeMap;

/// One job. Times are milliseconds from the window's beginning.
#[derive(Clone, Debug)]
pub(crate) struct JobAccount {
    pub(crate) warm: bool,
    /// Index of its tenant.
    pub(crate) tenant: usize,
    pub(crate) submit_ms: u64,
    pub(crate) duration_ms: u64,
    pub(crate) time_limit_ms: Option<u64>,
    pub(crate) recorded_wait_ms: Option<u64>,
    pub(crate) end: EndState,
    /// What it asks for, as GPU units: whole cards, or its share of one.
    pub(crate) units: GpuUnits,
    pub(crate) share: bool,
    /// Thousandths of a card that the trace says.
    pub(crate) asked_milli: u64,
    /// Taken while a submission is under way and after it was accepted.
    pub(crate) spec: Option<ValidJobSpec>,
    pub(crate) tries: u32,
    pub(crate) refused: bool,
    pub(crate) waits: bool,
    pub(crate) held_units: GpuUnits,
    pub(crate) bound_ms: Option<u64>,
    /// A floor account paid for its first attempt from the beginning.
    pub(crate) bound_covered: bool,
    pub(crate) ended: Option<(u64, Ended)>,
    /// Work that an earlier attempt did and saved.
    pub(crate) done_ms: u64,
    /// From the order to stop, when it is preempted, until its tasks stop.
    pub(crate) grace_ms: u64,
    /// What a restart costs.
    pub(crate) restart_ms: u64,
    /// When its present attempt was bound.
    pub(crate) attempt_ms: u64,
    /// When all tasks of that ran.
    pub(crate) started_ms: Option<u64>,
    /// Up to when the work of its preempted attempt is kept; none while it is not preempted.
    pub(crate) kept_ms: Option<u64>,
    pub(crate) preemptions: u32,
    /// What reservations said of its first attempt.
    pub(crate) told: Option<Told>,
    /// When it was said to start.
    pub(crate) estimated: Option<Estimated>,
}

impl JobAccount {
    /// What its present attempt has to do.
    pub(crate) fn left_ms(&self) -> u64 {
        let restart_ms = if self.preemptions > 0 { self.restart_ms } else { 0 };
        self.duration_ms.saturating_sub(self.done_ms) + restart_ms
    }

    /// Its attempt is preempted: what was saved every `checkpoint_ms` is kept.
    pub(crate) fn preempted(&mut self, now_ms: u64, checkpoint_ms: u64) {
        let ran_ms = self.started_ms.map_or(0, |started_ms| now_ms - started_ms);
        let saved_ms = ran_ms.checked_div(checkpoint_ms).map_or(0, |times| times * checkpoint_ms);
        let restart_ms = if self.preemptions > 0 { self.restart_ms } else { 0 };
        self.kept_ms = Some(match self.started_ms {
            Some(started_ms) if saved_ms > 0 => started_ms + saved_ms,
            _ => self.attempt_ms,
        });
        self.done_ms = (self.done_ms + saved_ms.saturating_sub(restart_ms)).min(self.duration_ms);
        self.preemptions += 1;
    }
}

/// How a job ended in the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Completed,
    Failed,
    Cancelled,
    TimedOut,
}

/// All of them.
pub(crate) struct Ledger {
    /// Tenants' paths, in order.
    pub(crate) tenants: Vec<String>,
    /// The ceiling on each tenant's organisation, in cards of all models.
    pub(crate) max_gpus: Vec<Option<f64>>,
    pub(crate) jobs: Vec<JobAccount>,
    by_id: BTreeMap<JobId, usize>,
    /// Which job holds each live allocation.
    pub(crate) holds: BTreeMap<AllocationId, usize>,
    /// Jobs that the system's own checks refuse before they are submitted.
    pub(crate) malformed: Vec<Vec<FieldError>>,
    pub(crate) gangs_split: u64,
    pub(crate) gpus_added: u64,
    /// Most that one card is charged.
    card_units_max: u64,
}

/// A job's command in the state machine; nodes of a replay run nothing.
const COMMAND: &str = "replay";

impl Ledger {
    /// Accounts for `running` (from the window's beginning) and `submitted` jobs.
    pub(crate) fn new(
        tenants: &[TenantSpec],
        running: &[TraceJob],
        submitted: &[TraceJob],
        (shaper, queues): (&Shaper, &Queues),
        from_s: u64,
    ) -> Self {
        let paths: Vec<String> = tenants.iter().map(|tenant| tenant.path.clone()).collect();
        let ceiling = |path: &str| {
            let organisation = muster_model::Tenant::domain_of(path);
            let max = &tenants.iter().find(|tenant| tenant.path == organisation)?.max;
            (!max.gpu.is_empty()).then(|| max.gpu.values().map(|units| units.as_cards()).sum())
        };
        let mut ledger = Ledger {
            max_gpus: paths.iter().map(|path| ceiling(path)).collect(),
            tenants: paths,
            jobs: Vec::with_capacity(running.len() + submitted.len()),
            by_id: BTreeMap::new(),
            holds: BTreeMap::new(),
            malformed: Vec::new(),
            gangs_split: 0,
            gpus_added: 0,
            card_units_max: GpuUnits::CARD.0,
        };
        for (job, warm) in running.iter().map(|job| (job, true)).chain(submitted.iter().map(|job| (job, false))) {
            ledger.enter(job, warm, (shaper, queues), from_s);
        }
        ledger
    }

    /// Most that the shares of one card are charged together: none are shared, MIG alone shares them, or others do.
    pub(crate) fn card_units_max(&self) -> u64 {
        self.card_units_max
    }

    fn enter(&mut self, job: &TraceJob, warm: bool, (shaper, queues): (&Shaper, &Queues), from_s: u64) {
        let mut stop = (0, 0);
        self.card_units_max = self.card_units_max.max(match job.devices {
            TraceDevices::None | TraceDevices::Whole { .. } => 0,
            TraceDevices::Slice { .. } => CARD_UNITS_OF_MIG_MAX,
            TraceDevices::Share { .. } => CARD_UNITS_OF_SHARES_MAX,
        });
        let (spec, units) = match shaper.shape_for(job, queues.of(&job.tenant), vec![COMMAND.to_owned()]) {
            Ok(shaped) => {
                let how = &shaped.spec.preemption;
                stop = (1_000 * how.grace_s(shaped.spec.grace_s), 1_000 * how.restart_cost_s);
                self.gangs_split += u64::from(shaped.split);
                self.gpus_added += u64::from(shaped.added_gpus);
                (Some(shaped.spec), GpuUnits::CARD.0 * (job.gpu_milli() + u64::from(shaped.added_gpus) * 1000) / 1000)
            }
            Err(errors) => {
                self.malformed.push(errors);
                (None, GpuUnits::CARD.0 * job.gpu_milli() / 1000)
            }
        };
        self.jobs.push(JobAccount {
            warm,
            tenant: self.tenants.binary_search(&job.tenant).expect("every replayed job's tenant is described"),
            submit_ms: (job.submit_s - from_s) * 1000,
            duration_ms: job.duration_s * 1000,
            time_limit_ms: job.time_limit_s.map(|s| s * 1000),
            recorded_wait_ms: job.recorded_wait_s.map(|s| s * 1000),
            end: job.end,
            units: GpuUnits(units),
            share: matches!(job.devices, TraceDevices::Share { .. } | TraceDevices::Slice { .. }),
            asked_milli: job.gpu_milli(),
            refused: spec.is_none(),
            spec,
            tries: 0,
            waits: false,
            held_units: GpuUnits(0),
            bound_ms: None,
            bound_covered: false,
            ended: None,
            done_ms: 0,
            grace_ms: stop.0,
            restart_ms: stop.1,
            attempt_ms: 0,
            started_ms: None,
            kept_ms: None,
            preemptions: 0,
            told: None,
            estimated: None,
        });
    }

    /// The state machine has given a job its id.
    pub(crate) fn accepted(&mut self, id: JobId, index: usize) {
        self.by_id.insert(id, index);
    }

    /// The job of an id.
    ///
    /// # Panics
    /// When the state machine speaks of a job that was never submitted.
    pub(crate) fn index_of(&self, id: JobId) -> usize {
        *self.by_id.get(&id).expect("the state machine knows submitted jobs only")
    }

    /// The job of an id.
    pub(crate) fn job(&self, id: JobId) -> &JobAccount {
        &self.jobs[self.index_of(id)]
    }

    /// A job is over.
    pub(crate) fn ended(&mut self, id: JobId, outcome: &Outcome, now_ms: u64) {
        let ended = match outcome {
            Outcome::Completed => Ended::Completed,
            Outcome::Failed { .. } => Ended::Failed,
            Outcome::Cancelled => Ended::Cancelled,
            // A deadline is a limit on time too.
            Outcome::TimedOut | Outcome::DeadlineMissed => Ended::TimedOut,
        };
        if let Some(index) = self.by_id.remove(&id) {
            self.jobs[index].ended = Some((now_ms, ended));
        }
    }
}

/// Cards of a gauge that counts units.
pub(crate) fn cards(gauge: &Gauge) -> Vec<f64> {
    gauge.means(GpuUnits::CARD.0)
}

/// The models of a fleet in words.
pub(crate) fn models_in_words(models: impl IntoIterator<Item = GpuModel>) -> String {
    models.into_iter().map(|model| model.to_string()).collect::<Vec<_>>().join(", ")
}
