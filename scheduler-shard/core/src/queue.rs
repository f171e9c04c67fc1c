//! Who waits in a cell, grouped by tenant and by the *shape* of what is asked for.
//!
//! Jobs of one tenant and shape are interchangeable: when the first does not fit, none does. So a thousand equal jobs that wait cost
//! a pass one look, and a shape that did not fit is left alone until something that could help it has changed: what it waits for is
//! written down, and whoever grows that wakes it. What must stay true: a job is in the queue at most once, and only while it may be
//! planned; the tournament of tenants is what building it anew would give, once the tenants marked as changed are taken in.

#![expect(clippy::mutable_key_type, reason = "what a shape keeps for later follows from what it is ordered by")]

mod room;

use crate::order::{Head, Order};
use crate::shape::Shape;
use muster_model::mig::{MigShape, ShapeCounts};
use muster_model::{GpuModel, Job, JobId, TenantId};
pub(crate) use room::Freed;
use room::WithoutRoom;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The place of a job among those of its tenant: priority, then age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    priority: Reverse<i32>,
    submitted_ms: u64,
    pub(crate) job: JobId,
}

impl Turn {
    pub(crate) fn of(job: &Job) -> Self {
        Turn { priority: Reverse(job.spec.priority), submitted_ms: job.submitted_ms, job: job.id }
    }
}

/// Why a shape was left alone, per model that it may land on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Obstacle {
    /// The max of this tenant, its own or an ancestor's.
    OverMax(TenantId),
    /// No place on this model.
    NoRoom(Option<GpuModel>),
    /// Free cards of this model are kept for a large gang that was passed over too often.
    KeptFor(GpuModel, JobId),
}

/// What keeps a shape from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub(crate) obstacles: Vec<Obstacle>,
}

impl Blocked {
    /// Whether places are what it waits for, so that another cell could serve it.
    pub(crate) fn wants_room(&self) -> bool {
        self.obstacles.iter().any(|obstacle| !matches!(obstacle, Obstacle::OverMax(_)))
    }
}

/// The jobs of one tenant and shape.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) turns: BTreeSet<Turn>,
    pub(crate) blocked: Option<Blocked>,
    /// The first of them when it was found to have no room, and how many cards had been bound in the cell by then.
    pub(crate) passed_since: Option<(JobId, u64)>,
    /// Under which count of bound cards it stands in [`CellQueue::passed`].
    due: Option<u64>,
}

impl Line {
    /// Jobs that may be tried.
    fn ready_jobs(&self) -> u64 {
        if self.blocked.is_none() { self.turns.len() as u64 } else { 0 }
    }

    fn ready(&self) -> Option<Turn> {
        self.turns.first().copied().filter(|_| self.blocked.is_none())
    }
}

/// The lines of one tenant, and those of them that may be tried.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    /// Boxed: most tenants have one line that comes and goes, and a tree makes room for eleven at once.
    pub(crate) all: BTreeMap<Arc<Shape>, Box<Line>>,
    ready: BTreeSet<(Turn, Arc<Shape>)>,
}

/// A line by its tenant and shape.
type LineKey = (TenantId, Arc<Shape>);

/// The jobs that wait in one cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellQueue {
    pub(crate) tenants: BTreeMap<TenantId, Lines>,
    /// Cards of each model that this view has seen bound in the cell.
    pub(crate) bound_cards: BTreeMap<Option<GpuModel>, u64>,
    bound_in_all: u64,
    /// Cards bound when a gang of a tenant last started, by what it asks for without a time limit.
    last_started: BTreeMap<TenantId, BTreeMap<Arc<Shape>, u64>>,
    /// How often a gang was the first of its line to be found without room.
    pub(crate) gangs_found: u64,
    jobs: BTreeMap<JobId, (Arc<Shape>, Turn)>,
    /// Lines by what would help them, where that is not room.
    blocked: BTreeMap<Obstacle, BTreeSet<LineKey>>,
    without_room: WithoutRoom,
    /// Gangs without room, by the count of bound cards before which they cannot have been passed over too often.
    passed: BTreeSet<(u64, LineKey)>,
    /// Tenants whose head or use has changed since the tournament was last brought up to date.
    changed: BTreeSet<TenantId>,
    /// MIG slices that may be tried, by the models they may land on.
    slices: BTreeMap<(GpuModel, MigShape), u64>,
    pub(crate) order: Order,
}

impl CellQueue {
    pub(crate) fn insert(&mut self, tenant: TenantId, turn: Turn, shape: Arc<Shape>) {
        self.jobs.insert(turn.job, (shape.clone(), turn));
        self.edit(tenant, &shape, |line| {
            line.turns.insert(turn);
        });
    }

    pub(crate) fn remove(&mut self, tenant: TenantId, job: JobId) {
        let Some((shape, turn)) = self.jobs.remove(&job) else { return };
        self.edit(tenant, &shape, |line| {
            line.turns.remove(&turn);
        });
    }

    /// Jobs in it.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The next job of `tenant` whose shape is not blocked.
    pub(crate) fn head(&self, tenant: TenantId) -> Option<Head> {
        let (turn, shape) = self.tenants.get(&tenant)?.ready.first()?;
        Some(Head::new(tenant, *turn, shape.clone()))
    }

    /// The lines of every tenant.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &Line> + '_ {
        self.tenants.values().flat_map(|lines| lines.all.values().map(|line| &**line))
    }

    /// Changes one line and whatever is derived from it. A line without jobs is forgotten.
    fn edit(&mut self, tenant: TenantId, shape: &Arc<Shape>, change: impl FnOnce(&mut Line)) {
        let lines = self.tenants.entry(tenant).or_default();
        let line = match lines.all.get_mut(shape) {
            Some(line) => line,
            None => lines.all.entry(shape.clone()).or_default(),
        };
        let (before, jobs_before) = (line.ready(), line.ready_jobs());
        change(line);
        let (after, jobs_after) = (line.ready(), line.ready_jobs());
        if jobs_before != jobs_after {
            for slice in shape.slices() {
                let count = self.slices.entry(*slice).or_default();
                *count = *count + jobs_after - jobs_before;
                if *count == 0 {
                    self.slices.remove(slice);
                }
            }
        }
        if before != after {
            if let Some(turn) = before {
                lines.ready.remove(&(turn, shape.clone()));
            }
            if let Some(turn) = after {
                lines.ready.insert((turn, shape.clone()));
            }
            self.changed.insert(tenant);
        }
        if line.turns.is_empty() {
            let line = lines.all.remove(shape).unwrap_or_default();
            if lines.all.is_empty() {
                self.tenants.remove(&tenant);
                self.last_started.remove(&tenant);
            }
            self.unfile(&(tenant, shape.clone()), *line);
        }
    }

    /// A line that is gone waits for nothing.
    fn unfile(&mut self, key: &LineKey, line: Line) {
        if let Some(blocked) = line.blocked {
            self.unblock_from(key, &blocked);
        }
        if let Some(due) = line.due {
            self.passed.remove(&(due, key.clone()));
        }
        self.wake_sibling(key.0, &key.1);
    }

    fn unblock_from(&mut self, key: &LineKey, blocked: &Blocked) {
        for obstacle in &blocked.obstacles {
            if let Obstacle::NoRoom(model) = obstacle {
                self.without_room.remove(*model, key);
                continue;
            }
            let Some(lines) = self.blocked.get_mut(obstacle) else { continue };
            lines.remove(key);
            if lines.is_empty() {
                self.blocked.remove(obstacle);
            }
        }
    }

    /// What `obstacle` stood for has grown less: every shape that waits for it may be tried again.
    pub(crate) fn wake(&mut self, obstacle: Obstacle) {
        self.wake_lines(self.blocked.get(&obstacle).into_iter().flatten().cloned().collect());
    }

    /// There is more room than before: the shapes that it could help may be tried again.
    pub(crate) fn wake_for_room(&mut self, freed: Freed) {
        let first = |tenant, siblings: &BTreeSet<Arc<Shape>>| self.first_of(tenant, siblings);
        self.wake_lines(self.without_room.helped_by(freed, first));
    }

    /// A gang of this line has started: those that differ from it in their time limit alone begin to be patient again, as those behind it in
    /// the line do.
    pub(crate) fn restart_patience(&mut self, tenant: TenantId, shape: &Arc<Shape>) {
        if shape.cards() > 1 {
            let bound = self.bound_on(shape);
            self.last_started.entry(tenant).or_default().insert(shape.without_limit(), bound);
        }
    }

    /// Cards that had been bound when a job that differs from this at most in its time limit last started.
    fn last_started(&self, tenant: TenantId, shape: &Arc<Shape>) -> u64 {
        let of_tenant = self.last_started.get(&tenant);
        of_tenant.and_then(|shapes| shapes.get(&shape.without_limit())).copied().unwrap_or(0)
    }

    /// Whether no line that differs from this in its time limit alone has a job that goes before its first.
    fn is_first_of_siblings(&self, tenant: TenantId, shape: &Arc<Shape>, turn: Turn) -> bool {
        let kind = shape.without_limit();
        let lines = self.tenants.get(&tenant).into_iter().flat_map(|lines| &lines.all);
        let mut siblings = lines.filter(|(other, _)| other.without_limit() == kind);
        siblings.all(|(_, line)| line.turns.first().is_none_or(|first| *first >= turn))
    }

    /// A job of this line has started, or the line is gone: what differs from it in its time limit alone may be next.
    pub(crate) fn wake_sibling(&mut self, tenant: TenantId, shape: &Arc<Shape>) {
        let key = (tenant, shape.clone());
        let next = |model| self.first_of(tenant, self.without_room.siblings(model, &key)?);
        let next: BTreeSet<Arc<Shape>> = shape.offers().iter().filter_map(|offer| next(offer.model)).collect();
        self.wake_lines(next.into_iter().map(|shape| (tenant, shape)).collect());
    }

    /// The line of these whose turn is first.
    fn first_of(&self, tenant: TenantId, shapes: &BTreeSet<Arc<Shape>>) -> Option<Arc<Shape>> {
        let lines = &self.tenants.get(&tenant)?.all;
        let turn = |shape: &&Arc<Shape>| lines.get(*shape).and_then(|line| line.turns.first().copied());
        shapes.iter().filter(|shape| turn(shape).is_some()).min_by_key(turn).cloned()
    }

    /// Anything may fit now.
    pub(crate) fn wake_all_without_room(&mut self) {
        self.wake_lines(self.without_room.all());
    }

    fn wake_lines(&mut self, lines: Vec<LineKey>) {
        for key in lines {
            let mut was = None;
            self.edit(key.0, &key.1, |line| was = line.blocked.take());
            if let Some(was) = was {
                self.unblock_from(&key, &was);
            }
        }
    }

    /// Cards are kept for these now: shapes that were held back for others may be tried again.
    pub(crate) fn wake_held_back(&mut self, kept: impl Fn(GpuModel) -> Option<JobId>) {
        let others = self
            .blocked
            .keys()
            .filter(|obstacle| matches!(obstacle, Obstacle::KeptFor(model, job) if kept(*model) != Some(*job)));
        for obstacle in others.copied().collect::<Vec<_>>() {
            self.wake(obstacle);
        }
    }

    /// Leaves a shape alone until something changes.
    pub(crate) fn block(&mut self, tenant: TenantId, shape: &Arc<Shape>, blocked: Blocked) {
        let bound = self.bound_on(shape);
        let in_all = self.bound_in_all;
        let key = (tenant, shape.clone());
        for obstacle in &blocked.obstacles {
            match obstacle {
                Obstacle::NoRoom(model) => self.without_room.insert(*model, &key),
                other => {
                    self.blocked.entry(*other).or_default().insert(key.clone());
                }
            }
        }
        let mut due = None;
        self.edit(tenant, shape, |line| {
            let first = line.turns.first().map(|turn| turn.job);
            if blocked.wants_room() && line.passed_since.map(|(job, _)| job) != first {
                line.passed_since = first.map(|job| (job, bound));
                due = Some(line.due.take());
            }
            line.blocked = Some(blocked);
        });
        if let Some(old) = due {
            self.gangs_found += u64::from(shape.cards() > 1);
            self.file_passed(key, old, in_all + shape.patience());
        }
    }

    fn file_passed(&mut self, key: LineKey, old: Option<u64>, due: u64) {
        if let Some(old) = old {
            self.passed.remove(&(old, key.clone()));
        }
        if key.1.cards() < 2 {
            return;
        }
        let line = self.tenants.get_mut(&key.0).and_then(|lines| lines.all.get_mut(&key.1));
        if let Some(line) = line {
            line.due = Some(due);
            self.passed.insert((due, key));
        }
    }

    /// Cards bound on any model that `shape` may land on.
    fn bound_on(&self, shape: &Shape) -> u64 {
        shape.offers().iter().filter_map(|offer| self.bound_cards.get(&offer.model)).sum()
    }

    /// Counts cards that were bound in the cell.
    pub(crate) fn count_bound(&mut self, model: Option<GpuModel>, cards: u64) {
        *self.bound_cards.entry(model).or_default() += cards;
        self.bound_in_all += cards;
    }

    /// The lines whose first job wants nothing but room, and past which others have taken too many cards.
    pub(crate) fn starved(&mut self) -> Vec<(Turn, TenantId, Arc<Shape>)> {
        if self.passed.first().is_none_or(|(due, _)| *due > self.bound_in_all) {
            return Vec::new();
        }
        let due: Vec<(u64, LineKey)> =
            self.passed.iter().take_while(|(due, _)| *due <= self.bound_in_all).cloned().collect();
        let mut starved = Vec::new();
        for (due, (tenant, shape)) in due {
            let Some(line) = self.tenants.get(&tenant).and_then(|lines| lines.all.get(&shape)) else { continue };
            let (Some(turn), Some((job, since))) = (line.turns.first(), line.passed_since) else { continue };
            let since = since.max(self.last_started(tenant, &shape));
            let first = self.is_first_of_siblings(tenant, &shape, *turn);
            let short = shape.patience().saturating_sub(self.bound_on(&shape).saturating_sub(since));
            let short = if first { short } else { short.max(1) };
            if short > 0 {
                let due_again = self.bound_in_all + short;
                self.file_passed((tenant, shape), Some(due), due_again);
                continue;
            }
            let over_max = |obstacle: &Obstacle| matches!(obstacle, Obstacle::OverMax(_));
            let only_room = line.blocked.as_ref().is_none_or(|blocked| !blocked.obstacles.iter().any(over_max));
            if job == turn.job && only_room {
                starved.push((*turn, tenant, shape));
            }
        }
        starved
    }

    /// The MIG slices that may be tried on `model`, without one of `own`; as many of each as a card could hold at most.
    pub(crate) fn slices_waiting(&self, model: GpuModel, own: MigShape) -> ShapeCounts {
        let mut counts = ShapeCounts::default();
        for ((_, shape), jobs) in self.slices.range((model, MigShape::ALL[0])..).take_while(|((of, _), _)| *of == model)
        {
            let others = jobs - u64::from(*shape == own);
            counts[*shape as usize] = u8::try_from(others).unwrap_or(u8::MAX);
        }
        counts
    }

    /// What `tenant` uses has changed. Where nobody waits nobody stands either, and who comes is judged by the books of then.
    pub(crate) fn touch(&mut self, tenant: TenantId) {
        if !self.jobs.is_empty() {
            self.changed.insert(tenant);
        }
    }

    /// Everything about the tree or the fleet may have changed: the tournament is played anew.
    pub(crate) fn forget_order(&mut self) {
        self.order = Order::default();
        self.changed = self.tenants.keys().copied().collect();
    }

    /// The next tenant that has changed, which the caller takes into the tournament.
    pub(crate) fn take_changed(&mut self) -> Option<TenantId> {
        self.changed.pop_first()
    }

    /// Whether anything waits for anything.
    pub(crate) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty() || !self.without_room.is_empty()
    }
}
