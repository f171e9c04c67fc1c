//! What needs a feature level that not every cluster has reached yet: it is refused until every voter can read it.

use crate::draft::Draft;
use crate::reject::Reject;
use muster_model::FieldError;

/// The level from which on jobs have start conditions.
const START_CONDITIONS: u32 = 3;
const FIX: &str = "upgrade every control node to this version; the level is raised by itself then";

/// A field of a job.
pub(super) fn field(draft: &Draft<'_>, field: &str) -> Result<(), FieldError> {
    match problem(draft) {
        Some(problem) => Err(FieldError::new(field, problem, FIX)),
        None => Ok(()),
    }
}

/// A whole command.
pub(super) fn command(draft: &Draft<'_>, what: &str) -> Result<(), Reject> {
    match problem(draft) {
        Some(problem) => Err(Reject::field(what, problem, FIX)),
        None => Ok(()),
    }
}

fn problem(draft: &Draft<'_>) -> Option<String> {
    let level = draft.meta.feature_level;
    (level < START_CONDITIONS).then(|| format!("needs feature level {START_CONDITIONS}; the cluster is at {level}"))
}
