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
    /// The number of the user of a tenant that may have one of its own; none: the agent's own.
    ///
    /// # Errors
    /// It is one that this node makes up for another tenant.
    pub fn of(self, tenant: TenantId, run_as: Option<u32>) -> Result<Option<u32>, String> {
        match (self, run_as) {
            (TaskUsers::Agent, _) => Ok(None),
            (TaskUsers::One(user), _) => Ok(Some(user)),
            (TaskUsers::PerTenant { base }, None) => Ok(Some(base.saturating_add(tenant.0))),
            (TaskUsers::PerTenant { base }, Some(user)) if user < base => Ok(Some(user)),
            (TaskUsers::PerTenant { base }, Some(user)) => Err(format!(
                "its tenant runs as user {user}, and this node makes up users from {base} on: use a higher --task-user-base"
            )),
        }
    }

    /// Whether tasks of the node may have different users.
    #[must_use]
    pub const fn may_differ(self) -> bool {
        matches!(self, TaskUsers::PerTenant { .. })
    }
}
