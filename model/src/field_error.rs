//! What is wrong with one field of what somebody wrote. What must stay true: it says how to fix it.

use serde::{Deserialize, Serialize};

/// One thing wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{field}: {problem}; {fix}")]
pub struct FieldError {
    /// Path of the field, in the words of the API: `tasks`, `request.mig.profile`.
    pub field: String,
    /// What is wrong, with what was given.
    pub problem: String,
    /// What to write instead.
    pub fix: String,
}

impl FieldError {
    /// A new one.
    pub fn new(field: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        FieldError { field: field.into(), problem: problem.into(), fix: fix.into() }
    }

    /// The same with `prefix` before the field's path.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.field = format!("{prefix}.{}", self.field);
        self
    }
}
