//! Groups of interchangeable jobs that wait, and what keeps each from starting.
//!
//! What must stay true: what a tenant's groups are filed under follows from the groups: their first jobs and what they wait for.

use super::QueueKey;
use super::bypass::Count;
use super::order::Head;
use crate::job_class::JobClass;
use muster_model::{GpuModel, JobId, TenantId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why a class was left alone, per model that it may land on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Obstacle {
    /// The max of this tenant, its own or an ancestor's, or how far it is trusted.
    Tenant(TenantId),
    /// No place on this model.
    NoRoom(Option<GpuModel>),
    /// What is free of this model is guaranteed to others, who do not lend it.
    NotLent(Option<GpuModel>),
    /// Free cards of this model are held back for this gang.
    Guarded(GpuModel, JobId),
    /// The reservation that it names is not for it now.
    Reservation,
}

/// What keeps a class from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub(crate) obstacles: Vec<Obstacle>,
}

impl Blocked {
    /// Whether places are what it waits for, so that another cell could serve it.
    pub(crate) fn wants_room(&self) -> bool {
        self.obstacles.iter().any(|obstacle| !matches!(obstacle, Obstacle::Tenant(_) | Obstacle::Reservation))
    }

    pub(super) fn models_without_room(&self) -> impl Iterator<Item = Option<GpuModel>> + '_ {
        self.obstacles.iter().filter_map(|obstacle| match obstacle {
            Obstacle::NoRoom(model) => Some(*model),
            _ => None,
        })
    }
}

/// The jobs of one tenant and class.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobGroup {
    pub(crate) keys: BTreeSet<QueueKey>,
    pub(crate) blocked: Option<Blocked>,
    /// Which blocking of the queue that was: a later one means that something had changed in between.
    pub(super) blocked_at: u64,
    /// How much has been bound since its first gang was found to have no room.
    pub(super) count: Option<Count>,
    /// Under which count of bound cards it stands in [`CellQueue::counts_due`].
    pub(super) due: Option<u64>,
}

impl JobGroup {
    /// Jobs that may be tried.
    pub(super) fn ready_jobs(&self) -> u64 {
        if self.blocked.is_none() { self.keys.len() as u64 } else { 0 }
    }

    /// Jobs that wait for room.
    pub(super) fn jobs_without_room(&self) -> u64 {
        if self.models_without_room().next().is_some() { self.keys.len() as u64 } else { 0 }
    }

    /// Whether free cards that are held back for a gang are in its way.
    pub(super) fn is_held_back(&self) -> bool {
        let obstacles = self.blocked.iter().flat_map(|blocked| &blocked.obstacles);
        obstacles.into_iter().any(|obstacle| matches!(obstacle, Obstacle::Guarded(..)))
    }

    /// Whether room on this model is what it waits for.
    pub(super) fn waits_for_room_on(&self, model: Option<GpuModel>) -> bool {
        self.models_without_room().any(|other| other == model)
    }

    pub(super) fn models_without_room(&self) -> impl Iterator<Item = Option<GpuModel>> + '_ {
        self.blocked.iter().flat_map(Blocked::models_without_room)
    }

    pub(super) fn ready(&self) -> Option<QueueKey> {
        self.keys.first().copied().filter(|_| self.blocked.is_none())
    }
}

/// The groups of one tenant, and those of them that may be tried.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobGroups {
    /// Boxed: most tenants have one group that comes and goes, and a tree makes room for eleven at once.
    pub(crate) all: BTreeMap<Arc<JobClass>, Box<JobGroup>>,
    pub(super) ready: BTreeSet<(QueueKey, Arc<JobClass>)>,
    /// The first job of every group. Groups that differ in their time limit alone stand together, by what they ask for without one.
    pub(crate) families: BTreeMap<Arc<JobClass>, BTreeSet<(QueueKey, Arc<JobClass>)>>,
    /// Groups that wait for room, by model and by the whole cards that each of their tasks wants (0 where parts of cards or none will do), in
    /// the order of their first jobs.
    pub(super) without_room: BTreeMap<(Option<GpuModel>, u32), BTreeMap<QueueKey, WithoutRoom>>,
    /// The last group that was tried for an offer, and the offer: those before it have been tried for it.
    pub(super) asked: Option<(u64, QueueKey)>,
    /// Of the first jobs of all groups, how many have which priority.
    pub(super) priorities: BTreeMap<i32, u32>,
}

impl JobGroups {
    /// The first job of a family whose group is left alone.
    pub(crate) fn first_blocked(&self, family: &Arc<JobClass>) -> Option<&(QueueKey, Arc<JobClass>)> {
        let is_blocked = |class: &Arc<JobClass>| self.all.get(class).is_some_and(|group| group.blocked.is_some());
        self.families.get(family)?.iter().find(|(_, class)| is_blocked(class))
    }

    /// The first job that may be tried, or the first to which something is offered.
    pub(super) fn head(&self, tenant: TenantId, asked: Option<(QueueKey, &Arc<JobClass>)>) -> Option<Head> {
        let ready = self.ready.first().map(|(queue_key, class)| (*queue_key, class));
        let first = match (ready, asked) {
            (Some(ready), Some(asked)) => Some(if asked.0 < ready.0 { asked } else { ready }),
            (ready, asked) => ready.or(asked),
        };
        first.map(|(queue_key, class)| Head::new(tenant, queue_key, class.clone()))
    }

    /// The highest priority of any job in them.
    pub(crate) fn highest_priority(&self) -> Option<i32> {
        self.priorities.last_key_value().map(|(priority, _)| *priority)
    }

    /// Keeps in step what follows from the first job of a group, which has changed.
    pub(super) fn first_changed(&mut self, class: &Arc<JobClass>, before: Option<QueueKey>, first: Option<QueueKey>) {
        let firsts = self.families.entry(class.without_limit()).or_default();
        if let Some(queue_key) = before {
            firsts.remove(&(queue_key, class.clone()));
        }
        firsts.extend(first.map(|queue_key| (queue_key, class.clone())));
        if firsts.is_empty() {
            self.families.remove(&class.without_limit());
        }
        if let Some(first) = first {
            *self.priorities.entry(first.priority()).or_default() += 1;
        }
        if let Some(before) = before
            && let Some(count) = self.priorities.get_mut(&before.priority())
        {
            *count -= 1;
            if *count == 0 {
                self.priorities.remove(&before.priority());
            }
        }
        // It was not among those that were tried.
        if self.asked.is_some_and(|(_, asked)| first.is_some_and(|first| first < asked)) {
            self.asked = None;
        }
        let Some(group) = self.all.get(class) else { return };
        let (models, blocked_at): (Vec<_>, _) = (group.models_without_room().collect(), group.blocked_at);
        for model in models {
            self.unfile(model, class, before);
            self.file(model, class, first, blocked_at);
        }
    }

    /// The group waits for room on the model.
    pub(super) fn file(
        &mut self,
        model: Option<GpuModel>,
        class: &Arc<JobClass>,
        first: Option<QueueKey>,
        blocked_at: u64,
    ) {
        if let Some(queue_key) = first {
            let each = class.whole_cards_each();
            let gang_stays_ms = (class.tasks > 1).then(|| class.stays_at_most_ms());
            let group =
                WithoutRoom { class: class.clone(), blocked_at, each, cards: class.whole_cards(), gang_stays_ms };
            self.without_room.entry((model, each)).or_default().insert(queue_key, group);
        }
    }

    /// It waits for room there no longer.
    pub(super) fn unfile(&mut self, model: Option<GpuModel>, class: &Arc<JobClass>, first: Option<QueueKey>) {
        let key = (model, class.whole_cards_each());
        if let Some(waiting) = self.without_room.get_mut(&key) {
            first.and_then(|queue_key| waiting.remove(&queue_key));
            if waiting.is_empty() {
                self.without_room.remove(&key);
            }
        }
    }
}

/// A group that waits for room, with what decides whether an offer helps it: many are looked through.
#[derive(Clone, Debug)]
pub(super) struct WithoutRoom {
    pub(super) class: Arc<JobClass>,
    /// [`JobGroup::blocked_at`].
    pub(super) blocked_at: u64,
    /// Whole cards that each task wants, and all of them.
    pub(super) each: u32,
    pub(super) cards: u64,
    /// For how long at most a gang stays; none for a single task.
    pub(super) gang_stays_ms: Option<u64>,
}
