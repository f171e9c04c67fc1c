//! Replays a trace: the real state machine and the real scheduler on virtual time, with a trivial model of nodes between.
//!
//! What must stay true: every submitted job is accounted for at the end; same input, same report.

use crate::engine::Engine;
use crate::fleet::{Fleet, FleetError};
use crate::import::Trace;
use crate::ledger::Ledger;
use crate::nodes::NodeModel;
use crate::quota::{QuotaChoice, tenants};
use crate::report::Report;
use crate::shape::{ShapeOptions, Shaper};
use crate::window::{Window, WindowChoice};
use muster_control_core::Reject;
use muster_model::laws::Broken;
use muster_scheduler_core::PlacementPolicy;
use serde::{Deserialize, Serialize};

/// How to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Which part of the trace.
    pub window: WindowChoice,
    /// Jobs that still ran at the window's beginning hold devices first.
    pub warm_start: bool,
    /// Ceilings to impose.
    pub quota: QuotaChoice,
    /// How jobs are asked for.
    pub shape: ShapeOptions,
    /// How nodes behave.
    pub nodes: NodeModel,
    /// How long after the window the replay goes on so that what was submitted can end.
    pub drain_days_max: u32,
    /// How places are chosen.
    pub policy: PlacementPolicy,
    /// How often every law is checked, in equal parts of the window.
    pub checks: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            window: WindowChoice::Whole,
            warm_start: true,
            quota: QuotaChoice::None,
            shape: ShapeOptions::default(),
            nodes: NodeModel::default(),
            drain_days_max: 60,
            policy: PlacementPolicy::default(),
            checks: 8,
        }
    }
}

/// What is replayed on what.
#[derive(Clone, Debug)]
pub struct ReplayInput {
    /// Heading of the report.
    pub title: String,
    /// The trace.
    pub trace: Trace,
    /// The fleet.
    pub fleet: Fleet,
    /// How.
    pub options: Options,
}

/// Why a replay gave no report.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Nothing to replay.
    #[error("the trace has no job in these days ({jobs} jobs in all, {bad} invalid rows)")]
    Empty {
        /// Jobs of the whole trace.
        jobs: usize,
        /// Bad rows.
        bad: u64,
    },
    /// The fleet's description is wrong.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The fleet or the tenants were refused.
    #[error("setting up: {0}")]
    SetUp(#[source] Reject),
    /// A law was found broken: a fault of the cores.
    #[error("after {after_s} s of virtual time: {broken}")]
    Law {
        /// When.
        after_s: u64,
        /// Which.
        #[source]
        broken: Broken,
    },
    /// A job was lost or counted twice: a fault of the replay or of the cores.
    #[error("jobs do not add up: {counts}")]
    Unbalanced {
        /// The counts.
        counts: String,
    },
    /// The scheduler went on proposing at one moment of virtual time: a fault of the cores.
    #[error("after {after_s} s of virtual time the scheduler proposed without end")]
    Restless {
        /// When.
        after_s: u64,
    },
}

/// Replays. `progress` is told now and then how many milliseconds of virtual time have passed, and how many the window has.
///
/// # Errors
/// When there is nothing to replay, the fleet is refused, or the cores are found at fault.
pub fn replay(input: &ReplayInput, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, ReplayError> {
    let (trace, fleet, options) = (&input.trace, &input.fleet, &input.options);
    fleet.validate()?;
    let empty = || ReplayError::Empty { jobs: trace.jobs.len(), bad: trace.bad.count };
    let window = Window::choose(&trace.jobs, options.window).ok_or_else(empty)?;
    let (mut running, submitted) = window.cut(&trace.jobs);
    if submitted.is_empty() {
        return Err(empty());
    }
    if !options.warm_start {
        running.clear();
    }
    let replayed: Vec<_> = running.iter().chain(&submitted).collect();
    let tenant_specs = tenants(options.quota, fleet, &window, &trace.jobs, &replayed);
    let shaper = Shaper::new(fleet, options.shape);
    let ledger = Ledger::new(&tenant_specs, &running, &submitted, &shaper, window.from_s);

    let mut engine = Engine::set_up(fleet, &tenant_specs, ledger, options, window.length_s() * 1000)?;
    engine.run(progress)?;
    let report = engine.account(input, &window).report();
    if report.jobs.balances() {
        Ok(report)
    } else {
        Err(ReplayError::Unbalanced { counts: format!("{:?}", report.jobs) })
    }
}
