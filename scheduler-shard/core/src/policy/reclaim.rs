//! Reclaim and preemption: a job that a floor account covers takes devices from burst work; a job takes them from lower priorities of its own tenant.
//!
//! Proof first: in a trial on the view, undone at its end, legal victims end in the order in which they would be missed least, until the job
//! passes the gates; those that its place does not need are restored. What must stay true:
//! - nothing is proposed without a place for the whole gang, topology included;
//! - a victim is legal by the rules that the control plane proves again ([`Asks`]);
//! - victims go in the order of [`in_order`];
//! - a job that was tried in vain is left alone for a while that grows, so that a pass costs little while nothing can be taken.

use super::if_ended::IfEnded;
use super::stagger;
use super::victims::{Victim, in_cell, in_order};
use crate::job_class::{JobClass, Offer};
use crate::proposal::{Bounds, Plan, Proposal};
use crate::search::Steps;
use crate::view::{Known, ReclaimGroup, ReclaimTried, View, in_turn};
use muster_model::capacity::Ended;
use muster_model::priority_class::class_preempts;
use muster_model::{Allocation, AllocationId, AllocationState, Binding, CellId, Claim, Epoch, JobId, TenantId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Waiting jobs that one pass looks at: covered demand stands at the head of the queue.
const LOOKED_AT_MAX: usize = 64;
/// A job that was tried in vain is tried again after this, then after twice as long, up to [`AGAIN_MS_MAX`].
const AGAIN_MS: u64 = 1_000;
/// Cool-downs end and sides grow in minutes.
const AGAIN_MS_MAX: u64 = muster_model::preemption::RECLAIM_AGAIN_MS_MAX;
/// Where something has changed since for the job, it is tried again after this at the latest.
const CHANGED_MS: u64 = 5_000;
/// Victims of one preemption.
const VICTIMS_MAX: usize = muster_model::bounds::VICTIMS_PER_PREEMPT_MAX;

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
            Some((_, victims, _)) if stagger::must_wait(view, &victims) => {
                let group = (cell, job.tenant, class);
                rest(view, group, now_ms, AGAIN_MS);
            }
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
    rest(view, group, now_ms, wait_ms);
}

fn rest(view: &mut View, group: ReclaimGroup, now_ms: u64, wait_ms: u64) {
    let blocked_at = view.queues.get(&group.0).and_then(|queue| queue.blocked_at(group.1, &group.2));
    let again_ms = now_ms.saturating_add(wait_ms);
    view.reclaims_tried.insert(group, ReclaimTried { tried_ms: now_ms, wait_ms, again_ms, blocked_at });
}

/// Groups that are due and were not tried in this pass are tried later: a time that has passed would wake the shard again at once, for ever.
fn put_off(view: &mut View, cell: CellId, now_ms: u64) {
    let due = view.reclaims_tried.iter_mut().filter(|(group, tried)| group.0 == cell && tried.again_ms <= now_ms);
    for (_, tried) in due {
        tried.again_ms = now_ms.saturating_add(tried.wait_ms);
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
    for ((_, tenant, class), tried) in view.reclaims_tried.iter_mut().filter(|(group, _)| group.0 == cell) {
        let blocked_at = queues.get(&cell).and_then(|queue| queue.blocked_at(*tenant, class));
        // It was tried since, and found no place: what was in vain then may not be now.
        if blocked_at.is_some() && blocked_at != tried.blocked_at {
            tried.blocked_at = blocked_at;
            tried.again_ms = tried.again_ms.min(tried.tried_ms.saturating_add(tried.wait_ms.min(CHANGED_MS)));
        }
    }
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
    let own = view.runs_below(job.tenant, job.queue_key.priority());
    let marks = || job.priority_class.as_deref().and_then(|name| view.priority_classes.get(name));
    !job.barred
        && (own || class.offers().iter().any(covered) || marks().is_some_and(|class| !class.preempts.is_empty()))
}

type Found = (Binding, Vec<AllocationId>, Claim);

/// By which rules a job may take devices from whom.
struct Asks<'a> {
    tenant: TenantId,
    priority: i32,
    offer: &'a Offer,
    /// A floor account covers it.
    covered: bool,
    class: Option<Arc<str>>,
    now_ms: u64,
    /// Some pool has a cool-down, or a bound of preemptions: most have neither, and then nobody's pool is looked up.
    pools_matter: bool,
}

/// A victim's tenant, whether the victim frees GPUs, CPU and memory that are asked for, and whether it is growth: whether its side may be
/// reclaimed from goes by these.
type Side = (TenantId, [bool; 4]);

impl<'a> Asks<'a> {
    fn of(view: &View, job: &Known, offer: &'a Offer, now_ms: u64) -> Self {
        let capacity = &view.fleet.capacity;
        let covered = capacity.account_for(job.tenant, &offer.charge).is_some();
        let (priority, class) = (job.queue_key.priority(), job.priority_class.clone());
        let pools_matter = capacity.pools().values().any(|pool| pool.cool_down_s > 0 || pool.preemptions_max.is_some());
        Asks { tenant: job.tenant, priority, offer, covered, class, now_ms, pools_matter }
    }

    /// A lower priority of the same tenant; of burst that is out of its cool-down also one whose side is above its guarantee, for a job that a
    /// floor covers, and one of lower priority whose class the job's class is marked over. `sides`: what was found of sides since something ended
    /// last.
    fn may_take(&self, view: &View, held: &Allocation, sides: &mut BTreeMap<Side, bool>) -> bool {
        let capacity = &view.fleet.capacity;
        let burst = held.account().is_none();
        let lower = held.priority < self.priority;
        let mut reclaims = || {
            let asked = (self.tenant, &self.offer.charge);
            *sides.entry(self.side(held)).or_insert_with(|| capacity.may_reclaim(&Ended::default(), asked, held))
        };
        let by_right = held.tenant == self.tenant && lower
            || burst && self.covered && reclaims()
            || burst && lower && self.is_marked(view, held);
        by_right && (!self.pools_matter || self.pools_allow(view, held, burst))
    }

    fn side(&self, held: &Allocation) -> Side {
        let (asked, frees) = (&self.offer.charge, &held.charge);
        let gpus = self.offer.model.is_some_and(|model| asked.gpu(model).0 > 0 && frees.gpu(model).0 > 0);
        let cpu = asked.cpu_milli > 0 && frees.cpu_milli > 0;
        (held.tenant, [gpus, cpu, asked.memory_mib > 0 && frees.memory_mib > 0, held.is_growth])
    }

    fn is_marked(&self, view: &View, held: &Allocation) -> bool {
        self.class.is_some() && {
            let theirs = view.jobs.get(held.job.0).and_then(|job| job.priority_class.as_deref());
            class_preempts(&view.priority_classes, self.class.as_deref(), theirs)
        }
    }

    /// Whether it is out of its cool-down, and its job has not been preempted too often.
    fn pools_allow(&self, view: &View, held: &Allocation, burst: bool) -> bool {
        let capacity = &view.fleet.capacity;
        // Growth has no cool-down, and taking it is no preemption of its job.
        if held.is_growth {
            return true;
        }
        if burst && self.now_ms < held.bound_ms.saturating_add(capacity.cool_down_ms(held)) {
            return false;
        }
        let preempted = view.jobs.get(held.job.0).map_or(0, |job| job.preemptions);
        capacity.preemptions_max(held).is_none_or(|most| preempted < most)
    }
}

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
    let asks = Asks::of(view, job, offer, now_ms);
    let same_model = |victim: &&Victim| victim.held.model == offer.model || offer.model.is_none();
    let mut sides = BTreeMap::new();
    let legal = |victim: &&Victim| asks.may_take(view, &victim.held, &mut sides);
    let legal: Vec<&Victim> = held.iter().filter(same_model).filter(legal).collect();
    steps.0 += held.len() as u64 / 4;
    if legal.is_empty() {
        return None;
    }
    let order = in_order(view, class, offer, &legal);
    let ended = end_until_it_fits(view, (job, class), offer, cell, &order, now_ms, steps)?;
    Some(ended)
}

/// Ends victims in order, more and more at a time, until the job has a place; then restores those that the place does not need.
fn end_until_it_fits(
    view: &mut View,
    (job, class): (&Known, &Arc<JobClass>),
    offer: &Offer,
    cell: CellId,
    order: &[&Arc<Allocation>],
    now_ms: u64,
    steps: &mut Steps,
) -> Option<Found> {
    let asks = Asks::of(view, job, offer, now_ms);
    let mut growth: BTreeMap<JobId, Vec<Arc<Allocation>>> = BTreeMap::new();
    for part in view.growth_in(cell).filter(|part| part.state == AllocationState::Active) {
        growth.entry(part.job).or_default().push(part.clone());
    }
    let mut trial = IfEnded::begin(view, job.id, cell, now_ms)?;
    let (mut ended, mut next, mut goal): (Vec<&Arc<Allocation>>, usize, u64) =
        (Vec::new(), 0, offer.charge.gpu_total().0);
    let free = trial.free_units(offer.model);
    goal = goal.saturating_sub(free).max(1);
    let tasks = loop {
        let mut freed = 0_u64;
        while freed < goal
            && ended.len() < VICTIMS_MAX
            && let Some(&held) = order.get(next)
        {
            next += 1;
            // Those before it are gone: its side may be within its guarantee by now.
            if !ended.iter().any(|other| other.id == held.id) && asks.may_take(trial.view(), held, &mut BTreeMap::new())
            {
                // A minimum goes only with all of its growth, and once that is gone its side may be within its guarantee.
                for one in growth.get(&held.job).into_iter().flatten().filter(|_| !held.is_growth).chain([held]) {
                    let is_new = !ended.iter().any(|other| other.id == one.id);
                    if is_new && (one.is_growth || asks.may_take(trial.view(), one, &mut BTreeMap::new())) {
                        trial.end(one);
                        ended.push(one);
                        freed += one.charge.gpu_total().0.max(1);
                        steps.0 += one.tasks.len() as u64;
                    }
                }
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
    let needed = trial.restore_unneeded(offer, &tasks, ended);
    let account = trial.account_for(&offer.charge);
    let lower = |held: &&&Arc<Allocation>| held.priority < asks.priority;
    let mut others = needed.iter().filter(|held| held.tenant != job.tenant || !lower(held)).peekable();
    let lost_floor: u64 =
        needed.iter().filter(|held| held.account().is_some()).map(|held| held.charge.potential()).sum();
    // A reclaim raises the use that floors cover; what no floor covers takes from other tenants by its class alone.
    let is_legal = others.peek().is_none()
        || match account {
            Some(_) => offer.charge.potential() > lost_floor,
            None => others.all(|held| lower(&held) && asks.is_marked(trial.view(), held)),
        };
    if needed.is_empty() || !is_legal {
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
