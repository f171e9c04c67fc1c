//! Reclaim and preemption: a job that a floor account covers takes devices from burst work; a job takes them from lower priorities of its own tenant.
//!
//! Proof first: in a trial on the view, undone at its end, legal victims end in the order in which they would be missed least, until the job
//! passes the gates; those that its place does not need are restored. What must stay true:
//! - nothing is proposed without a place for the whole gang, topology included;
//! - a victim is legal by the rules that the control plane proves again: burst whose side is above its guarantee, out of its cool-down, or a lower
//!   priority of the same tenant;
//! - victims go by priority, then by what is lost (GPU time since the last checkpoint, and the cost of a restart), then the youngest first;
//! - a job that was tried in vain is left alone for a while that grows, so that a pass costs little while nothing can be taken.

use super::if_ended::IfEnded;
use crate::job_class::{JobClass, Offer};
use crate::proposal::{Bounds, Plan, Proposal};
use crate::search::Steps;
use crate::view::{Known, ReclaimGroup, ReclaimTried, View, in_turn};
use muster_model::capacity::Ended;
use muster_model::{
    Allocation, AllocationId, AllocationState, Binding, CellId, Claim, Epoch, GpuModel, JobId, NodeId, TaskPlacement,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Waiting jobs that one pass looks at: covered demand stands at the head of the queue.
const LOOKED_AT_MAX: usize = 64;
/// A job that was tried in vain is tried again after this, then after twice as long, up to [`AGAIN_MS_MAX`].
const AGAIN_MS: u64 = 1_000;
/// Cool-downs end and sides grow in minutes.
const AGAIN_MS_MAX: u64 = 60_000;
/// Times further away than this are rounded up to a multiple of it.
const TOGETHER_MS: u64 = 10_000;
/// Victims of one preemption.
const VICTIMS_MAX: usize = muster_model::bounds::VICTIMS_PER_PREEMPT_MAX;

/// What can be taken, and how much it would be missed: the least goes first.
#[derive(Clone, Debug)]
struct Victim {
    held: Arc<Allocation>,
    missed: Missed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Missed {
    priority: i32,
    /// GPU unit-milliseconds that would be done again.
    lost: u64,
    youngest: Reverse<u64>,
    id: AllocationId,
}

/// Plans preemptions for the first jobs that wait for devices that others hold.
pub(crate) fn reclaim(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64, steps: &mut Steps, plan: &mut Plan) {
    try_candidates(view, cell, bounds, now_ms, steps, plan);
    put_off(view, cell, now_ms);
}

fn try_candidates(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64, steps: &mut Steps, plan: &mut Plan) {
    if bounds.preemptions_max == 0 {
        return;
    }
    let due = candidates(view, cell, bounds.preemptions_max, now_ms);
    if due.is_empty() {
        return;
    }
    let mut held = in_cell(view, cell, now_ms, steps);
    for id in due {
        if plan.at_a_bound(bounds, *steps) {
            return;
        }
        let Some(job) = view.jobs.get(id.0).cloned() else { continue };
        let Some(class) = job.class.clone() else { continue };
        let found = class
            .offers()
            .to_vec()
            .iter()
            .find_map(|offer| search(view, (&job, &class), offer, cell, &held, now_ms, steps));
        match found {
            Some((binding, victims, claim)) => {
                view.reclaims_tried.remove(&(cell, job.tenant, class.clone()));
                view.assume_preemption(&job, claim, &victims);
                // They are taken: nobody else ends them.
                held.retain(|victim| !victims.contains(&victim.held.id));
                plan.proposals.push(Proposal::Preempt { binding, victims });
            }
            None => tried_in_vain(view, (cell, job.tenant, class), now_ms),
        }
    }
}

fn tried_in_vain(view: &mut View, group: ReclaimGroup, now_ms: u64) {
    let before = view.reclaims_tried.get(&group).map_or(0, |tried| tried.wait_ms);
    let wait_ms = (2 * before).clamp(AGAIN_MS, AGAIN_MS_MAX);
    view.reclaims_tried.insert(group, ReclaimTried { wait_ms, again_ms: again_ms(now_ms, wait_ms) });
}

/// Times are rounded up, so that many groups are tried in one pass and do not each wake the shard.
fn again_ms(now_ms: u64, wait_ms: u64) -> u64 {
    now_ms.saturating_add(wait_ms).next_multiple_of(wait_ms.clamp(AGAIN_MS, TOGETHER_MS))
}

/// Groups that are due and were not tried in this pass are tried later: a time that has passed would wake the shard again at once, for ever.
fn put_off(view: &mut View, cell: CellId, now_ms: u64) {
    let due = view.reclaims_tried.iter_mut().filter(|(group, tried)| group.0 == cell && tried.again_ms <= now_ms);
    for (_, tried) in due {
        tried.again_ms = again_ms(now_ms, tried.wait_ms);
    }
}

/// The first waiting jobs of the cell that found no place, one of each group, and that may take devices from others.
fn candidates(view: &mut View, cell: CellId, tried_max: usize, now_ms: u64) -> Vec<JobId> {
    let queues = &view.queues;
    let waits = |(cell, tenant, class): &ReclaimGroup| {
        let groups = queues.get(cell).and_then(|queue| queue.tenants.get(tenant));
        groups.is_some_and(|groups| groups.all.contains_key(class))
    };
    view.reclaims_tried.retain(|key, _| waits(key));
    let view = &*view;
    if view.allocations.values().next().is_none()
        || !view.queues.get(&cell).is_some_and(crate::queue::CellQueue::has_blocked)
    {
        return Vec::new();
    }
    let (mut found, mut seen, mut looked) = (Vec::new(), BTreeSet::new(), 0);
    in_turn(view, cell, |id| {
        looked += 1;
        let Some(job) = view.jobs.get(id.0) else { return ControlFlow::Continue(()) };
        if let Some(class) = job.class.as_ref()
            && !seen.contains(&(job.tenant, class.clone()))
        {
            seen.insert((job.tenant, class.clone()));
            let rests = view
                .reclaims_tried
                .get(&(cell, job.tenant, class.clone()))
                .is_some_and(|tried| tried.again_ms > now_ms);
            if !rests
                && is_blocked(view, cell, job, class)
                && may_preempt(view, job, class)
                && view.stays_in(cell, job, now_ms)
            {
                found.push(id);
            }
        }
        let enough = looked >= LOOKED_AT_MAX || found.len() >= tried_max;
        if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

fn is_blocked(view: &View, cell: CellId, job: &Known, class: &Arc<JobClass>) -> bool {
    let group = || view.queues.get(&cell)?.tenants.get(&job.tenant)?.all.get(class)?.blocked.as_ref();
    group().is_some()
}

/// Whether a floor account covers it, or something of its own tenant with a lower priority may run.
fn may_preempt(view: &View, job: &Known, class: &JobClass) -> bool {
    let covered = |offer: &Offer| view.fleet.capacity.account_for(job.tenant, &offer.charge).is_some();
    view.runs_below(job.tenant, job.queue_key.priority()) || class.offers().iter().any(covered)
}

/// What runs in the cell and is committed, with how much it would be missed.
fn in_cell(view: &View, cell: CellId, now_ms: u64, steps: &mut Steps) -> Vec<Victim> {
    let active = view.allocations.values().filter(|held| held.cell == cell && held.state == AllocationState::Active);
    let victims: Vec<Victim> = active
        .map(|held| {
            let restart_ms = view.jobs.get(held.job.0).map_or(0, |job| 1_000 * job.restart_cost_s);
            let since_ms = now_ms.saturating_sub(view.saved_ms(held)) + restart_ms;
            let lost = held.charge.gpu_total().0.saturating_mul(since_ms);
            let missed = Missed { priority: held.priority, lost, youngest: Reverse(held.bound_ms), id: held.id };
            Victim { held: held.clone(), missed }
        })
        .collect();
    steps.0 += victims.len() as u64 / 8;
    victims
}

type Found = (Binding, Vec<AllocationId>, Claim);

/// Looks for victims on one model.
fn search(
    view: &mut View,
    (job, class): (&Known, &Arc<JobClass>),
    offer: &Offer,
    cell: CellId,
    held: &[Victim],
    now_ms: u64,
    steps: &mut Steps,
) -> Option<Found> {
    let capacity = &view.fleet.capacity;
    let covered = capacity.account_for(job.tenant, &offer.charge).is_some();
    let priority = job.queue_key.priority();
    let same_model = |victim: &&Victim| victim.held.model == offer.model || offer.model.is_none();
    let legal = |victim: &&Victim| {
        let held = &victim.held;
        let own = held.tenant == job.tenant && held.priority < priority;
        let burst = held.account().is_none() && now_ms >= held.bound_ms.saturating_add(capacity.cool_down_ms(held));
        own && (burst || held.account().is_some())
            || covered && burst && capacity.may_reclaim(&Ended::default(), (job.tenant, &offer.charge), held)
    };
    let mut legal: Vec<&Victim> = held.iter().filter(same_model).filter(legal).collect();
    steps.0 += held.len() as u64 / 4;
    if legal.is_empty() {
        return None;
    }
    legal.sort_unstable_by_key(|victim| victim.missed);
    let order = if class.whole_cards_each() > 0 { by_node(view, class, offer.model, &legal) } else { legal };
    let ended = end_until_it_fits(view, (job, class), offer, cell, &order, now_ms, steps)?;
    Some(ended)
}

/// The victims node by node: nodes first on which enough cards for a task are had from the victims that are missed least.
fn by_node<'a>(view: &View, class: &JobClass, model: Option<GpuModel>, legal: &[&'a Victim]) -> Vec<&'a Victim> {
    let mut on_node: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
    for (at, victim) in legal.iter().enumerate() {
        let mut last = None;
        for task in victim.held.tasks.iter().filter(|task| Some(task.node) != last.replace(task.node)) {
            let on = on_node.entry(task.node).or_default();
            if on.last() != Some(&at) {
                on.push(at);
            }
        }
    }
    let each = class.whole_cards_each();
    let mut nodes: Vec<(i32, u64, NodeId, Vec<usize>)> = Vec::new();
    for (id, victims) in on_node {
        let Some(there) = view.fleet.capacity.nodes().get(&id).filter(|there| there.node.accepts_work()) else {
            continue;
        };
        let of_model = |gpu: u16| there.node.spec.gpus.get(usize::from(gpu)).map(|card| card.model) == model;
        let mut free = (0..there.cards.len() as u16).filter(|gpu| of_model(*gpu) && there.is_free(*gpu)).count() as u32;
        let (mut taken, mut priority, mut lost) = (Vec::new(), i32::MIN, 0_u64);
        // Tasks on this node are opened one after the other, as long as that makes one more task fit.
        let (mut open, mut pending) = (Vec::new(), (i32::MIN, 0_u64));
        let mut fit = free / each;
        for at in victims {
            let victim = legal[at];
            let here = victim.held.tasks.iter().filter(|task| task.node == id);
            free += here.map(|task| task.devices.len() as u32).sum::<u32>();
            pending = (pending.0.max(victim.missed.priority), pending.1.saturating_add(victim.missed.lost));
            open.push(at);
            if free / each > fit {
                fit = free / each;
                (priority, lost) = (priority.max(pending.0), lost.saturating_add(pending.1));
                taken.append(&mut open);
                nodes.push((priority, lost, id, std::mem::take(&mut taken)));
                pending = (i32::MIN, 0);
            }
        }
    }
    nodes.sort_unstable_by_key(|(priority, lost, id, _)| (*priority, *lost, *id));
    let mut seen = vec![false; legal.len()];
    let mut order = Vec::with_capacity(legal.len());
    for at in nodes.into_iter().flat_map(|(_, _, _, victims)| victims) {
        if !std::mem::replace(&mut seen[at], true) {
            order.push(legal[at]);
        }
    }
    order
}

/// Ends victims in order, more and more at a time, until the job has a place; then restores those that the place does not need.
fn end_until_it_fits(
    view: &mut View,
    (job, class): (&Known, &Arc<JobClass>),
    offer: &Offer,
    cell: CellId,
    order: &[&Victim],
    now_ms: u64,
    steps: &mut Steps,
) -> Option<Found> {
    let priority = job.queue_key.priority();
    let mut trial = IfEnded::begin(view, job.id, cell, now_ms)?;
    let (mut ended, mut next, mut goal): (Vec<&Arc<Allocation>>, usize, u64) =
        (Vec::new(), 0, offer.charge.gpu_total().0);
    let free = trial.free_units(offer.model);
    goal = goal.saturating_sub(free).max(1);
    let tasks = loop {
        let mut freed = 0_u64;
        while freed < goal
            && ended.len() < VICTIMS_MAX
            && let Some(victim) = order.get(next)
        {
            next += 1;
            let held = &victim.held;
            let own = held.tenant == job.tenant && held.priority < priority;
            // Those before it are gone: its side may be within its guarantee by now.
            if own || trial.may_reclaim(&offer.charge, held) {
                trial.end(held);
                ended.push(held);
                freed += held.charge.gpu_total().0.max(1);
                steps.0 += held.tasks.len() as u64;
            }
        }
        if freed == 0 {
            return None;
        }
        if let Ok(tasks) = trial.place(offer) {
            break tasks;
        }
        goal = goal.saturating_mul(2);
    };
    let needed = restore_unneeded(&mut trial, offer, &tasks, ended);
    let account = trial.account_for(&offer.charge);
    let reclaims = needed.iter().any(|held| held.tenant != job.tenant || held.priority >= priority);
    let lost_floor: u64 =
        needed.iter().filter(|held| held.account().is_some()).map(|held| held.charge.potential()).sum();
    if needed.is_empty() || reclaims && (account.is_none() || offer.charge.potential() <= lost_floor) {
        return None;
    }
    let victims: Vec<AllocationId> = needed.iter().map(|held| held.id).collect();
    let claim = Claim {
        allocation: AllocationId(0),
        cell,
        cell_epoch: Epoch(0),
        model: offer.model,
        charge: class.charge_on(offer.model),
        account,
        tasks: tasks.clone(),
        node_epochs: BTreeMap::new(),
        victims: victims.iter().copied().collect(),
        made_ms: now_ms,
    };
    let binding = Binding { job: job.id, attempt: job.attempt.next(), model: offer.model, tasks };
    Some((binding, victims, claim))
}

/// Lets go on whoever is not in the way of the place; answers the others, in their order.
fn restore_unneeded<'a>(
    trial: &mut IfEnded<'_>,
    offer: &Offer,
    tasks: &[TaskPlacement],
    ended: Vec<&'a Arc<Allocation>>,
) -> Vec<&'a Arc<Allocation>> {
    let mut cards: BTreeSet<(NodeId, u16)> = BTreeSet::new();
    for task in tasks {
        cards.extend(task.devices.iter().map(|hold| (task.node, hold.gpu)));
    }
    let meets = |held: &Arc<Allocation>| {
        held.tasks.iter().any(|task| task.devices.iter().any(|hold| cards.contains(&(task.node, hold.gpu))))
    };
    let mut needed: Vec<(usize, &Arc<Allocation>)> = Vec::new();
    let mut restored: Vec<(usize, &Arc<Allocation>)> = Vec::new();
    for (at, held) in ended.into_iter().enumerate() {
        if meets(held) {
            needed.push((at, held));
        } else {
            trial.restore(held);
            restored.push((at, held));
        }
    }
    // CPU, memory or a max of the tenant may need some of them after all.
    let mut back = restored.into_iter();
    while !trial.takes(offer, tasks)
        && let Some((at, held)) = back.next()
    {
        trial.end(held);
        needed.push((at, held));
    }
    // Shares of a card may fit beside some of those on the card.
    if offer.charge.gpu_total().0 < muster_model::GpuUnits::CARD.0 {
        needed.retain(|(_, held)| {
            trial.restore(held);
            let fits = trial.takes(offer, tasks);
            if !fits {
                trial.end(held);
            }
            !fits
        });
    }
    needed.sort_unstable_by_key(|(at, _)| *at);
    needed.into_iter().map(|(_, held)| held).collect()
}
