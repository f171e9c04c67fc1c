//! A double of NVIDIA's NVML: the library's C symbols over a fleet file and a fault file, for tests and demos without GPUs.
//!
//! What must stay true: the double refuses what the driver refuses, in the driver's codes; what it does not know is a missing symbol and
//! never a made-up answer; two processes that load it on one folder see one state, which outlives them. Layers: `state` (pure: no files,
//! no clock), `files` (the state under a lock, and the driver's folders beside it), `edge` (the C symbols). The Rust API for tests is
//! [`Fleet`], [`Faults`], [`library_beside`] and [`library_into`].

pub mod edge;
mod faults;
mod files;
mod library;
pub mod standin;
pub mod state;

pub use faults::Faults;
pub use files::DoubleError;
pub use library::{FOLDER_VARIABLE, LIBRARY_FILE, library_beside, library_into};
pub use state::card::{Card, Client, Fabric, Link, LinkRemote, PciAddress, Process, ProcessKind};
pub use state::catalogue::Nic;
pub use state::fault::{Effect, Event, FaultPlan, Rule};
pub use state::fleet::Fleet;
pub use state::gauges::Load;
pub use state::instance::{ComputeInstance, GpuInstance};
pub use state::mps::{Granted, MpsClient, MpsServer, MpsStatus};
pub use state::refusal::{Answer, Refusal};
