//! Who waits in a cell, grouped by tenant and by the *shape* of what is asked for.
//!
//! Jobs of one tenant and shape are interchangeable: when the first does not fit, none does. So a thousand equal jobs that wait cost
//! a pass one look, and a shape that did not fit is left alone until something that could help it has changed. What must stay
//! true: a job is in the queue at most once, and only while it may be planned.

use crate::clock::Clock;
use muster_model::request::TaskRequest;
use muster_model::{
    CellId, DriverVersion, GpuModel, Job, JobId, NumaPolicy, ResourceVec, Selector, TenantId, Topology, WorkloadClass,
};
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

/// Everything about a job that decides where it can stand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub(crate) tasks: u32,
    pub(crate) request: TaskRequest,
    pub(crate) topology: Topology,
    pub(crate) numa: NumaPolicy,
    pub(crate) driver_min: Option<DriverVersion>,
    pub(crate) selector: Option<Selector>,
    /// The models that could ever serve it, the preferred first.
    pub(crate) possible: Vec<GpuModel>,
    pub(crate) class: WorkloadClass,
    pub(crate) pool: Option<String>,
}

impl Shape {
    pub(crate) fn of(job: &Job) -> Self {
        let spec = &job.spec;
        Shape {
            tasks: spec.tasks,
            request: spec.request.clone(),
            topology: spec.topology,
            numa: spec.numa,
            driver_min: spec.driver_min,
            selector: spec.asked.selector.clone(),
            possible: spec.possible_models().collect(),
            class: spec.class,
            pool: spec.pool.clone(),
        }
    }

    /// Cards that the whole gang touches.
    pub(crate) fn cards(&self) -> u64 {
        u64::from(self.tasks) * u64::from(self.request.devices.cards())
    }

    /// What the whole gang is charged on `model`.
    pub(crate) fn charge_on(&self, model: Option<GpuModel>) -> ResourceVec {
        let each = match model {
            Some(model) => self.request.charge_on(model),
            None => ResourceVec::of_host(self.request.cpu_milli, self.request.memory_mib),
        };
        each.times(u64::from(self.tasks))
    }

    /// The models it may land on, the preferred first; `None` alone for a gang without GPUs.
    pub(crate) fn models(&self) -> Vec<Option<GpuModel>> {
        if self.request.devices.mode().is_none() {
            return vec![None];
        }
        self.possible.iter().copied().map(Some).collect()
    }
}

/// Why a shape was left alone, per model that it may land on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The max of this tenant, its own or an ancestor's.
    OverMax(TenantId),
    /// No place on this model.
    NoRoom(Option<GpuModel>),
    /// Free cards of this model are kept for a large gang that was passed over too often.
    KeptFor(GpuModel, JobId),
}

/// A shape that did not fit, and when it was last tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub(crate) tried_at: u64,
    pub(crate) obstacles: Vec<Obstacle>,
}

impl Blocked {
    /// Whether anything that could help has happened since.
    fn may_be_helped(&self, clock: &Clock, cell: CellId, kept: &BTreeMap<GpuModel, JobId>) -> bool {
        self.obstacles.iter().any(|obstacle| match obstacle {
            Obstacle::OverMax(tenant) => clock.relieved_at(*tenant) > self.tried_at,
            Obstacle::NoRoom(model) => clock.freed_at(cell, *model) > self.tried_at,
            Obstacle::KeptFor(model, job) => kept.get(model) != Some(job),
        })
    }

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
}

/// The jobs that wait in one cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellQueue {
    pub(crate) tenants: BTreeMap<TenantId, BTreeMap<Arc<Shape>, Line>>,
    /// Cards of each model that this view has seen bound in the cell.
    pub(crate) bound_cards: BTreeMap<Option<GpuModel>, u64>,
}

impl CellQueue {
    pub(crate) fn insert(&mut self, job: &Job) {
        let lines = self.tenants.entry(job.tenant).or_default();
        lines.entry(Arc::new(Shape::of(job))).or_default().turns.insert(Turn::of(job));
    }

    pub(crate) fn remove(&mut self, job: &Job) {
        let Some(lines) = self.tenants.get_mut(&job.tenant) else { return };
        let shape = Shape::of(job);
        if let Some(line) = lines.get_mut(&shape) {
            line.turns.remove(&Turn::of(job));
            if line.turns.is_empty() {
                lines.remove(&shape);
            }
        }
        if lines.is_empty() {
            self.tenants.remove(&job.tenant);
        }
    }

    /// Jobs in it.
    pub(crate) fn len(&self) -> usize {
        self.tenants.values().flat_map(BTreeMap::values).map(|line| line.turns.len()).sum()
    }

    /// The next job of `tenant` whose shape is not blocked.
    pub(crate) fn head(&self, tenant: TenantId) -> Option<(Turn, &Arc<Shape>)> {
        let lines = self.tenants.get(&tenant)?;
        lines
            .iter()
            .filter(|(_, line)| line.blocked.is_none())
            .filter_map(|(shape, line)| line.turns.first().map(|turn| (*turn, shape)))
            .min_by_key(|(turn, _)| *turn)
    }

    /// Lets every shape be tried again for which something has changed.
    pub(crate) fn wake(&mut self, clock: &Clock, cell: CellId, kept: &BTreeMap<GpuModel, JobId>) {
        for line in self.tenants.values_mut().flat_map(BTreeMap::values_mut) {
            if line.blocked.as_ref().is_some_and(|blocked| blocked.may_be_helped(clock, cell, kept)) {
                line.blocked = None;
            }
        }
    }

    /// Leaves a shape alone until something changes.
    pub(crate) fn block(&mut self, tenant: TenantId, shape: &Shape, blocked: Blocked) {
        let bound: u64 = shape.models().iter().filter_map(|model| self.bound_cards.get(model)).sum();
        let Some(line) = self.tenants.get_mut(&tenant).and_then(|lines| lines.get_mut(shape)) else { return };
        let first = line.turns.first().map(|turn| turn.job);
        if blocked.wants_room() && line.passed_since.map(|(job, _)| job) != first {
            line.passed_since = first.map(|job| (job, bound));
        }
        line.blocked = Some(blocked);
    }
}
