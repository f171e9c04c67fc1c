//! What-if: a copy of a fleet's state is run forward twice, as it is and with edits, and the two are compared.
//!
//! The state machine and the scheduler are those of a real fleet; between them stands the simulator's model of nodes ([`crate::nodes`]). A
//! [`Question`] is a copy of the state with edits and a workload; the [`Answer`] says who gains, who waits and why, who is evicted, which cards are
//! needed, and allocation beside utilization. What must stay true:
//! - an edit is the command that the real edit would be: what a fleet refuses is refused here with the same words;
//! - both runs assume the same of run times, and the answer says what ([`Answer::basis`]);
//! - the same question gives the same answer; nothing here knows a clock, chance or a file.

mod added;
mod answer;
mod compare;
mod edits;
mod forecast;
mod needed;
mod run;
mod run_times;
mod usage;
mod work;

pub use added::AddedNodes;
pub use answer::{Answer, Evicted, JobLine, ModelLine, ModelState, Start, TenantLine, TenantState, Why};
pub use edits::Edit;

use crate::nodes::NodeModel;
use muster_control_core::Reject;
use muster_model::laws::Broken;
use muster_model::{Object, ValidJobSpec};
use needed::Needed;
use run::Run;

/// A job that is submitted during the runs.
#[derive(Clone, Debug)]
pub struct Submission {
    /// So long after the beginning.
    pub after_ms: u64,
    /// What is submitted.
    pub spec: ValidJobSpec,
    /// How long it works, where that is known; otherwise [`Options`] decide.
    pub work_ms: Option<u64>,
}

/// What is assumed of how long jobs run of which nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunTimeBasis {
    /// Their time limits, or the part of them that [`Options`] say.
    #[default]
    Limits,
    /// How long earlier jobs of their tenants of the same size ran, where enough of them have ended; otherwise their time limits.
    Predicted,
}

/// What the runs assume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How far both runs go.
    pub horizon_ms: u64,
    /// How long jobs run.
    pub run_times: RunTimeBasis,
    /// Jobs with a time limit run for this share of it.
    pub limit_percent: u32,
    /// Jobs without a time limit run for so long; none: beyond the horizon.
    pub run_time_ms: Option<u64>,
    /// Pending jobs whose reason is looked for, at most.
    pub explained_max: usize,
    /// How nodes behave.
    pub nodes: NodeModel,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            horizon_ms: 2 * 3_600_000,
            run_times: RunTimeBasis::default(),
            limit_percent: 100,
            run_time_ms: None,
            explained_max: 1_000,
            nodes: NodeModel::default(),
        }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// A copy of the state, each object once, in any order.
    pub objects: Vec<Object>,
    /// When it was made, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// What is changed in one of the runs, in this order.
    pub edits: Vec<Edit>,
    /// Jobs that are submitted: in both runs where there are edits, otherwise only in the second, as the change that is asked about.
    pub workload: Vec<Submission>,
    /// What the runs assume.
    pub options: Options,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfError {
    /// The fleet would refuse an edit.
    #[error("{reject}")]
    Edit {
        /// Which, counted from 0.
        edit: usize,
        /// Why.
        reject: Reject,
    },
    /// The fleet would refuse a job of the workload, with the edits and without.
    #[error("{reject}")]
    Job {
        /// Which, counted from 0.
        index: usize,
        /// Why.
        reject: Reject,
    },
    /// A law was found broken at the end of a run: a fault of the cores.
    #[error("at the end of the simulated time: {0}")]
    Law(#[source] Broken),
    /// The scheduler went on proposing at one moment of virtual time: a fault of the cores.
    #[error("after {after_s} s of simulated time the scheduler proposed without end")]
    Restless {
        /// When.
        after_s: u64,
    },
}

/// One run and what it came to.
pub(crate) struct Outcome {
    run: Run,
    needed: Needed,
}

/// Runs both and compares.
///
/// # Errors
/// What the fleet would refuse, or a fault of the cores.
pub fn ask(question: &Question) -> Result<Answer, WhatIfError> {
    let in_both = !question.edits.is_empty();
    let before = outcome(question, &[], if in_both { &question.workload } else { &[] })?;
    let after = outcome(question, &question.edits, &question.workload)?;
    // What only one of the two refuses is part of the answer.
    let refused = |of: &Outcome, index| of.run.refused.get(&index).cloned();
    for (index, reject) in &after.run.refused {
        if !in_both || refused(&before, *index).is_some() {
            return Err(WhatIfError::Job { index: *index, reject: reject.clone() });
        }
    }
    Ok(compare::compare(question, &before, &after))
}

fn outcome(question: &Question, edits: &[Edit], workload: &[Submission]) -> Result<Outcome, WhatIfError> {
    let mut run = Run::begin(question.objects.iter().cloned(), question.now_ms, &question.options);
    for (index, edit) in edits.iter().enumerate() {
        run.edit(edit).map_err(|reject| WhatIfError::Edit { edit: index, reject })?;
    }
    let needed = needed::needed(&run.state, question.now_ms, workload)?;
    run.submit(workload);
    run.go()?;
    Ok(Outcome { run, needed })
}
