//! One pass over one cell: queue → candidates → place → proposals.
//!
//! What must stay true:
//! - every proposal passes [`Capacity::prove`](muster_model::capacity::Capacity::prove) on the view, and is charged to it before the
//!   next is looked for;
//! - a pass is bounded by steps, never by time, and the same view gives the same proposals;
//! - what did not fit is not tried again until something changed that could help it;
//! - a tenant that cannot start its next job keeps nobody else from starting theirs, except as [`crate::reserve`] and [`crate::guard`]
//!   say.

use crate::gate::{self, Pass};
use crate::guard;
use crate::job_class::{JobClass, Offer};
use crate::order::{Books, Head, Order};
use crate::place::Steps;
use crate::proposal::{Binding, Proposal};
use crate::queue::{Blocked, Obstacle};
use crate::reserve::{KEPT_PART, reserve};
use crate::view::{Known, View};
use muster_model::{CellId, JobId, TaskPlacement};
use std::sync::Arc;

/// Bounds of one pass.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Proposals of one pass; the caller's batch.
    pub proposals_max: usize,
    /// Nodes, groups and cards looked at; checked between two decisions.
    pub steps_max: u64,
    /// Beyond the first gang at most one in so many of the cell's nodes is kept for gangs that wait; [`crate::KEPT_PART`] in production.
    pub kept_part: usize,
}

impl Default for Bounds {
    /// 64 proposals are one batch on the wire; 200,000 steps are some milliseconds, so that a pass never delays what waits for it.
    fn default() -> Self {
        Bounds { proposals_max: 64, steps_max: 200_000, kept_part: KEPT_PART }
    }
}

/// A job is handed over when it has waited this long in its cell without finding room: about as long as the watch needs to show a
/// shard what others have freed.
pub const HAND_OVER_AFTER_MS: u64 = 2_000;
/// A hand-over is not repeated before this: its answer takes one round trip.
const HAND_OVER_AGAIN_MS: u64 = 5_000;
/// Control starts a new round of hand-overs this long after the job was routed to its cell.
pub const HAND_OVER_ROUND_MS: u64 = 30_000;
/// Jobs of one group that one pass looks at for hand-over; the next pass goes on.
const HAND_OVERS_PER_GROUP_MAX: usize = 16;

/// What a pass came to.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In order; bindings are charged to the view already.
    pub proposals: Vec<Proposal>,
    /// A bound was reached: there is more to plan at once.
    pub more: bool,
    /// Nodes, groups and cards looked at.
    pub steps: u64,
    /// Decisions taken, fruitless ones included.
    pub decisions: u64,
    /// Gangs that cannot be counted on to start when they were promised: nodes were lost, or something ran over its time.
    pub promises_broken: u64,
}

/// Plans one pass over `cell`. `now_ms` is the clock that the state's times are of; time limits are counted from there.
pub fn plan(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64) -> Plan {
    let mut plan = Plan::default();
    let mut steps = Steps::default();
    view.last_pass_ms = now_ms;
    view.wake_rested(now_ms);
    view.look_ahead(cell);
    view.judge_scarcity(cell);
    let mut pass = Pass { cell, now_ms, guards: guard::guards(view, cell) };
    start_waiting(view, &mut pass, bounds, &mut steps, &mut plan);
    if !plan.more {
        reserve(view, cell, bounds, now_ms, &mut steps, &mut plan);
    }
    hand_over(view, cell, bounds, now_ms, &mut plan);
    guard::count(view, cell, bounds, now_ms, &mut plan);
    plan.steps = steps.0;
    plan
}

/// Starts what may start; what is found is charged to the view. Who is next is decided anew after each that starts, so several passes of
/// one binding each start the same.
pub(crate) fn start_waiting(view: &mut View, pass: &mut Pass, bounds: &Bounds, steps: &mut Steps, plan: &mut Plan) {
    loop {
        start_promised(view, pass, bounds, steps, plan);
        start_in_turn(view, pass, bounds, steps, plan);
        let started = start_promised_behind(view, pass, bounds, steps, plan);
        // Who was held back for a gang that has started is not, and is not to be offered to another cell for it.
        let started_guarded = pass.guards.values().any(|guard| view.is_assumed(guard.gang));
        if started_guarded && !plan.more {
            pass.guards = guard::guards(view, pass.cell);
        } else if !started {
            return;
        }
    }
}

impl Plan {
    /// Whether no more may be looked for in this pass; there is more to plan then.
    fn at_a_bound(&mut self, bounds: &Bounds, steps: Steps) -> bool {
        self.more |= self.proposals.len() >= bounds.proposals_max || steps.0 >= bounds.steps_max;
        self.more
    }
}

/// Everybody in turn, as far as nothing holds their group back.
fn start_in_turn(view: &mut View, pass: &Pass, bounds: &Bounds, steps: &mut Steps, plan: &mut Plan) {
    let mut order = candidates(view, pass);
    while let Some(head) = order.next().cloned() {
        if plan.at_a_bound(bounds, *steps) {
            break;
        }
        plan.decisions += 1;
        match try_start(view, pass, (head.queue_key.job, &head.class), steps) {
            Ok(binding) => plan.proposals.push(Proposal::Bind(binding)),
            Err(obstacles) => block(view, pass.cell, &head, obstacles),
        }
        catch_up(view, pass.cell, &mut order);
    }
    if let Some(queue) = view.queues.get_mut(&pass.cell) {
        queue.order = order;
    }
}

/// Gangs whose nodes are all theirs now, whoever else of their tenant and class waits before them.
fn start_promised(view: &mut View, pass: &Pass, bounds: &Bounds, steps: &mut Steps, plan: &mut Plan) {
    while view.has_untried_promises(pass.cell) && !plan.at_a_bound(bounds, *steps) {
        let Some((job, class)) = view.next_on_own_nodes(pass.cell) else { return };
        plan.decisions += 1;
        if let Ok(binding) = try_start(view, pass, (job, &class), steps) {
            plan.proposals.push(Proposal::Bind(binding));
        }
    }
}

/// The next gang with a reservation that others of its tenant and class go before: where these found no place it may, with its own nodes beside
/// what is free. Answers whether one started.
fn start_promised_behind(view: &mut View, pass: &Pass, bounds: &Bounds, steps: &mut Steps, plan: &mut Plan) -> bool {
    while view.has_untried_promises(pass.cell) && !plan.at_a_bound(bounds, *steps) {
        let Some((job, class)) = view.next_promised(pass.cell) else { return false };
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
    let books = Books { capacity: &view.capacity, totals: &view.totals };
    let Some(queue) = view.queues.get_mut(&cell) else { return };
    while let Some(tenant) = queue.take_changed() {
        order.update(books, tenant, queue.head(tenant));
    }
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
    view.stand_apart(job.id, false);
    let may = |view: &View, offer: &Offer| gate::before_place(view, pass, &job, class, offer).is_ok();
    let alone = view.best_alone(|model| pass.ask(&job, class, model), may, steps);
    let proved = |(offer, tasks): (Offer, Vec<TaskPlacement>)| {
        gate::prove(view, &job, class, &offer, &tasks).ok()?;
        Some(bind(&job, &offer, tasks))
    };
    let binding = match alone.and_then(proved) {
        Some(binding) => Ok(binding),
        None => search(view, pass, &job, class, steps),
    };
    match &binding {
        Ok(binding) => view.begin(&job, class, binding, pass.cell, pass.now_ms),
        Err(_) => view.tried_in_vain(job.id),
    }
    binding
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
    obstacles.sort_unstable();
    obstacles.dedup();
    if let Some(queue) = view.queues.get_mut(&cell) {
        queue.block(head.tenant, &head.class, Blocked { obstacles });
    }
}

/// Offers jobs to other cells that have waited long enough for room here.
fn hand_over(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64, plan: &mut Plan) {
    if view.cells.len() < 2 {
        return;
    }
    let mut due: Vec<JobId> = Vec::new();
    let Some(queue) = view.queues.get(&cell) else { return };
    for group in queue.groups().filter(|group| group.blocked.as_ref().is_some_and(Blocked::wants_room)) {
        let room = bounds.proposals_max.saturating_sub(plan.proposals.len() + due.len());
        let jobs = group.keys.iter().take(HAND_OVERS_PER_GROUP_MAX).map(|queue_key| queue_key.job);
        due.extend(jobs.filter(|job| may_leave(view, cell, *job, now_ms)).take(room));
    }
    for job in due {
        view.stays(job, now_ms + HAND_OVER_AGAIN_MS);
        plan.proposals.push(Proposal::HandOver(job));
    }
}

fn may_leave(view: &View, cell: CellId, job: JobId, now_ms: u64) -> bool {
    let Some(job) = view.jobs.get(job.0) else { return false };
    let waited_ms = now_ms.saturating_sub(job.routed_ms);
    let unvisited = view.cells.keys().any(|other| *other != cell && !job.visited.contains(other));
    let elsewhere = unvisited || waited_ms >= HAND_OVER_ROUND_MS;
    let stays = view.stays_until.get(&job.id).is_some_and(|until_ms| *until_ms > now_ms);
    waited_ms >= HAND_OVER_AFTER_MS && elsewhere && !stays && view.reserved(job.id).is_none()
}
