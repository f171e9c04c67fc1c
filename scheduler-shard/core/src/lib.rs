//! The scheduler of a cell, pure: snapshot in, plan out.
//!
//! [`View`] is what a shard knows: the books of the fleet with its own pending proposals charged, and who waits where. [`plan()`] reads
//! it like a page: the queue gives the order, each candidate is placed, and what was found is proposed. [`explain()`] says of any
//! waiting job why it waits and what would help. What must stay true:
//! - nothing here decides alone: the control plane proves every proposal again with the same arithmetic of the model;
//! - no clock, random number, file, socket or async runtime is known here; time comes in as a number;
//! - search is bounded by steps; scores are integers in structs with a derived order, ids last; the same view gives the same plan.

mod by_id;
pub mod explain;
pub mod fractions;
mod gate;
pub mod guard;
mod index;
mod job_class;
mod order;
mod place;
pub mod plan;
pub mod planner;
mod proposal;
mod queue;
mod reserve;
#[cfg(test)]
mod tests;
mod view;

pub use explain::{Explanation, Reason, Why, explain};
pub use plan::{Bounds, Plan, plan};
pub use planner::{MovePlan, plan_moves};
pub use proposal::{Binding, Proposal};
pub use reserve::{HORIZON_MS, KEPT_PART, RESERVATIONS_MAX};
pub use view::{Policy, View};
