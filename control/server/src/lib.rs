//! A control node: consensus, storage, and every service a client, shard or agent calls.
//!
//! What must stay true: all decisions are made in `control/core`; the state is changed by the log alone; an acknowledged command is
//! durable on a quorum.

mod api;
pub mod backup;
pub mod consensus;
mod denials;
pub mod event_export;
mod floor_metrics;
#[doc(hidden)]
pub mod fuzzing;
pub mod history;
mod identities;
pub mod leases;
pub mod login;
pub mod node;
pub mod recovery;
mod secrets;
mod services;
pub mod sessions;

pub use api::rates::CallRates;
pub use consensus::copied;
pub use consensus::{Consensus, ConsensusConfig, PlantedBug};
pub use history::HistoryConfig;
pub use leases::LeaseConfig;
pub use node::{ControlConfig, ControlNode, StartError};
pub use sessions::SessionConfig;

/// The status with which a control node answers what the state machine refuses: for programs that decide on a copy of the state, so that they
/// refuse in the same words.
#[must_use]
pub fn refused(reject: &muster_control_core::Reject) -> tonic::Status {
    api::refusal::reject(reject)
}
