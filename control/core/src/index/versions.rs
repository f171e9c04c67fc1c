//! Versions of tenants that have ended, for the sweep that forgets them.
//!
//! What must stay true: each history with a version that has ended is named once, by the time at which its first version ended.

use muster_model::TenantHistory;
use muster_model::ids::TenantId;
use std::collections::BTreeSet;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionIndex {
    first_ended: BTreeSet<(u64, TenantId)>,
    count: usize,
}

impl VersionIndex {
    /// Versions of all tenants that have ended.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tenants whose first version ended before `before_ms`, and others until there are `most` of them; those whose version ended first go first.
    pub fn first_ended(&self, before_ms: u64, most: usize) -> impl Iterator<Item = TenantId> + '_ {
        let due = move |(place, (ended_ms, _)): &(usize, &(u64, TenantId))| *ended_ms < before_ms || *place < most;
        self.first_ended.iter().enumerate().take_while(due).map(|(_, (_, id))| *id)
    }

    pub(crate) fn change(&mut self, old: Option<&TenantHistory>, new: Option<&TenantHistory>) {
        let key = |history: &TenantHistory| history.first_ended_ms().map(|ended_ms| (ended_ms, history.tenant));
        if let Some(history) = old {
            self.count -= history.ended();
            if let Some(key) = key(history) {
                self.first_ended.remove(&key);
            }
        }
        if let Some(history) = new {
            self.count += history.ended();
            self.first_ended.extend(key(history));
        }
    }
}
