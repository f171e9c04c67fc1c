//! Who waits in a cell, grouped by tenant and by the *class* of what is asked for.
//!
//! Jobs of one tenant and class are interchangeable: when the first does not fit, none does. So a thousand equal jobs that wait cost
//! a pass one look, and a class that did not fit is left alone until something that could help it has changed: what it waits for is
//! written down, and whoever grows that wakes it. What must stay true: a job is in the queue at most once, and only while it may be
//! planned; the tournament of tenants is what building it anew would give, once the tenants marked as changed are taken in.

#![expect(clippy::mutable_key_type, reason = "what a class keeps for later follows from what it is ordered by")]

pub(crate) mod backoff;
mod bypass;
mod groups;
mod offers;
pub(crate) mod order;
pub(crate) mod past;
pub(crate) mod turns;

use crate::job_class::JobClass;
pub(crate) use bypass::Counted;
use groups::WithoutRoom;
pub(crate) use groups::{Blocked, JobGroup, JobGroups, Obstacle};
use muster_model::mig::{MigShape, ShapeCounts};
use muster_model::{CellId, GpuModel, Job, JobId, TenantId};
pub(crate) use offers::Freed;
use offers::Offers;
use order::{Head, Order};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use turns::Turns;

/// The place of a job among those of its tenant: priority, then age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    priority: Reverse<i32>,
    submitted_ms: u64,
    pub(crate) job: JobId,
}

impl QueueKey {
    pub(crate) fn priority(&self) -> i32 {
        self.priority.0
    }

    /// The same job, of another priority.
    pub(crate) fn with_priority(self, priority: i32) -> Self {
        QueueKey { priority: Reverse(priority), ..self }
    }

    pub(crate) fn of(job: &Job) -> Self {
        QueueKey { priority: Reverse(job.spec.priority), submitted_ms: job.submitted_ms, job: job.id }
    }
}

/// A group by its tenant and class.
pub(crate) type GroupKey = (TenantId, Arc<JobClass>);

/// The jobs that wait in one cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellQueue {
    pub(crate) tenants: BTreeMap<TenantId, JobGroups>,
    /// Cards of each model that this view has seen bound in the cell.
    pub(crate) bound_cards: BTreeMap<Option<GpuModel>, u64>,
    bound_in_all: u64,
    /// Cards bound when a gang of a tenant last started, by what it asks for without a time limit.
    last_started: BTreeMap<TenantId, BTreeMap<Arc<JobClass>, u64>>,
    /// How often a gang was the first of its group to be found without room.
    pub(crate) gangs_found: u64,
    jobs: BTreeMap<JobId, (Arc<JobClass>, QueueKey)>,
    /// JobGroups by what would help them, where that is not room.
    blocked: BTreeMap<Obstacle, BTreeSet<GroupKey>>,
    /// Groups that wait for room, on however many models.
    groups_without_room: usize,
    /// What has become free, for them.
    offers: Offers,
    /// Gangs without room, by the count of bound cards at which they are looked at again.
    counts_due: BTreeSet<(u64, GroupKey)>,
    /// Tenants whose head or use has changed since the tournament was last brought up to date.
    changed: BTreeSet<TenantId>,
    /// MIG slices that may be tried, by the models they may land on.
    slices: BTreeMap<(GpuModel, MigShape), u64>,
    /// MIG slices that wait for room.
    slices_without_room: BTreeMap<(GpuModel, MigShape), u64>,
    pub(crate) order: Order,
    turns: Turns,
    /// How often a class was left alone.
    blockings: u64,
}

/// The MIG slices on a model that jobs of a cell wait for, beside one of this class.
pub(crate) fn slices_waiting(
    queues: &BTreeMap<CellId, CellQueue>,
    (cell, model): (CellId, Option<GpuModel>),
    class: &JobClass,
) -> ShapeCounts {
    let own = model.and_then(|model| Some((model, class.request.devices.mig_shape(model)?)));
    let counts = own.zip(queues.get(&cell)).map(|((model, own), queue)| queue.slices_waiting(model, own));
    counts.unwrap_or_default()
}

impl CellQueue {
    pub(crate) fn insert(&mut self, tenant: TenantId, queue_key: QueueKey, class: Arc<JobClass>) {
        self.jobs.insert(queue_key.job, (class.clone(), queue_key));
        self.edit(tenant, &class, |group| {
            group.keys.insert(queue_key);
        });
    }

    pub(crate) fn remove(&mut self, tenant: TenantId, job: JobId) {
        let Some((class, queue_key)) = self.jobs.remove(&job) else { return };
        let mut first_left = false;
        self.edit(tenant, &class, |group| {
            first_left = group.keys.first() == Some(&queue_key) && group.is_held_back();
            group.keys.remove(&queue_key);
        });
        // What holds back the first does not hold back one that has a reservation.
        if first_left {
            self.wake_group(tenant, &class);
        }
    }

    /// The jobs in it, by id.
    pub(crate) fn ids(&self) -> impl Iterator<Item = JobId> + '_ {
        self.jobs.keys().copied()
    }

    /// Jobs in it.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The next job of `tenant` whose class is not left alone, or to which something is offered.
    pub(crate) fn head(&self, tenant: TenantId) -> Option<Head> {
        let groups = self.tenants.get(&tenant)?;
        groups.head(tenant, self.asked(groups))
    }

    /// The groups of every tenant.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &JobGroup> + '_ {
        self.tenants.values().flat_map(|groups| groups.all.values().map(|group| &**group))
    }

    /// Changes one group and whatever is derived from it. A group without jobs is forgotten.
    fn edit(&mut self, tenant: TenantId, class: &Arc<JobClass>, change: impl FnOnce(&mut JobGroup)) {
        let groups = self.tenants.entry(tenant).or_default();
        let group = match groups.all.get_mut(class) {
            Some(group) => group,
            None => groups.all.entry(class.clone()).or_default(),
        };
        let (before, jobs_before) = (group.ready(), [group.ready_jobs(), group.jobs_without_room()]);
        let first_before = group.keys.first().copied();
        change(group);
        let (after, jobs_after) = (group.ready(), [group.ready_jobs(), group.jobs_without_room()]);
        let first = group.keys.first().copied();
        let is_empty = group.keys.is_empty();
        if first != first_before {
            groups.first_changed(class, first_before, first);
        }
        if jobs_before != jobs_after {
            for (slices, before, after) in [
                (&mut self.slices, jobs_before[0], jobs_after[0]),
                (&mut self.slices_without_room, jobs_before[1], jobs_after[1]),
            ] {
                count_slices(slices, class, before, after);
            }
        }
        if before != after {
            if let Some(queue_key) = before {
                groups.ready.remove(&(queue_key, class.clone()));
            }
            if let Some(queue_key) = after {
                groups.ready.insert((queue_key, class.clone()));
            }
        }
        // A group that is left alone may stand in the tournament for what was offered.
        if before != after || first != first_before {
            self.changed.insert(tenant);
        }
        if first != first_before {
            self.turns.touch(tenant);
        }
        if is_empty {
            let group = groups.all.remove(class).unwrap_or_default();
            if groups.all.is_empty() {
                self.tenants.remove(&tenant);
                self.last_started.remove(&tenant);
            }
            self.unfile(&(tenant, class.clone()), *group);
        }
        if first != first_before {
            self.count_first_of_limits(tenant, class);
        }
    }

    /// A group that is gone waits for nothing.
    fn unfile(&mut self, key: &GroupKey, group: JobGroup) {
        if let Some(blocked) = group.blocked {
            self.unblock_from(key, &blocked);
        }
        if let Some(due) = group.due {
            self.counts_due.remove(&(due, key.clone()));
        }
        self.wake_other_limit(key.0, &key.1);
    }

    fn unblock_from(&mut self, key: &GroupKey, blocked: &Blocked) {
        self.groups_without_room -= usize::from(blocked.models_without_room().next().is_some());
        for obstacle in &blocked.obstacles {
            if let Obstacle::NoRoom(model) = obstacle {
                if let Some(groups) = self.tenants.get_mut(&key.0) {
                    let first = groups.all.get(&key.1).and_then(|group| group.keys.first().copied());
                    groups.unfile(*model, &key.1, first);
                }
                continue;
            }
            let Some(groups) = self.blocked.get_mut(obstacle) else { continue };
            groups.remove(key);
            if groups.is_empty() {
                self.blocked.remove(obstacle);
            }
        }
    }

    /// What `obstacle` stood for has grown less: every class that waits for it may be tried again.
    pub(crate) fn wake(&mut self, obstacle: Obstacle) {
        self.wake_lines(self.blocked.get(&obstacle).into_iter().flatten().cloned().collect());
    }

    /// What is free of any resource, or what others lend of it, has changed.
    pub(crate) fn wake_not_lent(&mut self) {
        self.wake_where(|obstacle| matches!(obstacle, Obstacle::NotLent(_)));
    }

    /// A job of this group has started, or the group is gone: what differs from it in its time limit alone may be next.
    pub(crate) fn wake_other_limit(&mut self, tenant: TenantId, class: &Arc<JobClass>) {
        let Some(groups) = self.tenants.get(&tenant) else { return };
        let family = class.without_limit();
        let next = |model| groups.first_without_room(&family, model).cloned();
        let next: BTreeSet<Arc<JobClass>> = class.offers().iter().filter_map(|offer| next(offer.model)).collect();
        self.wake_lines(next.into_iter().map(|class| (tenant, class)).collect());
    }

    /// Something has changed for a job of this group alone: it may be tried again.
    pub(crate) fn wake_group(&mut self, tenant: TenantId, class: &Arc<JobClass>) {
        if self.tenants.get(&tenant).is_some_and(|groups| groups.all.contains_key(class)) {
            self.wake_lines(vec![(tenant, class.clone())]);
        }
    }

    /// Anything may fit now.
    pub(crate) fn wake_all_without_room(&mut self) {
        let waits = |group: &JobGroup| group.models_without_room().next().is_some();
        let groups =
            self.tenants.iter().flat_map(|(tenant, groups)| groups.all.iter().map(move |group| (tenant, group)));
        let without_room = groups.filter(|(_, (_, group))| waits(group));
        self.wake_lines(without_room.map(|(tenant, (class, _))| (*tenant, class.clone())).collect());
        self.end_offers();
    }

    /// Who is guaranteed what has changed: what others do not lend, and for whom nothing is held back.
    pub(crate) fn wake_by_guarantees(&mut self) {
        self.wake_where(|obstacle| matches!(obstacle, Obstacle::NotLent(_) | Obstacle::Guarded(..)));
    }

    fn wake_lines(&mut self, groups: Vec<GroupKey>) {
        for key in groups {
            let mut was = None;
            self.edit(key.0, &key.1, |group| was = group.blocked.take());
            if let Some(was) = was {
                self.unblock_from(&key, &was);
            }
        }
    }

    /// Cards are held back for these gangs now: groups that were held back for others may be tried again.
    pub(crate) fn wake_held_back(&mut self, guarded: impl Fn(GpuModel) -> Option<JobId>) {
        self.wake_where(|obstacle| matches!(obstacle, Obstacle::Guarded(model, job) if guarded(*model) != Some(*job)));
    }

    /// Whoever waits for one of these may be tried again. Limits of tenants are not among them: they are many, and named one by one ([`Self::wake`]).
    fn wake_where(&mut self, wakes: impl Fn(&Obstacle) -> bool) {
        let others = self.blocked.range(Obstacle::NotLent(None)..).map(|(obstacle, _)| *obstacle);
        let woken: Vec<Obstacle> = others.filter(wakes).collect();
        woken.into_iter().for_each(|obstacle| self.wake(obstacle));
    }

    /// Whether a class is left alone.
    pub(crate) fn is_blocked(&self, tenant: TenantId, class: &Arc<JobClass>) -> bool {
        let group = self.tenants.get(&tenant).and_then(|groups| groups.all.get(class));
        group.is_some_and(|group| group.blocked.is_some())
    }

    /// Whether a job of this family waits.
    pub(crate) fn has_family(&self, tenant: TenantId, family: &Arc<JobClass>) -> bool {
        self.tenants.get(&tenant).is_some_and(|groups| groups.families.contains_key(family))
    }

    /// Which blocking of this queue the first group of a family that is left alone was left alone by.
    pub(crate) fn family_blocked_at(&self, tenant: TenantId, family: &Arc<JobClass>) -> Option<u64> {
        let groups = self.tenants.get(&tenant)?;
        let (_, class) = groups.first_blocked(family)?;
        Some(groups.all.get(class)?.blocked_at)
    }

    /// Leaves a class alone until something changes.
    pub(crate) fn block(&mut self, tenant: TenantId, class: &Arc<JobClass>, blocked: Blocked) {
        let key = (tenant, class.clone());
        self.groups_without_room += usize::from(blocked.models_without_room().next().is_some());
        self.blockings += 1;
        let blocked_at = self.blockings;
        for obstacle in &blocked.obstacles {
            match obstacle {
                Obstacle::NoRoom(model) => {
                    if let Some(groups) = self.tenants.get_mut(&tenant) {
                        let first = groups.all.get(class).and_then(|group| group.keys.first().copied());
                        groups.file(*model, class, first, blocked_at);
                    }
                }
                other => drop(self.blocked.entry(*other).or_default().insert(key.clone())),
            }
        }
        let begins = blocked.wants_room();
        self.edit(tenant, class, |group| (group.blocked, group.blocked_at) = (Some(blocked), blocked_at));
        if begins {
            self.begin_count(&key);
        }
    }

    /// The MIG slices that may be tried on `model`, without one of `own`; as many of each as a card could hold at most.
    pub(crate) fn slices_waiting(&self, model: GpuModel, own: MigShape) -> ShapeCounts {
        let of_model = |slices: &BTreeMap<(GpuModel, MigShape), u64>| -> Vec<(MigShape, u64)> {
            let all = slices.range((model, MigShape::ALL[0])..).take_while(|((of, _), _)| *of == model);
            all.map(|((_, shape), jobs)| (*shape, *jobs)).collect()
        };
        let mut counts = ShapeCounts::default();
        let asked = if self.offers_any(model) { of_model(&self.slices_without_room) } else { Vec::new() };
        for (shape, jobs) in of_model(&self.slices).into_iter().chain(asked) {
            let count = &mut counts[shape as usize];
            *count = count.saturating_add(u8::try_from(jobs).unwrap_or(u8::MAX));
        }
        // The job that is tried is among those that may be.
        let count = &mut counts[own as usize];
        *count = count.saturating_sub(1);
        counts
    }

    /// What `tenant` uses has changed. Where nobody waits there is no order to change.
    pub(crate) fn touch(&mut self, tenant: TenantId) {
        if !self.jobs.is_empty() {
            self.changed.insert(tenant);
            self.turns.touch(tenant);
        }
    }

    /// Everything about the tree or the fleet may have changed: the tournaments are played anew.
    pub(crate) fn forget_order(&mut self) {
        self.order = Order::default();
        self.changed = self.tenants.keys().copied().collect();
        self.turns.forget(self.tenants.keys().copied());
    }

    /// The next tenant that has changed, which the caller takes into the tournament.
    pub(crate) fn take_changed(&mut self) -> Option<TenantId> {
        self.changed.pop_first()
    }

    /// Whether anything waits for anything.
    pub(crate) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty() || self.groups_without_room > 0
    }
}

/// Keeps a count of slices in step when so many jobs of a class in place of others count.
fn count_slices(slices: &mut BTreeMap<(GpuModel, MigShape), u64>, class: &JobClass, before: u64, after: u64) {
    for slice in class.slices() {
        let count = slices.entry(*slice).or_default();
        *count = *count + after - before;
        if *count == 0 {
            slices.remove(slice);
        }
    }
}
