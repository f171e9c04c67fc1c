//! The NVML backend on the double, and what can be checked without changing anything on real cards too.
//!
//! What must stay true: every test has a host of its own; nothing here changes a real card (`MUSTER_REAL_NVML=1` runs the checks of `conformance` that only
//! read). The double's commands are beside its library: `cargo build -p muster-gpu-double` makes them.

mod conformance;
mod cost;
mod events;
mod faults;
mod host;
mod links;
mod mig;
mod modes;
mod node;
mod random;
mod readings;
mod resets;
mod slots;
mod telemetry;
