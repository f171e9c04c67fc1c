//! Changes of what a job is entitled to: the guarantee of its tenant, what others lend, its tenant's trust, its priority.
//!
//! What must stay true: each change is one that the control plane would take, as far as the ledger tells (guarantees of children within their parent's, all of them
//! within healthy capacity, none above a max; nobody trusted more than its parent); what it leads to is played on a copy, preemption included.

use super::remedies::Question;
use super::remedy::{Change, Remedy};
use super::words::as_written;
use muster_model::TenantId;
use muster_model::bounds::PRIORITY_MAX;
use muster_model::capacity::{Capacity, NotLent};
use muster_model::resources::Resource;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Priorities that are tried, from the lowest: each is played twice.
const PRIORITIES_MAX: usize = 3;
/// Tenants that are tried alone, those with the most idle guarantee first.
const LENDERS_ALONE_MAX: usize = 4;
/// Tenants that one suggestion asks to lend: as many as a reader can take in.
const LENDERS_TOGETHER_MAX: usize = 8;

impl Question<'_> {
    /// What helps where burst may not use what others do not lend.
    pub(super) fn past_not_lent(&mut self, why: &NotLent) -> Vec<Remedy> {
        let lenders = self.lenders(why.resource);
        let alone = lenders.iter().take(LENDERS_ALONE_MAX).find_map(|lend| self.verified(vec![lend.clone()]));
        let fewest = |question: &mut Self| {
            let tried = 2..=lenders.len().min(LENDERS_TOGETHER_MAX);
            tried.into_iter().find_map(|count| question.verified(lenders[..count].to_vec()))
        };
        let lent = alone.or_else(|| fewest(self));
        lent.into_iter().chain(self.guaranteed()).collect()
    }

    /// What helps a tenant that may not share cards in time: its trust, and that of those above it.
    pub(super) fn past_trust(&mut self) -> Vec<Remedy> {
        let line = self.trial.view.capacity().line_of(self.job.tenant);
        let untrusted = line.filter(|(_, at)| at.untrusted);
        let mut changes: Vec<Change> =
            untrusted.map(|(tenant, at)| Change::Trust { tenant, path: at.path.clone() }).collect();
        // Those above first, as they have to be applied.
        changes.reverse();
        self.verified(changes).into_iter().collect()
    }

    /// What gives the job a right to devices that others hold: a higher priority, or a guarantee.
    pub(super) fn by_right(&mut self) -> Vec<Remedy> {
        self.prioritised().into_iter().chain(self.guaranteed()).collect()
    }

    /// Those who keep what is idle of their guarantee, outside of the job's own line; those that keep most first.
    fn lenders(&self, resource: Resource) -> Vec<Change> {
        let capacity = self.trial.view.capacity();
        let mine: BTreeSet<TenantId> = capacity.line_of(self.job.tenant).map(|(id, _)| id).collect();
        let keepers = capacity.tenants().iter().filter(|(id, at)| !mine.contains(id) && !at.lends(resource));
        let idle = keepers.map(|(id, at)| (at.guarantee.get(resource).saturating_sub(at.used.get(resource)), id, at));
        let mut idle: Vec<_> = idle.filter(|(amount, ..)| *amount > 0).collect();
        idle.sort_by_key(|(amount, id, _)| (Reverse(*amount), **id));
        idle.into_iter().map(|(_, id, at)| Change::Lend { tenant: *id, path: at.path.clone(), resource }).collect()
    }

    /// The lowest priority that is tried and does.
    fn prioritised(&mut self) -> Option<Remedy> {
        // A priority class sets the priority, and an update that names another is refused.
        if self.job.priority_class.is_some() {
            return None;
        }
        let now = self.job.queue_key.priority();
        let view = &self.trial.view;
        let running = view.held().filter(|held| held.tenant == self.job.tenant).map(|held| held.priority);
        let waiting = view.waiting_in(self.trial.cell).filter_map(|id| view.jobs.get(id.0));
        let waiting = waiting.filter(|job| job.tenant == self.job.tenant).map(|job| job.queue_key.priority());
        let above: BTreeSet<i32> = running.chain(waiting).filter(|at| (now..PRIORITY_MAX).contains(at)).collect();
        let tried: Vec<i32> = above.into_iter().take(PRIORITIES_MAX).map(|at| at + 1).collect();
        tried.into_iter().find_map(|priority| self.verified(vec![Change::Priority(priority)]))
    }

    /// The guarantee with which a floor of its tenant covers the job; the ancestors hand down as much more.
    fn guaranteed(&mut self) -> Option<Remedy> {
        let capacity = self.trial.view.capacity();
        if capacity.account_for(self.job.tenant, &self.offer.charge).is_some() {
            return None;
        }
        let all = |burst_too: bool| -> Option<Vec<Change>> {
            let mut changes = Vec::new();
            for (resource, asked) in capacity.floored(&self.offer.charge) {
                changes.extend(raised_guarantees(capacity, self.job.tenant, (resource, asked), burst_too)?);
            }
            Some(changes)
        };
        // What runs as burst is promoted before the job is looked at, as far as it fits.
        let [least, most] = [all(false), all(true)];
        least.and_then(|changes| self.verified(changes)).or_else(|| self.verified(most?))
    }
}

/// What the guarantees of a tenant and its ancestors have to be so that the tenant's own floor account has `asked` left; with `burst_too`, after all that
/// runs below it as burst is covered. None where a guarantee would pass a max, or all of them what the fleet has.
fn raised_guarantees(
    capacity: &Capacity,
    tenant: TenantId,
    (resource, asked): (Resource, u64),
    burst_too: bool,
) -> Option<Vec<Change>> {
    let at = capacity.tenants().get(&tenant)?;
    let burst = if burst_too { at.burst().get(resource) } else { 0 };
    let needed = capacity.handed_down(tenant).get(resource) + at.floor_charged.get(resource) + burst + asked;
    let needed = as_written(resource, needed);
    let more = needed.saturating_sub(at.guarantee.get(resource));
    if capacity.guaranteed_total().get(resource) + more > capacity.healthy().get(resource) {
        return None;
    }
    let mut changes: Vec<Change> = Vec::new();
    for (id, at) in capacity.line_of(tenant).filter(|_| more > 0) {
        let to = at.guarantee.get(resource) + more;
        if at.max.get(resource).is_some_and(|max| to > max) {
            return None;
        }
        changes.push(Change::RaiseGuarantee { tenant: id, path: at.path.clone(), resource, to });
    }
    // Those above first, as they have to be applied.
    changes.reverse();
    Some(changes)
}
