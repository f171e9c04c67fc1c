//! What a call asks for, in the terms in which it is judged.
//!
//! What must stay true: what a command asks is read from the command itself ([`Asks::of`]), so that the edge and the log judge the same; the match has no
//! wildcard. A command that only the cluster itself may make asks for nothing that a caller could have.

use crate::command::Command;
use crate::restoration::Restoration;
use muster_model::identity::CredentialKind;
use muster_model::identity::{MachineRole, Principal};
use muster_model::ids::{CellId, Epoch, JobId, NodeId, TenantId};
use muster_model::tenant_edit::{AntiAffinityEdit, Edit};
use muster_model::{Holder, Role, Rpc};

/// One thing that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The call.
    pub rpc: Rpc,
    /// What it is about.
    pub about: About<'a>,
}

/// What a call is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About<'a> {
    /// Nothing of its own: the caller, the fleet, or whatever the caller may see.
    Nothing,
    /// A tenant, by path.
    Tenant(&'a str),
    /// A job that is submitted: who pays, and under whose name it is listed.
    Submission {
        /// Path of the tenant.
        tenant: &'a str,
        /// The user that the specification names.
        user: &'a str,
    },
    /// A change of a tenant, or a new one.
    Edit {
        /// Its path.
        path: &'a str,
        /// It touches what only root may: trust, anti-affinity.
        privileged: bool,
    },
    /// Something of the whole tree that only root may change.
    WholeTree,
    /// A job, live or ended.
    Job(JobId),
    /// An ended job, as its record says.
    Ended {
        /// Which.
        job: JobId,
        /// Who paid.
        tenant: TenantId,
        /// Whose it was.
        user: &'a str,
    },
    /// A job, as its tenant's admin.
    JobAsAdmin(JobId),
    /// A cell whose lease the caller holds.
    Lease {
        /// Which.
        cell: CellId,
        /// Under this epoch.
        epoch: Epoch,
    },
    /// A cell that the caller wants to hold.
    Cell {
        /// Which.
        cell: CellId,
        /// The shard that would.
        shard: &'a str,
    },
    /// A shard, by the name of its process.
    Shard(&'a str),
    /// A node, by name.
    NodeNamed(&'a str),
    /// A node.
    Node(NodeId),
    /// A right that is given or taken away.
    Right {
        /// Which role.
        role: Role,
        /// On which tenant, by path; `None`: the root of the tree, or the fleet.
        at: Option<&'a str>,
    },
    /// A service for which a token is made.
    Service(&'a Principal),
    /// A grant that exists.
    Grant(u64),
    /// A session or token that exists.
    Credential(u64),
    /// A machine, by name.
    Machine(&'a Principal),
    /// Machines of a role that are yet to come.
    MachinesOf(MachineRole),
    /// A join token that exists.
    JoinToken(u64),
}

/// All that a command asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asks<'a> {
    /// Every one of these.
    All(Vec<Ask<'a>>),
    /// Only a control node may propose it, for itself.
    OfMembers,
    /// Only the leader may propose it, for the cluster.
    OfSystem,
}

impl<'a> Asks<'a> {
    /// What `command` asks for.
    #[must_use]
    pub fn of(command: &'a Command) -> Self {
        use About as A;
        let one = |rpc, about| Asks::All(vec![Ask { rpc, about }]);
        let leased = |cell: &CellId, epoch: &Epoch| one(Rpc::ShardsPropose, A::Lease { cell: *cell, epoch: *epoch });
        match command {
            Command::Submit { specs, .. } => {
                let mut asks: Vec<(&str, &str)> = specs.iter().map(|spec| (&*spec.tenant, &*spec.user)).collect();
                asks.dedup();
                let ask = |(tenant, user)| Ask { rpc: Rpc::JobsSubmit, about: A::Submission { tenant, user } };
                Asks::All(asks.into_iter().map(ask).collect())
            }
            Command::Cancel { job } => one(Rpc::JobsCancel, A::Job(*job)),
            Command::Requeue { job } => one(Rpc::JobsRequeue, A::Job(*job)),
            Command::UpdateJob { job, update } => {
                let mut asks = vec![Ask { rpc: Rpc::JobsUpdate, about: A::Job(*job) }];
                let to = update.tenant.as_deref();
                asks.extend(to.map(|tenant| Ask { rpc: Rpc::JobsSubmit, about: A::Tenant(tenant) }));
                Asks::All(asks)
            }
            Command::Hold { job, by } | Command::Release { job, by } => {
                let rpc = if matches!(command, Command::Hold { .. }) { Rpc::JobsHold } else { Rpc::JobsRelease };
                one(rpc, if *by == Holder::Admin { A::JobAsAdmin(*job) } else { A::Job(*job) })
            }
            Command::CancelTasks { job, .. } => one(Rpc::JobsCancelArrayTasks, A::Job(*job)),
            Command::SetArrayLimit { job, .. } => one(Rpc::JobsSetArrayLimit, A::Job(*job)),
            Command::ApplyTenants { .. } => one(Rpc::TenantsApply, A::WholeTree),
            Command::EditTenants { edits, prune: _, half_life_s } => {
                let edit = |edit: &'a muster_model::tenant_edit::TenantEdit| {
                    // A user of the machines is a right there: who could choose one for its own tenant could be anybody.
                    let privileged = edit.trust != Edit::Keep
                        || edit.run_as != Edit::Keep
                        || edit.anti_affinity != AntiAffinityEdit::default();
                    Ask { rpc: Rpc::TenantsApply, about: A::Edit { path: &edit.path, privileged } }
                };
                let mut asks: Vec<Ask<'a>> = edits.iter().map(edit).collect();
                asks.extend(half_life_s.map(|_| Ask { rpc: Rpc::TenantsApply, about: A::WholeTree }));
                Asks::All(asks)
            }
            Command::DeleteTenant { path } => one(Rpc::TenantsDelete, A::Edit { path, privileged: false }),
            Command::MoveTenant { path, to } => {
                let edit = |path| Ask { rpc: Rpc::TenantsMove, about: A::Edit { path, privileged: false } };
                Asks::All(vec![edit(path), edit(to)])
            }
            Command::PutPool(_) => one(Rpc::FleetPutPool, A::Nothing),
            Command::DeletePool { .. } => one(Rpc::FleetDeletePool, A::Nothing),
            Command::PutDeviceClass(_) => one(Rpc::FleetPutDeviceClass, A::Nothing),
            Command::DeleteDeviceClass { .. } => one(Rpc::FleetDeleteDeviceClass, A::Nothing),
            Command::PutPriorityClass(_) => one(Rpc::FleetPutPriorityClass, A::Nothing),
            Command::DeletePriorityClass { .. } => one(Rpc::FleetDeletePriorityClass, A::Nothing),
            Command::PutWindow(_) => one(Rpc::FleetPutWindow, A::Nothing),
            Command::DeleteWindow { .. } => one(Rpc::FleetDeleteWindow, A::Nothing),
            Command::SetDrained { .. } => one(Rpc::FleetSetDrained, A::Nothing),
            Command::RemoveNode { .. } => one(Rpc::FleetRemoveNode, A::Nothing),
            Command::ClearGpu { .. } => one(Rpc::FleetClearGpu, A::Nothing),
            Command::ResetClock => one(Rpc::AdminResetClock, A::Nothing),
            Command::JoinNode { spec, .. } => one(Rpc::AgentsSession, A::NodeNamed(&spec.name)),
            Command::ReportTasks { node, .. }
            | Command::RecordUsage { node, .. }
            | Command::ReportCards { node, .. }
            | Command::ReportLinks { node, .. }
            | Command::ReportProofs { node, .. } => one(Rpc::AgentsSession, A::Node(*node)),
            Command::AcquireCell { cell, shard } => one(Rpc::ShardsAcquire, A::Cell { cell: *cell, shard }),
            Command::ExpireCell { cell, epoch } => one(Rpc::ShardsRelease, A::Lease { cell: *cell, epoch: *epoch }),
            Command::Bind(binding)
            | Command::Preempt { binding, .. }
            | Command::Move { binding, .. }
            | Command::Grow(binding)
            | Command::Shrink { binding, .. } => leased(&binding.cell, &binding.epoch),
            Command::HandOver { cell, epoch, .. }
            | Command::Reserve { cell, epoch, .. }
            | Command::RecordBypass { cell, epoch, .. } => leased(cell, epoch),
            Command::PutGrant { role, at, .. } => one(Rpc::AuthGrant, A::Right { role: *role, at: at.as_deref() }),
            Command::RevokeGrant { id } => one(Rpc::AuthRevokeGrant, A::Grant(*id)),
            Command::PutCredential { kind: CredentialKind::Token, principal, scope, .. } => {
                Asks::of_token(principal, scope.as_ref())
            }
            // The control node that has checked the login vouches for it.
            Command::PutCredential { kind: CredentialKind::Session, .. } => Asks::OfMembers,
            Command::CommitAuditHead { .. } => Asks::OfMembers,
            Command::RevokeCredential { id } => one(Rpc::AuthRevoke, A::Credential(*id)),
            Command::SetAccess { .. } => one(Rpc::AuthSecure, A::WholeTree),
            Command::PutSecret { at, .. } | Command::DeleteSecret { at, .. } => Asks::of_secrets(command, at),
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
            | Command::Restore(_) => Asks::of_machines(command),
            Command::MarkSilent { .. }
            | Command::MarkReady { .. }
            | Command::FenceNode { .. }
            | Command::Sweep
            | Command::RaiseFeatureLevel { .. }
            | Command::ForgetFinished { .. }
            | Command::TrimAudit { .. }
            | Command::DecideDue
            | Command::Authored { .. } => Asks::OfSystem,
        }
    }

    /// The same for a token of a service.
    fn of_token(service: &'a Principal, scope: Option<&'a (Role, String)>) -> Self {
        let right = scope.map(|(role, at)| About::Right { role: *role, at: Some(at) });
        let ask = |about| Ask { rpc: Rpc::AuthCreateToken, about };
        Asks::All(vec![ask(right.unwrap_or(About::WholeTree)), ask(About::Service(service))])
    }

    /// The same for secrets of the tenant at this path.
    fn of_secrets(command: &Command, at: &'a str) -> Self {
        let rpc = if matches!(command, Command::PutSecret { .. }) { Rpc::SecretsPut } else { Rpc::SecretsDelete };
        Asks::All(vec![Ask { rpc, about: About::Tenant(at) }])
    }

    /// The same for what is about identities of machines.
    fn of_machines(command: &'a Command) -> Self {
        use About as A;
        let one = |rpc, about| Asks::All(vec![Ask { rpc, about }]);
        match command {
            Command::PutJoinToken { role, .. } => one(Rpc::MachinesCreateJoinToken, A::MachinesOf(*role)),
            Command::RevokeJoinToken { id } => one(Rpc::MachinesRevokeJoinToken, A::JoinToken(*id)),
            Command::EnrollMachine { .. } => one(Rpc::MachinesEnroll, A::Nothing),
            Command::RenewMachine { machine, .. } => one(Rpc::MachinesRenew, A::Machine(machine)),
            Command::PinMachines { machines, .. } => {
                let ask = |machine| Ask { rpc: Rpc::MachinesPin, about: A::Machine(machine) };
                Asks::All(machines.iter().map(|(machine, _)| ask(machine)).collect())
            }
            Command::SuspendMachine { machine, .. } => one(Rpc::MachinesSuspend, A::Machine(machine)),
            Command::ResumeMachine { machine } => one(Rpc::MachinesResume, A::Machine(machine)),
            Command::RemoveMachine { machine } => one(Rpc::MachinesRemove, A::Machine(machine)),
            Command::SetEnrolment { .. } => one(Rpc::MachinesSetEnrolment, A::WholeTree),
            Command::BeginSession { machine: Principal::Node(name), .. } => one(Rpc::AgentsSession, A::NodeNamed(name)),
            Command::Restore(Restoration::Held { node, .. }) => one(Rpc::AgentsSession, A::Node(*node)),
            Command::Restore(Restoration::Confirm { .. }) => one(Rpc::MachinesConfirm, A::Nothing),
            _ => Asks::OfSystem,
        }
    }
}
