//! What a tenant was guaranteed and by what it was ordered, over time: a version for each change, with the time from which it holds.
//!
//! Bills need it: what a floor account held in an hour that is over, and to whom a subtree belonged then. What must stay true: versions follow each other
//! in time, each holds until the next, and the last one says what the tenant is, or was when it was removed. What was forgotten is said, never guessed.

use crate::ids::TenantId;
use crate::resources::{Limits, Resource, ResourceVec};
use crate::tenant::{Tenant, Trust, lends, negated};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Versions of one tenant: eight changes a day are known for a month, which is what a bill looks back. The oldest are forgotten first.
pub const TENANT_VERSIONS_MAX: usize = 256;

/// What a tenant was from some time on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantVersion {
    /// From when on, in ms since the Unix epoch.
    pub from_ms: u64,
    /// Its path then.
    pub path: String,
    /// Who it belonged to.
    pub parent: Option<TenantId>,
    /// The floor.
    pub guarantee: ResourceVec,
    /// The ceiling.
    pub max: Limits,
    /// Its share among siblings.
    pub weight: u32,
    /// Weights of resources that had one of their own.
    pub weights: BTreeMap<Resource, u32>,
    /// Trust.
    pub trust: Trust,
    /// Whether it lent its idle guarantee.
    #[serde(default = "lends", with = "negated")]
    pub lend: bool,
    /// The same for resources of which something else was said.
    pub lends: BTreeMap<Resource, bool>,
}

impl TenantVersion {
    /// The tenant as it is from `from_ms` on.
    #[must_use]
    pub fn of(tenant: &Tenant, from_ms: u64) -> Self {
        // Whom it is kept apart from is nothing that anybody pays for.
        let Tenant {
            id: _,
            path,
            parent,
            guarantee,
            max,
            weight,
            trust,
            anti_affinity: _,
            lend,
            weights,
            lends,
            run_as: _,
        } = tenant;
        TenantVersion {
            from_ms,
            path: path.clone(),
            parent: *parent,
            guarantee: *guarantee,
            max: max.clone(),
            weight: *weight,
            weights: weights.clone(),
            trust: *trust,
            lend: *lend,
            lends: lends.clone(),
        }
    }

    /// Whether the two say the same, whenever they began.
    #[must_use]
    pub fn says_as(&self, other: &TenantVersion) -> bool {
        *self == TenantVersion { from_ms: self.from_ms, ..other.clone() }
    }
}

/// The versions of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantHistory {
    /// Whose.
    pub tenant: TenantId,
    /// The oldest first; never empty.
    pub versions: Vec<TenantVersion>,
    /// When it was removed, if it was.
    pub removed_ms: Option<u64>,
    /// It was there before the first version: that time is not known any more, or was before histories were kept.
    pub is_cut: bool,
}

impl TenantHistory {
    /// Of a tenant that begins with this version. `is_cut`: it was there before.
    #[must_use]
    pub fn new(tenant: TenantId, first: TenantVersion, is_cut: bool) -> Self {
        TenantHistory { tenant, versions: vec![first], removed_ms: None, is_cut }
    }

    /// From the time of `version` on it holds. Answers whether that changes anything.
    pub fn note(&mut self, version: TenantVersion) -> bool {
        if self.versions.last().is_some_and(|last| last.says_as(&version)) {
            return false;
        }
        // No earlier than the present one, also where a clock was ahead.
        let from_ms = self.versions.last().map_or(0, |last| last.from_ms).max(version.from_ms);
        // What held for no time was never anything.
        self.versions.pop_if(|last| last.from_ms == from_ms);
        if self.versions.last().is_some_and(|last| last.says_as(&version)) {
            return true;
        }
        self.versions.push(TenantVersion { from_ms, ..version });
        self.forget(self.versions.len().saturating_sub(TENANT_VERSIONS_MAX));
        true
    }

    /// The tenant is removed.
    pub fn remove(&mut self, now_ms: u64) {
        let from_ms = self.versions.last().map_or(0, |last| last.from_ms);
        self.removed_ms = Some(now_ms.max(from_ms));
    }

    /// Since when `of` has said what it says now; none where that was so before the first version that is known.
    #[must_use]
    pub fn holds_since<T: PartialEq>(&self, of: impl Fn(&TenantVersion) -> T) -> Option<u64> {
        let now = of(self.versions.last()?);
        let same = self.versions.iter().rev().take_while(|version| of(version) == now);
        let (reached, first) = same.fold((0, None), |(reached, _), version| (reached + 1, Some(version.from_ms)));
        first.filter(|_| !self.is_cut || reached < self.versions.len())
    }

    /// When the first version ended, if it has.
    #[must_use]
    pub fn first_ended_ms(&self) -> Option<u64> {
        self.versions.get(1).map(|next| next.from_ms).or(self.removed_ms)
    }

    /// Versions that have ended.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.versions.len() - usize::from(self.removed_ms.is_none())
    }

    /// Forgets so many of the oldest versions, never all.
    pub fn forget(&mut self, versions: usize) {
        let versions = versions.min(self.versions.len().saturating_sub(1));
        self.versions.drain(..versions);
        self.is_cut |= versions > 0;
    }

    /// How many versions had ended before `before_ms`.
    #[must_use]
    pub fn ended_before(&self, before_ms: u64) -> usize {
        let next = self.versions.iter().skip(1).map(|next| next.from_ms).chain(self.removed_ms);
        next.take_while(|ended_ms| *ended_ms < before_ms).count()
    }

    /// Brings times back that are ahead of `now_ms`, when a clock was wrong. Answers whether there were any.
    pub fn set_back(&mut self, now_ms: u64) -> bool {
        let ahead = self.versions.iter().map(|version| version.from_ms).chain(self.removed_ms).any(|at| at > now_ms);
        if ahead {
            self.removed_ms = self.removed_ms.map(|at| at.min(now_ms));
            for version in std::mem::take(&mut self.versions) {
                let version = TenantVersion { from_ms: version.from_ms.min(now_ms), ..version };
                // Of those that would begin at once, the last one holds.
                self.versions.pop_if(|last| last.from_ms == version.from_ms);
                self.versions.push(version);
            }
        }
        ahead
    }

    /// What is wrong with it beside `tenant`, which it is about if that is there; if anything is.
    #[must_use]
    pub fn fault(&self, tenant: Option<&Tenant>) -> Option<String> {
        let Some(last) = self.versions.last() else { return Some("it has no version".to_owned()) };
        let in_order = self.versions.is_sorted_by(|one, next| one.from_ms < next.from_ms);
        if !in_order || self.versions.len() > TENANT_VERSIONS_MAX {
            return Some(format!("its {} versions are not in order", self.versions.len()));
        }
        match (tenant, self.removed_ms) {
            (Some(tenant), None) if last.says_as(&TenantVersion::of(tenant, 0)) => None,
            (None, Some(removed_ms)) if removed_ms >= last.from_ms => None,
            (tenant, removed_ms) => {
                Some(format!("it ends with {last:?}, removed {removed_ms:?}, and the tenant is {tenant:?}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(from_ms: u64, weight: u32, path: &str) -> TenantVersion {
        TenantVersion {
            from_ms,
            path: path.to_owned(),
            parent: None,
            guarantee: ResourceVec::default(),
            max: Limits::default(),
            weight,
            weights: BTreeMap::new(),
            trust: Trust::Trusted,
            lend: true,
            lends: BTreeMap::new(),
        }
    }

    #[test]
    fn a_field_holds_since_the_version_that_set_it() {
        let mut history = TenantHistory::new(TenantId(1), version(1, 1, "a"), true);
        assert_eq!(history.holds_since(|version| version.weight), None, "it may be older than what is known");
        assert!(history.note(version(5, 2, "a")) && history.note(version(7, 2, "b")));
        assert_eq!(history.holds_since(|version| version.weight), Some(5));
        assert_eq!(history.holds_since(|version| version.path.clone()), Some(7));
        assert_eq!(history.holds_since(|version| version.trust), None);
        history.is_cut = false;
        assert_eq!(history.holds_since(|version| version.trust), Some(1));
    }
}
