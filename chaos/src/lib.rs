//! Muster under faults: the whole of it, with its real glue, in one process on virtual time from one seed.
//!
//! [`replicas`] runs three voters alone, [`fleet`] control nodes, shards, agents and clients. A [`nemesis`] crashes hosts, cuts links, loses messages, stalls disks and shifts clocks; what
//! happens is recorded as a [`history::History`], and [`laws`] are checked against it. What must stay true: one seed gives one run,
//! event by event, so that whatever a run finds can be looked at again.

pub mod coverage;
pub mod fleet;
pub mod history;
pub mod laws;
pub mod nemesis;
pub mod observe;
pub mod replicas;
pub mod seeds;
pub mod specs;

use coverage::Coverage;
use history::{ExportRecord, History};
use laws::Violation;
use muster_runtime::sim::SimWorld;
use std::fmt;
use std::time::Duration;

/// What one run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What it followed from.
    pub seed: u64,
    /// Hash over everything that happened: equal for equal runs.
    pub trace_hash: u64,
    /// How much happened.
    pub events: u64,
    /// Virtual time it took.
    pub elapsed: Duration,
    /// What was found broken.
    pub violations: Vec<Violation>,
    /// The lines of the trace, when asked for.
    pub trace: Vec<String>,
    /// Entries that changed something.
    pub revisions: usize,
    /// Submissions that were acknowledged.
    pub acknowledged: usize,
    /// Tasks that ran.
    pub runs: usize,
    /// What it came across.
    pub coverage: Coverage,
    /// The event logs that were exported, each a piece of the run.
    pub event_logs: Vec<ExportRecord>,
}

impl Outcome {
    fn of(world: &SimWorld, violations: Vec<Violation>, history: &History) -> Self {
        Outcome {
            seed: world.seed(),
            trace_hash: world.trace_hash(),
            events: world.trace_events(),
            elapsed: world.elapsed(),
            violations,
            trace: world.take_trace(),
            revisions: history.log.values().filter(|changes| !changes.is_empty()).count(),
            acknowledged: history.submissions.iter().filter(|submission| !submission.acknowledged.is_empty()).count(),
            runs: history.runs.len(),
            coverage: Coverage::of(history),
            event_logs: history.exports.clone(),
        }
    }

    /// Whether every law held.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { seed, trace_hash, events, elapsed, revisions, acknowledged, runs, .. } = self;
        write!(
            f,
            "seed {seed}: {events} events in {elapsed:.1?}, {revisions} revisions, {acknowledged} submissions, {runs} tasks, "
        )?;
        write!(f, "trace {trace_hash:016x}")?;
        for violation in &self.violations {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}

/// Runs the whole system from one seed: what `muster sim --seed` does.
#[must_use]
pub fn run_seed(seed: u64, trace: bool) -> Outcome {
    fleet::run_seed(seed, trace)
}
