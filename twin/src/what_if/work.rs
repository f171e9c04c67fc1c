//! How long work goes on: what is assumed of each job's run time, what is left of it, and what a preemption loses.
//!
//! What must stay true: nothing is assumed that the answer does not say ([`basis`]); what is saved is what the job has said of its checkpoints.

use super::{Options, Question, RunTimeBasis};
use muster_model::run_times::Prediction;
use muster_model::{Job, JobSpec};

/// Runs on beyond every horizon.
const FOR_EVER: u64 = u64::MAX / 4;

/// The work of one job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    whole_ms: u64,
    limit_ms: u64,
    saved_ms: u64,
    /// When the tasks of the present attempt began.
    began_ms: Option<u64>,
}

/// What an attempt loses when it is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    /// Of its work and of starting it again.
    pub(super) ms: u64,
}

impl Work {
    /// `known_ms`: what is said or predicted of its run time.
    pub(super) fn of(spec: &JobSpec, known_ms: Option<u64>, options: &Options) -> Self {
        let limit_ms = spec.time_limit_s.map_or(FOR_EVER, |limit_s| limit_s.saturating_mul(1_000).min(FOR_EVER));
        let assumed_ms = match (known_ms, spec.time_limit_s) {
            (Some(known_ms), _) => known_ms,
            (None, Some(_)) => limit_ms / 100 * u64::from(options.limit_percent),
            (None, None) => options.run_time_ms.unwrap_or(FOR_EVER),
        };
        Work { whole_ms: assumed_ms.min(limit_ms), limit_ms, saved_ms: 0, began_ms: None }
    }

    /// Of a job that runs already.
    pub(super) fn running(mut self, since_ms: u64) -> Self {
        self.began_ms = Some(since_ms);
        self
    }

    /// The tasks of an attempt begin.
    pub(super) fn begins(&mut self, now_ms: u64) {
        self.began_ms = Some(now_ms);
    }

    /// When the work of the present attempt is done. A job that has run for longer than was assumed runs to its limit; without one, as long
    /// again.
    pub(super) fn done_ms(&self, now_ms: u64) -> u64 {
        let began_ms = self.began_ms.unwrap_or(now_ms);
        let at_ms = began_ms.saturating_add(self.whole_ms.saturating_sub(self.saved_ms));
        if at_ms > now_ms {
            return at_ms;
        }
        let limit_ms = began_ms.saturating_add(self.limit_ms);
        if self.limit_ms < FOR_EVER { limit_ms.max(now_ms) } else { now_ms.saturating_add(self.whole_ms) }
    }

    /// The present attempt is stopped and will be started again.
    pub(super) fn stopped(&mut self, job: &Job, now_ms: u64) -> Lost {
        let restart_ms = job.spec.preemption.restart_cost_s.saturating_mul(1_000);
        let Some(began_ms) = self.began_ms.take() else { return Lost { ms: restart_ms } };
        let ran_ms = now_ms.saturating_sub(began_ms);
        let every_ms = job.spec.movable.and_then(|movable| movable.checkpoint_every_s).map(|s| s.saturating_mul(1_000));
        let told_ms = job.checkpoint_ms.map_or(0, |at_ms| at_ms.saturating_sub(began_ms).min(ran_ms));
        let regular_ms = every_ms.map_or(0, |every_ms| ran_ms - ran_ms % every_ms.max(1));
        let kept_ms = told_ms.max(regular_ms);
        self.saved_ms = self.saved_ms.saturating_add(kept_ms).min(self.whole_ms.saturating_sub(1));
        Lost { ms: (ran_ms - kept_ms).saturating_add(restart_ms) }
    }
}

/// What the runs assume, for people.
/// `predictions`: what the run times of jobs were taken from, where they were predicted.
pub(super) fn basis(question: &Question, predictions: &[Prediction]) -> Vec<String> {
    let Options { limit_percent, run_time_ms, nodes, run_times, .. } = question.options;
    let limits = match limit_percent {
        100 => "jobs run to their time limits".to_owned(),
        percent => format!("jobs run for {percent} % of their time limits"),
    };
    let others = match run_time_ms {
        Some(ms) => format!("jobs without a time limit run for {} s", ms / 1_000),
        None => "jobs without a time limit do not end".to_owned(),
    };
    let predicted = match run_times {
        RunTimeBasis::Limits => String::new(),
        RunTimeBasis::Predicted => format!("{}; where nothing is predicted, ", predicted_in_words(predictions)),
    };
    let mut basis = vec![
        format!("{predicted}{limits}; {others}; all complete"),
        "nothing is submitted, no node fails or comes back".to_owned(),
        format!(
            "preempted jobs stop at the end of their grace and lose what they did since their last known checkpoint; tasks take {} s to start",
            nodes.start_delay_ms.div_ceil(1_000)
        ),
    ];
    if question.workload.is_empty() {
        return basis;
    }
    let jobs = question.workload.len();
    let which = if question.edits.is_empty() { "with the change only" } else { "both before and after the change" };
    let known = question.workload.iter().filter(|one| one.work_ms.is_some()).count();
    let known = if known > 0 { format!(", of which {known} have known run times") } else { String::new() };
    basis[1] =
        format!("nothing but the workload is submitted ({jobs} jobs{known}, {which}), no node fails or comes back");
    basis
}

fn predicted_in_words(predictions: &[Prediction]) -> String {
    let error = match predictions.iter().filter_map(|prediction| prediction.error_half_percent).max() {
        Some(u64::MAX) => "half of such predictions were off by a factor of more than 10".to_owned(),
        Some(percent) => {
            format!("half of such predictions were off by a factor of at most {}.{:02}", percent / 100, percent % 100)
        }
        None => "how far off such predictions are is not known yet".to_owned(),
    };
    match predictions.len() {
        0 => "no run time can be predicted, since too few jobs of their tenants have ended".to_owned(),
        1 => format!("1 run time is predicted from earlier jobs of its tenant ({error})"),
        jobs => format!("{jobs} run times are predicted from earlier jobs of their tenants ({error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::request::TaskRequest;
    use muster_model::{DeviceRequest, JobId, Movable, TenantId};

    fn job(limit_s: Option<u64>, every_s: Option<u64>) -> Job {
        let devices = DeviceRequest::Whole { count: 1, models: Vec::new() };
        let request = TaskRequest { devices, cpu_milli: 0, memory_mib: 0 };
        let movable = every_s.map(|every| Movable { checkpoint_every_s: Some(every), restart_s: 0 });
        let spec = JobSpec { time_limit_s: limit_s, movable, ..JobSpec::usual("t", request, &["work"]) };
        Job::usual(JobId(1), TenantId(1), spec.validate().expect("a valid job"))
    }

    #[test]
    fn work_ends_at_its_limit_and_what_was_saved_is_not_done_again() {
        let options = Options::default();
        let job = job(Some(1_000), Some(300));
        let mut work = Work::of(&job.spec, None, &options);
        work.begins(0);
        assert_eq!(work.done_ms(0), 1_000_000);
        assert_eq!(work.stopped(&job, 700_000), Lost { ms: 100_000 });
        work.begins(800_000);
        assert_eq!(work.done_ms(800_000), 1_200_000);
    }

    #[test]
    fn work_that_takes_longer_than_assumed_goes_on_to_its_limit() {
        let half = Options { limit_percent: 50, run_time_ms: Some(60_000), ..Options::default() };
        let limited = Work::of(&job(Some(1_000), None).spec, None, &half).running(0);
        assert_eq!((limited.done_ms(100_000), limited.done_ms(600_000)), (500_000, 1_000_000));
        let free = Work::of(&job(None, None).spec, None, &half).running(0);
        assert_eq!((free.done_ms(10_000), free.done_ms(90_000)), (60_000, 150_000));
        let unknown = Work::of(&job(None, None).spec, None, &Options::default()).running(0);
        assert!(unknown.done_ms(0) > 365 * 86_400_000);
    }
}
