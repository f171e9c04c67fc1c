//! What may be changed of an accepted job.
//!
//! What must stay true: the result is a specification that would be accepted if it were submitted so; what is not named stays.

use crate::job::JobSpec;
use crate::tenant_edit::Edit;
use serde::{Deserialize, Serialize};

/// A change of an accepted job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobUpdate {
    /// The time limit in seconds, of the present attempt too.
    pub time_limit_s: Edit<u64>,
    /// Higher goes first inside a tenant.
    pub priority: Option<i32>,
    /// Path of the tenant that pays; of a pending job only.
    pub tenant: Option<String>,
    /// For people.
    pub name: Option<String>,
    /// A note for people.
    #[serde(default)]
    pub comment: Option<String>,
}

impl JobUpdate {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == JobUpdate::default()
    }

    /// The specification with the changes.
    #[must_use]
    pub fn on(&self, spec: &JobSpec) -> JobSpec {
        let mut changed = spec.clone();
        match self.time_limit_s {
            Edit::Keep => {}
            Edit::Set(limit_s) => changed.time_limit_s = Some(limit_s),
            Edit::Remove => changed.time_limit_s = None,
        }
        changed.priority = self.priority.unwrap_or(spec.priority);
        if let Some(tenant) = &self.tenant {
            changed.tenant.clone_from(tenant);
        }
        if let Some(name) = &self.name {
            changed.name.clone_from(name);
        }
        if let Some(comment) = &self.comment {
            changed.comment.clone_from(comment);
        }
        changed
    }
}
