//! What is replayed, on what and how. What must stay true: a report says all of it, so that anybody can replay the same.

use crate::fleet::Fleet;
use crate::import::Trace;
use crate::nodes::NodeModel;
use crate::queue::QueueChoice;
use crate::quota::QuotaChoice;
use crate::shape::ShapeOptions;
use crate::window::WindowChoice;
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
    /// Running jobs save their work this often, in seconds: what a preempted one keeps. 0: never.
    #[serde(default)]
    pub checkpoint_s: u64,
    /// Under whose name jobs wait.
    #[serde(default)]
    pub queue: QueueChoice,
    /// How long burst work runs at least before it may be preempted, in seconds.
    #[serde(default)]
    pub cool_down_s: u64,
    /// In how many seconds past use comes to count half in the order of tenants; 0: it does not count.
    #[serde(default)]
    pub half_life_s: u64,
    /// Of one in so many submitted jobs it is asked when it will start, if it still waits after a minute; 0: of none.
    #[serde(default)]
    pub estimates_every: u32,
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
            checkpoint_s: 3_600,
            queue: QueueChoice::Tree,
            cool_down_s: 0,
            half_life_s: 0,
            estimates_every: 0,
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
