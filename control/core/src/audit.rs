//! The audit: a chain of records, one for each change that somebody made.
//!
//! What must stay true: a record's number is one more than that of the record before it, and its hash covers that one's; the last number and hash are in
//! [`Meta`](muster_model::object::Meta), so that every replica has the same; nothing that was sent is in a record.

use crate::authz::Asks;
use crate::command::Command;
use crate::outcome::Done;
use crate::restoration::Restoration;
use crate::state::State;
use hmac_sha256::Hash;
use muster_model::identity::CredentialKind;
use muster_model::{AuditRecord, Author, Rpc};

/// Texts of a target are cut to this: a submission may name a thousand tenants.
const TARGET_BYTES_MAX: usize = 256;

/// The record of a command that was decided and has changed something.
pub(crate) fn record(state: &State, now_ms: u64, command: &Command, done: &Done) -> Option<AuditRecord> {
    if !crate::level::has(state, crate::level::ACCESS) {
        return None;
    }
    let (author, command) = command.parts();
    let (rpc, mut target) = listed(command, done)?;
    if target.len() > TARGET_BYTES_MAX {
        let end = (0..=TARGET_BYTES_MAX).rev().find(|at| target.is_char_boundary(*at)).unwrap_or(0);
        target.truncate(end);
    }
    // Of an open cluster, what machines ask is signed by nobody.
    let author = author.cloned().unwrap_or_else(|| match Asks::of(command) {
        Asks::All(asks) if asks.iter().all(|ask| ask.rpc != Rpc::ShardsRelease) => Author::default(),
        _ => Author::system(),
    });
    let mut record = AuditRecord {
        number: state.meta.audited + 1,
        at_ms: now_ms,
        author,
        rpc: rpc.to_owned(),
        target,
        hash: [0; 32],
    };
    record.hash = link(&state.meta.audit_head, &record);
    Some(record)
}

/// The hash of a record that follows one with the hash `before`: SHA-256 over that hash and each field, texts with their length before them.
#[must_use]
pub fn link(before: &[u8; 32], record: &AuditRecord) -> [u8; 32] {
    let mut hash = Hash::new();
    let AuditRecord { number, at_ms, author, rpc, target, hash: _ } = record;
    let Author { principal, credential, from, request_sha256 } = author;
    hash.update(before);
    hash.update(number.to_be_bytes());
    hash.update(at_ms.to_be_bytes());
    let mut text = |text: &str| {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    };
    text(&principal.to_string());
    text(from);
    text(rpc);
    text(target);
    let mut optional = |bytes: Option<&[u8]>| {
        hash.update([u8::from(bytes.is_some())]);
        hash.update(bytes.unwrap_or_default());
    };
    optional(credential.map(u64::to_be_bytes).as_ref().map(<[u8; 8]>::as_slice));
    optional(request_sha256.as_ref().map(<[u8; 32]>::as_slice));
    hash.finalize()
}

/// What a control node signs to say that the audit of `cluster` ended with this record at `at_ms`: words that nothing else begins with, the name of the
/// cluster with its length before it, the record's number and hash, and the time.
#[must_use]
pub fn head_statement(cluster: &str, number: u64, hash: &[u8; 32], at_ms: u64) -> Vec<u8> {
    let mut statement = b"muster audit head v1\0".to_vec();
    statement.extend((cluster.len() as u64).to_be_bytes());
    statement.extend(cluster.as_bytes());
    statement.extend(number.to_be_bytes());
    statement.extend(hash);
    statement.extend(at_ms.to_be_bytes());
    statement
}

/// How a command is called and what it was about, if it is listed. Reports, usage, bypasses and the state of leases that are only renewed are not: there
/// are thousands a second, and they are counted elsewhere.
fn listed(command: &Command, done: &Done) -> Option<(&'static str, String)> {
    let of = |rpc: Rpc, target: String| Some((rpc.name(), target));
    match command {
        Command::Submit { specs, .. } => {
            let Done::Submitted { first, count } = done else { return None };
            let tenant = specs.first().map_or("", |spec| spec.tenant.as_str());
            let last = first.0 + u64::from(*count).saturating_sub(1);
            of(Rpc::JobsSubmit, format!("jobs {first} to {last} of {tenant}"))
        }
        Command::Cancel { job } => of(Rpc::JobsCancel, format!("job {job}")),
        Command::Requeue { job } => of(Rpc::JobsRequeue, format!("job {job}")),
        Command::UpdateJob { job, .. } => of(Rpc::JobsUpdate, format!("job {job}")),
        Command::Hold { job, by } => of(Rpc::JobsHold, format!("job {job} for {by}")),
        Command::Release { job, by } => of(Rpc::JobsRelease, format!("job {job} for {by}")),
        Command::CancelTasks { job, .. } => of(Rpc::JobsCancelArrayTasks, format!("job {job}")),
        Command::SetArrayLimit { job, .. } => of(Rpc::JobsSetArrayLimit, format!("job {job}")),
        Command::ApplyTenants { tenants } => {
            of(Rpc::TenantsApply, format!("tenants {}", joined(tenants.iter().map(|tenant| &*tenant.path))))
        }
        Command::EditTenants { edits, .. } => {
            of(Rpc::TenantsApply, format!("tenants {}", joined(edits.iter().map(|edit| &*edit.path))))
        }
        Command::DeleteTenant { path } => of(Rpc::TenantsDelete, format!("tenant {path}")),
        Command::MoveTenant { path, to } => of(Rpc::TenantsMove, format!("tenant {path} to {to}")),
        Command::PutPool(pool) => of(Rpc::FleetPutPool, format!("pool {}", pool.name)),
        Command::DeletePool { name } => of(Rpc::FleetDeletePool, format!("pool {name}")),
        Command::PutDeviceClass(class) => of(Rpc::FleetPutDeviceClass, format!("device class {}", class.name)),
        Command::DeleteDeviceClass { name } => of(Rpc::FleetDeleteDeviceClass, format!("device class {name}")),
        Command::PutPriorityClass(class) => of(Rpc::FleetPutPriorityClass, format!("priority class {}", class.name)),
        Command::DeletePriorityClass { name } => of(Rpc::FleetDeletePriorityClass, format!("priority class {name}")),
        Command::PutWindow(window) => of(Rpc::FleetPutWindow, format!("window {}", window.name)),
        Command::DeleteWindow { name } => of(Rpc::FleetDeleteWindow, format!("window {name}")),
        Command::SetDrained { node, drained, .. } => {
            of(Rpc::FleetSetDrained, format!("node {node} {}", if *drained { "drained" } else { "undrained" }))
        }
        Command::RemoveNode { node } => of(Rpc::FleetRemoveNode, format!("node {node}")),
        Command::ClearGpu { node, gpu, .. } => of(Rpc::FleetClearGpu, format!("GPU {gpu} of node {node}")),
        Command::ResetClock => of(Rpc::AdminResetClock, "the cluster's clock".to_owned()),
        Command::JoinNode { spec, .. } => of(Rpc::AgentsSession, format!("node {} joins", spec.name)),
        Command::AcquireCell { cell, shard } => of(Rpc::ShardsAcquire, format!("cell {cell} for shard {shard}")),
        Command::ExpireCell { cell, epoch } => of(Rpc::ShardsRelease, format!("lease of cell {cell}, epoch {epoch}")),
        Command::FenceNode { node, epoch } => Some(("fence", format!("node {node}, epoch {epoch}"))),
        Command::Bind(binding) | Command::Grow(binding) => {
            let Done::Bound { allocation } = done else { return None };
            of(Rpc::ShardsPropose, format!("job {} bound as allocation {allocation}", binding.job))
        }
        Command::Preempt { binding, victims } => {
            of(Rpc::ShardsPropose, format!("{} allocations preempted for job {}", victims.len(), binding.job))
        }
        Command::Shrink { binding, parts } => {
            of(Rpc::ShardsPropose, format!("growth of {} allocations taken back for job {}", parts.len(), binding.job))
        }
        Command::Move { binding, moves } => {
            of(Rpc::ShardsPropose, format!("{} jobs moved for job {}", moves.len(), binding.job))
        }
        Command::PutGrant { subject, role, at, .. } => {
            of(Rpc::AuthGrant, format!("{subject} is {role} on {}", at.as_deref().unwrap_or("the root")))
        }
        Command::RevokeGrant { id } => of(Rpc::AuthRevokeGrant, format!("grant {id}")),
        Command::PutCredential { kind, principal, .. } => {
            let Done::Numbered { id } = done else { return None };
            let name = match kind {
                CredentialKind::Session => "session",
                CredentialKind::Token => Rpc::AuthCreateToken.name(),
            };
            Some((name, format!("credential {id} of {principal}")))
        }
        Command::RevokeCredential { id } => of(Rpc::AuthRevoke, format!("credential {id}")),
        Command::SetAccess { mode } => of(Rpc::AuthSecure, format!("the cluster is {mode}")),
        Command::PutSecret { at, name, .. } => of(Rpc::SecretsPut, format!("secret {name} of {at}")),
        Command::DeleteSecret { at, name } => of(Rpc::SecretsDelete, format!("secret {name} of {at}")),
        Command::TrimAudit { through } => Some(("trim", format!("records of the audit through {through}"))),
        Command::PutJoinToken { .. }
        | Command::RevokeJoinToken { .. }
        | Command::EnrollMachine { .. }
        | Command::RenewMachine { .. }
        | Command::PinMachines { .. }
        | Command::SuspendMachine { .. }
        | Command::ResumeMachine { .. }
        | Command::RemoveMachine { .. }
        | Command::SetEnrolment { .. }
        | Command::BeginSession { .. }
        | Command::Restore(_) => listed_of_machines(command, done),
        Command::MarkSilent { .. }
        | Command::MarkReady { .. }
        | Command::HandOver { .. }
        | Command::ReportTasks { .. }
        | Command::RecordUsage { .. }
        | Command::Sweep
        | Command::RaiseFeatureLevel { .. }
        | Command::Reserve { .. }
        | Command::RecordBypass { .. }
        | Command::ForgetFinished { .. }
        | Command::DecideDue
        | Command::ReportCards { .. }
        | Command::ReportLinks { .. }
        | Command::ReportProofs { .. }
        | Command::CommitAuditHead { .. }
        | Command::Authored { .. } => None,
    }
}

/// The same for what is about identities of machines.
fn listed_of_machines(command: &Command, done: &Done) -> Option<(&'static str, String)> {
    let of = |rpc: Rpc, target: String| Some((rpc.name(), target));
    match command {
        Command::PutJoinToken { role, names, .. } => {
            let Done::Numbered { id } = done else { return None };
            let names = joined(names.iter().map(String::as_str));
            of(Rpc::MachinesCreateJoinToken, format!("join token {id} for role {role}: {names}"))
        }
        Command::RevokeJoinToken { id } => of(Rpc::MachinesRevokeJoinToken, format!("join token {id}")),
        Command::EnrollMachine { token, machine, .. } => {
            of(Rpc::MachinesEnroll, format!("{machine} with join token {token}"))
        }
        Command::RenewMachine { machine, .. } => of(Rpc::MachinesRenew, format!("a key of {machine}")),
        Command::PinMachines { machines, .. } => {
            let names: Vec<String> =
                machines.iter().take(TARGET_BYTES_MAX).map(|(machine, _)| machine.to_string()).collect();
            of(Rpc::MachinesPin, format!("keys of {}", names.join(", ")))
        }
        Command::SuspendMachine { machine, .. } => of(Rpc::MachinesSuspend, machine.to_string()),
        Command::ResumeMachine { machine } => of(Rpc::MachinesResume, machine.to_string()),
        Command::RemoveMachine { machine } => of(Rpc::MachinesRemove, machine.to_string()),
        Command::SetEnrolment { enrolment, .. } => of(Rpc::MachinesSetEnrolment, format!("enrolment is {enrolment}")),
        Command::Restore(step) => listed_of_restoration(step),
        // Listed only where it has found a copy: sessions are in the records of joining.
        Command::BeginSession { machine, .. } => {
            let Done::TurnedAway { .. } = done else { return None };
            of(Rpc::AgentsSession, format!("{machine} is suspended: two machines have its key"))
        }
        _ => None,
    }
}

/// The same for what follows a restore.
fn listed_of_restoration(step: &Restoration) -> Option<(&'static str, String)> {
    match step {
        Restoration::Begin { member, backup_ms, .. } => {
            let made = muster_model::utc::show(*backup_ms);
            Some(("restore", format!("a backup of {made}, by control node {member}")))
        }
        Restoration::Held { .. } => None,
        Restoration::Confirm { machines, gone: _ } if machines.is_empty() => {
            Some((Rpc::MachinesConfirm.name(), "all machines of the backup".to_owned()))
        }
        Restoration::Confirm { machines, gone } => {
            let names: Vec<String> = machines.iter().take(TARGET_BYTES_MAX).map(ToString::to_string).collect();
            let how = if *gone { " (gone)" } else { "" };
            Some((Rpc::MachinesConfirm.name(), format!("{}{how}", names.join(", "))))
        }
    }
}

fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
