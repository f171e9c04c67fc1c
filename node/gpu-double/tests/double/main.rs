//! The double from outside: through `nvml-wrapper` as the agent uses it, and through the raw calls that the wrapper lacks.
//!
//! What must stay true: every test has a host of its own, with its own copy of the library, so they run side by side.

mod events;
mod faults;
mod host;
mod inventory;
mod links;
mod mig;
mod mig_model;
mod mode;
mod processes;
mod shared;
mod standins;
mod telemetry;
