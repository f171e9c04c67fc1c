//! Every call that the API has, by name.
//!
//! Who may make which call is decided in `control/core` by a match over [`Rpc`] without a wildcard, and `proto` translates each method of its
//! descriptors into a variant of it when it is compiled. What must stay true: a method that is not here does not compile, and neither does one that
//! nobody has decided about.

use std::fmt;

macro_rules! rpcs {
    ($($service:literal { $($variant:ident = $method:literal),* $(,)? })*) => {
        /// One method of one service.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rpc {
            $($(
                #[doc = concat!("`", $service, ".", $method, "`")]
                $variant,
            )*)*
        }

        impl Rpc {
            /// All of them, service by service.
            pub const ALL: &'static [Rpc] = &[$($(Rpc::$variant,)*)*];

            /// `Jobs.Submit`: how it is named to people.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Rpc::$variant => concat!($service, ".", $method),)*)*
                }
            }
        }
    };
}

rpcs! {
    "Jobs" {
        JobsSubmit = "Submit", JobsGet = "Get", JobsList = "List", JobsWatch = "Watch", JobsCancel = "Cancel", JobsRequeue = "Requeue",
        JobsUpdate = "Update", JobsHold = "Hold", JobsCancelArrayTasks = "CancelArrayTasks", JobsSetArrayLimit = "SetArrayLimit",
        JobsRelease = "Release", JobsLogs = "Logs", JobsExplain = "Explain",
    }
    "Tenants" {
        TenantsApply = "Apply", TenantsList = "List", TenantsMove = "Move", TenantsDelete = "Delete", TenantsExplain = "Explain",
        TenantsHistory = "History",
    }
    "Usage" { UsageGet = "Get", UsageGetAllocation = "GetAllocation" }
    "Fleet" {
        FleetListNodes = "ListNodes", FleetListGpus = "ListGpus", FleetListCells = "ListCells", FleetListPools = "ListPools",
        FleetPutPool = "PutPool", FleetDeletePool = "DeletePool", FleetListDeviceClasses = "ListDeviceClasses",
        FleetPutDeviceClass = "PutDeviceClass", FleetDeleteDeviceClass = "DeleteDeviceClass",
        FleetListPriorityClasses = "ListPriorityClasses", FleetPutPriorityClass = "PutPriorityClass",
        FleetDeletePriorityClass = "DeletePriorityClass", FleetListWindows = "ListWindows", FleetPutWindow = "PutWindow",
        FleetDeleteWindow = "DeleteWindow", FleetSetDrained = "SetDrained", FleetRemoveNode = "RemoveNode", FleetClearGpu = "ClearGpu",
        FleetPlanMoves = "PlanMoves", FleetListMoves = "ListMoves",
    }
    "Admin" {
        AdminRaftStatus = "RaftStatus", AdminAddLearner = "AddLearner", AdminPromote = "Promote", AdminRemove = "Remove",
        AdminBootstrap = "Bootstrap", AdminResetClock = "ResetClock", AdminCopyState = "CopyState", AdminCopyHistory = "CopyHistory",
    }
    "Auth" {
        AuthLogout = "Logout", AuthWhoAmI = "WhoAmI", AuthListSessions = "ListSessions", AuthCreateToken = "CreateToken",
        AuthListTokens = "ListTokens", AuthRevoke = "Revoke", AuthGrant = "Grant", AuthListGrants = "ListGrants",
        AuthRevokeGrant = "RevokeGrant", AuthSecure = "Secure", AuthLogin = "Login", AuthLoginSettings = "LoginSettings",
    }
    "Machines" {
        MachinesEnroll = "Enroll", MachinesRenew = "Renew", MachinesList = "List", MachinesCreateJoinToken = "CreateJoinToken",
        MachinesListJoinTokens = "ListJoinTokens", MachinesRevokeJoinToken = "RevokeJoinToken", MachinesPin = "Pin",
        MachinesSuspend = "Suspend", MachinesResume = "Resume", MachinesRemove = "Remove", MachinesSetEnrolment = "SetEnrolment",
        MachinesConfirm = "Confirm",
    }
    "Secrets" { SecretsPut = "Put", SecretsDelete = "Delete", SecretsList = "List" }
    "Audit" { AuditQuery = "Query", AuditDenials = "Denials" }
    "Shards" {
        ShardsAcquire = "Acquire", ShardsRenew = "Renew", ShardsRelease = "Release", ShardsWatch = "Watch", ShardsPropose = "Propose",
    }
    "Agents" { AgentsIdentify = "Identify", AgentsSession = "Session" }
    "Peer" {
        PeerAppendEntries = "AppendEntries", PeerAppends = "Appends", PeerHeartbeat = "Heartbeat", PeerPreVote = "PreVote", PeerVote = "Vote",
        PeerInstallSnapshot = "InstallSnapshot", PeerForward = "Forward", PeerReadIndex = "ReadIndex", PeerIdentify = "Identify",
        PeerRenewLeases = "RenewLeases", PeerLogs = "Logs",
    }
}

impl Rpc {
    /// The service that it belongs to.
    #[must_use]
    pub fn service(self) -> &'static str {
        self.name().split_once('.').map_or("", |(service, _)| service)
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
