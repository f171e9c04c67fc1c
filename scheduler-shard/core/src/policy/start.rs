//! Starting what waits: who is next by the queue's order is taken through the gates, and what is found is charged to the view.
//!
//! What must stay true:
//! - every proposal passes [`Capacity::prove`](muster_model::capacity::Capacity::prove) on the view, and is charged to it before the
//!   next is looked for;
//! - what did not fit is not tried again until something changed that could help it;
//! - a tenant that cannot start its next job keeps nobody else from starting theirs, except as [`super::reserve`] and [`super::guard`]
//!   say.

use super::gate::{self, Pass};
use super::guard;
use crate::job_class::{JobClass, Offer};
use crate::proposal::{Bounds, Plan, Proposal};
use crate::queue::order::{Head, Ledger, Order};
use crate::queue::{Blocked, Obstacle};
use crate::search::{Steps, single_task};
use crate::view::{Known, View};
use muster_model::Binding;
use muster_model::{CellId, JobId, TaskPlacement};
use std::sync::Arc;

/// Starts what may start; what is found is charged to the view. Who is next is decided anew after each that starts, so several passes of
/// one binding each start the same.
pub(crate) fn start_waiting(view: &mut View, pass: &mut Pass, bounds: &Bounds, steps: &mut Steps, plan: &mut Plan) {
    loop {
        start_reserved(view, pass, bounds, steps, plan);
        start_in_turn(view, pass, bounds, steps, plan);
        let started = start_reserved_behind(view, pass, bounds, steps, plan);
        // Who was held back for a gang that has started is not, and is not to be offered to another cell for it.
        let started_guarded = pass.guards.values().any(|guard| view.is_assumed(guard.gang));
        if started_guarded && !plan.more {
            pass.guards = guard::guards(view, pass.cell);
        } else if !started {
            return;
        }
    }
}

/// Everybody in turn, as far as nothing holds their group back.
fn start_in_turn(view: &mut View, pass: &Pass, bounds: &Bounds, steps: &mut Steps, plan: &mut Plan) {
    let mut order = candidates(view, pass);
    while let Some(head) = order.next().cloned() {
        if plan.at_a_bound(bounds, *steps) {
            break;
        }
        if begin_try(view, pass.cell, &head) {
            plan.decisions += 1;
            match try_start(view, pass, (head.queue_key.job, &head.class), steps) {
                Ok(binding) => plan.proposals.push(Proposal::Bind(binding)),
                Err(obstacles) => block(view, pass.cell, &head, obstacles),
            }
        }
        catch_up(view, pass.cell, &mut order);
    }
    if order.next().is_none() {
        view.end_offers(pass.cell);
    }
    if let Some(queue) = view.queues.get_mut(&pass.cell) {
        queue.order = order;
    }
}

/// Gangs whose nodes are all theirs now, whoever else of their tenant and class waits before them.
fn start_reserved(view: &mut View, pass: &Pass, bounds: &Bounds, steps: &mut Steps, plan: &mut Plan) {
    while view.has_untried_reservations(pass.cell) && !plan.at_a_bound(bounds, *steps) {
        let Some((job, class)) = view.next_on_own_nodes(pass.cell) else { return };
        plan.decisions += 1;
        if let Ok(binding) = try_start(view, pass, (job, &class), steps) {
            plan.proposals.push(Proposal::Bind(binding));
        }
    }
}

/// The next gang with a reservation that others of its tenant and class go before: where these found no place it may, with its own nodes beside
/// what is free. Answers whether one started.
fn start_reserved_behind(view: &mut View, pass: &Pass, bounds: &Bounds, steps: &mut Steps, plan: &mut Plan) -> bool {
    while view.has_untried_reservations(pass.cell) && !plan.at_a_bound(bounds, *steps) {
        let Some((job, class)) = view.next_reserved(pass.cell) else { return false };
        plan.decisions += 1;
        if let Ok(binding) = try_start(view, pass, (job, &class), steps) {
            plan.proposals.push(Proposal::Bind(binding));
            return true;
        }
    }
    false
}

/// Every tenant's next job whose class may fit: the tournament of the last pass, with what has changed since.
fn candidates(view: &mut View, pass: &Pass) -> Order {
    let Some(queue) = view.queues.get_mut(&pass.cell) else { return Order::default() };
    queue.wake_held_back(|model| pass.guards.get(&model).map(|guard| guard.gang));
    let mut order = std::mem::take(&mut queue.order);
    catch_up(view, pass.cell, &mut order);
    order
}

/// Takes into the tournament whose head or use has changed.
fn catch_up(view: &mut View, cell: CellId, order: &mut Order) {
    let (capacity, totals, past) = (&view.fleet.capacity, &view.fleet.totals, &view.past);
    let ledger = Ledger { capacity, totals, past, at_ms: past.kept_at() };
    let Some(queue) = view.queues.get_mut(&cell) else { return };
    if queue.take_end_of_offers() {
        *order = Order::default();
    }
    let mut heads: Vec<_> = queue.take_asked().into_iter().map(|head| (head.tenant, Some(head))).collect();
    while let Some(tenant) = queue.take_changed() {
        heads.push((tenant, queue.head(tenant)));
    }
    order.update(ledger, heads);
}

/// Whether the head may still be tried: what it stood in the tournament for may be taken by now.
fn begin_try(view: &mut View, cell: CellId, head: &Head) -> bool {
    let queue = view.queues.get_mut(&cell);
    queue.is_none_or(|queue| queue.begin_try(head.tenant, &head.class, head.queue_key))
}

/// Takes a job through the gates ([`gate`]) and charges it to the view. Where anything is scarce a single task goes where it costs others
/// least; everything else, and what finds no such place, is searched for.
fn try_start(
    view: &mut View,
    pass: &Pass,
    (job, class): (JobId, &Arc<JobClass>),
    steps: &mut Steps,
) -> Result<Binding, Vec<Obstacle>> {
    let job = view.jobs.get(job.0).cloned().ok_or_else(Vec::new)?;
    if view.is_far_from(&job, class) {
        let why = |offer: &Offer| match gate::before_place(view, pass, &job, class, offer) {
            Ok(()) => Obstacle::NoRoom(offer.model),
            Err(gate) => gate.obstacle(&job),
        };
        return Err(class.offers().iter().map(why).collect());
    }
    // What is reserved for it is among what it may use.
    view.apply_reservation(job.id, false);
    let alone = where_least_is_lost(view, pass, &job, class, steps);
    let proved = |(offer, tasks): (Offer, Vec<TaskPlacement>)| {
        gate::prove(view, &job, class, &offer, &tasks).ok()?;
        Some(bind(&job, &offer, tasks))
    };
    let binding = match alone.and_then(proved) {
        Some(binding) => Ok(binding),
        None => search(view, pass, &job, class, steps),
    };
    match &binding {
        Ok(binding) => view.assume(&job, class, binding, pass.cell, pass.now_ms),
        Err(_) => view.tried_in_vain(job.id),
    }
    binding
}

/// The node and card for a single task by which least is lost, on a model that the gates before the search let it use; `None` where nothing is
/// scarce, and where the usual search has to say.
fn where_least_is_lost(
    view: &mut View,
    pass: &Pass,
    job: &Known,
    class: &JobClass,
    steps: &mut Steps,
) -> Option<(Offer, Vec<TaskPlacement>)> {
    if !view.fleet.weighs_places(pass.cell, class) {
        return None;
    }
    let may = |offer: &&Offer| gate::before_place(view, pass, job, class, offer).is_ok();
    let offers: Vec<Offer> = class.offers().iter().filter(may).copied().collect();
    let demand = class.demand();
    view.fleet.least_lost(pass.cell, demand, &mut steps.0, |fleet, there, left| {
        let model = if demand.cards > 0 { Some(there.node.spec.gpus.first()?.model) } else { None };
        let offer = offers.iter().find(|offer| offer.model == model)?;
        Some((*offer, single_task::on_node(fleet, &pass.ask(job, class, model), there, left)?))
    })
}

fn bind(job: &Known, offer: &Offer, tasks: Vec<TaskPlacement>) -> Binding {
    Binding { job: job.id, attempt: job.attempt.next(), model: offer.model, tasks }
}

/// The best place on the first model that has one, or what is in the way on each.
fn search(
    view: &mut View,
    pass: &Pass,
    job: &Known,
    class: &JobClass,
    steps: &mut Steps,
) -> Result<Binding, Vec<Obstacle>> {
    let mut obstacles = Vec::new();
    for offer in class.offers() {
        match gate::pass(view, pass, job, class, offer, steps) {
            Ok(tasks) => return Ok(bind(job, offer, tasks)),
            Err(gate) => obstacles.push(gate.obstacle(job)),
        }
    }
    Err(obstacles)
}

fn block(view: &mut View, cell: CellId, head: &Head, mut obstacles: Vec<Obstacle>) {
    // Once its floor covers it, nothing is held back from it.
    let has_floor = |view: &View| view.fleet.capacity.line_of(head.tenant).any(|(_, at)| !at.guarantee.is_empty());
    if obstacles.iter().any(|obstacle| matches!(obstacle, Obstacle::Guarded(..))) && has_floor(view) {
        obstacles.push(Obstacle::Tenant(head.tenant));
    }
    obstacles.sort_unstable();
    obstacles.dedup();
    if let Some(queue) = view.queues.get_mut(&cell) {
        queue.block(head.tenant, &head.class, Blocked { obstacles });
    }
}
