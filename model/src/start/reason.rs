//! Why a pending job is not eligible to start, as a type with a stable code and its words.
//!
//! What must stay true: each condition that is not met gives one reason; the one that only a person can lift comes first.

use super::{Dependency, Holder, Unmet};
use crate::array::ArrayState;
use crate::utc;

/// One reason why a pending job is not eligible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotEligible {
    /// Somebody holds it.
    Held(Holder),
    /// A dependency can never be met.
    Never(Dependency),
    /// It waits for another job.
    Dependency(Dependency),
    /// It waits for another job, or one of its other dependencies.
    OneDependency(Dependency),
    /// It waits for an earlier job of the same tenant, user and name.
    Singleton,
    /// It waits for its begin time, in milliseconds since the Unix epoch.
    BeginsAt(u64),
    /// It is an array, of which tasks have not started yet.
    ArrayTasks {
        /// So many have no job yet.
        left: u64,
        /// So many of its tasks are live at once, at most.
        max_running: Option<u32>,
    },
}

impl NotEligible {
    /// All of what is not met, the first reason first.
    #[must_use]
    pub fn all(unmet: &Unmet) -> Vec<Self> {
        let held = unmet.held.map(NotEligible::Held);
        let never = unmet.never.map(NotEligible::Never);
        let open = unmet.dependencies.iter().filter(|one| unmet.never != Some(**one));
        let singleton = unmet.singleton.then_some(NotEligible::Singleton);
        let begins = unmet.begin_ms.map(NotEligible::BeginsAt);
        let one_is_enough = unmet.any_dependency && unmet.dependencies.len() > 1;
        let waits = if one_is_enough { NotEligible::OneDependency } else { NotEligible::Dependency };
        let open = open.copied().map(waits);
        held.into_iter().chain(never).chain(open).chain(singleton).chain(begins).collect()
    }

    /// Of an array, whose tasks get their jobs as others end.
    pub(crate) fn of_array(array: &ArrayState) -> Self {
        NotEligible::ArrayTasks { left: array.left.len(), max_running: array.max_running }
    }

    /// A stable word.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            NotEligible::Held(Holder::User) => "held_by_user",
            NotEligible::Held(Holder::Admin) => "held_by_admin",
            NotEligible::Never(_) => "dependency_never_satisfied",
            NotEligible::Dependency(_) | NotEligible::OneDependency(_) => "dependency",
            NotEligible::Singleton => "singleton",
            NotEligible::BeginsAt(_) => "begin_time",
            NotEligible::ArrayTasks { .. } => "array_tasks",
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            NotEligible::Held(holder) => format!("held by {holder}"),
            NotEligible::Never(on) => {
                format!("dependency can never be satisfied: {} of job {}", on.kind, on.job)
            }
            NotEligible::Dependency(on) => format!("waits for job {} ({})", on.job, on.kind),
            NotEligible::OneDependency(on) => {
                format!("waits for job {} ({}), or another of its dependencies", on.job, on.kind)
            }
            NotEligible::Singleton => "waits for an earlier job of the same name and user (singleton)".to_owned(),
            NotEligible::ArrayTasks { left: 0, .. } => "all tasks of the array have started".to_owned(),
            NotEligible::ArrayTasks { left, max_running: Some(limit) } => {
                format!("{left} tasks of the array have not started (limit {limit} at once)")
            }
            NotEligible::ArrayTasks { left, max_running: None } => {
                format!("{left} tasks of the array have not started")
            }
            NotEligible::BeginsAt(begin_ms) => format!("begins at {}", utc::show(*begin_ms)),
        }
    }

    /// The job that it names, if any.
    #[must_use]
    pub const fn job(&self) -> Option<crate::ids::JobId> {
        match self {
            NotEligible::Never(on) | NotEligible::Dependency(on) | NotEligible::OneDependency(on) => Some(on.job),
            _ => None,
        }
    }

    /// What to do about it; empty when waiting is all there is to do.
    #[must_use]
    pub const fn fix(&self) -> &'static str {
        match self {
            NotEligible::Held(Holder::User) => "release it with `muster release`",
            NotEligible::Held(Holder::Admin) => "ask an administrator to release it",
            NotEligible::Never(_) => "cancel it with `muster cancel`, and submit it again without that dependency",
            NotEligible::Dependency(_)
            | NotEligible::OneDependency(_)
            | NotEligible::Singleton
            | NotEligible::BeginsAt(_)
            | NotEligible::ArrayTasks { .. } => "",
        }
    }
}
