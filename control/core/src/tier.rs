//! What kind of burst an allocation is, when it becomes burst.
//!
//! What must stay true: the tier follows from the priority classes and pools of that moment, and holds until the class of the allocation changes: an
//! admin who edits a pool changes no price under a running job.

use crate::state::State;
use muster_model::{Allocation, BurstTier, Job};

/// The tier of an allocation of `job` that no floor account pays for.
pub(crate) fn tier_of(state: &State, job: Option<&Job>, held: &Allocation) -> BurstTier {
    let named = job.and_then(|job| state.priority_classes.get(job.spec.priority_class.as_deref()?));
    // Growth preempts nobody, whatever the class of its job.
    let marked = named.is_some_and(|class| !class.preempts.is_empty()) && !held.is_growth;
    match state.capacity().cool_down_ms(held) {
        _ if marked => BurstTier::Marked,
        0 => BurstTier::Spot,
        _ => BurstTier::Standard,
    }
}
