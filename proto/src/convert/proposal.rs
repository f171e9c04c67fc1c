//! What shards propose. The cell and its epoch stand in the request; a binding's own part is [`BindParts`].

use super::{each, word_if};
use crate::v1;
use muster_model::{Attempt, FieldError, GpuModel, JobId, TaskPlacement};

/// A gang and the places found for it, without the lease it is proposed under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindParts {
    /// The job.
    pub job: JobId,
    /// The attempt it would be.
    pub attempt: Attempt,
    /// Model of all its cards; `None` for a gang without GPUs.
    pub model: Option<GpuModel>,
    /// Rank by rank.
    pub tasks: Vec<TaskPlacement>,
}

impl From<&BindParts> for v1::Bind {
    fn from(bind: &BindParts) -> Self {
        v1::Bind {
            job: bind.job.0,
            attempt: bind.attempt.0,
            model: bind.model.map(|model| model.to_string()).unwrap_or_default(),
            tasks: bind.tasks.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::Bind> for BindParts {
    type Error = FieldError;

    fn try_from(wire: v1::Bind) -> Result<Self, FieldError> {
        Ok(BindParts {
            job: JobId(wire.job),
            attempt: Attempt(wire.attempt),
            model: word_if("model", &wire.model)?,
            tasks: each("tasks", wire.tasks)?,
        })
    }
}
