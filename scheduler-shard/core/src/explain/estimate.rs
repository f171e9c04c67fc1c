//! When a waiting job is likely to start, and what that rests on.
//!
//! A claim, a reclaim and a reservation give times that hold unless hardware is lost. Beside them the cell is played forward on a copy: what runs ends at its
//! time limit, or when the run times of its tenant's earlier jobs let expect it, what waits starts by the shard's own passes and ends in its
//! turn, until the job starts. What must stay true: estimates are for people, and nothing is decided by them; whoever is submitted later is not
//! known here; the work is bounded by ends and by steps, and where the bound is reached there is no estimate.

use super::leaving::Leaving;
use super::trial::Trial;
use super::words::{counted, named_jobs, span};
use crate::job_class::{JobClass, START_MS};
use crate::policy::reclaim::reclaim;
use crate::policy::reserve::end_ms;
use crate::proposal::{Bounds, Plan, Proposal};
use crate::search::Steps;
use crate::view::{Known, View};
use muster_model::preemption::{RECLAIM_COOLED_MS_MAX, STOP_MS_MAX};
use muster_model::run_times::Prediction;
use muster_model::{Allocation, AllocationId, AllocationState, Claim, GpuUnits, JobId};
use std::collections::{BTreeMap, BTreeSet};

/// Ends of jobs that are played through for one estimate.
const ENDS_MAX: usize = 1_000;
/// Steps of all passes of one estimate: about what five passes of a shard may take.
const FORWARD_STEPS_MAX: u64 = 1_000_000;
/// Preemptions of others that are played through before the job's own.
const RECLAIMS_MAX: usize = 64;
/// Victims that one sentence names.
const NAMED_MAX: usize = 4;

/// When the job would start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// In milliseconds since the Unix epoch.
    pub start_ms: u64,
    /// How far away that is.
    pub in_ms: u64,
    /// What it rests on.
    pub basis: Basis,
}

/// What an estimate rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Nothing is in the way.
    NextPass,
    /// It has claimed the devices of jobs that are being stopped.
    Claim {
        /// How many.
        victims: usize,
    },
    /// Elastic gangs give growth back for it.
    GrowthEnds {
        /// Whose.
        jobs: Vec<JobId>,
    },
    /// It may preempt: the victims' cool-down, their grace, and the time to stop and clean.
    Reclaim {
        /// Whom.
        victims: Vec<JobId>,
        /// Until the last of them is out of its cool-down.
        cool_down_ms: u64,
        /// The longest grace of them.
        grace_ms: u64,
    },
    /// Nodes are reserved for it.
    Reservation {
        /// No floor covers it: its nodes yield to jobs that a floor covers and that find nothing else.
        yields: bool,
    },
    /// What runs uses up its time limits.
    TimeLimits {
        /// Jobs that end before it starts.
        ends: usize,
    },
    /// What runs takes as long as earlier jobs of its tenants.
    Predicted(Predicted),
}

/// What is known of the predictions that an estimate uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predicted {
    /// Jobs that end before it starts.
    pub ends: usize,
    /// Of these, how many have a predicted end; the others end at their time limits.
    pub predicted: usize,
    /// Attempts that the least known prediction is made from.
    pub attempts: u32,
    /// The worst of them: half of the earlier predictions were off by at most this factor, in percent.
    pub error_half_percent: Option<u64>,
    /// Nine in ten were.
    pub error_most_percent: Option<u64>,
}

impl Estimate {
    fn at(start_ms: u64, now_ms: u64, basis: Basis) -> Self {
        Estimate { start_ms, in_ms: start_ms.saturating_sub(now_ms), basis }
    }

    /// Whether it starts no later than that, unless hardware is lost or an operator steps in; otherwise it may be later.
    #[must_use]
    pub const fn is_bound(&self) -> bool {
        matches!(self.basis, Basis::Claim { .. } | Basis::Reclaim { .. } | Basis::Reservation { .. })
    }

    /// A stable word for what it rests on.
    #[must_use]
    pub const fn basis(&self) -> &'static str {
        match self.basis {
            Basis::NextPass => "next_pass",
            Basis::Claim { .. } => "claim",
            Basis::GrowthEnds { .. } => "growth_ends",
            Basis::Reclaim { .. } => "reclaim",
            Basis::Reservation { .. } => "reservation",
            Basis::TimeLimits { .. } => "time_limits",
            Basis::Predicted(_) => "predicted",
        }
    }

    /// How wrong earlier predictions of the same kind were, in percent: half of them, and nine in ten, were off by at most this factor.
    #[must_use]
    pub const fn errors_percent(&self) -> (Option<u64>, Option<u64>) {
        match self.basis {
            Basis::Predicted(known) => (known.error_half_percent, known.error_most_percent),
            _ => (None, None),
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let within = span(self.in_ms);
        match &self.basis {
            Basis::NextPass => "at the next scheduling pass".to_owned(),
            Basis::Claim { victims } => {
                let jobs = counted(*victims as u64, "job");
                format!("within {within}: {jobs} preempted for it may take that long to stop")
            }
            Basis::GrowthEnds { jobs } => {
                let named = named_jobs(jobs, NAMED_MAX);
                format!("within {within}, if nobody new goes first: growth of {named} may take that long to stop")
            }
            Basis::Reclaim { victims, cool_down_ms, grace_ms } => {
                let named = named_jobs(victims, NAMED_MAX);
                let (grace, stop) = (span(*grace_ms), span(STOP_MS_MAX));
                let again = span(RECLAIM_COOLED_MS_MAX);
                let cool_down = match cool_down_ms {
                    0 => String::new(),
                    left_ms => format!("cool-down {}, up to {again} until the shard tries again, ", span(*left_ms)),
                };
                format!("within {within}: it may preempt {named} ({cool_down}grace {grace}, {stop} to stop and clean)")
            }
            Basis::Reservation { yields: false } => format!("within {within}: nodes are reserved for it from then on"),
            Basis::Reservation { yields: true } => {
                format!("within {within}: nodes are reserved for it from then on, unless a guarantee needs them")
            }
            Basis::TimeLimits { ends } => {
                let jobs = counted(*ends as u64, "job");
                format!("in {within}, if {jobs} before it run up to their time limits and nobody new goes first")
            }
            Basis::Predicted(known) => format!("in about {within}: {}", known.text()),
        }
    }
}

impl Predicted {
    fn text(&self) -> String {
        let Predicted { ends, predicted, attempts, .. } = *self;
        let (jobs, of) = (counted(ends as u64, "job"), counted(u64::from(attempts), "earlier attempt"));
        let error = match (self.error_half_percent, self.error_most_percent) {
            (Some(half), Some(most)) => {
                format!(
                    "half of such predictions were off by at most {}, nine in ten by {}",
                    factor(half),
                    factor(most)
                )
            }
            _ => "how far off such predictions are is not known yet".to_owned(),
        };
        format!("{jobs} end before it, {predicted} of them predicted from at least {of} of their tenants; {error}")
    }

    fn with(&mut self, prediction: Prediction) {
        self.predicted += 1;
        self.attempts = self.attempts.min(prediction.attempts);
        // What is not known is worse than any error.
        let worse = |one: Option<u64>, other: Option<u64>| Some(one?.max(other?));
        self.error_half_percent = worse(self.error_half_percent, prediction.error_half_percent);
        self.error_most_percent = worse(self.error_most_percent, prediction.error_most_percent);
    }
}

/// `a factor of 1.5`.
fn factor(percent: u64) -> String {
    match percent {
        u64::MAX => "more than a factor of 10".to_owned(),
        _ if percent.is_multiple_of(100) => format!("a factor of {}", percent / 100),
        _ => format!("a factor of {}.{}", percent / 100, format!("{:02}", percent % 100).trim_end_matches('0')),
    }
}

/// Of a job that has claimed what others are leaving.
pub(super) fn of_claim(view: &View, claim: &Claim, now_ms: u64) -> Estimate {
    let graces = claim.victims.iter().map(|victim| grace_ms(view, *victim));
    let start_ms = claim.made_ms.saturating_add(graces.max().unwrap_or(0)).saturating_add(STOP_MS_MAX);
    Estimate::at(start_ms.max(now_ms), now_ms, Basis::Claim { victims: claim.victims.len() })
}

/// Of a job for which growth is being given back; the time that has passed since is not known.
pub(super) fn of_growth(leaving: &Leaving, now_ms: u64) -> Estimate {
    let start_ms = now_ms.saturating_add(leaving.in_ms);
    Estimate::at(start_ms, now_ms, Basis::GrowthEnds { jobs: leaving.jobs.clone() })
}

pub(super) fn grace_ms(view: &View, held: AllocationId) -> u64 {
    let job = view.allocation(held).and_then(|held| view.jobs.get(held.job.0));
    job.map_or(0, |job| job.preempt_grace_ms)
}

/// Whether a job that a floor covers may take nodes that are reserved for this one.
fn yields_to_floors(trial: &Trial, job: &Known, class: &JobClass) -> bool {
    let capacity = trial.view.capacity();
    let covered = class.offers().iter().any(|offer| capacity.account_for(job.tenant, &offer.charge).is_some());
    !covered && capacity.tenants().values().any(|at| !at.guarantee.is_empty())
}

/// Of a job for which nothing but its shard is missing.
pub(super) fn at_once(now_ms: u64) -> Estimate {
    Estimate::at(now_ms, now_ms, Basis::NextPass)
}

/// Of a job that waits, once everything that can start has started on the trial; the earliest first.
pub(super) fn of_waiting(trial: &Trial, job: &Known, class: &JobClass) -> Vec<Estimate> {
    let now_ms = trial.now_ms;
    let reserved = job.reserved.as_ref();
    let yields = yields_to_floors(trial, job, class);
    let reserved = reserved.map(|kept| Estimate::at(kept.start_ms.max(now_ms), now_ms, Basis::Reservation { yields }));
    let mut estimates: Vec<Estimate> = by_reclaim(trial, job, class).into_iter().chain(reserved).collect();
    let predicted = forward(trial, true);
    let by_limits = match &predicted {
        // Nothing was predicted: it would come to the same.
        Some(Estimate { basis: Basis::TimeLimits { .. }, .. }) => None,
        _ => forward(trial, false),
    };
    estimates.extend(predicted.into_iter().chain(by_limits));
    estimates.sort_by_key(|estimate| (estimate.start_ms, estimate.basis()));
    estimates
}

/// When it has what it may take from others: played as if every cool-down had passed, then counted for those that it takes.
fn by_reclaim(trial: &Trial, job: &Known, class: &JobClass) -> Option<Estimate> {
    let capacity = trial.view.capacity();
    let own = capacity.tenants().get(&job.tenant).is_some_and(|at| !at.own.is_empty());
    let covered = class.offers().iter().any(|offer| capacity.account_for(job.tenant, &offer.charge).is_some());
    if !own && !covered {
        return None;
    }
    let longest_ms = capacity.pools().values().map(|pool| 1_000 * pool.cool_down_s).max().unwrap_or(0);
    for wait_ms in BTreeSet::from([0, longest_ms]) {
        let mut copy = trial.clone();
        copy.view.reclaims_tried.clear();
        if let Some(victims) = taken_at(&mut copy, trial.now_ms.saturating_add(wait_ms)) {
            return Some(reclaiming(trial, &victims));
        }
    }
    None
}

fn taken_at(copy: &mut Trial, at_ms: u64) -> Option<Vec<AllocationId>> {
    for _ in 0..RECLAIMS_MAX {
        let (mut plan, mut steps) = (Plan::default(), Steps::default());
        reclaim(&mut copy.view, copy.cell, &Bounds::default(), at_ms, &mut steps, &mut plan);
        if plan.proposals.is_empty() {
            return None;
        }
        for proposal in plan.proposals {
            if let Proposal::Preempt { binding, victims } = proposal
                && binding.job == copy.id
            {
                return Some(victims);
            }
        }
    }
    None
}

fn reclaiming(trial: &Trial, victims: &[AllocationId]) -> Estimate {
    let now_ms = trial.now_ms;
    let held = || victims.iter().filter_map(|victim| trial.view.allocation(*victim));
    let protected = |held: &Allocation| match held.account() {
        None => held.bound_ms.saturating_add(trial.view.capacity().cool_down_ms(held)).saturating_sub(now_ms),
        Some(_) => 0,
    };
    let cool_down_ms = held().map(|held| protected(held)).max().unwrap_or(0);
    let grace_ms = victims.iter().map(|victim| grace_ms(&trial.view, *victim)).max().unwrap_or(0);
    // Where nothing can be taken yet, the shard tries again when the cool-down has ended.
    let again_ms = if cool_down_ms > 0 { RECLAIM_COOLED_MS_MAX } else { 0 };
    let wait_ms = cool_down_ms.saturating_add(again_ms).saturating_add(grace_ms).saturating_add(STOP_MS_MAX);
    let start_ms = now_ms.saturating_add(wait_ms);
    let victims = held().map(|held| held.job).collect();
    Estimate::at(start_ms, now_ms, Basis::Reclaim { victims, cool_down_ms, grace_ms })
}

/// An end that is ahead.
#[derive(Clone, Copy)]
struct End {
    job: JobId,
    prediction: Option<Prediction>,
}

/// What of a cell ends when.
struct Agenda {
    predict: bool,
    ends: BTreeMap<(u64, AllocationId), End>,
    /// Jobs whose ends are known or cannot be.
    seen: BTreeSet<JobId>,
}

impl Agenda {
    /// Notes the ends of whatever holds devices since it was asked last.
    fn note(&mut self, copy: &Trial) {
        let held = copy.view.held().filter(|held| held.cell == copy.cell);
        for held in held {
            if !self.seen.insert(held.job) {
                continue;
            }
            if let Some((at_ms, prediction)) = self.end_of(copy, held) {
                self.ends.insert((at_ms, held.id), End { job: held.job, prediction });
            }
        }
    }

    fn end_of(&self, copy: &Trial, held: &Allocation) -> Option<(u64, Option<Prediction>)> {
        let (view, now_ms) = (&copy.view, copy.now_ms);
        if !matches!(held.state, AllocationState::Active) {
            let grace_ms = view.jobs.get(held.job.0).map_or(0, |job| job.preempt_grace_ms);
            return Some((now_ms.saturating_add(grace_ms).saturating_add(STOP_MS_MAX), None));
        }
        let predicted = || {
            let limit_s = view.jobs.get(held.job.0)?.time_limit_s;
            let gpus = held.charge.gpu_total().0.div_ceil(GpuUnits::CARD.0);
            let elapsed_ms = now_ms.saturating_sub(held.bound_ms);
            let found = view.run_times.get(&held.tenant)?.predict(gpus, limit_s, elapsed_ms)?;
            Some((held.bound_ms.saturating_add(found.run_ms).max(now_ms), Some(found)))
        };
        let found = if self.predict { predicted() } else { None };
        found.or_else(|| Some((end_ms(view, held, now_ms)?, None)))
    }
}

/// Plays the cell forward until the job starts.
fn forward(trial: &Trial, predict: bool) -> Option<Estimate> {
    let mut copy = trial.clone();
    copy.begin_again(FORWARD_STEPS_MAX);
    let mut agenda = Agenda { predict, ends: BTreeMap::new(), seen: BTreeSet::new() };
    agenda.note(&copy);
    claims_end(&copy, &mut agenda);
    let mut known = Predicted {
        ends: 0,
        predicted: 0,
        attempts: u32::MAX,
        error_half_percent: Some(0),
        error_most_percent: Some(0),
    };
    while let Some(((at_ms, _), _)) = agenda.ends.first_key_value() {
        let at_ms = *at_ms;
        while let Some(first) = agenda.ends.first_entry().filter(|first| first.key().0 == at_ms) {
            let ((_, held), end) = first.remove_entry();
            copy.view.end_held(held, end.job);
            known.ends += 1;
            if let Some(prediction) = end.prediction {
                known.with(prediction);
            }
        }
        copy.now_ms = at_ms;
        if copy.starts() {
            let basis = match known.predicted {
                0 => Basis::TimeLimits { ends: known.ends },
                _ => Basis::Predicted(known),
            };
            return Some(Estimate::at(at_ms, trial.now_ms, basis));
        }
        if copy.exhausted() || known.ends >= ENDS_MAX {
            return None;
        }
        agenda.note(&copy);
    }
    None
}

/// What claims will hold ends too: after their victims' graces and their own time.
fn claims_end(copy: &Trial, agenda: &mut Agenda) {
    for job in copy.view.jobs.values() {
        let (Some(claim), Some(lasts_ms)) = (&job.claim, job.lasts_ms) else { continue };
        if claim.cell == copy.cell && agenda.seen.insert(job.id) {
            let at_ms = of_claim(&copy.view, claim, copy.now_ms).start_ms.saturating_add(START_MS + lasts_ms);
            agenda.ends.insert((at_ms, claim.allocation), End { job: job.id, prediction: None });
        }
    }
}
