//! What an answer may show.
//!
//! What must stay true: what is hidden is left out as if it were not there; nothing of an answer depends on it.

use crate::state::State;
use muster_model::TenantId;
use std::collections::BTreeSet;

/// How far a caller sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Everything: the cluster is open, or the caller is root or a machine.
    All,
    /// Everything but what tenants wrote (commands, environments, output), which is shown below `content` alone: operators and auditors.
    Metadata {
        /// Where what tenants wrote is shown, too; `None` is the root of the tree.
        content: BTreeSet<Option<TenantId>>,
    },
    /// These tenants and all below them, and of those above them their limits.
    Below(BTreeSet<TenantId>),
}

impl Visibility {
    /// Whether objects of `tenant` may be shown.
    #[must_use]
    pub fn shows(&self, state: &State, tenant: TenantId) -> bool {
        match self {
            Visibility::All | Visibility::Metadata { .. } => true,
            Visibility::Below(tops) => lies_below(state, tenant, |id| tops.contains(&id)),
        }
    }

    /// Whether what `tenant` wrote may be shown.
    #[must_use]
    pub fn shows_content(&self, state: &State, tenant: TenantId) -> bool {
        match self {
            Visibility::All => true,
            Visibility::Metadata { content } => {
                content.contains(&None) || lies_below(state, tenant, |id| content.contains(&Some(id)))
            }
            Visibility::Below(_) => self.shows(state, tenant),
        }
    }

    /// Whether `tenant` is one above those that are shown: its limits are, and nothing else of it.
    #[must_use]
    pub fn shows_limits(&self, state: &State, tenant: TenantId) -> bool {
        match self {
            Visibility::All | Visibility::Metadata { .. } => true,
            Visibility::Below(tops) => {
                self.shows(state, tenant) || tops.iter().any(|top| lies_below(state, *top, |id| id == tenant))
            }
        }
    }

    /// Whether the whole fleet may be shown.
    #[must_use]
    pub fn shows_fleet(&self) -> bool {
        !matches!(self, Visibility::Below(_))
    }
}

/// Whether `tenant` or one above it is `wanted`.
fn lies_below(state: &State, tenant: TenantId, wanted: impl Fn(TenantId) -> bool) -> bool {
    let mut here = Some(tenant);
    while let Some(id) = here {
        if wanted(id) {
            return true;
        }
        here = state.tenants.get(&id).and_then(|tenant| tenant.parent);
    }
    false
}
