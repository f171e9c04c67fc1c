//! What people write in files and flags, and the messages of the API that it becomes.
//!
//! What must stay true: a file says the same words as the flags; an unknown key is refused by name; whatever the fleet decides
//! (whether a tenant exists, whether a model is known) is left to the control plane.

pub mod classes;
pub mod job;
pub mod names;
pub mod needs;
pub mod node;
pub mod oidc;
pub mod pools;
pub mod priority_classes;
pub mod scalar;
mod start;
pub mod tenants;
pub mod windows;
pub mod yaml;

pub use start::{moment_at, moment_of};
