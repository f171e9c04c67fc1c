//! The table of every call and what it takes.
//!
//! What must stay true: the match has no wildcard. `docs/SECURITY.md` shows the same table to people, and a test compares the two.

use muster_model::{Role, Rpc};

/// What a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// No identity.
    Open,
    /// Any identity; it is about the caller alone.
    Own,
    /// Any right at all; the answer shows what the caller may see.
    Filtered,
    /// That role or more on every tenant that it is about, or a role on the fleet that reads.
    Reads(Role),
    /// That role or more on every tenant that it is about.
    On(Role),
    /// To see one job: viewer of its tenant, operator, auditor.
    JobSeen,
    /// To read what a job wrote: its owner, admin of its tenant.
    JobContent,
    /// To change one job: its owner, admin of its tenant, operator.
    JobChanged,
    /// To change tenants: admin strictly above each of them.
    TenantsEdited,
    /// Operator.
    Operator,
    /// Auditor.
    Auditor,
    /// Operator or auditor.
    ReadsFleet,
    /// Operator, or admin of the root of the tree.
    OperatorOrRoot,
    /// Those, or auditor.
    ReadsMembers,
    /// Admin of the root of the tree.
    Root,
    /// Credentials and grants: never wider than the caller's own rights.
    Delegates,
    /// Only while the cluster is open, or through the recovery socket of a control node.
    Recovery,
    /// A control node of this cluster.
    Member,
    /// The agent of the node that it is about.
    Node,
    /// The shard that it names, where it holds the newest lease.
    Shard,
    /// The machine that it is about.
    Machine,
    /// Identities of machines: operator for nodes and shards, admin of the root of the tree for control nodes too.
    Machines,
}

/// What `rpc` takes.
#[must_use]
pub const fn rule(rpc: Rpc) -> Rule {
    match rpc {
        Rpc::JobsSubmit => Rule::On(Role::Submitter),
        Rpc::JobsGet | Rpc::JobsExplain => Rule::JobSeen,
        Rpc::JobsList
        | Rpc::JobsWatch
        | Rpc::TenantsList
        | Rpc::TenantsHistory
        | Rpc::UsageGet
        | Rpc::UsageGetAllocation => Rule::Filtered,
        Rpc::JobsLogs => Rule::JobContent,
        Rpc::JobsCancel
        | Rpc::JobsRequeue
        | Rpc::JobsUpdate
        | Rpc::JobsHold
        | Rpc::JobsCancelArrayTasks
        | Rpc::JobsSetArrayLimit
        | Rpc::JobsRelease => Rule::JobChanged,
        Rpc::TenantsApply | Rpc::TenantsMove | Rpc::TenantsDelete => Rule::TenantsEdited,
        Rpc::TenantsExplain => Rule::Reads(Role::Viewer),
        Rpc::FleetListNodes
        | Rpc::FleetListGpus
        | Rpc::FleetListCells
        | Rpc::FleetListPools
        | Rpc::FleetListDeviceClasses
        | Rpc::FleetListPriorityClasses
        | Rpc::FleetListWindows => Rule::Filtered,
        Rpc::FleetPutPool
        | Rpc::FleetDeletePool
        | Rpc::FleetPutDeviceClass
        | Rpc::FleetDeleteDeviceClass
        | Rpc::FleetPutPriorityClass
        | Rpc::FleetDeletePriorityClass
        | Rpc::FleetPutWindow
        | Rpc::FleetDeleteWindow
        | Rpc::FleetSetDrained
        | Rpc::FleetRemoveNode
        | Rpc::FleetClearGpu
        | Rpc::FleetPlanMoves => Rule::Operator,
        Rpc::FleetListMoves | Rpc::AdminCopyState | Rpc::AdminCopyHistory => Rule::ReadsFleet,
        Rpc::AuditDenials => Rule::Auditor,
        Rpc::AdminRaftStatus => Rule::ReadsMembers,
        Rpc::AdminAddLearner | Rpc::AdminPromote | Rpc::AdminRemove | Rpc::AdminResetClock => Rule::OperatorOrRoot,
        Rpc::AdminBootstrap => Rule::Recovery,
        Rpc::AuthLogout | Rpc::AuthWhoAmI | Rpc::AuthListSessions => Rule::Own,
        Rpc::AuthCreateToken
        | Rpc::AuthListTokens
        | Rpc::AuthRevoke
        | Rpc::AuthGrant
        | Rpc::AuthListGrants
        | Rpc::AuthRevokeGrant => Rule::Delegates,
        Rpc::AuthSecure => Rule::Root,
        Rpc::AuthLogin | Rpc::AuthLoginSettings | Rpc::MachinesEnroll => Rule::Open,
        Rpc::MachinesRenew => Rule::Machine,
        Rpc::MachinesList | Rpc::MachinesListJoinTokens => Rule::ReadsMembers,
        Rpc::MachinesCreateJoinToken
        | Rpc::MachinesRevokeJoinToken
        | Rpc::MachinesPin
        | Rpc::MachinesSuspend
        | Rpc::MachinesResume
        | Rpc::MachinesRemove => Rule::Machines,
        Rpc::MachinesConfirm => Rule::OperatorOrRoot,
        Rpc::MachinesSetEnrolment => Rule::Root,
        Rpc::SecretsPut | Rpc::SecretsDelete => Rule::On(Role::Admin),
        Rpc::SecretsList => Rule::On(Role::Submitter),
        Rpc::AuditQuery => Rule::Filtered,
        Rpc::ShardsAcquire | Rpc::ShardsRenew | Rpc::ShardsRelease | Rpc::ShardsWatch | Rpc::ShardsPropose => {
            Rule::Shard
        }
        Rpc::AgentsIdentify | Rpc::AgentsSession => Rule::Node,
        Rpc::PeerAppendEntries
        | Rpc::PeerAppends
        | Rpc::PeerHeartbeat
        | Rpc::PeerPreVote
        | Rpc::PeerVote
        | Rpc::PeerInstallSnapshot
        | Rpc::PeerForward
        | Rpc::PeerReadIndex
        | Rpc::PeerIdentify
        | Rpc::PeerRenewLeases
        | Rpc::PeerLogs => Rule::Member,
    }
}

impl Rule {
    /// For people: what a caller needs.
    #[must_use]
    pub fn in_words(self) -> String {
        match self {
            Rule::Open => "no identity".to_owned(),
            Rule::Own => "any identity; it is about the caller".to_owned(),
            Rule::Filtered => "any role; shows what the caller may see".to_owned(),
            Rule::Reads(role) => format!("{role} of the tenant; operator, auditor"),
            Rule::On(role) => format!("{role} of the tenant"),
            Rule::JobSeen => "viewer of its tenant; operator, auditor".to_owned(),
            Rule::JobContent => "submitter, of one's own job; admin of its tenant".to_owned(),
            Rule::JobChanged => "submitter, of one's own job; admin of its tenant; operator".to_owned(),
            Rule::TenantsEdited => {
                "admin above the tenant; trust, anti-affinity and the user of tasks: root".to_owned()
            }
            Rule::Operator => "operator".to_owned(),
            Rule::Auditor => "auditor".to_owned(),
            Rule::ReadsFleet => "operator, auditor".to_owned(),
            Rule::OperatorOrRoot => "operator, root".to_owned(),
            Rule::ReadsMembers => "operator, auditor, root".to_owned(),
            Rule::Root => "root".to_owned(),
            Rule::Delegates => "admin, never beyond their own rights; one's own sessions".to_owned(),
            Rule::Recovery => "nobody: the recovery socket".to_owned(),
            Rule::Member => "a control node".to_owned(),
            Rule::Node => "the agent of that node".to_owned(),
            Rule::Shard => "the shard that it names, with the newest lease".to_owned(),
            Rule::Machine => "the machine that it is about".to_owned(),
            Rule::Machines => "operator for nodes and shards; root for control nodes too".to_owned(),
        }
    }
}
