//! How many cards have been bound in the cell since the first gang of each group was found without room.
//!
//! What must stay true: only the group's first gang is counted for, and of groups that differ in their time limit alone the first group; each group is looked at again once its gang's size more has been bound,
//! so that a pass looks at few; when a job of the same class, whatever its time limit, starts, the count begins anew.

use super::{CellQueue, GroupKey, QueueKey};
use crate::job_class::JobClass;
use muster_model::{GpuModel, JobId, TenantId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The count of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    /// The group's first gang when it was found to have no room.
    job: JobId,
    /// Cards that had been bound on its models by then, or when it was last recorded.
    since: u64,
    /// When it was last recorded; 0: never.
    recorded_ms: u64,
}

/// What a count has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) job: JobId,
    /// Cards bound since it began, or since it was last recorded.
    pub(crate) more: u64,
    pub(crate) recorded_ms: u64,
}

impl CellQueue {
    /// The first of a group was found without room: its count begins, if it has not.
    pub(super) fn begin_count(&mut self, key: &GroupKey) {
        let bound = self.bound_on(&key.1);
        let Some(group) = self.tenants.get_mut(&key.0).and_then(|groups| groups.all.get_mut(&key.1)) else { return };
        let Some(first) = group.keys.first().map(|first| first.job) else { return };
        if group.count.is_some_and(|count| count.job == first) {
            return;
        }
        group.count = Some(Count { job: first, since: bound, recorded_ms: 0 });
        self.gangs_found += u64::from(key.1.cards() > 1);
        self.count_again_after(key.clone());
    }

    /// The first group of a family may be another: it is counted for again, if it is not.
    pub(super) fn count_first_of_limits(&mut self, tenant: TenantId, class: &Arc<JobClass>) {
        let Some(groups) = self.tenants.get(&tenant) else { return };
        let family = groups.families.get(&class.without_limit());
        let Some((_, class)) = family.and_then(BTreeSet::first) else { return };
        if groups.all.get(class).is_some_and(|group| group.count.is_some() && group.due.is_none()) {
            self.count_again_after((tenant, class.clone()));
        }
    }

    /// The group is looked at again once its gang's size more has been bound.
    pub(crate) fn count_again_after(&mut self, key: GroupKey) {
        if key.1.guarded_after_cards().is_none() {
            return;
        }
        let due = self.bound_in_all + key.1.cards();
        let Some(group) = self.tenants.get_mut(&key.0).and_then(|groups| groups.all.get_mut(&key.1)) else { return };
        if let Some(old) = group.due.replace(due) {
            self.counts_due.remove(&(old, key.clone()));
        }
        self.counts_due.insert((due, key));
    }

    /// The groups whose counts are to be looked at now; each once.
    pub(crate) fn due_for_count(&mut self) -> Vec<GroupKey> {
        let mut due = Vec::new();
        while let Some((at, _)) = self.counts_due.first()
            && *at <= self.bound_in_all
            && let Some((_, key)) = self.counts_due.pop_first()
        {
            if let Some(group) = self.tenants.get_mut(&key.0).and_then(|groups| groups.all.get_mut(&key.1)) {
                group.due = None;
            }
            due.push(key);
        }
        due
    }

    /// What the count of a group has come to, while its gang is still the first.
    pub(crate) fn counted(&self, (tenant, class): &GroupKey) -> Option<Counted> {
        let group = self.tenants.get(tenant)?.all.get(class)?;
        let count = group.count.filter(|count| group.keys.first().is_some_and(|first| first.job == count.job))?;
        let since = count.since.max(self.last_started(*tenant, class));
        let more = self.bound_on(class).saturating_sub(since);
        Some(Counted { job: count.job, more, recorded_ms: count.recorded_ms })
    }

    /// What was counted so far is to be recorded: the count goes on from here.
    pub(crate) fn recorded(&mut self, key: &GroupKey, now_ms: u64) {
        let bound = self.bound_on(&key.1);
        let group = self.tenants.get_mut(&key.0).and_then(|groups| groups.all.get_mut(&key.1));
        if let Some(count) = group.and_then(|group| group.count.as_mut()) {
            (count.since, count.recorded_ms) = (bound, now_ms);
        }
    }

    /// A gang of this class has started: those that differ from it in their time limit alone are counted for anew, as those behind it in
    /// the group are.
    pub(crate) fn restart_counts(&mut self, tenant: TenantId, class: &Arc<JobClass>) {
        if class.cards() > 1 {
            let bound = self.bound_on(class);
            self.last_started.entry(tenant).or_default().insert(class.without_limit(), bound);
        }
    }

    /// Cards that had been bound when a job that differs from this at most in its time limit last started.
    fn last_started(&self, tenant: TenantId, class: &Arc<JobClass>) -> u64 {
        let of_tenant = self.last_started.get(&tenant);
        of_tenant.and_then(|classes| classes.get(&class.without_limit())).copied().unwrap_or(0)
    }

    /// Whether no group that differs from this in its time limit alone has a job that goes before `first`.
    pub(crate) fn is_first_of_its_limits(&self, tenant: TenantId, class: &Arc<JobClass>, first: QueueKey) -> bool {
        let groups = self.tenants.get(&tenant);
        let family = groups.and_then(|groups| groups.families.get(&class.without_limit()));
        family.and_then(BTreeSet::first).is_none_or(|(queue_key, _)| *queue_key >= first)
    }

    /// Cards bound on any model that `class` may land on.
    fn bound_on(&self, class: &JobClass) -> u64 {
        class.offers().iter().filter_map(|offer| self.bound_cards.get(&offer.model)).sum()
    }

    /// Counts cards that were bound in the cell.
    pub(crate) fn count_bound(&mut self, model: Option<GpuModel>, cards: u64) {
        *self.bound_cards.entry(model).or_default() += cards;
        self.bound_in_all += cards;
    }
}
