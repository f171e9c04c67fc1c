//! Under whose name jobs wait: under their tenants' in the quota tree, or all in one queue, to compare with.
//!
//! What must stay true: the scheduler and the state machine are the same in each case and know nothing of this choice; only what is submitted to
//! them differs. Use is still counted by the tenant that the trace names.

use muster_model::Tenant;
use muster_model::tenant::TenantSpec;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// How jobs wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueChoice {
    /// Each under its tenant, in the quota tree.
    #[default]
    Tree,
    /// All under one tenant without quota: the oldest first.
    Fifo,
    /// All under one tenant without quota, with a priority by their own tenant: the one with the largest guarantee has the highest, and takes
    /// devices from all below it.
    StrictPriority,
}

impl QueueChoice {
    /// All of them.
    pub const ALL: [QueueChoice; 3] = [QueueChoice::Tree, QueueChoice::Fifo, QueueChoice::StrictPriority];
}

impl fmt::Display for QueueChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueChoice::Tree => "tree",
            QueueChoice::Fifo => "fifo",
            QueueChoice::StrictPriority => "strict-priority",
        })
    }
}

impl FromStr for QueueChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = QueueChoice::ALL.into_iter().find(|choice| choice.to_string() == text);
        known.ok_or_else(|| format!("{text:?} is not tree, fifo or strict-priority"))
    }
}

/// The tenant that jobs of one queue are submitted under.
const EVERYONE: &str = "everyone";

/// Under which tenant and priority the jobs of each tenant are submitted.
pub(crate) struct Queues {
    choice: QueueChoice,
    ranks: BTreeMap<String, i32>,
}

impl Queues {
    /// For the tenants of a replay.
    pub(crate) fn new(choice: QueueChoice, tenants: &[TenantSpec]) -> Self {
        let parents: BTreeSet<&str> = tenants.iter().filter_map(|spec| Tenant::parent_path(&spec.path)).collect();
        let mut leaves: Vec<&TenantSpec> =
            tenants.iter().filter(|spec| !parents.contains(spec.path.as_str())).collect();
        leaves.sort_by_key(|spec| (spec.guarantee.gpu_total(), std::cmp::Reverse(&spec.path)));
        let ranks = leaves.iter().zip(0..).map(|(spec, rank)| (spec.path.clone(), rank)).collect();
        Queues { choice, ranks }
    }

    /// What the state machine is told of tenants.
    pub(crate) fn tenants(&self, tenants: &[TenantSpec]) -> Vec<TenantSpec> {
        match self.choice {
            QueueChoice::Tree => tenants.to_vec(),
            QueueChoice::Fifo | QueueChoice::StrictPriority => vec![TenantSpec::usual(EVERYONE)],
        }
    }

    /// Tenant and priority of a submission by `tenant`.
    pub(crate) fn of<'a>(&self, tenant: &'a str) -> (&'a str, i32) {
        match self.choice {
            QueueChoice::Tree => (tenant, 0),
            QueueChoice::Fifo => (EVERYONE, 0),
            QueueChoice::StrictPriority => (EVERYONE, self.ranks.get(tenant).copied().unwrap_or(0)),
        }
    }
}
