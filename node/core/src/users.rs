//! As which users of the host tasks run.
//!
//! What must stay true: tasks of one tenant have one user, whichever job they are of; the agent's own user is nobody's choice.

use muster_model::ids::TenantId;

/// As which users of the host tasks run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskUsers {
    /// As the agent's own.
    #[default]
    Agent,
    /// Each tenant's as one of its own: this number and the tenant's.
    PerTenant {
        /// Added to the tenant's number.
        base: u32,
    },
    /// All as this one.
    One(u32),
}

impl TaskUsers {
    /// The number of the user; none: the agent's own.
    #[must_use]
    pub const fn of(self, tenant: TenantId) -> Option<u32> {
        match self {
            TaskUsers::Agent => None,
            TaskUsers::PerTenant { base } => Some(base.saturating_add(tenant.0)),
            TaskUsers::One(user) => Some(user),
        }
    }

    /// Whether tasks of the node may have different users.
    #[must_use]
    pub const fn may_differ(self) -> bool {
        matches!(self, TaskUsers::PerTenant { .. })
    }
}
