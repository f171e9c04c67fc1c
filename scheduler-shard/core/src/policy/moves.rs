//! Moves: a gang, or a part of a card, that waits only because what is free is scattered gets a place by running jobs being started elsewhere.
//!
//! Pools say whether they move jobs, and what that may cost ([`Pool::moves_jobs`](muster_model::Pool::moves_jobs)). The planner finds the cheapest set
//! of movable jobs within what the budget has left, with a proven new place for each. What must stay true:
//! - nothing is proposed without a place for the whole gang and one for every moved job, and the gang passes the gates;
//! - one move is proposed at a time, so that the budget in the view is the one that the control plane proves against;
//! - a gang that was tried in vain is left alone for a while that grows.

use super::if_ended::IfEnded;
use crate::job_class::{JobClass, Offer};
use crate::planner::{Opening, Settings, may_open_for, open_in_pool};
use crate::proposal::{Bounds, Plan, Proposal};
use crate::queue::order::Head;
use crate::search::Steps;
use crate::view::{Known, ReclaimFamily, ReclaimTried, View, first_of};
use muster_model::moves::{Left, spent};
use muster_model::{Allocation, Binding, CellId, Claim, Epoch, JobId, PlannedMove, TaskPlacement, TenantId};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A gang that was tried in vain is tried again after this, then after twice as long, up to [`AGAIN_MS_MAX`].
const AGAIN_MS: u64 = 1_000;
/// Budgets and checkpoints change in minutes, and each search goes over the whole cell.
const AGAIN_MS_MAX: u64 = 60_000;
/// Nodes, states and sets that one search looks at: some tens of milliseconds.
const STEPS_MAX: u64 = 1_000_000;

/// Plans moves for the first gangs that wait in a cell.
pub(crate) fn make(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64, steps: &mut Steps, plan: &mut Plan) {
    let pools = pools_with_budget(view, now_ms);
    if bounds.moves_max == 0 || pools.is_empty() {
        view.moves_tried.retain(|family, _| family.0 != cell);
        return;
    }
    if !view.is_moving() {
        plan_one(view, cell, &pools, bounds, now_ms, steps, plan);
    }
    // What was due and was not tried is tried later: a time that has passed would wake the shard at once, for ever.
    let due = view.moves_tried.iter_mut().filter(|(family, tried)| family.0 == cell && tried.again_ms <= now_ms);
    due.for_each(|(_, tried)| tried.again_ms = now_ms.saturating_add(AGAIN_MS));
}

fn plan_one(
    view: &mut View,
    cell: CellId,
    pools: &[(String, Left)],
    bounds: &Bounds,
    now_ms: u64,
    steps: &mut Steps,
    plan: &mut Plan,
) {
    let (first, next) = candidates(view, cell, bounds.moves_max, now_ms);
    if let Some(next) = next {
        rest(view, (cell, next.tenant, next.class.without_limit()), now_ms, AGAIN_MS);
    }
    for Head { queue_key, class, .. } in first {
        if plan.at_a_bound(bounds, *steps) {
            return;
        }
        let Some(job) = view.jobs.get(queue_key.job.0).cloned() else { continue };
        let family = (cell, job.tenant, class.without_limit());
        match search(view, &job, &class, pools, now_ms, steps) {
            Some((binding, moves)) => {
                view.moves_tried.remove(&family);
                plan.proposals.push(Proposal::Move { binding, moves });
                return;
            }
            None => {
                let before = view.moves_tried.get(&family).map_or(0, |tried| tried.wait_ms);
                rest(view, family, now_ms, (2 * before).clamp(AGAIN_MS, AGAIN_MS_MAX));
            }
        }
    }
}

fn rest(view: &mut View, family: ReclaimFamily, now_ms: u64, wait_ms: u64) {
    view.moves_tried.insert(family, ReclaimTried::in_vain(now_ms, wait_ms, None));
}

fn pools_with_budget(view: &View, now_ms: u64) -> Vec<(String, Left)> {
    let moving = view.fleet.capacity.pools().values().filter(|pool| pool.moves_jobs());
    let left = moving.map(|pool| (pool.name.clone(), pool.moves_left(spent(view.moves.values(), &pool.name, now_ms))));
    left.filter(|(_, left)| left.moves > 0 && left.unit_s > 0).collect()
}

/// The first waiting gangs for whole cards, and single parts of cards, that found no place, one of each family, that are due, and the one after them.
fn candidates(view: &mut View, cell: CellId, most: usize, now_ms: u64) -> (Vec<Head>, Option<Head>) {
    let queues = &view.queues;
    view.moves_tried.retain(|(cell, tenant, family), _| {
        queues.get(cell).is_some_and(|queue| queue.family_blocked_at(*tenant, family).is_some())
    });
    let mut due: BTreeMap<TenantId, Vec<Head>> = BTreeMap::new();
    for (tenant, groups) in view.queues.get(&cell).into_iter().flat_map(|queue| &queue.tenants) {
        let rests = |family: &Arc<JobClass>| {
            let tried = view.moves_tried.get(&(cell, *tenant, family.clone()));
            tried.is_some_and(|tried| tried.again_ms > now_ms)
        };
        for family in groups.families.keys().filter(|family| may_open_for(family)).filter(|family| !rests(family)) {
            let Some((queue_key, class)) = groups.first_blocked(family) else { continue };
            let may = |job: &Arc<Known>| !job.barred && view.stays_in(cell, job, now_ms);
            if view.jobs.get(queue_key.job.0).is_some_and(may) {
                due.entry(*tenant).or_default().push(Head::new(*tenant, *queue_key, class.clone()));
            }
        }
    }
    due.values_mut().for_each(|heads| heads.sort_unstable_by_key(|head| Reverse(head.queue_key)));
    first_of(view, due, most)
}

/// The first pool, by name, in which moves open a place; what they come to is shown in the view.
fn search(
    view: &mut View,
    job: &Arc<Known>,
    class: &Arc<JobClass>,
    pools: &[(String, Left)],
    now_ms: u64,
    steps: &mut Steps,
) -> Option<(Binding, Vec<PlannedMove>)> {
    let settings = Settings { share_percent: 100, steps_max: STEPS_MAX, now_ms };
    pools.iter().find_map(|(pool, left)| {
        // What is reserved for it is among what it may use.
        view.apply_reservation(job.id, false);
        let (opening, looked) = open_in_pool(view, job.id, pool, *left, &settings);
        view.apply_reservation(job.id, true);
        steps.0 += looked;
        let opening = opening.filter(|opening| !opening.moves.is_empty())?;
        let offer = class.offers().iter().find(|offer| offer.model == Some(opening.model)).cloned()?;
        passes_the_gates(view, job, &opening, &offer, now_ms).then(|| propose(view, job, class, opening, now_ms))?
    })
}

/// Whether the gang would start once the jobs have left: quotas, guards and reservations hold for it as for any other.
fn passes_the_gates(view: &mut View, job: &Known, opening: &Opening, offer: &Offer, now_ms: u64) -> bool {
    let held: Vec<Arc<Allocation>> =
        opening.moves.iter().filter_map(|made| view.allocation(made.allocation).cloned()).collect();
    let Some(cell) = job.cell else { return false };
    let Some(mut trial) = IfEnded::begin(view, job.id, cell, now_ms) else { return false };
    held.iter().for_each(|one| trial.end(one));
    trial.place(offer).is_ok()
}

/// Shows the move in the view, and says what to ask of the control plane.
fn propose(
    view: &mut View,
    job: &Arc<Known>,
    class: &JobClass,
    opening: Opening,
    now_ms: u64,
) -> Option<(Binding, Vec<PlannedMove>)> {
    let cell = job.cell?;
    let (model, tasks) = (Some(opening.model), opening.tasks);
    let charge = class.charge_on(model);
    let claim = |tasks: &[TaskPlacement], model, charge, account| Claim {
        allocation: muster_model::AllocationId(0),
        cell,
        cell_epoch: Epoch(0),
        model,
        charge,
        account,
        tasks: tasks.to_vec(),
        node_epochs: BTreeMap::new(),
        victims: opening.moves.iter().map(|made| made.allocation).collect(),
        made_ms: now_ms,
    };
    let account = view.fleet.capacity.account_for(job.tenant, &charge);
    let mut moved: Vec<(JobId, TenantId, Claim)> = Vec::with_capacity(opening.moves.len());
    for made in &opening.moves {
        let held = view.allocation(made.allocation)?;
        moved.push((held.job, held.tenant, claim(&made.to, held.model, held.charge, None)));
    }
    let moves = opening.moves.iter();
    let moves = moves.map(|made| PlannedMove { allocation: made.allocation, tasks: made.to.clone() }).collect();
    let gang = claim(&tasks, model, charge, account);
    view.assume_move(job, gang, moved);
    Some((Binding { job: job.id, attempt: job.attempt.next(), model, tasks }, moves))
}
