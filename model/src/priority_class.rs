//! Priority classes: priorities with a name, and which of them preempt burst jobs of other tenants; admins make them.
//!
//! What must stay true: a job that names no class is of the class `default`; a mark holds as it is when somebody is preempted, the priority
//! as it was when the job was accepted.

use crate::tenant::lies_under;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The class of jobs that name none. It is built in, and its jobs preempt nobody of another tenant.
pub const DEFAULT_PRIORITY_CLASS: &str = "default";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityClass {
    /// Its name.
    pub name: String,
    /// The priority of its jobs.
    pub priority: i32,
    /// Names of the classes whose burst jobs its jobs may preempt, whatever tenant they are of, where the priority is strictly higher.
    pub preempts: BTreeSet<String>,
    /// Paths of the tenants that may use it, those below them included; empty means all.
    pub tenants: BTreeSet<String>,
}

impl PriorityClass {
    /// Whether the tenant at `path` may use it.
    #[must_use]
    pub fn allows(&self, path: &str) -> bool {
        self.tenants.is_empty() || self.tenants.iter().any(|top| lies_under(path, top))
    }
}

/// Whether jobs of the first class may preempt burst jobs of the second one in other tenants, as far as the marks go. `None`: no class named.
#[must_use]
pub fn class_preempts(classes: &BTreeMap<String, PriorityClass>, first: Option<&str>, second: Option<&str>) -> bool {
    let second = second.unwrap_or(DEFAULT_PRIORITY_CLASS);
    first.and_then(|name| classes.get(name)).is_some_and(|class| class.preempts.contains(second))
}

/// What became of the attempts of a job that began by preempting others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemptor {
    /// The newest of them.
    pub attempt: Option<crate::ids::Attempt>,
    /// How many of them failed.
    pub failures: u32,
}

/// So many failed attempts that preempted others cost a job the right to preempt.
pub const PREEMPTOR_FAILURES_MAX: u32 = 3;

impl Preemptor {
    /// Whether the job may not preempt any more.
    #[must_use]
    pub fn is_barred(&self) -> bool {
        self.failures >= PREEMPTOR_FAILURES_MAX
    }
}
