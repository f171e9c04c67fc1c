//! Moves: what a shard proposes, and the records of those that were made.

use super::{each, word, word_if};
use crate::v1;
use muster_model::{
    AllocationId, CellId, FieldError, GpuUnits, JobId, MoveRecord, MovedJob, NodeId, PlannedMove, TenantId,
};

impl From<&PlannedMove> for v1::PlannedMove {
    fn from(planned: &PlannedMove) -> Self {
        v1::PlannedMove { allocation: planned.allocation.0, tasks: planned.tasks.iter().map(Into::into).collect() }
    }
}

impl TryFrom<v1::PlannedMove> for PlannedMove {
    type Error = FieldError;

    fn try_from(wire: v1::PlannedMove) -> Result<Self, FieldError> {
        Ok(PlannedMove { allocation: AllocationId(wire.allocation), tasks: each("tasks", wire.tasks)? })
    }
}

impl From<&MoveRecord> for v1::MoveRecord {
    fn from(record: &MoveRecord) -> Self {
        v1::MoveRecord {
            id: record.id.0,
            cell: record.cell.0,
            made_ms: record.made_ms,
            pool: record.pool.clone(),
            job_id: record.job.0,
            tenant_id: record.tenant.0,
            model: record.model.map(|model| model.to_string()).unwrap_or_default(),
            gpu_units: record.units.0,
            nodes: record.nodes.iter().map(|node| node.0).collect(),
            converted_cards: record.converted_cards,
            due_ms: record.due_ms,
            started_ms: record.started_ms,
            given_up_ms: record.given_up_ms,
            moved: record.moved.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::MoveRecord> for MoveRecord {
    type Error = FieldError;

    fn try_from(wire: v1::MoveRecord) -> Result<Self, FieldError> {
        Ok(MoveRecord {
            id: AllocationId(wire.id),
            cell: CellId(wire.cell),
            made_ms: wire.made_ms,
            pool: wire.pool,
            job: JobId(wire.job_id),
            tenant: TenantId(wire.tenant_id),
            model: word_if("model", &wire.model)?,
            units: GpuUnits(wire.gpu_units),
            nodes: wire.nodes.into_iter().map(NodeId).collect(),
            converted_cards: wire.converted_cards,
            due_ms: wire.due_ms,
            started_ms: wire.started_ms,
            given_up_ms: wire.given_up_ms,
            moved: each("moved", wire.moved)?,
        })
    }
}

impl From<&MovedJob> for v1::MovedJob {
    fn from(moved: &MovedJob) -> Self {
        v1::MovedJob {
            job_id: moved.job.0,
            from: moved.from.0,
            to: moved.to.0,
            gpu_units: moved.units.0,
            from_nodes: moved.from_nodes.iter().map(|node| node.0).collect(),
            to_nodes: moved.to_nodes.iter().map(|node| node.0).collect(),
            promised_unit_s: moved.promised_unit_s,
            lost_unit_s: moved.lost_unit_s,
            fate: moved.fate.to_string(),
            stopped_ms: moved.stopped_ms,
            unsaved_ms: moved.unsaved_ms,
            resumed_ms: moved.resumed_ms,
        }
    }
}

impl TryFrom<v1::MovedJob> for MovedJob {
    type Error = FieldError;

    fn try_from(wire: v1::MovedJob) -> Result<Self, FieldError> {
        Ok(MovedJob {
            job: JobId(wire.job_id),
            from: AllocationId(wire.from),
            to: AllocationId(wire.to),
            units: GpuUnits(wire.gpu_units),
            from_nodes: wire.from_nodes.into_iter().map(NodeId).collect(),
            to_nodes: wire.to_nodes.into_iter().map(NodeId).collect(),
            promised_unit_s: wire.promised_unit_s,
            lost_unit_s: wire.lost_unit_s,
            fate: word("fate", &wire.fate)?,
            stopped_ms: wire.stopped_ms,
            unsaved_ms: wire.unsaved_ms,
            resumed_ms: wire.resumed_ms,
        })
    }
}
