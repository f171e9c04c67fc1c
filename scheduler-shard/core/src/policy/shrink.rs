//! Growth is given back to whoever waits: elastic gangs have what is beyond their minimum only as long as nobody else needs it.
//!
//! Who may preempt takes growth first by [`super::reclaim`], with a claim. For any other waiting job growth ends gracefully and the job starts in
//! its turn. What must stay true:
//! - nothing is proposed without a place for the whole gang, found in a trial in which the growth has ended;
//! - growth that ends for one job is not counted for another;
//! - a fleet without growth pays nothing for this.

use super::if_ended::IfEnded;
use super::victims::{Victim, growth_in_cell, in_order};
use crate::job_class::{JobClass, Offer};
use crate::proposal::{Bounds, Plan, Proposal};
use crate::queue::CellQueue;
use crate::search::Steps;
use crate::view::{Known, View, in_turn};
use muster_model::{Allocation, AllocationId, AllocationState, Binding, CellId, EndCause, JobId};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Waiting jobs that one pass looks at, and tries.
const LOOKED_AT_MAX: usize = 64;
const TRIED_MAX: usize = 16;
/// A job for which nothing could be taken back is tried again after this.
const AGAIN_MS: u64 = 2_000;
/// Parts of growth that end for one job at once.
const PARTS_MAX: usize = muster_model::bounds::VICTIMS_PER_PREEMPT_MAX;

/// Takes growth back for the first jobs that wait for room.
pub(crate) fn shrink(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64, steps: &mut Steps, plan: &mut Plan) {
    if !view.has_growth() {
        return;
    }
    for id in candidates(view, cell, now_ms) {
        if plan.at_a_bound(bounds, *steps) {
            return;
        }
        let Some(job) = view.jobs.get(id.0).cloned() else { continue };
        let Some(class) = job.class.clone() else { continue };
        let offers: Vec<Offer> = class.offers().to_vec();
        let found = offers.iter().find_map(|offer| for_one(view, (&job, &class), offer, cell, now_ms, steps));
        match found {
            Some(Found::UnderWay) => {}
            Some(Found::Parts(binding, parts)) => {
                view.assume_shrink(job.id, &parts);
                plan.proposals.push(Proposal::Shrink { binding, parts });
            }
            None => view.shrink_in_vain(job.id, now_ms.saturating_add(AGAIN_MS)),
        }
    }
}

enum Found {
    /// What ends for the job already is enough.
    UnderWay,
    Parts(Binding, Vec<AllocationId>),
}

/// The first waiting jobs that found no room.
fn candidates(view: &mut View, cell: CellId, now_ms: u64) -> Vec<JobId> {
    let (mut found, mut looked) = (Vec::new(), 0);
    if !view.queues.get(&cell).is_some_and(CellQueue::has_blocked) {
        return found;
    }
    in_turn(view, cell, |view, id| {
        looked += 1;
        if let Some(job) = view.jobs.get(id.0)
            && let Some(class) = &job.class
            && view.queues.get(&cell).is_some_and(|queue| queue.is_blocked(job.tenant, class))
            && view.stays_in(cell, job, now_ms)
            && !view.shrink_rests(id, now_ms)
        {
            found.push(id);
        }
        let enough = looked >= LOOKED_AT_MAX || found.len() >= TRIED_MAX;
        if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

fn for_one(
    view: &mut View,
    (job, class): (&Known, &Arc<JobClass>),
    offer: &Offer,
    cell: CellId,
    now_ms: u64,
    steps: &mut Steps,
) -> Option<Found> {
    let parts: Vec<Victim> = growth_in_cell(view, cell, now_ms).filter(|part| part.held.model == offer.model).collect();
    steps.0 += parts.len() as u64;
    let ends_for_it = AllocationState::Stopping(EndCause::Shrunk { by: Some(job.id) });
    let own: Vec<Arc<Allocation>> =
        parts.iter().filter(|part| part.held.state == ends_for_it).map(|part| part.held.clone()).collect();
    let active: Vec<&Victim> = parts.iter().filter(|part| part.held.state == AllocationState::Active).collect();
    if own.is_empty() && active.is_empty() {
        return None;
    }
    let mut order = in_order(view, (job.id, class), offer, &active);
    let mut trial = IfEnded::begin(view, job.id, cell, now_ms)?;
    own.iter().for_each(|part| trial.end(part));
    if !own.is_empty() && trial.place(offer).is_ok() {
        return Some(Found::UnderWay);
    }
    let mut ended: Vec<&Arc<Allocation>> = Vec::new();
    let mut goal = offer.charge.gpu_total().0.saturating_sub(trial.free_units(offer.model)).max(1);
    let tasks = loop {
        let mut freed = 0;
        while freed < goal
            && ended.len() < PARTS_MAX
            && let Some(part) = order.next()
        {
            trial.end(part);
            ended.push(part);
            freed += part.charge.gpu_total().0.max(1);
            steps.0 += 1;
        }
        if freed == 0 {
            return None;
        }
        if let Ok(tasks) = trial.place(offer) {
            break tasks;
        }
        goal = goal.saturating_mul(2);
    };
    let needed = trial.restore_unneeded(offer, &tasks, ended);
    if needed.is_empty() {
        return None;
    }
    let parts = own.iter().chain(needed).map(|part| part.id).collect();
    let binding = Binding { job: job.id, attempt: job.attempt.next(), model: offer.model, tasks };
    Some(Found::Parts(binding, parts))
}
