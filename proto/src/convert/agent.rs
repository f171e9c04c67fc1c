//! What agents report: task states and usage intervals.

use super::need;
use crate::v1;
use muster_model::task::CleanUp;
use muster_model::usage::{UsageInterval, UseKind};
use muster_model::{AllocationId, Checkpoint, FieldError, Rank, TaskState};

/// What an agent saw of one task, and when it was over by the node's clock, for the wire.
#[must_use]
pub fn report_to_wire(
    allocation: AllocationId,
    rank: Rank,
    state: &TaskState,
    ended_ms: Option<u64>,
) -> v1::TaskReport {
    v1::TaskReport {
        allocation: allocation.0,
        rank: rank.0,
        state: Some(state.into()),
        ended_ms,
        ..v1::TaskReport::default()
    }
}

/// The same, from the wire.
///
/// # Errors
/// When the state is absent or unknown.
pub fn report_from_wire(wire: v1::TaskReport) -> Result<(AllocationId, Rank, TaskState, Option<u64>), FieldError> {
    let state = need(wire.state, "state")?.try_into().map_err(|e: FieldError| e.under("state"))?;
    Ok((AllocationId(wire.allocation), Rank(wire.rank), state, wire.ended_ms))
}

/// What a report tells of the devices of a task that is over.
#[must_use]
pub fn clean_up_from_wire(wire: &v1::TaskReport) -> CleanUp {
    match wire {
        v1::TaskReport { cleaning: true, .. } => CleanUp::UnderWay,
        v1::TaskReport { unclean, cleaned_ms, .. } if unclean.is_empty() => CleanUp::Done { took_ms: *cleaned_ms },
        v1::TaskReport { unclean, .. } => CleanUp::Failed { reason: unclean.clone() },
    }
}

/// Puts it into a report.
pub fn clean_up_to_wire(clean_up: &CleanUp, report: &mut v1::TaskReport) {
    match clean_up {
        CleanUp::Done { took_ms } => report.cleaned_ms = *took_ms,
        CleanUp::UnderWay => report.cleaning = true,
        CleanUp::Failed { reason } => report.unclean = reason.clone(),
    }
}

/// What a report tells of a checkpoint.
#[must_use]
pub fn checkpoint_from_wire(wire: &v1::TaskReport) -> Option<Checkpoint> {
    wire.checkpoint_ms.map(|at_ms| Checkpoint { at_ms, note: wire.checkpoint_note.clone() })
}

impl From<&UsageInterval> for v1::UsageInterval {
    fn from(interval: &UsageInterval) -> Self {
        let ran = interval.kind == UseKind::Run;
        v1::UsageInterval {
            seq: interval.seq,
            allocation: interval.allocation.0,
            duration_ms: interval.duration_ms,
            gpu_unit_ms: if ran { interval.gpu_unit_ms } else { 0 },
            held_unit_ms: if ran { 0 } else { interval.gpu_unit_ms },
            kind: v1::UseKind::from(interval.kind).into(),
        }
    }
}

impl From<v1::UsageInterval> for UsageInterval {
    fn from(wire: v1::UsageInterval) -> Self {
        // What a later version distinguishes counts as clean-up.
        let kind = v1::UseKind::try_from(wire.kind).map_or(UseKind::Clean, UseKind::from);
        UsageInterval {
            seq: wire.seq,
            allocation: AllocationId(wire.allocation),
            duration_ms: wire.duration_ms,
            gpu_unit_ms: if kind == UseKind::Run { wire.gpu_unit_ms } else { wire.held_unit_ms },
            kind,
        }
    }
}

impl From<UseKind> for v1::UseKind {
    fn from(kind: UseKind) -> Self {
        match kind {
            UseKind::Run => v1::UseKind::Run,
            UseKind::Idle => v1::UseKind::Idle,
            UseKind::Clean => v1::UseKind::Clean,
        }
    }
}

impl From<v1::UseKind> for UseKind {
    fn from(kind: v1::UseKind) -> Self {
        match kind {
            v1::UseKind::Run => UseKind::Run,
            v1::UseKind::Idle => UseKind::Idle,
            v1::UseKind::Clean => UseKind::Clean,
        }
    }
}
