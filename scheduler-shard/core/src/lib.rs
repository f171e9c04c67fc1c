//! The scheduler of a cell, pure: snapshot in, plan out.
//!
//! [`View`] is what a shard knows: the capacity ledger of the fleet with its own pending proposals charged, and who waits where. [`plan()`] reads
//! it like a page: the queue gives the order, each candidate is placed, and what was found is proposed. [`explain()`] says of any
//! waiting job why it waits and what would help. What must stay true:
//! - nothing here decides alone: the control plane proves every proposal again with the same arithmetic of the model;
//! - no clock, random number, file, socket or async runtime is known here; time comes in as a number;
//! - search is bounded by steps; scores are integers in structs with a derived order, ids last; the same view gives the same plan.

mod by_id;
pub mod explain;
mod fleet;
pub mod fractions;
mod job_class;
mod pass;
pub mod planner;
mod policy;
mod proposal;
mod queue;
mod search;
#[cfg(test)]
mod tests;
mod view;

pub use explain::{Explanation, Reason, Why, explain};
pub use fleet::PlacementPolicy;
pub use pass::plan;
pub use planner::{MovePlan, plan_moves};
pub use policy::guard::{BYPASSED_SIZES_MAX, RECORD_AGAIN_MS};
pub use policy::hand_over::{HAND_OVER_AFTER_MS, HAND_OVER_ROUND_MS};
pub use policy::if_ended::starts_if_ended;
pub use policy::reserve::HORIZON_MS;
pub use proposal::{Bounds, Plan, Proposal, RESERVED_PART};
pub use view::{RESERVATIONS_MAX, View};
