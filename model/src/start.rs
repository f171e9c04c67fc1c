//! When a pending job may start: what its submission says, what of that is not met yet, and why it is not eligible meanwhile.
//!
//! What must stay true:
//! - a condition that was met stays met, whatever happens to the jobs that it named;
//! - a job may depend only on jobs that were submitted before it, so no two jobs ever wait for each other;
//! - time decides nothing here: whoever asks says what time it is.

mod reason;

pub use reason::NotEligible;

use crate::array::IndexSet;
use crate::ids::JobId;
use crate::words::words;
use serde::{Deserialize, Serialize};

/// What must be so before a job may start, as its submission says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartConditions {
    /// It is held by its user from the beginning.
    pub held: bool,
    /// It starts no earlier; milliseconds since the Unix epoch.
    pub begin_ms: Option<u64>,
    /// It must have ended by then; milliseconds since the Unix epoch.
    pub deadline_ms: Option<u64>,
    /// All of these must be met, or with [`any_dependency`](Self::any_dependency) one of them.
    pub dependencies: Vec<Dependency>,
    /// No earlier job of the same tenant, user and name may be live.
    pub singleton: bool,
    /// It is cancelled when a dependency can never be met; otherwise it stays pending.
    pub kill_on_invalid_dependency: bool,
    /// One of the dependencies is enough.
    #[serde(default)]
    pub any_dependency: bool,
}

/// What a dependency asks of the other job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DependencyKind {
    /// It has completed.
    AfterOk,
    /// It is over.
    AfterAny,
    /// It is over and has not completed.
    AfterNotOk,
    /// It has started, or is over.
    After,
    /// The task of the same index of that array has completed; of a job without an array, the job.
    AfterCorr,
}

words!(DependencyKind, "dependency",
    DependencyKind::AfterOk => "afterok", DependencyKind::AfterAny => "afterany",
    DependencyKind::AfterNotOk => "afternotok", DependencyKind::After => "after",
    DependencyKind::AfterCorr => "aftercorr");

/// One job that another waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Dependency {
    /// What is asked of it.
    pub kind: DependencyKind,
    /// The other job, submitted earlier.
    pub job: JobId,
    /// The job may start this long after the dependency is met, in seconds.
    pub delay_s: u64,
}

/// How a job ended, as far as other jobs depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedJob {
    /// Which.
    pub job: JobId,
    /// It completed: every task exited with 0.
    pub completed: bool,
    /// When it started for the last time, if it did.
    pub started_ms: Option<u64>,
    /// When it ended.
    pub ended_ms: u64,
    /// Of an array, the tasks that completed.
    pub array_completed: Option<IndexSet>,
}

/// Whether a dependency is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Since this time, in milliseconds since the Unix epoch.
    Met(u64),
    /// Not yet.
    Waits,
    /// It never will be.
    Never,
}

impl Dependency {
    /// From when on the job may start because of it, if it is met.
    #[must_use]
    pub fn met_ms(&self, verdict: Verdict) -> Option<u64> {
        match verdict {
            Verdict::Met(since_ms) => Some(since_ms.saturating_add(self.delay_s.saturating_mul(1_000))),
            Verdict::Waits | Verdict::Never => None,
        }
    }

    /// Decides it for a job that is over.
    #[must_use]
    pub fn on_ended(&self, ended: &EndedJob) -> Verdict {
        let met = match self.kind {
            DependencyKind::AfterOk | DependencyKind::AfterCorr => ended.completed,
            DependencyKind::AfterNotOk => !ended.completed,
            DependencyKind::AfterAny => true,
            DependencyKind::After => return Verdict::Met(ended.started_ms.unwrap_or(ended.ended_ms)),
        };
        if met { Verdict::Met(ended.ended_ms) } else { Verdict::Never }
    }
}

/// Who holds a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Holder {
    /// Its user, who may release it.
    User,
    /// An administrator, who alone may release it.
    Admin,
}

words!(Holder, "holder", Holder::User => "user", Holder::Admin => "admin");

/// What keeps a job from being eligible: the conditions that are not met yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmet {
    /// Somebody holds it.
    pub held: Option<Holder>,
    /// Its begin time has not come.
    pub begin_ms: Option<u64>,
    /// Dependencies that are not met yet.
    pub dependencies: Vec<Dependency>,
    /// The dependency that can never be met, if there is one; where one of several is enough, the last of them.
    pub never: Option<Dependency>,
    /// An earlier job of the same tenant, user and name is live.
    pub singleton: bool,
    /// One of the dependencies is enough; of those that can never be met only the last is left.
    #[serde(default)]
    pub any_dependency: bool,
}

impl Unmet {
    /// Whether nothing keeps the job from being eligible.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Unmet::default()
    }

    /// Takes a verdict about one of its dependencies over. Says whether anything changed.
    pub fn decide(&mut self, dependency: Dependency, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Waits => false,
            Verdict::Never if self.any_dependency && self.dependencies.iter().any(|one| *one != dependency) => {
                self.dependencies.retain(|one| *one != dependency);
                true
            }
            Verdict::Never => self.never.replace(dependency).is_none(),
            Verdict::Met(since_ms) => {
                let before = self.dependencies.len();
                let any = std::mem::take(&mut self.any_dependency);
                self.dependencies.retain(|one| !any && *one != dependency);
                if dependency.delay_s > 0 {
                    self.begin_ms = self.begin_ms.max(dependency.met_ms(Verdict::Met(since_ms)));
                }
                self.dependencies.len() != before
            }
        }
    }
}
