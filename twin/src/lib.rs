//! The twin: the fleet's own cores on virtual time, without the glue.
//!
//! It reads public traces ([`import`]), lays them on a described fleet ([`fleet`]), and lets the same state machine and the same
//! scheduler that run a real fleet decide everything, with a trivial model of nodes in between ([`run`]). What it finds is a
//! [`report::Report`], as JSON or as a page ([`html`]). And it runs a copy of a real fleet's state forward, with edits and without
//! ([`what_if`]).
//!
//! What must stay true: nothing here knows a clock, chance, an async runtime or a file (readers are handed in); the same input
//! gives the same report, byte for byte; whatever is assumed is written into the report.

pub mod bootstrap;
pub mod error;
pub mod fleet;
pub mod gauge;
pub mod html;
pub mod import;
pub mod input;
pub mod queue;
pub mod quota;
pub mod report;
pub mod run;
pub mod shape;
pub mod training;
pub mod what_if;
pub mod window;

mod account;
mod assumptions;
mod bound;
mod closeness;
mod engine;
mod estimates;
mod event_log;
mod events;
mod fairness;
mod follow;
mod gathered;
mod ledger;
mod measure;
pub mod mix;
mod nodes;
pub mod proposals;
mod reservations;
mod shard;

pub use error::ReplayError;
pub use input::{Options, ReplayInput};
pub use muster_scheduler_core::PlacementPolicy;
pub use nodes::NodeModel;
pub use run::{replay, replay_logged, replay_under};
