//! Elastic gangs: how far they may grow, and how far they have.

use super::word_if;
use crate::v1;
use muster_model::elastic::GrowthEnd;
use muster_model::{AllocationId, Elastic, FieldError, Growth, StopSignal};

pub(super) fn elastic_to_wire(elastic: Elastic) -> v1::Elastic {
    let signal = elastic.signal.map(|signal| signal.to_string()).unwrap_or_default();
    v1::Elastic { tasks_max: elastic.tasks_max, signal }
}

pub(super) fn elastic_from_wire(wire: v1::Elastic) -> Result<Elastic, FieldError> {
    let signal = word_if::<StopSignal>("elastic.signal", &wire.signal)?;
    Ok(Elastic { tasks_max: wire.tasks_max, signal })
}

/// What never grew is not sent.
pub(super) fn growth_to_wire(growth: &Growth) -> Option<v1::Growth> {
    (*growth != Growth::default()).then(|| v1::Growth {
        parts: growth.parts.iter().map(|part| part.0).collect(),
        tasks: growth.tasks,
        generation: growth.generation,
        grown_ms: growth.grown_ms,
        shrunk_ms: growth.shrunk_ms,
        ends: growth.ends,
        last_end: growth
            .last_end
            .as_ref()
            .map(|end| v1::GrowthEnd { allocation: end.allocation.0, reason: end.reason.clone() }),
    })
}

pub(super) fn growth_from_wire(wire: Option<v1::Growth>) -> Growth {
    let Some(wire) = wire else { return Growth::default() };
    Growth {
        parts: wire.parts.into_iter().map(AllocationId).collect(),
        tasks: wire.tasks,
        generation: wire.generation,
        grown_ms: wire.grown_ms,
        shrunk_ms: wire.shrunk_ms,
        ends: wire.ends,
        last_end: wire.last_end.map(|end| GrowthEnd { allocation: AllocationId(end.allocation), reason: end.reason }),
    }
}
