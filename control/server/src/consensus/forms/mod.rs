//! Forms: the stored and sent layouts of everything, old and new, and the feature level that says which one a cluster writes.
//!
//! The types of `model` and `control/core` are written field by field, without names. A form is a number at the head of every stored
//! value; [`SINCE`] says which fields and variants a form has not got yet. What must stay true:
//! - whatever form a value was written in, from [`OLDEST`] on, it is read as what it was: a field that the form lacks has its default;
//! - a node writes the form of the cluster's feature level, which every voter can read, and never drops anything by that: a value that the form
//!   cannot hold is refused by name;
//! - the level is raised only when every voter says that it knows it, and never goes back.

mod level;
mod read;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use level::Levels;
pub(crate) use read::read;
pub(crate) use write::write;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The oldest form that can be read. Forms 1 to 3 were never in use outside of development.
pub(crate) const OLDEST: u8 = 4;
/// The newest form: that of the newest feature level.
pub(crate) const NEWEST: u8 = form_of(FEATURE_LEVEL_NEWEST);
/// The feature levels that this version knows are those from 1 to this one. Level n writes form n + 4.
pub const FEATURE_LEVEL_NEWEST: u32 = 7;

/// The form in which a cluster of that level writes.
pub(crate) const fn form_of(level: u32) -> u8 {
    // Levels are small numbers, one for each version that added something; a level of the future is refused before it is looked up here.
    (OLDEST as u32 + level) as u8
}

/// The level from which on a form is written.
pub(crate) fn level_of(form: u8) -> u32 {
    u32::from(form.saturating_sub(OLDEST))
}

/// What came with which form: type (for a variant with fields: `Type::Variant`), field or variant, and the first form that has it.
/// A field that is named here carries `#[serde(default)]`, and nothing sets it below that form's level; variants stand at the end of
/// their enum. A field is never removed and never changes its type: a new one takes its place.
pub(crate) const SINCE: &[(&str, &str, u8)] = &[
    ("Allocation", "classes", 7),
    ("Allocation", "cleaned_ms", 7),
    ("Allocation", "cleaning", 7),
    ("Allocation", "failures", 5),
    ("Allocation", "is_growth", 7),
    ("Allocation", "ports", 7),
    ("Allocation", "priority", 7),
    ("Allocation", "submitted_ms", 7),
    ("Allocation", "topology", 7),
    ("AllocationUsage", "clean_gpu_unit_ms", 11),
    ("AllocationUsage", "held", 7),
    ("AllocationUsage", "idle_gpu_unit_ms", 11),
    ("AttemptRecord", "classes", 7),
    ("AttemptRecord", "cleaned_ms", 7),
    ("AttemptRecord", "end_runs", 9),
    ("AttemptRecord", "preempted", 7),
    ("AttemptRecord", "topology", 7),
    ("Change", "Audit", 8),
    ("Command", "Authored", 8),
    ("Command", "BeginSession", 9),
    ("Command", "CancelTasks", 7),
    ("Command", "ClearGpu", 7),
    ("Command", "CommitAuditHead", 8),
    ("Command", "DecideDue", 7),
    ("Command", "DeletePriorityClass", 7),
    ("Command", "DeleteSecret", 9),
    ("Command", "DeleteWindow", 7),
    ("Command", "EditTenants", 6),
    ("Command", "EnrollMachine", 9),
    ("Command", "ForgetFinished", 5),
    ("Command", "Grow", 7),
    ("Command", "Hold", 7),
    ("Command", "Move", 7),
    ("Command", "MoveTenant", 7),
    ("Command", "PinMachines", 9),
    ("Command", "Preempt", 7),
    ("Command", "PutCredential", 8),
    ("Command", "PutGrant", 8),
    ("Command", "PutJoinToken", 9),
    ("Command", "PutPriorityClass", 7),
    ("Command", "PutSecret", 9),
    ("Command", "PutWindow", 7),
    ("Command", "RecordBypass", 5),
    ("Command", "Release", 7),
    ("Command", "RemoveMachine", 9),
    ("Command", "RenewMachine", 9),
    ("Command", "ReportCards", 7),
    ("Command", "ReportLinks", 7),
    ("Command", "ReportProofs", 7),
    ("Command", "Requeue", 7),
    ("Command", "ResetClock", 6),
    ("Command", "ResumeMachine", 9),
    ("Command", "Restore", 10),
    ("Command", "RevokeCredential", 8),
    ("Command", "RevokeGrant", 8),
    ("Command", "RevokeJoinToken", 9),
    ("Command", "SetAccess", 8),
    ("Command", "SetArrayLimit", 7),
    ("Command", "SetEnrolment", 9),
    ("Command", "Shrink", 7),
    ("Command", "SuspendMachine", 9),
    ("Command", "TrimAudit", 8),
    ("Command", "UpdateJob", 7),
    ("Command::EditTenants", "half_life_s", 7),
    ("Command::EditTenants", "prune", 7),
    ("Command::JoinNode", "agent", 5),
    ("Command::SetDrained", "force", 9),
    ("Command::SetDrained", "reason", 5),
    ("Command::Submit", "ended", 7),
    ("Done", "ClockReset", 6),
    ("Done", "Numbered", 8),
    ("Done", "Tenants", 5),
    ("Done", "TurnedAway", 5),
    ("Done::Tenants", "half_life_before_s", 7),
    ("Done::Tenants", "removed", 7),
    ("EndCause", "Completed", 7),
    ("EndCause", "Deadline", 7),
    ("EndCause", "Preempted", 7),
    ("EndCause", "Requeued", 7),
    ("EndCause", "Shrunk", 7),
    ("EndCause", "Window", 7),
    ("Enrolled", "labels", 9),
    ("Expr", "Cuda", 10),
    ("Gpu", "repair", 11),
    ("Gpu", "withheld_slices", 7),
    ("Job", "array", 7),
    ("Job", "array_task", 7),
    ("Job", "attempts", 5),
    ("Job", "bypassed_cards", 5),
    ("Job", "checkpoint_ms", 7),
    ("Job", "checkpoint_note", 7),
    ("Job", "claim", 7),
    ("Job", "growth", 7),
    ("Job", "moving", 7),
    ("Job", "preemptions", 7),
    ("Job", "preemptor", 7),
    ("Job", "requeue_asked", 7),
    ("Job", "start_faults", 5),
    ("Job", "unmet", 7),
    ("JobSpec", "array", 7),
    ("JobSpec", "comment", 8),
    ("JobSpec", "compute_instances", 7),
    ("JobSpec", "elastic", 7),
    ("JobSpec", "image", 7),
    ("JobSpec", "limit_signal", 7),
    ("JobSpec", "mounts", 7),
    ("JobSpec", "preemption", 7),
    ("JobSpec", "priority_class", 7),
    ("JobSpec", "reservation", 7),
    ("JobSpec", "secret_env", 9),
    ("JobSpec", "start", 7),
    ("JobSpec", "user", 5),
    ("JobUpdate", "comment", 8),
    ("JoinToken", "rejoin", 9),
    ("Key", "AuditHead", 8),
    ("Key", "Audited", 8),
    ("Key", "Credential", 8),
    ("Key", "Finished", 5),
    ("Key", "Grant", 8),
    ("Key", "JoinToken", 8),
    ("Key", "Machine", 8),
    ("Key", "Move", 7),
    ("Key", "PriorityClass", 7),
    ("Key", "RemovedNode", 5),
    ("Key", "RequestFloor", 5),
    ("Key", "RunTimes", 7),
    ("Key", "Secret", 9),
    ("Key", "TenantHistory", 7),
    ("Key", "UseHistory", 7),
    ("Key", "Window", 7),
    ("Machine", "nonce", 9),
    ("Member", "level", 5),
    ("Meta", "access", 8),
    ("Meta", "audit_head", 8),
    ("Meta", "audit_trimmed", 8),
    ("Meta", "audited", 8),
    ("Meta", "cluster", 5),
    ("Meta", "enrolment", 9),
    ("Meta", "finished_forgotten", 5),
    ("Meta", "finished_kept", 5),
    ("Meta", "half_life_s", 7),
    ("Meta", "next_credential", 8),
    ("Meta", "requests_floor_ms", 5),
    ("Node", "notes", 5),
    ("NodeNotes", "cleared_gpus", 7),
    ("NodeNotes", "drained_by", 9),
    ("NodeNotes", "lacks", 7),
    ("NodeNotes", "links", 7),
    ("NodeNotes", "replaced", 9),
    ("NodeNotes", "restored", 10),
    ("NodeNotes", "verdicts", 9),
    ("NodeSpec", "proofs", 7),
    ("Object", "AuditHead", 8),
    ("Object", "Credential", 8),
    ("Object", "Grant", 8),
    ("Object", "JoinToken", 8),
    ("Object", "Machine", 8),
    ("Object", "Move", 7),
    ("Object", "PriorityClass", 7),
    ("Object", "RemovedNode", 5),
    ("Object", "RequestFloor", 5),
    ("Object", "RunTimes", 7),
    ("Object", "Secret", 9),
    ("Object", "TenantHistory", 7),
    ("Object", "UseHistory", 7),
    ("Object", "Window", 7),
    ("Outcome", "DeadlineMissed", 7),
    ("Pool", "checkpoint_mib_per_s", 7),
    ("Pool", "cool_down_s", 7),
    ("Pool", "images", 7),
    ("Pool", "isolation", 7),
    ("Pool", "memory_limit_mib", 7),
    ("Pool", "mounts", 7),
    ("Pool", "moves_lost_gpu_hours_per_day", 7),
    ("Pool", "moves_per_hour", 7),
    ("Pool", "network", 7),
    ("Pool", "preemptions_max", 7),
    ("Pool", "time_slice", 7),
    ("Pool", "withheld_max_gpus", 9),
    ("Pool", "withheld_max_percent", 9),
    ("PreemptReason", "Drain", 7),
    ("PreemptReason", "Maintenance", 7),
    ("PreemptReason", "Reservation", 7),
    ("Reject", "CannotGrow", 7),
    ("Reject", "Denied", 8),
    ("Reject", "EndUnknown", 7),
    ("Reject", "NotPreemptible", 7),
    ("RequestRecord", "issued_ms", 5),
    ("RequestRecord", "tenant", 5),
    ("StartConditions", "any_dependency", 8),
    ("TaskEnd", "DeviceFault", 7),
    ("TaskEnd", "OutOfMemory", 8),
    ("TaskEnd", "OverShare", 7),
    ("TaskReport", "checkpoint", 7),
    ("TaskReport", "clean_up", 7),
    ("TaskReport", "ended_ms", 5),
    ("TaskState", "DeviceFault", 7),
    ("TaskState", "OutOfMemory", 8),
    ("TaskState", "OverShare", 7),
    ("TaskState", "Signaled", 5),
    ("TaskState::StartFailed", "by_node", 5),
    ("Tenant", "lend", 7),
    ("Tenant", "lends", 7),
    ("Tenant", "run_as", 7),
    ("Tenant", "weights", 7),
    ("TenantEdit", "lend", 7),
    ("TenantEdit", "lends", 7),
    ("TenantEdit", "run_as", 7),
    ("TenantEdit", "weights", 7),
    ("TenantSpec", "lend", 7),
    ("TenantSpec", "lends", 7),
    ("TenantSpec", "run_as", 7),
    ("TenantSpec", "weights", 7),
    ("Unmet", "any_dependency", 8),
    ("UsageInterval", "kind", 11),
    ("UsageTotal", "clean_gpu_unit_ms", 11),
    ("UsageTotal", "idle_gpu_unit_ms", 11),
    ("Withheld", "by_verdict", 9),
    ("Withheld", "repair", 11),
];

/// The first form that has the field or variant.
pub(crate) fn since(of: &str, name: &str) -> u8 {
    SINCE.iter().find(|(at, item, _)| *at == of && *item == name).map_or(OLDEST, |(_, _, form)| *form)
}

/// The same for a field of an enum's variant.
pub(crate) fn since_in(of: &str, variant: &str, field: &str) -> u8 {
    let is_it = |at: &str| at.strip_prefix(of).and_then(|rest| rest.strip_prefix("::")) == Some(variant);
    SINCE.iter().find(|(at, item, _)| is_it(at) && *item == field).map_or(OLDEST, |(_, _, form)| *form)
}

/// A value needs a newer form than the one it was to be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{of}.{name} needs feature level {}", level_of(*form))]
pub(crate) struct Lacking {
    /// The type.
    pub(crate) of: &'static str,
    /// The field or variant.
    pub(crate) name: &'static str,
    /// The first form that has it.
    pub(crate) form: u8,
}

/// The form that a node writes now. Cheap to clone; all clones change together.
#[derive(Clone, Debug)]
pub(crate) struct WriteForm(Arc<AtomicU8>);

impl Default for WriteForm {
    /// Until the state has been read, what every voter can read.
    fn default() -> Self {
        WriteForm(Arc::new(AtomicU8::new(form_of(1))))
    }
}

impl WriteForm {
    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    /// The cluster's feature level as the state has it.
    pub(crate) fn follow(&self, level: u32) {
        self.0.store(form_of(level.clamp(1, FEATURE_LEVEL_NEWEST)), Ordering::Release);
    }
}
