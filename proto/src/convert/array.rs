//! Arrays: sets of indices travel as people write them.

use super::each;
use crate::v1;
use muster_model::array::SameIndex;
use muster_model::{ArraySpec, ArrayState, ArrayTask, FieldError, IndexSet, JobId};

/// The empty set is the empty text.
fn indices(field: &str, text: &str) -> Result<IndexSet, FieldError> {
    if text.is_empty() {
        return Ok(IndexSet::default());
    }
    text.parse().map_err(|error: FieldError| FieldError { field: field.to_owned(), ..error })
}

/// Tasks of an array that a call names.
///
/// # Errors
/// What is no set of indices, or has none.
pub fn tasks_from_wire(field: &str, text: &str) -> Result<IndexSet, FieldError> {
    text.parse().map_err(|error: FieldError| FieldError { field: field.to_owned(), ..error })
}

impl From<&ArraySpec> for v1::ArraySpec {
    fn from(array: &ArraySpec) -> Self {
        v1::ArraySpec { indices: array.indices.to_string(), max_running: array.max_running }
    }
}

impl TryFrom<v1::ArraySpec> for ArraySpec {
    type Error = FieldError;

    fn try_from(wire: v1::ArraySpec) -> Result<Self, FieldError> {
        Ok(ArraySpec { indices: indices("indices", &wire.indices)?, max_running: wire.max_running })
    }
}

impl From<&ArrayState> for v1::ArrayState {
    fn from(array: &ArrayState) -> Self {
        v1::ArrayState {
            left: array.left.to_string(),
            completed: array.completed.to_string(),
            failed: array.failed.to_string(),
            max_running: array.max_running,
            with_same_index: array.with_same_index.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::ArrayState> for ArrayState {
    type Error = FieldError;

    fn try_from(wire: v1::ArrayState) -> Result<Self, FieldError> {
        Ok(ArrayState {
            left: indices("left", &wire.left)?,
            completed: indices("completed", &wire.completed)?,
            failed: indices("failed", &wire.failed)?,
            max_running: wire.max_running,
            with_same_index: each("with_same_index", wire.with_same_index)?,
        })
    }
}

impl From<&SameIndex> for v1::SameIndex {
    fn from(on: &SameIndex) -> Self {
        v1::SameIndex { array: on.array.0, completed: on.completed.to_string(), over: on.over }
    }
}

impl TryFrom<v1::SameIndex> for SameIndex {
    type Error = FieldError;

    fn try_from(wire: v1::SameIndex) -> Result<Self, FieldError> {
        let completed = indices("completed", &wire.completed)?;
        Ok(SameIndex { array: JobId(wire.array), completed, over: wire.over })
    }
}

impl From<ArrayTask> for v1::ArrayTask {
    fn from(task: ArrayTask) -> Self {
        v1::ArrayTask { array: task.array.0, index: task.index }
    }
}

impl From<v1::ArrayTask> for ArrayTask {
    fn from(wire: v1::ArrayTask) -> Self {
        ArrayTask { array: JobId(wire.array), index: wire.index }
    }
}
