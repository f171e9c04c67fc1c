//! What shards propose. The cell and its epoch stand in the request; a [`Binding`] does not have them.

use super::{each, word_if};
use crate::v1;
use muster_model::{Attempt, Binding, FieldError, JobId};

impl From<&Binding> for v1::Bind {
    fn from(bind: &Binding) -> Self {
        v1::Bind {
            job: bind.job.0,
            attempt: bind.attempt.0,
            model: bind.model.map(|model| model.to_string()).unwrap_or_default(),
            tasks: bind.tasks.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::Bind> for Binding {
    type Error = FieldError;

    fn try_from(wire: v1::Bind) -> Result<Self, FieldError> {
        Ok(Binding {
            job: JobId(wire.job),
            attempt: Attempt(wire.attempt),
            model: word_if("model", &wire.model)?,
            tasks: each("tasks", wire.tasks)?,
        })
    }
}
