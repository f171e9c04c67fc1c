//! What only clusters of a feature level may do: below it some voter would decide otherwise (law 10).

use crate::reject::Reject;
use crate::state::State;

/// Quotas that hold: edits that refuse to break a law, and moves of tenants.
pub(super) const QUOTAS: u32 = 3;

pub(super) fn has(state: &State, level: u32) -> bool {
    state.meta.feature_level >= level
}

/// # Errors
/// When the cluster is below that level; `what` is the field that asked for more.
pub(super) fn need(state: &State, level: u32, what: &str) -> Result<(), Reject> {
    if has(state, level) {
        return Ok(());
    }
    let problem = format!("needs feature level {level}, and the cluster is at {}", state.meta.feature_level);
    Err(Reject::field(what, problem, "upgrade every control node first"))
}
