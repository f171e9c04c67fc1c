//! Conditions under which a job may start, and those of them that are not met yet.

use super::{each, word_if};
use crate::v1;
use muster_model::{Dependency, DependencyKind, FieldError, Holder, JobId, StartConditions, Unmet};

impl From<&Dependency> for v1::Dependency {
    fn from(on: &Dependency) -> Self {
        v1::Dependency { kind: on.kind.to_string(), job_id: on.job.0, delay_s: on.delay_s }
    }
}

impl TryFrom<v1::Dependency> for Dependency {
    type Error = FieldError;

    fn try_from(wire: v1::Dependency) -> Result<Self, FieldError> {
        let kind = word_if::<DependencyKind>("kind", &wire.kind)?;
        let missing = || FieldError::new("kind", "is missing", "use afterok, afterany, afternotok, after or aftercorr");
        Ok(Dependency { kind: kind.ok_or_else(missing)?, job: JobId(wire.job_id), delay_s: wire.delay_s })
    }
}

/// Absent when there are none.
pub(super) fn conditions_to_wire(start: &StartConditions) -> Option<v1::StartConditions> {
    (*start != StartConditions::default()).then(|| v1::StartConditions {
        held: start.held,
        begin_ms: start.begin_ms,
        deadline_ms: start.deadline_ms,
        dependencies: start.dependencies.iter().map(Into::into).collect(),
        singleton: start.singleton,
        kill_on_invalid_dependency: start.kill_on_invalid_dependency,
        any_dependency: start.any_dependency,
    })
}

pub(super) fn conditions_from_wire(wire: Option<v1::StartConditions>) -> Result<StartConditions, FieldError> {
    let Some(wire) = wire else { return Ok(StartConditions::default()) };
    Ok(StartConditions {
        held: wire.held,
        begin_ms: wire.begin_ms,
        deadline_ms: wire.deadline_ms,
        dependencies: each("dependencies", wire.dependencies)?,
        singleton: wire.singleton,
        kill_on_invalid_dependency: wire.kill_on_invalid_dependency,
        any_dependency: wire.any_dependency,
    })
}

/// Absent when there are none.
pub(super) fn unmet_to_wire(unmet: &Unmet) -> Option<v1::UnmetConditions> {
    (!unmet.is_empty()).then(|| v1::UnmetConditions {
        held_by: unmet.held.map(|holder| holder.to_string()).unwrap_or_default(),
        begin_ms: unmet.begin_ms,
        dependencies: unmet.dependencies.iter().map(Into::into).collect(),
        never: unmet.never.as_ref().map(Into::into),
        singleton: unmet.singleton,
        any_dependency: unmet.any_dependency,
    })
}

pub(super) fn unmet_from_wire(wire: Option<v1::UnmetConditions>) -> Result<Unmet, FieldError> {
    wire.map(TryInto::try_into).transpose().map(Option::unwrap_or_default)
}

impl TryFrom<v1::UnmetConditions> for Unmet {
    type Error = FieldError;

    fn try_from(wire: v1::UnmetConditions) -> Result<Self, FieldError> {
        Ok(Unmet {
            held: word_if::<Holder>("held_by", &wire.held_by)?,
            begin_ms: wire.begin_ms,
            dependencies: each("dependencies", wire.dependencies)?,
            never: wire.never.map(TryInto::try_into).transpose()?,
            singleton: wire.singleton,
            any_dependency: wire.any_dependency,
        })
    }
}
