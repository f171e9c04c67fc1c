//! The replicated state machine, pure.
//!
//! [`plan()`] decides: it reads the state and one command and returns the changes that the command makes, or a typed refusal.
//! [`State::apply`] refuses nothing and is the only mutator (it panics where `plan` let through what the capacity ledger cannot hold: a bug).
//! [`State::check`] looks for broken laws.
//! What must stay true:
//! - `plan` reads nothing but the state, the command and the time that the log entry carries: every replica decides alike;
//! - a refused command changes nothing (law 11);
//! - ids come from counters in the state, so no id is ever used twice (law 5);
//! - no clock, random number, file, socket or async runtime is known here.

mod audit;
mod authored;
pub mod authz;
pub mod bounds;
mod check;
mod check_quota;
mod check_records;
mod classes;
pub mod command;
pub mod desired;
mod draft;
pub mod entry;
pub mod events;
pub mod execute;
pub mod failed_tries;
pub mod growth_fault;
pub mod index;
pub mod leased_binding;
mod level;
pub mod outcome;
pub mod plan;
pub mod quota;
pub mod rate;
pub mod reason;
pub mod reject;
pub mod request_table;
pub mod restoration;
mod routing;
pub mod shape_fault;
pub mod standing;
pub mod state;
pub mod task_report;
mod tier;
mod use_histories;
pub mod victim_fault;
mod windows;

pub use audit::{head_statement as audit_head_statement, link as audit_link};
pub use command::Command;
pub use desired::DesiredTask;
pub use entry::{Decided, Entry};
pub use execute::{Executed, execute};
pub use growth_fault::GrowthFault;
pub use index::Index;
pub use leased_binding::LeasedBinding;
pub use outcome::Done;
pub use plan::{drained_by, plan};
pub use reason::Reason;
pub use reject::Reject;
pub use restoration::Restoration;
pub use shape_fault::{RankFault, ReservationFault, ShapeFault};
pub use state::State;
pub use task_report::TaskReport;
pub use victim_fault::VictimFault;
