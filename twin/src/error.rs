//! Why a replay gave no report. What must stay true: a fault of the cores is never reported as one of the input.

use crate::fleet::FleetError;
use muster_control_core::Reject;
use muster_model::laws::Broken;

/// Why a replay gave no report.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The event log could not be written.
    #[error("writing the event log: {0}")]
    Log(#[from] std::io::Error),
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
