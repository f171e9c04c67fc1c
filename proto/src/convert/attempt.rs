//! How attempts ended.

use super::quota_class::{record_from_wire, record_to_wire};
use super::{each, need, word};
use crate::v1;
use muster_model::attempt::{AttemptRecord, EndCount, NodeRun, PreemptedBy};
use muster_model::task::{RankFailure, TaskEnd};
use muster_model::{AllocationId, Attempt, FieldError, JobId, NodeId, Rank, TaskState, TenantId};

/// A way of ending as the state of a task that has ended so.
fn state_of(end: TaskEnd, reason: &str) -> TaskState {
    match end {
        TaskEnd::Exited { code } => TaskState::Exited { code },
        TaskEnd::Signaled { signal } => TaskState::Signaled { signal },
        TaskEnd::Stopped => TaskState::Stopped,
        TaskEnd::TimedOut => TaskState::TimedOut,
        TaskEnd::StartFailed { by_node } => TaskState::StartFailed { reason: reason.to_owned(), by_node },
        TaskEnd::Fenced => TaskState::Fenced,
        TaskEnd::DeviceFault { by_job } => TaskState::DeviceFault { reason: reason.to_owned(), by_job },
        TaskEnd::OverShare => TaskState::OverShare { reason: reason.to_owned() },
        TaskEnd::OutOfMemory => TaskState::OutOfMemory { reason: reason.to_owned() },
    }
}

/// The way in which a task in this state has ended, with what was said of it.
fn end_of(state: Option<v1::TaskState>) -> Result<(TaskEnd, String), FieldError> {
    let wire = need(state, "end")?;
    let reason = wire.reason.clone();
    let state = TaskState::try_from(wire).map_err(|error| error.under("end"))?;
    let end = TaskEnd::of(&state)
        .ok_or_else(|| FieldError::new("end", "is a task that has not ended", "send an end state"))?;
    Ok((end, reason))
}

impl From<&RankFailure> for v1::RankFailure {
    fn from(failure: &RankFailure) -> Self {
        let RankFailure { rank, node, end, reason, at_ms } = failure;
        v1::RankFailure {
            rank: rank.0,
            node: node.0,
            end: Some(v1::TaskState { reason: reason.clone(), ..(&state_of(*end, reason)).into() }),
            at_ms: *at_ms,
        }
    }
}

impl TryFrom<v1::RankFailure> for RankFailure {
    type Error = FieldError;

    fn try_from(wire: v1::RankFailure) -> Result<Self, FieldError> {
        let v1::RankFailure { rank, node, end, at_ms } = wire;
        let (end, reason) = end_of(end)?;
        Ok(RankFailure { rank: Rank(rank), node: NodeId(node), end, reason, at_ms })
    }
}

impl From<&EndCount> for v1::EndCount {
    fn from(count: &EndCount) -> Self {
        v1::EndCount { end: Some((&state_of(count.end, "")).into()), ranks: count.ranks }
    }
}

impl TryFrom<v1::EndCount> for EndCount {
    type Error = FieldError;

    fn try_from(wire: v1::EndCount) -> Result<Self, FieldError> {
        Ok(EndCount { end: end_of(wire.end)?.0, ranks: wire.ranks })
    }
}

impl From<&AttemptRecord> for v1::AttemptRecord {
    fn from(record: &AttemptRecord) -> Self {
        let (classes, earlier) = record_to_wire(&record.classes);
        v1::AttemptRecord {
            attempt: record.attempt.0,
            allocation: record.allocation.0,
            bound_ms: record.bound_ms,
            started_ms: record.started_ms,
            ended_ms: record.ended_ms,
            reason: record.reason.clone(),
            ends: record.ends.iter().map(Into::into).collect(),
            others: record.others,
            failures: record.failures.iter().map(Into::into).collect(),
            nodes: record.nodes.iter().map(|run| v1::NodeRun { node: run.node.0, ranks: run.ranks }).collect(),
            preempted: record.preempted.map(|by| v1::PreemptedBy {
                job: by.job.map(|job| job.0),
                tenant: by.tenant.map(|tenant| tenant.0),
                account: by.account.map(|account| account.0),
                reason: by.reason.to_string(),
                lost_gpu_unit_ms: by.lost_gpu_unit_ms,
            }),
            cleaned_ms: record.cleaned_ms,
            classes,
            earlier,
            topology: Some(record.topology.into()),
            end_runs: record.end_runs.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::AttemptRecord> for AttemptRecord {
    type Error = FieldError;

    fn try_from(wire: v1::AttemptRecord) -> Result<Self, FieldError> {
        Ok(AttemptRecord {
            attempt: Attempt(wire.attempt),
            allocation: AllocationId(wire.allocation),
            bound_ms: wire.bound_ms,
            started_ms: wire.started_ms,
            ended_ms: wire.ended_ms,
            reason: wire.reason,
            ends: each("ends", wire.ends)?,
            others: wire.others,
            failures: each("failures", wire.failures)?,
            nodes: wire.nodes.iter().map(|run| NodeRun { node: NodeId(run.node), ranks: run.ranks }).collect(),
            preempted: wire.preempted.map(preempted_by).transpose()?,
            cleaned_ms: wire.cleaned_ms,
            classes: record_from_wire(&wire.classes, wire.earlier).map_err(|error| error.under("classes"))?,
            topology: wire
                .topology
                .unwrap_or_default()
                .try_into()
                .map_err(|error: FieldError| error.under("topology"))?,
            end_runs: each("end_runs", wire.end_runs)?,
        })
    }
}

fn preempted_by(wire: v1::PreemptedBy) -> Result<PreemptedBy, FieldError> {
    Ok(PreemptedBy {
        job: wire.job.map(JobId),
        tenant: wire.tenant.map(TenantId),
        account: wire.account.map(TenantId),
        reason: word("preempted.reason", &wire.reason)?,
        lost_gpu_unit_ms: wire.lost_gpu_unit_ms,
    })
}
