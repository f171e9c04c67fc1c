//! What has become free in a cell and was not yet offered to the groups that wait for room there.
//!
//! A node on which something has become free is *offered* until what was freed is taken again, or until every group that it could help was tried.
//! Meanwhile each tenant stands in the tournament with the first of its groups that may be helped; a group that is not asked costs nothing. What
//! must stay true:
//! - a node helps no group whose tasks each want more cards than are free on it, nor one that wants more in all than are free on the model;
//! - groups of one tenant that differ in their time limit alone are a *family*: outside of what is kept for gangs they fit or do not fit
//!   together, so only the first of them is asked, and the next when that one has started or is gone. Where a kept node may be part of the
//!   place, their limits decide: all of them are asked;
//! - a group that was tried after the last offer is not asked again before the next;
//! - where a part of what was offered is taken, a tenant may stand with a group that what is left does not help, until it is that group's turn.

use super::order::Head;
use super::{CellQueue, JobGroups, QueueKey, WithoutRoom};
use crate::job_class::JobClass;
use muster_model::{GpuModel, NodeId, TenantId};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// What is free of a model, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) model: Option<GpuModel>,
    /// Whole cards that are free on the node now.
    pub(crate) on_node: u32,
    /// Parts of cards may be free on it, or CPU where there is no model.
    pub(crate) parts: bool,
    /// Whole cards of the model that are free in the cell now.
    pub(crate) in_all: u64,
    /// The node is kept for a gang: time limits decide who may use it.
    pub(crate) kept: bool,
    /// For how long at most a gang may yet stand on nodes of the cell that are kept for others, and on this one together with them.
    pub(crate) lent_ms: u64,
}

impl Freed {
    /// Whether a job of this class may find in it what it lacks.
    pub(crate) fn may_help(&self, class: &JobClass) -> bool {
        self.has_room_for(class.whole_cards_each(), class.whole_cards())
    }

    /// The same by the whole cards that each task wants, and all of them.
    fn has_room_for(&self, each: u32, all: u64) -> bool {
        (each > 0 || self.parts) && each <= self.on_node && all <= self.in_all
    }

    /// Whether it is anything at all.
    pub(crate) fn is_something(&self) -> bool {
        self.on_node > 0 || self.parts
    }

    /// Both together: whom either helps, this helps.
    fn joined(self, other: Freed) -> Freed {
        Freed {
            on_node: self.on_node.max(other.on_node),
            parts: self.parts || other.parts,
            in_all: self.in_all.max(other.in_all),
            lent_ms: self.lent_ms.max(other.lent_ms),
            ..self
        }
    }
}

/// What has to be done to the tournament.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Due {
    #[default]
    Nothing,
    /// Tenants that stand there for what was offered may do so no longer.
    Fewer,
    /// Tenants whose groups may be helped have to come.
    More,
}

/// The offers of one cell.
#[derive(Clone, Debug, Default)]
pub(super) struct Offers {
    nodes: BTreeMap<NodeId, Vec<Freed>>,
    /// What all of them offer together, by model and whether it is kept, as of the last look.
    together: BTreeMap<(Option<GpuModel>, bool), Freed>,
    /// Nodes have changed since.
    is_stale: bool,
    /// Which blocking of the queue came before the last offer.
    at: u64,
    due: Due,
}

impl Offers {
    fn join(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        self.together.clear();
        for freed in self.nodes.values().flatten() {
            let key = (freed.model, freed.kept);
            let joined = self.together.get(&key).map_or(*freed, |other| other.joined(*freed));
            self.together.insert(key, joined);
        }
    }

    /// Whether a group that waits for room on the model may be helped; `is_first`: no other of its family goes before it.
    fn may_help(&self, group: &WithoutRoom, model: Option<GpuModel>, is_first: impl FnOnce() -> bool) -> bool {
        let helps =
            |kept| self.together.get(&(model, kept)).filter(|freed| freed.has_room_for(group.each, group.cards));
        let is_short = |freed: &Freed| group.gang_stays_ms.is_some_and(|stays_ms| stays_ms <= freed.lent_ms);
        group.blocked_at <= self.at
            && (helps(true).is_some() || helps(false).is_some_and(|freed| is_short(freed) || is_first()))
    }
}

impl JobGroups {
    /// Whether no group that differs from this in its time limit alone, and goes before it, waits for room on the model.
    fn is_first_without_room(&self, class: &Arc<JobClass>, model: Option<GpuModel>) -> bool {
        self.first_without_room(&class.without_limit(), model).is_some_and(|first| first == class)
    }

    /// The first group of a family that waits for room on the model.
    pub(super) fn first_without_room(&self, family: &Arc<JobClass>, model: Option<GpuModel>) -> Option<&Arc<JobClass>> {
        let waits = |class: &Arc<JobClass>| self.all.get(class).is_some_and(|group| group.waits_for_room_on(model));
        self.families.get(family)?.iter().map(|(_, class)| class).find(|class| waits(class))
    }

    /// The first group to which something is offered.
    fn asked(&self, offers: &Offers) -> Option<(QueueKey, &Arc<JobClass>)> {
        let after = match self.asked {
            Some((at, queue_key)) if at == offers.at => Bound::Excluded(queue_key),
            _ => Bound::Unbounded,
        };
        let mut first: Option<(QueueKey, &Arc<JobClass>)> = None;
        let mut last_model = None;
        for (model, _) in offers.together.keys() {
            if last_model.replace(*model) == Some(*model) {
                continue;
            }
            let most = |kept| offers.together.get(&(*model, kept)).map_or(0, |freed| freed.on_node);
            for (_, waiting) in self.without_room.range((*model, 0)..=(*model, most(false).max(most(true)))) {
                let before = first.map_or(Bound::Unbounded, |(queue_key, _)| Bound::Excluded(queue_key));
                if matches!((after, before), (Bound::Excluded(after), Bound::Excluded(before)) if after >= before) {
                    continue;
                }
                // The first of all is the first of its family.
                let foremost = waiting.first_key_value().map(|(queue_key, _)| *queue_key);
                let helped = |(queue_key, group): &(&QueueKey, &WithoutRoom)| {
                    let is_first = || Some(**queue_key) == foremost || self.is_first_without_room(&group.class, *model);
                    offers.may_help(group, *model, is_first)
                };
                let found = waiting.range((after, before)).find(helped);
                first = found.map(|(queue_key, group)| (*queue_key, &group.class)).or(first);
            }
        }
        first
    }
}

impl CellQueue {
    /// Something has become free on a node, or what was offered of it has changed; `is_new`: those that were tried before are asked again.
    pub(crate) fn offer(&mut self, node: NodeId, freed: Vec<Freed>, is_new: bool) {
        if freed.is_empty() {
            return self.withdraw(node);
        }
        self.offers.nodes.insert(node, freed);
        self.offers.is_stale = true;
        if is_new {
            self.blockings += 1;
            (self.offers.at, self.offers.due) = (self.blockings, Due::More);
        }
    }

    /// What was offered of a node is taken, or the node is gone.
    pub(crate) fn withdraw(&mut self, node: NodeId) {
        if self.offers.nodes.remove(&node).is_some() {
            self.offers.is_stale = true;
            if self.offers.nodes.is_empty() {
                self.offers.due = Due::Fewer;
            }
        }
    }

    /// Everybody whom it could help was tried: nothing is offered any more.
    pub(crate) fn end_offers(&mut self) {
        self.offers = Offers { at: self.offers.at, ..Offers::default() };
    }

    /// Whether MIG slices that wait for room on a model are asked now.
    pub(super) fn offers_any(&self, model: GpuModel) -> bool {
        self.offers.together.range((Some(model), false)..=(Some(model), true)).any(|(_, freed)| freed.is_something())
    }

    /// The first group of a tenant to which something is offered.
    pub(super) fn asked<'a>(&self, groups: &'a JobGroups) -> Option<(QueueKey, &'a Arc<JobClass>)> {
        if self.offers.together.is_empty() {
            return None;
        }
        groups.asked(&self.offers)
    }

    /// Whether the tournament is to be played anew, since nothing is offered any more. Tenants that may be tried all the same are marked as
    /// changed.
    pub(crate) fn take_end_of_offers(&mut self) -> bool {
        self.offers.join();
        let ended = self.offers.due == Due::Fewer;
        if ended {
            self.offers.due = Due::Nothing;
            let ready = self.tenants.iter().filter(|(_, groups)| !groups.ready.is_empty());
            self.changed = ready.map(|(tenant, _)| *tenant).collect();
        }
        ended
    }

    /// The tenants whose heads are others by what is offered since the last look, with their heads.
    pub(crate) fn take_asked(&mut self) -> Vec<Head> {
        if std::mem::take(&mut self.offers.due) != Due::More {
            return Vec::new();
        }
        let heads = self.tenants.iter().map(|(tenant, groups)| (*tenant, groups, groups.asked(&self.offers)));
        let asked = heads.filter(|(.., asked)| asked.is_some());
        asked.filter_map(|(tenant, groups, asked)| groups.head(tenant, asked)).collect()
    }

    /// The job is to be tried. A group that stands in the tournament for what was offered may be tried now; answers whether it still may.
    pub(crate) fn begin_try(&mut self, tenant: TenantId, class: &Arc<JobClass>, queue_key: QueueKey) -> bool {
        let groups = self.tenants.get(&tenant);
        let group = groups.and_then(|groups| groups.all.get(class));
        // It may have left the queue, or its job may be another.
        let group = group.filter(|group| group.keys.first() == Some(&queue_key));
        if group.is_some_and(|group| group.blocked.is_none()) {
            return true;
        }
        let asked = group.and(groups).and_then(|groups| self.asked(groups)).map(|(asked, _)| asked);
        self.changed.insert(tenant);
        if asked != Some(queue_key) {
            return false;
        }
        if let Some(groups) = self.tenants.get_mut(&tenant) {
            groups.asked = Some((self.offers.at, queue_key));
        }
        self.wake_group(tenant, class);
        true
    }
}
