//! What a node does, pure: desired and observed state in, ordered idempotent steps out.
//!
//! What must stay true:
//! - nothing here knows a clock, a file, a process or a socket: time comes in as nanoseconds of CLOCK_BOOTTIME, and for
//!   the health of cards, which outlives a boot, as milliseconds of Unix time ([`health`]);
//! - the plan is level-triggered: it is made anew from the whole desired and the whole observed state, so a restarted agent
//!   needs no memory of what it was doing;
//! - a desired state with a lower stamp than the highest seen changes nothing ([`stamp`]);
//! - no rank starts while another attempt of its job is still seen on this node (law 6), and none past its own fence;
//! - no step of the plan waits for a card, and a card that is slow or fails costs only those who need it;
//! - nothing starts on a device that may have something of another task left (law 13).

pub mod card;
pub mod clean;
pub mod driver_need;
pub mod env;
pub mod fence;
pub mod health;
pub mod mps;
pub mod report;
pub mod secrets;
pub mod shares;
pub mod slices;
pub mod stamp;
pub mod step;
pub mod task;
pub mod telemetry;
pub mod usage;
pub mod users;

pub use card::{CardObserved, CardSetting, CardStep, CardWork};
pub use clean::CleanUps;
pub use driver_need::Driver;
pub use env::DeviceNames;
pub use fence::Leases;
pub use mps::{MpsLimits, MpsSetting, MpsStart};
pub use report::{Report, Reports};
pub use secrets::Secrets;
pub use shares::ShareWatch;
pub use stamp::{Gate, StaleStamp, Stamp};
pub use step::{Observed, Plan, Step, plan};
pub use task::{Desired, DesiredTask, ObservedTask, Phase, Stopping, TaskKey, TaskSpec};
pub use usage::Meter;
pub use users::TaskUsers;
