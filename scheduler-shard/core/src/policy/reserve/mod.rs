//! Reservations: the first gangs that cannot start get a place and a time; jobs that end before that time may backfill.
//!
//! Time limits say when what runs has ended at the latest. From them a waiting gang is given the earliest time at which it fits, and the nodes for
//! it ([`earliest`]). These nodes are then reserved: only jobs that are over by that time may start on them. So a large gang does not starve however
//! many small jobs come, and no card is idle that a short job could use. What must stay true:
//! - a gang starts no later than its reservation says, as long as its nodes stay in the fleet, what runs there keeps its limits, its tenant
//!   stays below its max and no tenant comes near from which admins keep it apart (a property test); it starts earlier whenever it fits
//!   anywhere in its cell;
//! - a node is reserved for one gang at a time, and a cell has at most [`RESERVATIONS_MAX`] reservations;
//! - a reservation is replicated with the job, so another shard that takes the cell over keeps it; another is made only when it is better, or
//!   when the first cannot be kept any more;
//! - the search is bounded by steps, and goes on where it stopped.
//!
//! Where nothing has a time limit there is no time to give, and nodes that are reserved for more than [`HORIZON_MS`] would be idle for too long; free
//! cards are then held back for a gang that was bypassed too often ([`crate::policy::guard`]). A *reservation* is what is replicated; a
//! [`Hold`](crate::fleet::index::Hold) marks its nodes in the index as long as the reservation is active.

mod earliest;
mod timeline;

pub(crate) use earliest::earliest;
use timeline::Timeline;
pub(crate) use timeline::end_ms;

use crate::fleet::PlacementPolicy;
use crate::job_class::{JobClass, Offer};
use crate::proposal::{Bounds, Plan, Proposal};
use crate::queue::Obstacle;
use crate::search::{Ask, Steps};
use crate::view::{Known, RESERVATIONS_MAX, ReservationSearch, SLACK_MS, View, in_turn};
use muster_model::request::SharingMode;
use muster_model::{CellId, JobId, Reservation};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A time further away is none.
pub const HORIZON_MS: u64 = muster_model::job::RESERVATION_AHEAD_MS_MAX;
/// A gang gets a reservation only when fewer other jobs than this go before it in the queue: these get none, and would wait for a gang behind
/// them.
const OTHERS_BEFORE_MAX: usize = 8;

/// One pass's work on reservations.
struct Reserving<'a> {
    cell: CellId,
    now_ms: u64,
    bounds: &'a Bounds,
    steps: &'a mut Steps,
    plan: &'a mut Plan,
    timeline: Option<Timeline>,
}

/// Mends, betters and makes reservations; what changes is proposed, and holds in the view at once.
pub(crate) fn reserve(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64, steps: &mut Steps, plan: &mut Plan) {
    if view.fleet.placement != PlacementPolicy::Topology {
        return;
    }
    let mut reserving = Reserving { cell, now_ms, bounds, steps, plan, timeline: None };
    if !reserving.revise(view) {
        reserving.reserve_more(view);
    }
}

impl Reserving<'_> {
    fn at_a_bound(&mut self) -> bool {
        self.plan.at_a_bound(self.bounds, *self.steps)
    }

    /// Looks again at reservations that cannot be counted on, or that may have become better. Answers whether any changed: who waits for
    /// room is to be tried again before more is reserved.
    fn revise(&mut self, view: &mut View) -> bool {
        let mut changed = false;
        for id in view.reservations_due(self.cell, self.now_ms) {
            if self.at_a_bound() {
                return true;
            }
            let Some(job) = view.jobs.get(id.0).cloned() else { continue };
            let (Some(class), Some(kept)) = (job.class.clone(), view.reserved(id)) else { continue };
            let (broken, old) = (kept.is_broken(self.now_ms), kept.reservation().clone());
            view.looked_at(id, self.now_ms);
            let found = self.earliest(view, &job, &class);
            let gained_ms = found.as_ref().map_or(0, |found| old.start_ms.saturating_sub(found.start_ms));
            // Its tenant has reached its max meanwhile, or others do not lend what it needs: the nodes would stand idle for nothing.
            let given_up = !class.offers().iter().any(|offer| may_have(view, &job, offer));
            if found.as_ref() != Some(&*old) && (broken || given_up || gained_ms > SLACK_MS) {
                let later = found.as_ref().is_none_or(|found| found.start_ms > old.start_ms);
                self.plan.reservations_broken += u64::from(broken && later);
                self.keep(view, &job, found);
                changed = true;
            }
        }
        changed
    }

    /// Gives reservations to the first gangs without a place, as long as there are fewer reservations than there may be.
    fn reserve_more(&mut self, view: &mut View) {
        let gangs_found = view.queues.get(&self.cell).map_or(0, |queue| queue.gangs_found);
        let last = view.searches.remove(&self.cell);
        let due = last.as_ref().is_none_or(|last| last.next_ms(gangs_found) <= self.now_ms);
        if gangs_found == 0 || !due || view.reserved_in(self.cell) >= RESERVATIONS_MAX {
            view.searches.extend(last.map(|last| (self.cell, last)));
            return;
        }
        let fresh = || ReservationSearch { began_ms: self.now_ms, gangs_found, ..ReservationSearch::default() };
        let mut search = last.filter(|last| last.unfinished).unwrap_or_else(fresh);
        search.unfinished = self.go_on(view, &mut search);
        view.searches.insert(self.cell, search);
    }

    /// Answers whether it stopped at a bound.
    fn go_on(&mut self, view: &mut View, search: &mut ReservationSearch) -> bool {
        for id in first_without_room(view, self.cell, self.now_ms) {
            if view.reserved_in(self.cell) >= RESERVATIONS_MAX {
                return false;
            }
            if self.at_a_bound() {
                return true;
            }
            let Some(job) = view.jobs.get(id.0).cloned() else { continue };
            let Some(class) = job.class.clone() else { continue };
            if search.in_vain.iter().any(|(tenant, other)| *tenant == job.tenant && Arc::ptr_eq(other, &class)) {
                continue;
            }
            if self.timeline(view).is_empty() {
                search.without_limits = true;
                return false;
            }
            match self.earliest(view, &job, &class) {
                Some(found) if view.may_keep(self.cell, found.nodes.len(), self.bounds.reserved_part) => {
                    self.keep(view, &job, Some(found))
                }
                // It is the first of those without; smaller ones behind it do not go before it.
                Some(_) => return false,
                None => search.in_vain.push((job.tenant, class)),
            }
        }
        false
    }

    fn timeline(&mut self, view: &View) -> &Timeline {
        let (cell, now_ms, steps) = (self.cell, self.now_ms, &mut *self.steps);
        self.timeline.get_or_insert_with(|| Timeline::of(view, cell, now_ms, steps))
    }

    /// The earliest time on any model that it may have, if it is near enough.
    fn earliest(&mut self, view: &View, job: &Known, class: &Arc<JobClass>) -> Option<Reservation> {
        self.timeline(view);
        let (timeline, steps) = (self.timeline.as_ref()?, &mut *self.steps);
        let allowed = class.offers().iter().filter(|offer| may_have(view, job, offer));
        let on = |model| {
            let ask = Ask { job: Some(job.id), ..Ask::lasting(self.cell, job.tenant, class, model) };
            earliest(view, &ask, timeline, self.now_ms, steps)
        };
        let found = allowed.map(|offer| offer.model).filter_map(on).min();
        found.filter(|found| found.start_ms <= self.now_ms.saturating_add(HORIZON_MS))
    }

    fn keep(&mut self, view: &mut View, job: &Known, reservation: Option<Reservation>) {
        let reserved = reservation.map(Arc::new);
        view.keep(job, reserved.clone(), self.now_ms);
        self.plan.proposals.push(Proposal::Reserve { job: job.id, reserved });
    }
}

/// Whether its tenant's max allows the charge, and others could lend it or a floor cover it.
fn may_have(view: &View, job: &Known, offer: &Offer) -> bool {
    let capacity = &view.fleet.capacity;
    capacity.max_allows(job.tenant, &offer.charge).is_ok() && capacity.could_be_lent(job.tenant, &offer.charge)
}

/// The first gangs of the cell, in turn, that wait for room alone and have no time yet.
fn first_without_room(view: &mut View, cell: CellId, now_ms: u64) -> Vec<JobId> {
    let (mut found, mut others) = (Vec::new(), 0);
    in_turn(view, cell, |view, id| {
        if view.reserved(id).is_some() {
            return ControlFlow::Continue(());
        }
        if view.jobs.get(id.0).is_some_and(|job| waits_for_room(view, cell, job, now_ms)) {
            found.push(id);
        } else {
            others += 1;
        }
        let enough = others == OTHERS_BEFORE_MAX || found.len() == RESERVATIONS_MAX;
        if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

/// Whether it is a gang of whole cards that was found to lack nothing but room, here and in every cell that might take it.
fn waits_for_room(view: &View, cell: CellId, job: &Known, now_ms: u64) -> bool {
    let Some(class) = &job.class else { return false };
    if class.cards() < 2 || class.request.devices.mode() != Some(SharingMode::Whole) {
        return false;
    }
    let line = || view.queues.get(&cell)?.tenants.get(&job.tenant)?.all.get(class)?.blocked.as_ref();
    let room = |obstacle: &Obstacle| matches!(obstacle, Obstacle::NoRoom(_) | Obstacle::NotLent(_));
    view.stays_in(cell, job, now_ms) && line().is_some_and(|blocked| blocked.obstacles.iter().any(room))
}
