//! Reservations: the first gangs that cannot start are promised a place and a time, and what can be over by then flows past them.
//!
//! Time limits say when what runs has ended at the latest. From them a gang that waits for room is given the earliest time at which it fits, and
//! the nodes for it ([`earliest`]). These nodes then stand apart: only what is over by that time may start on them. So a large gang
//! does not starve however many small jobs come, and cards do not stand idle that a short job could use. What must stay true:
//! - a gang starts no later than it was promised, as long as its nodes stay in the fleet and what runs there keeps its limits (a
//!   property test); it starts earlier whenever it fits anywhere it may go;
//! - a node is kept for one gang at a time, a cell keeps nodes for at most [`RESERVATIONS_MAX`];
//! - a promise is replicated with the job, so another shard that takes the cell over keeps it; a new promise is made only when it is
//!   better, or when nodes were lost or something there ran over its time.
//!
//! Where nothing has a time limit there is nothing to promise; then free cards are kept for a gang that was passed over too often, as
//! [`crate::plan`] says.

mod earliest;
mod timeline;

pub(crate) use earliest::earliest;
pub(crate) use timeline::{START_MS, Timeline};

use crate::explain::in_turn;
use crate::place::{Ask, Steps};
use crate::plan::{Bounds, Plan};
use crate::proposal::Proposal;
use crate::queue::Obstacle;
use crate::shape::Shape;
use crate::view::{Known, Policy, View};
use muster_model::request::SharingMode;
use muster_model::{CellId, GpuModel, JobId, Reservation};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Gangs of one cell that nodes are kept for: enough that the head of the queue is safe, few enough that most of the fleet takes anything.
pub const RESERVATIONS_MAX: usize = 16;
/// A time further away is none: limits of days say little about when work ends.
pub const HORIZON_MS: u64 = 7 * 86_400_000;
/// How soon a gang is looked at again: one without a time for any, one with a time for a better one.
const AGAIN_MS: u64 = 60_000;
/// A better time is better by this much; a gang that has not started this long after its time gets another.
const SLACK_MS: u64 = 60_000;
/// Waiting jobs that one look goes through in turn.
const LOOKED_AT_MAX: usize = 1_000;

/// What a cell's reservations were last looked at by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    pub(crate) at_ms: u64,
    /// Gangs that had been found without room by then.
    pub(crate) gangs: u64,
}

/// Mends, betters and makes reservations; what changes is proposed, and holds in the view at once.
pub(crate) fn reserve(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64, steps: &mut Steps, plan: &mut Plan) {
    if view.policy != Policy::Topology {
        return;
    }
    let mut timeline: Option<Timeline> = None;
    revise(view, cell, bounds, now_ms, &mut timeline, steps, plan);
    let gangs = view.queues.get(&cell).map_or(0, |queue| queue.gangs_without_room);
    let looked = view.looked.get(&cell).copied();
    let due = looked.is_none_or(|last| last.gangs != gangs || now_ms >= last.at_ms.saturating_add(AGAIN_MS));
    if gangs == 0 || !due || view.reserved_in(cell) >= RESERVATIONS_MAX {
        return;
    }
    let mut tried: Vec<Arc<Shape>> = Vec::new();
    for id in first_without_room(view, cell) {
        if plan.proposals.len() >= bounds.proposals_max || steps.0 >= bounds.steps_max {
            plan.more = true;
            return;
        }
        let Some(job) = view.jobs.get(id.0).cloned() else { continue };
        let Some(shape) = job.shape.clone().filter(|shape| !tried.iter().any(|other| Arc::ptr_eq(other, shape))) else {
            continue;
        };
        let timeline = timeline.get_or_insert_with(|| Timeline::of(view, cell));
        if timeline.is_empty() {
            break;
        }
        match promise(view, &job, &shape, timeline, now_ms, steps) {
            Some(reservation) => keep(view, &job, Some(reservation), now_ms, plan),
            None => tried.push(shape),
        }
        if view.reserved_in(cell) >= RESERVATIONS_MAX {
            break;
        }
    }
    view.looked_for_gangs(cell, now_ms);
}

/// Looks again at promises that were broken from outside or that may have become better.
fn revise(
    view: &mut View,
    cell: CellId,
    bounds: &Bounds,
    now_ms: u64,
    timeline: &mut Option<Timeline>,
    steps: &mut Steps,
    plan: &mut Plan,
) {
    for id in view.reservations_due(cell, now_ms) {
        if plan.proposals.len() >= bounds.proposals_max || steps.0 >= bounds.steps_max {
            plan.more = true;
            return;
        }
        let Some(job) = view.jobs.get(id.0).cloned() else { continue };
        let Some(shape) = job.shape.clone() else { continue };
        let Some((start_ms, broken)) = view.reserved(id).map(|kept| (kept.start_ms(), kept.is_broken(now_ms))) else {
            continue;
        };
        view.looked_at(id, now_ms);
        let timeline = timeline.get_or_insert_with(|| Timeline::of(view, cell));
        let found = promise(view, &job, &shape, timeline, now_ms, steps);
        let better = found.as_ref().is_some_and(|found| found.start_ms.saturating_add(SLACK_MS) < start_ms);
        if broken || better {
            plan.promises_broken += u64::from(broken);
            keep(view, &job, found, now_ms, plan);
        }
    }
}

/// Whether a gang that was to start at `start_ms` is late.
pub(crate) fn is_late(start_ms: u64, now_ms: u64) -> bool {
    now_ms > start_ms.saturating_add(SLACK_MS)
}

/// Whether a promise that was looked at last at `at_ms` may have a better one by now.
pub(crate) fn may_be_better(at_ms: u64, now_ms: u64) -> bool {
    now_ms >= at_ms.saturating_add(AGAIN_MS)
}

fn keep(view: &mut View, job: &Known, reservation: Option<Reservation>, now_ms: u64, plan: &mut Plan) {
    let reserved = reservation.map(Arc::new);
    view.keep(job, reserved.clone(), now_ms);
    plan.proposals.push(Proposal::Reserve { job: job.id, reserved });
}

/// The first gangs of the cell, in turn, that wait for room alone and have no time yet.
fn first_without_room(view: &View, cell: CellId) -> Vec<JobId> {
    let (mut found, mut looked_at) = (Vec::new(), 0);
    in_turn(view, cell, |id| {
        looked_at += 1;
        let wants =
            view.jobs.get(id.0).is_some_and(|job| view.reserved(id).is_none() && waits_for_room(view, cell, job));
        found.extend(wants.then_some(id));
        if looked_at == LOOKED_AT_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

/// Whether it is a gang of whole cards that only room keeps waiting, here and in every cell that might take it.
fn waits_for_room(view: &View, cell: CellId, job: &Known) -> bool {
    let Some(shape) = &job.shape else { return false };
    if shape.cards() < 2 || shape.request.devices.mode() != Some(SharingMode::Whole) {
        return false;
    }
    let here_for_good = view.cells.keys().all(|other| *other == cell || job.visited.contains(other))
        || view.stays_until.contains_key(&job.id);
    here_for_good && !without_room(view, cell, job, shape).is_empty()
}

/// The models on which it was found that nothing but room is missing.
fn without_room(view: &View, cell: CellId, job: &Known, shape: &Arc<Shape>) -> Vec<GpuModel> {
    let line = || view.queues.get(&cell)?.tenants.get(&job.tenant)?.all.get(shape)?.blocked.as_ref();
    let obstacles = line().map_or(&[][..], |blocked| &blocked.obstacles);
    let room = |obstacle: &Obstacle| match obstacle {
        Obstacle::NoRoom(model) => *model,
        Obstacle::OverMax(_) | Obstacle::KeptFor(..) => None,
    };
    obstacles.iter().filter_map(room).collect()
}

/// The earliest time on any model.
fn promise(
    view: &View,
    job: &Known,
    shape: &Arc<Shape>,
    timeline: &Timeline,
    now_ms: u64,
    steps: &mut Steps,
) -> Option<Reservation> {
    let cell = job.cell?;
    let on = |model: GpuModel| {
        let ask = Ask::lasting(cell, job.tenant, shape, Some(model));
        earliest(view, &ask, job.id, timeline, now_ms, steps)
    };
    let found = without_room(view, cell, job, shape).into_iter().filter_map(on).min();
    found.filter(|found| found.start_ms <= now_ms.saturating_add(HORIZON_MS))
}
