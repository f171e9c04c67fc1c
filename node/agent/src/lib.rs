//! The node agent: it tells the control plane what its host has, runs what it is told to, and reports what became of it.
//!
//! Decisions are made in `muster-node-core`; this crate carries them out. Two tasks share one state ([`shared`]): the
//! *session* talks with a control node and pushes fences on, the *reconciler* makes the node what it should be. Neither waits for
//! the other, and neither waits for a card ([`cards`]): a slow driver never costs a heartbeat or delays a stop.
//!
//! What must stay true:
//! - a desired state is acted on only after its stamp is on disk, and never when a higher stamp was taken before;
//! - a number of the usage stream is sent only after the interval behind it is on disk;
//! - an agent that stops, crashes or is cut off leaves its tasks running under their shims, which fence themselves; the next agent
//!   of the host takes them over;
//! - an idle node costs one heartbeat a second and nothing else.

mod agent;
mod boottime;
mod cards;
mod clean;
mod config;
pub mod exec;
#[doc(hidden)]
pub mod fuzzing;
pub mod gpu;
mod health;
mod held_on;
mod history;
pub mod image;
mod logs;
mod own_children;
mod pidfd;
mod proc_stat;
mod process_info;
mod ready;
mod reconcile;
pub mod sandbox;
mod session;
mod shared;
pub mod shim;
pub mod shim_command;
mod stop_order;
mod stored;
pub mod task_folder;
pub mod telemetry;
mod wire;

pub use agent::{Agent, AgentStatus};
pub use config::{AgentConfig, AgentError, HealthConfig};
pub use muster_node_core::Driver;
pub use muster_node_core::health::Mode as HealthMode;
