//! The gates between a waiting job and its devices, in the one order in which they are tried.
//!
//! 1. [`Gate::Quota`]: the max of its tenant, or of a tenant above; [`Gate::NotLent`]: burst leaves what others do not lend.
//! 2. [`Gate::Reservation`]: the reservation that it names is open, and for it.
//! 3. [`Gate::Trust`]: an untrusted tenant shares a card through MIG alone.
//! 4. [`Gate::StarvationGuard`]: free cards of the model are held back for a gang that others have bypassed too often.
//! 5. [`Gate::NoPlace`]: the search finds no place that the capacity ledger would hold.
//!
//! What must stay true: [`pass`] is the only way from a waiting job to a placement. A shard's pass and an explanation both go through it,
//! so an explanation names the gate that held the job back. Why there is no place is a question of its own ([`crate::explain`]).

use super::guard::{Guard, Guards};
use crate::job_class::{JobClass, Offer};
use crate::queue::{Obstacle, slices_waiting};
use crate::search::{Ask, Steps, nodes_to_lend, place};
use crate::view::{Known, ReservationFault, View};
use muster_model::capacity::{Ended, NotLent, OverMax};
use muster_model::request::SharingMode;
use muster_model::{CellId, GpuModel, TaskPlacement};

/// A gate that is closed, with its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// A ceiling would be passed.
    Quota(OverMax),
    /// It would use what other tenants are guaranteed and do not lend.
    NotLent(NotLent, Option<GpuModel>),
    /// The tenant may not share a card in the way it asks for.
    Trust,
    /// Free cards of this model are held back.
    StarvationGuard(GpuModel, Guard),
    /// The reservation that it names is not for it now.
    Reservation(ReservationFault),
    /// There is no place on this model.
    NoPlace(Option<GpuModel>),
}

impl Gate {
    /// What has to change before the job is tried again.
    pub(crate) fn obstacle(&self, job: &Known) -> Obstacle {
        match self {
            Gate::Quota(over) => Obstacle::Tenant(over.tenant),
            Gate::Trust => Obstacle::Tenant(job.tenant),
            Gate::StarvationGuard(model, guard) => Obstacle::Guarded(*model, guard.gang),
            Gate::Reservation(_) => Obstacle::Reservation,
            Gate::NoPlace(model) => Obstacle::NoRoom(*model),
            Gate::NotLent(_, model) => Obstacle::NotLent(*model),
        }
    }
}

/// What holds in a pass over one cell; the guards until one of their gangs starts.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) cell: CellId,
    pub(crate) now_ms: u64,
    pub(crate) guards: Guards,
}

impl Pass {
    /// The question that a job puts to the view on one model.
    pub(crate) fn ask<'a>(&self, job: &Known, class: &'a JobClass, model: Option<GpuModel>) -> Ask<'a> {
        job.ask(class, (self.cell, model), self.now_ms)
    }
}

/// Takes the job through all gates on one model; answers where it would stand.
///
/// # Errors
/// The first gate that is closed.
pub(crate) fn pass(
    view: &mut View,
    on: &Pass,
    job: &Known,
    class: &JobClass,
    offer: &Offer,
    steps: &mut Steps,
) -> Result<Vec<TaskPlacement>, Gate> {
    steps.0 += 1;
    before_place(view, on, job, class, offer)?;
    let ask = on.ask(job, class, offer.model);
    let tasks = find_place(view, &ask, steps).ok_or(Gate::NoPlace(offer.model))?;
    prove(view, job, class, offer, &tasks)?;
    Ok(tasks)
}

/// The gates that need no search.
///
/// # Errors
/// The first that is closed.
pub(crate) fn before_place(view: &View, on: &Pass, job: &Known, class: &JobClass, offer: &Offer) -> Result<(), Gate> {
    let capacity = &view.fleet.capacity;
    capacity.max_allows(job.tenant, &offer.charge).map_err(Gate::Quota)?;
    let covered = capacity.account_for(job.tenant, &offer.charge).is_some();
    if !covered {
        let lent = capacity.lending_allows(&Ended::default(), job.tenant, &offer.charge);
        lent.map_err(|why| Gate::NotLent(why, offer.model))?;
    }
    if let Some(fault) = view.reservation_fault(job.tenant, class, on.now_ms) {
        return Err(Gate::Reservation(fault));
    }
    let shares_in_time = matches!(class.request.devices.mode(), Some(SharingMode::Mps | SharingMode::TimeSlice));
    if shares_in_time && view.fleet.capacity.tenants().get(&job.tenant).is_some_and(|at| at.untrusted) {
        return Err(Gate::Trust);
    }
    if let Some(model) = offer.model
        && let Some(guard) = on.guards.get(&model)
        && guard.holds_back(job.id, class, covered)
        && view.reserved(job.id).is_none()
    {
        return Err(Gate::StarvationGuard(model, *guard));
    }
    Ok(())
}

/// Whether the capacity ledger takes the placement.
///
/// # Errors
/// That it is no place.
pub(crate) fn prove(
    view: &View,
    job: &Known,
    class: &JobClass,
    offer: &Offer,
    tasks: &[TaskPlacement],
) -> Result<(), Gate> {
    let request = &class.request;
    view.fleet
        .capacity
        .prove(job.tenant, tasks, request.cpu_milli, request.memory_mib, &offer.charge)
        .map_err(|_| Gate::NoPlace(offer.model))
}

/// A place for the gang. Nodes that are reserved for others, but not before it is over, may serve it beside free ones.
pub(crate) fn find_place(view: &mut View, ask: &Ask<'_>, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    let ask = &Ask { slices_waiting: slices_waiting(&view.queues, (ask.cell, ask.model), ask.class), ..*ask };
    let fleet = &mut view.fleet;
    if let Some(found) = place(fleet, ask, steps) {
        return Some(found);
    }
    let lent = nodes_to_lend(fleet, ask, steps);
    if lent.is_empty() {
        return None;
    }
    steps.0 += 2 * lent.len() as u64;
    fleet.lend(&lent);
    let found = place(fleet, ask, steps);
    fleet.take_back(&lent);
    found
}
