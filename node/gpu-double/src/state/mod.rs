//! What the cards, the driver and its faults are: pure, so that its rules can be tested by themselves.
//!
//! What must stay true: nothing here opens a file or reads a clock; time, process ids and what else varies come as arguments.

pub mod card;
pub mod catalogue;
pub mod compute;
pub mod fault;
pub mod fleet;
pub mod gauges;
pub mod health;
pub mod instance;
pub mod links;
pub mod mig;
pub mod mode;
pub mod mps;
pub mod profiles;
pub mod refusal;
pub mod telemetry;
pub mod uuid;
