//! Groups that wait for room on a model, filed so that what becomes free wakes only those that it could help.
//!
//! A node that frees cards helps no group whose tasks each want more cards than are free on it, nor one that wants more in all than are
//! free on the model. Groups of one tenant that differ in their time limit alone are a *family*: outside of what is kept for gangs they
//! fit or do not fit together, so only the first of them is woken, and the next when that one has started or is gone. Where a kept node may
//! be part of the place, their limits decide: all of them are woken.

use super::GroupKey;
use crate::job_class::JobClass;
use muster_model::{GpuModel, TenantId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What has become free of a model, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    pub(crate) model: Option<GpuModel>,
    /// Whole cards that are free on the node now.
    pub(crate) on_node: u32,
    /// Whole cards of the model that are free in the cell now.
    pub(crate) in_all: u64,
    /// The node is kept for a gang: time limits decide who may use it.
    pub(crate) kept: bool,
    /// For how long at most a gang may yet stand on nodes of the cell that are kept for others, and on this one together with them.
    pub(crate) lent_ms: u64,
}

impl Freed {
    /// Whether a gang of this class may find in it what it lacks.
    pub(crate) fn may_help(&self, class: &JobClass) -> bool {
        class.whole_cards_each() <= self.on_node && class.whole_cards() <= self.in_all
    }
}

/// A family: its tenant, and what they ask for without a time limit.
type Family = (TenantId, Arc<JobClass>);

type Families = BTreeMap<Family, BTreeSet<Arc<JobClass>>>;

/// By model and by the whole cards that each task wants on one node; 0 where parts of cards or none will do.
#[derive(Clone, Debug, Default)]
pub(super) struct WithoutRoom(BTreeMap<(Option<GpuModel>, u32), Families>);

impl WithoutRoom {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, model: Option<GpuModel>, (tenant, class): &GroupKey) {
        let families = self.0.entry((model, class.whole_cards_each())).or_default();
        families.entry((*tenant, class.without_limit())).or_default().insert(class.clone());
    }

    pub(super) fn remove(&mut self, model: Option<GpuModel>, (tenant, class): &GroupKey) {
        let key = (model, class.whole_cards_each());
        let Some(families) = self.0.get_mut(&key) else { return };
        let of_tenant = (*tenant, class.without_limit());
        if let Some(other_limits) = families.get_mut(&of_tenant) {
            other_limits.remove(class);
            if other_limits.is_empty() {
                families.remove(&of_tenant);
            }
        }
        if families.is_empty() {
            self.0.remove(&key);
        }
    }

    /// Every group in it.
    pub(super) fn all(&self) -> Vec<GroupKey> {
        let families = self.0.values().flatten();
        let mut all: Vec<GroupKey> = families
            .flat_map(|((tenant, _), other_limits)| other_limits.iter().map(|class| (*tenant, class.clone())))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The groups that `freed` could help: of a family the one that `first` says.
    pub(super) fn helped_by(
        &self,
        freed: Freed,
        first: impl Fn(TenantId, &BTreeSet<Arc<JobClass>>) -> Option<Arc<JobClass>>,
    ) -> Vec<GroupKey> {
        let mut helped = Vec::new();
        let groups = self.0.range((freed.model, 0)..=(freed.model, freed.on_node)).flat_map(|(_, families)| families);
        for ((tenant, kind), other_limits) in groups {
            if !freed.may_help(kind) {
                continue;
            }
            if freed.kept {
                helped.extend(other_limits.iter().map(|class| (*tenant, class.clone())));
                continue;
            }
            let first = first(*tenant, other_limits);
            if kind.tasks > 1 && freed.lent_ms > 0 {
                let short = other_limits.iter().filter(|class| class.stays_at_most_ms() <= freed.lent_ms);
                let others = short.filter(|class| Some(*class) != first.as_ref());
                helped.extend(others.map(|class| (*tenant, class.clone())));
            }
            helped.extend(first.map(|class| (*tenant, class)));
        }
        helped
    }

    /// The family of a group on `model`.
    pub(super) fn other_limits(
        &self,
        model: Option<GpuModel>,
        (tenant, class): &GroupKey,
    ) -> Option<&BTreeSet<Arc<JobClass>>> {
        self.0.get(&(model, class.whole_cards_each()))?.get(&(*tenant, class.without_limit()))
    }
}
