//! What only clusters of a feature level may do: below it some voter would decide otherwise (law 10), or could not read it.

use crate::reject::Reject;
use crate::state::State;
use muster_model::FieldError;

/// Quotas that hold: since this level allocations record who pays for them, and attempts can be preempted. Conditions of a job's start; arrays; requeue and updates.
pub(crate) const QUOTAS: u32 = 3;

/// Identities: grants, credentials, who has made a command, the audit.
pub(crate) const ACCESS: u32 = 4;

/// Machines are enrolled: join tokens, pinned keys, suspension. Tenants have secrets.
pub(crate) const ENROLMENT: u32 = 5;

/// Restoring from a backup.
pub(crate) const RESTORATION: u32 = 6;

/// What ran, was held on and was cleaned up is counted apart. A suspended node that is silent stays silent.
pub(crate) const USE_KINDS: u32 = 7;

pub(crate) fn has(state: &State, level: u32) -> bool {
    state.meta.feature_level >= level
}

/// # Errors
/// When the cluster is below that level; `what` is the field or the command that asked for more.
pub(crate) fn need(state: &State, level: u32, what: &str) -> Result<(), Reject> {
    field(state, level, what).map_err(|error| Reject::Invalid(vec![error]))
}

/// The same for a field of a job.
pub(crate) fn field(state: &State, level: u32, what: &str) -> Result<(), FieldError> {
    if has(state, level) {
        return Ok(());
    }
    let problem = format!("needs feature level {level}, and the cluster is at {}", state.meta.feature_level);
    Err(FieldError::new(what, problem, "upgrade every control node first; the level is raised by itself then"))
}
