//! What a finished replay has gathered: what the report and its assumptions are made of.

use crate::fairness::Watch;
use crate::input::ReplayInput;
use crate::ledger::Ledger;
use crate::measure::Measure;
use crate::report::{FleetFacts, Work};
use crate::window::Window;
use std::collections::BTreeMap;

/// Where virtual time begins, in ms since 1970: far enough from zero that yesterday exists.
pub(crate) const BEGIN_MS: u64 = 1_000_000_000_000;

/// Everything that the report is made of.
pub(crate) struct Account<'a> {
    pub(crate) input: &'a ReplayInput,
    pub(crate) window: &'a Window,
    pub(crate) fleet: FleetFacts,
    pub(crate) ledger: Ledger,
    pub(crate) measure: Measure,
    pub(crate) watch: Option<Watch>,
    pub(crate) kept: Kept,
    pub(crate) tree: TreeFacts,
    pub(crate) work: Work,
    pub(crate) refused: BTreeMap<String, u64>,
    /// When the replay stopped.
    pub(crate) stopped_ms: u64,
}

/// The quota tree in figures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TreeFacts {
    pub(crate) tenants: u64,
    pub(crate) with_guarantee: u64,
    pub(crate) with_max: u64,
    /// Of the organisations together.
    pub(crate) guaranteed_gpus: f64,
}

/// What work came to: GPU units × milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    /// Held by attempts that completed, within the window.
    pub(crate) finished: u128,
    /// Held by preempted attempts until their last checkpoint, within the window.
    pub(crate) saved: u128,
    /// Held by preempted attempts from their last checkpoint on.
    pub(crate) lost: u128,
    /// The same within the window.
    pub(crate) lost_in_window: u128,
    /// Attempts that were preempted.
    pub(crate) victims: u64,
}
