//! Allocations: holds, placements, task states and why an attempt ends.

use super::quota_class::{record_from_wire, record_to_wire};
use super::{each, narrow, need, word, word_if};
use crate::v1;
use muster_model::mig::{MigPlacement, MigShape};
use muster_model::{
    Allocation, AllocationId, AllocationState, Attempt, CellId, Claim, DeviceHold, EndCause, Epoch, FieldError,
    HoldMode, JobId, NodeId, PortBlock, Ports, Rank, TaskPlacement, TaskState, TenantId,
};
use v1::device_hold::Mode;
use v1::end_cause::Cause;
use v1::task_state::Kind;

impl From<&DeviceHold> for v1::DeviceHold {
    fn from(hold: &DeviceHold) -> Self {
        let mode = match hold.mode {
            HoldMode::Whole => Mode::Whole(v1::WholeGpus { count: 1 }),
            HoldMode::Mig(place) => Mode::Mig(mig_to_wire(place)),
            HoldMode::Mps { percent, memory_mib } => {
                Mode::Mps(v1::MpsShare { percent: u32::from(percent), memory_mib })
            }
            HoldMode::TimeSlice { memory_mib } => Mode::TimeSlice(v1::TimeSliceShare { memory_mib }),
        };
        v1::DeviceHold { gpu: u32::from(hold.gpu), mode: Some(mode) }
    }
}

impl TryFrom<v1::DeviceHold> for DeviceHold {
    type Error = FieldError;

    fn try_from(wire: v1::DeviceHold) -> Result<Self, FieldError> {
        let mode = match need(wire.mode, "mode")? {
            Mode::Whole(_) => HoldMode::Whole,
            Mode::Mig(mig) => HoldMode::Mig(mig_from_wire(&mig)?),
            Mode::Mps(mps) => {
                HoldMode::Mps { percent: narrow("mps.percent", mps.percent, 100_u8)?, memory_mib: mps.memory_mib }
            }
            Mode::TimeSlice(share) => HoldMode::TimeSlice { memory_mib: share.memory_mib },
        };
        Ok(DeviceHold { gpu: narrow("gpu", wire.gpu, u16::MAX)?, mode })
    }
}

pub(super) fn mig_to_wire(place: MigPlacement) -> v1::MigHold {
    v1::MigHold { shape: format!("{:?}", place.shape), start: u32::from(place.start) }
}

pub(super) fn mig_from_wire(wire: &v1::MigHold) -> Result<MigPlacement, FieldError> {
    Ok(MigPlacement { shape: shape_from_wire(&wire.shape)?, start: narrow("mig.start", wire.start, 7_u8)? })
}

fn shape_from_wire(name: &str) -> Result<MigShape, FieldError> {
    MigShape::ALL.into_iter().find(|shape| format!("{shape:?}") == name).ok_or_else(|| {
        let known = MigShape::ALL.map(|shape| format!("{shape:?}")).join(", ");
        FieldError::new("mig.shape", format!("unknown MIG shape {name:?}"), format!("use one of: {known}"))
    })
}

impl From<&TaskPlacement> for v1::TaskPlacement {
    fn from(task: &TaskPlacement) -> Self {
        v1::TaskPlacement { node: task.node.0, devices: task.devices.iter().map(Into::into).collect() }
    }
}

impl TryFrom<v1::TaskPlacement> for TaskPlacement {
    type Error = FieldError;

    fn try_from(wire: v1::TaskPlacement) -> Result<Self, FieldError> {
        Ok(TaskPlacement { node: NodeId(wire.node), devices: each("devices", wire.devices)? })
    }
}

impl From<&TaskState> for v1::TaskState {
    fn from(state: &TaskState) -> Self {
        let of = |kind: Kind| v1::TaskState {
            kind: kind.into(),
            code: 0,
            reason: String::new(),
            by_node: false,
            by_job: false,
        };
        match state {
            TaskState::Pending => of(Kind::Pending),
            TaskState::Running => of(Kind::Running),
            TaskState::Exited { code } => v1::TaskState { code: *code, ..of(Kind::Exited) },
            TaskState::Stopped => of(Kind::Stopped),
            TaskState::TimedOut => of(Kind::TimedOut),
            TaskState::StartFailed { reason, by_node } => {
                v1::TaskState { reason: reason.clone(), by_node: *by_node, ..of(Kind::StartFailed) }
            }
            TaskState::Fenced => of(Kind::Fenced),
            TaskState::DeviceFault { reason, by_job } => {
                v1::TaskState { reason: reason.clone(), by_job: *by_job, ..of(Kind::DeviceFault) }
            }
            TaskState::OverShare { reason } => v1::TaskState { reason: reason.clone(), ..of(Kind::OverShare) },
            TaskState::OutOfMemory { reason } => v1::TaskState { reason: reason.clone(), ..of(Kind::OutOfMemory) },
            TaskState::Signaled { signal } => v1::TaskState { code: *signal, ..of(Kind::Signaled) },
        }
    }
}

impl TryFrom<v1::TaskState> for TaskState {
    type Error = FieldError;

    fn try_from(wire: v1::TaskState) -> Result<Self, FieldError> {
        Ok(match wire.kind() {
            Kind::Pending => TaskState::Pending,
            Kind::Running => TaskState::Running,
            Kind::Exited => TaskState::Exited { code: wire.code },
            Kind::Stopped => TaskState::Stopped,
            Kind::TimedOut => TaskState::TimedOut,
            Kind::StartFailed => TaskState::StartFailed { reason: wire.reason, by_node: wire.by_node },
            Kind::Fenced => TaskState::Fenced,
            Kind::DeviceFault => TaskState::DeviceFault { reason: wire.reason, by_job: wire.by_job },
            Kind::OverShare => TaskState::OverShare { reason: wire.reason },
            Kind::OutOfMemory => TaskState::OutOfMemory { reason: wire.reason },
            Kind::Signaled => TaskState::Signaled { signal: wire.code },
            Kind::Unspecified => return Err(FieldError::new("kind", "is unspecified", "send a kind")),
        })
    }
}

impl From<&EndCause> for v1::EndCause {
    fn from(cause: &EndCause) -> Self {
        let cause = match cause {
            EndCause::Cancelled => Cause::Cancelled(true),
            EndCause::RankFailed { rank, code } => Cause::RankFailed(v1::RankFailed { rank: rank.0, code: *code }),
            EndCause::TimeLimit => Cause::TimeLimit(true),
            EndCause::NodeLost { node } => Cause::NodeLost(node.0),
            EndCause::Preempted { by, reason } => {
                Cause::Preempted(v1::Preempted { by: by.map(|job| job.0), reason: reason.to_string() })
            }
            EndCause::Requeued => Cause::Requeued(true),
            EndCause::Deadline => Cause::Deadline(true),
            EndCause::Completed => Cause::Completed(true),
            EndCause::Window { name, kind } => {
                Cause::Window(v1::WindowCause { name: name.clone(), kind: kind.to_string() })
            }
            EndCause::Shrunk { by } => Cause::Shrunk(v1::Shrunk { by: by.map(|job| job.0) }),
        };
        v1::EndCause { cause: Some(cause) }
    }
}

impl TryFrom<v1::EndCause> for EndCause {
    type Error = FieldError;

    fn try_from(wire: v1::EndCause) -> Result<Self, FieldError> {
        Ok(match need(wire.cause, "cause")? {
            Cause::Cancelled(_) => EndCause::Cancelled,
            Cause::RankFailed(failed) => EndCause::RankFailed { rank: Rank(failed.rank), code: failed.code },
            Cause::TimeLimit(_) => EndCause::TimeLimit,
            Cause::NodeLost(node) => EndCause::NodeLost { node: NodeId(node) },
            Cause::Preempted(said) => {
                EndCause::Preempted { by: said.by.map(JobId), reason: word("preempted.reason", &said.reason)? }
            }
            Cause::Requeued(_) => EndCause::Requeued,
            Cause::Deadline(_) => EndCause::Deadline,
            Cause::Completed(_) => EndCause::Completed,
            Cause::Window(said) => EndCause::Window { name: said.name, kind: word("window.kind", &said.kind)? },
            Cause::Shrunk(said) => EndCause::Shrunk { by: said.by.map(JobId) },
        })
    }
}

impl From<&Allocation> for v1::Allocation {
    fn from(allocation: &Allocation) -> Self {
        let stopping = match &allocation.state {
            AllocationState::Active => None,
            AllocationState::Stopping(cause) => Some(cause.into()),
        };
        let (classes, earlier) = record_to_wire(&allocation.classes);
        v1::Allocation {
            id: allocation.id.0,
            job: allocation.job.0,
            attempt: allocation.attempt.0,
            tenant_id: allocation.tenant.0,
            cell: allocation.cell.0,
            cell_epoch: allocation.cell_epoch.0,
            model: allocation.model.map(|model| model.to_string()).unwrap_or_default(),
            cpu_milli: allocation.cpu_milli,
            memory_mib: allocation.memory_mib,
            charge: Some((&allocation.charge).into()),
            tasks: allocation.tasks.iter().map(Into::into).collect(),
            task_states: allocation.task_states.iter().map(Into::into).collect(),
            node_epochs: allocation.node_epochs.iter().map(|(node, epoch)| (node.0, epoch.0)).collect(),
            stopping,
            bound_ms: allocation.bound_ms,
            failures: allocation.failures.iter().map(Into::into).collect(),
            classes,
            earlier,
            topology: Some(allocation.topology.into()),
            priority: allocation.priority,
            submitted_ms: allocation.submitted_ms,
            is_growth: allocation.is_growth,
            cleaning: allocation.cleaning.iter().map(|rank| rank.0).collect(),
            cleaned_ms: allocation.cleaned_ms,
            ports: ports_to_wire(allocation.ports),
        }
    }
}

/// Every block was taken. No block begins there.
const NONE_FREE: u32 = 1;

fn ports_to_wire(ports: Ports) -> u32 {
    match ports {
        Ports::Unassigned => 0,
        Ports::NoneFree => NONE_FREE,
        Ports::Block(block) => block.first().into(),
    }
}

fn ports_from_wire(wire: u32) -> Result<Ports, FieldError> {
    let block = || u16::try_from(wire).ok().and_then(PortBlock::beginning_with);
    match wire {
        0 => Ok(Ports::Unassigned),
        NONE_FREE => Ok(Ports::NoneFree),
        _ => block().map(Ports::Block).ok_or_else(|| {
            FieldError::new(
                "ports",
                format!("is {wire}, where no block of ports begins"),
                "send the first port of a block",
            )
        }),
    }
}

impl From<&Claim> for v1::Claim {
    fn from(claim: &Claim) -> Self {
        v1::Claim {
            allocation: claim.allocation.0,
            cell: claim.cell.0,
            cell_epoch: claim.cell_epoch.0,
            model: claim.model.map(|model| model.to_string()).unwrap_or_default(),
            charge: Some((&claim.charge).into()),
            account: claim.account.map(|account| account.0),
            tasks: claim.tasks.iter().map(Into::into).collect(),
            node_epochs: claim.node_epochs.iter().map(|(node, epoch)| (node.0, epoch.0)).collect(),
            victims: claim.victims.iter().map(|victim| victim.0).collect(),
            made_ms: claim.made_ms,
        }
    }
}

impl TryFrom<v1::Claim> for Claim {
    type Error = FieldError;

    fn try_from(wire: v1::Claim) -> Result<Self, FieldError> {
        Ok(Claim {
            allocation: AllocationId(wire.allocation),
            cell: CellId(wire.cell),
            cell_epoch: Epoch(wire.cell_epoch),
            model: word_if("model", &wire.model)?,
            charge: wire.charge.unwrap_or_default().try_into().map_err(|e: FieldError| e.under("charge"))?,
            account: wire.account.map(TenantId),
            tasks: each("tasks", wire.tasks)?,
            node_epochs: wire.node_epochs.into_iter().map(|(node, epoch)| (NodeId(node), Epoch(epoch))).collect(),
            victims: wire.victims.into_iter().map(AllocationId).collect(),
            made_ms: wire.made_ms,
        })
    }
}

impl TryFrom<v1::Allocation> for Allocation {
    type Error = FieldError;

    fn try_from(wire: v1::Allocation) -> Result<Self, FieldError> {
        let state = match wire.stopping {
            None => AllocationState::Active,
            Some(cause) => AllocationState::Stopping(cause.try_into().map_err(|e: FieldError| e.under("stopping"))?),
        };
        let charge = wire.charge.unwrap_or_default().try_into().map_err(|e: FieldError| e.under("charge"))?;
        Ok(Allocation {
            id: AllocationId(wire.id),
            job: JobId(wire.job),
            attempt: Attempt(wire.attempt),
            tenant: TenantId(wire.tenant_id),
            cell: CellId(wire.cell),
            cell_epoch: Epoch(wire.cell_epoch),
            model: word_if("model", &wire.model)?,
            cpu_milli: wire.cpu_milli,
            memory_mib: wire.memory_mib,
            charge,
            tasks: each("tasks", wire.tasks)?,
            task_states: each("task_states", wire.task_states)?,
            node_epochs: wire.node_epochs.into_iter().map(|(node, epoch)| (NodeId(node), Epoch(epoch))).collect(),
            state,
            bound_ms: wire.bound_ms,
            failures: each("failures", wire.failures)?,
            classes: record_from_wire(&wire.classes, wire.earlier).map_err(|error| error.under("classes"))?,
            topology: wire.topology.unwrap_or_default().try_into().map_err(|e: FieldError| e.under("topology"))?,
            priority: wire.priority,
            submitted_ms: wire.submitted_ms,
            is_growth: wire.is_growth,
            cleaning: wire.cleaning.into_iter().map(Rank).collect(),
            cleaned_ms: wire.cleaned_ms,
            ports: ports_from_wire(wire.ports)?,
        })
    }
}
