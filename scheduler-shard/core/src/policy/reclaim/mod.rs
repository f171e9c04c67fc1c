//! Reclaim and preemption: a job that a floor account covers takes devices from burst work; a job takes them from lower priorities of its own tenant.
//!
//! Proof first: in a trial on the view, undone at its end, legal victims end in the order in which they would be missed least, until the job
//! passes the gates; those that its place does not need are restored. What must stay true:
//! - nodes that are reserved for gangs of burst are taken for a floor, where nothing else helps: a floor waits for nobody's burst;
//! - nothing is proposed without a place for the whole gang, topology included;
//! - a victim is legal by the rules that the control plane proves again ([`Asks`]);
//! - victims go in the order of [`in_order`];
//! - who is tried, and when again, follows from [`due`] alone;
//! - while somebody waits for the storage of checkpoints ([`stagger`]), nobody behind preempts in the cell: otherwise small victims could keep the
//!   storage busy for ever.

mod asks;
mod due;

use super::if_ended::IfEnded;
use super::stagger;
use super::victims::{Victim, in_cell, in_order};
use crate::job_class::{JobClass, Offer};
use crate::proposal::{Bounds, Plan, Proposal};
use crate::search::Steps;
use crate::view::{Known, View};
pub use asks::Protection;
pub(crate) use asks::protection;
use asks::{Asks, Verdict};
use due::{AGAIN_MS, candidates, put_off, tried_in_vain};
use muster_model::preemption::STOP_MS_MAX;
use muster_model::{Allocation, AllocationId, AllocationState, Binding, CellId, Claim, Epoch, JobId, TaskPlacement};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    if view.storage_waits.get(&cell).is_some_and(|until_ms| *until_ms > now_ms) {
        return;
    }
    view.storage_waits.remove(&cell);
    let due = candidates(view, cell, bounds.preemptions_max, now_ms);
    if due.is_empty() {
        return;
    }
    let held = in_cell(view, cell, now_ms, steps);
    // What an earlier one takes nobody else ends.
    let mut taken: BTreeSet<AllocationId> = BTreeSet::new();
    for id in due {
        if plan.at_a_bound(bounds, *steps) {
            return;
        }
        let Some(job) = view.jobs.get(id.0).cloned() else { continue };
        let Some(class) = job.class.clone() else { continue };
        let mut cool_at_ms = None;
        let offers = class.offers().to_vec();
        let mut search = |kept| {
            offers.iter().find_map(|offer| {
                let asks = Asks::of(view, &job, offer, now_ms);
                let yields = kept == Reservations::YieldToFloors;
                let may = !yields || asks.covered && view.has_burst_reservations(cell);
                may.then(|| search(view, (&job, &class), &asks, (cell, kept), (&held, &taken), &mut cool_at_ms, steps))
                    .flatten()
            })
        };
        let found = search(Reservations::Hold).or_else(|| search(Reservations::YieldToFloors));
        let family = (cell, job.tenant, class.without_limit());
        match found {
            Some(Found::Taken { victims, .. }) if stagger::must_wait(view, &victims) => {
                view.reclaims_tried.remove(&family);
                view.storage_waits.insert(cell, now_ms.saturating_add(AGAIN_MS));
                return;
            }
            Some(Found::Taken { binding, victims, claim }) => {
                view.reclaims_tried.remove(&family);
                view.assume_preemption(&job, *claim, &victims);
                taken.extend(&victims);
                plan.proposals.push(Proposal::Preempt { binding, victims });
            }
            Some(Found::Free(binding)) => {
                view.reclaims_tried.remove(&family);
                // Whoever had reserved them is to be told another place.
                binding.tasks.iter().for_each(|task| view.invalidate(task.node));
                view.assume(&job, &class, &binding, cell, now_ms);
                plan.proposals.push(Proposal::Bind(binding));
            }
            None => tried_in_vain(view, family, now_ms, cool_at_ms),
        }
    }
}

/// What nodes that are reserved for others are to a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reservations {
    /// They are not there.
    Hold,
    /// Those of gangs that no floor covers are there: a floor does not wait for burst. Tried when nothing else helps, since it breaks a promise.
    YieldToFloors,
}

/// What was found for a job.
enum Found {
    /// A place that nobody is in.
    Free(Binding),
    /// A place that these leave.
    Taken { binding: Binding, victims: Vec<AllocationId>, claim: Box<Claim> },
}

/// Looks for victims on one model. `cool_at_ms`: the first end of a cool-down that protected something.
fn search(
    view: &mut View,
    (job, class): (&Known, &Arc<JobClass>),
    asks: &Asks<'_>,
    (cell, kept): (CellId, Reservations),
    (held, taken): (&[Victim], &BTreeSet<AllocationId>),
    cool_at_ms: &mut Option<u64>,
    steps: &mut Steps,
) -> Option<Found> {
    let offer = asks.offer;
    let same_model = |victim: &&Victim| victim.held.model == offer.model || offer.model.is_none();
    let mut sides = BTreeMap::new();
    let is_legal = |victim: &&Victim| match asks.judge(view, &victim.held, &mut sides) {
        Verdict::Legal => true,
        Verdict::Protected => false,
        Verdict::CoolingDown { until_ms } => {
            *cool_at_ms = Some(cool_at_ms.map_or(until_ms, |first| first.min(until_ms)));
            false
        }
    };
    let mut legal: Vec<&Victim> = Vec::with_capacity(held.len());
    legal.extend(held.iter().filter(same_model).filter(|victim| !taken.contains(&victim.held.id)).filter(is_legal));
    steps.0 += held.len() as u64 / 4;
    if legal.is_empty() && kept == Reservations::Hold {
        return None;
    }
    let mut trial = IfEnded::begin(view, job.id, cell, asks.now_ms)?;
    if kept == Reservations::YieldToFloors {
        trial.open_burst_reservations();
        if let Ok(tasks) = trial.place(offer) {
            return Some(Found::Free(bind(job, offer, tasks)));
        }
    }
    let order = in_order(trial.view(), (job.id, class), offer, &legal);
    let found = end_until_it_fits(trial, (job, class), asks, cell, order, steps)?;
    begins_before_windows(view, class, &found, asks.now_ms).then_some(found)
}

/// Whether the windows of its nodes let the job begin there when the last victim has left.
fn begins_before_windows(view: &View, class: &JobClass, found: &Found, now_ms: u64) -> bool {
    let Found::Taken { binding, victims, .. } = found else { return true };
    let graces = victims.iter().filter_map(|id| view.jobs.get(view.allocation(*id)?.job.0));
    let grace_ms = graces.map(|job| job.preempt_grace_ms).max().unwrap_or(0);
    view.windows_allow(class, &binding.tasks, now_ms.saturating_add(grace_ms + STOP_MS_MAX))
}

/// Ends victims in order, more and more at a time, until the job has a place; then restores those that the place does not need.
fn end_until_it_fits<'v>(
    mut trial: IfEnded<'_>,
    (job, class): (&Known, &Arc<JobClass>),
    asks: &Asks<'_>,
    cell: CellId,
    mut order: impl Iterator<Item = &'v Arc<Allocation>>,
    steps: &mut Steps,
) -> Option<Found> {
    let offer = asks.offer;
    let mut growth: BTreeMap<JobId, Vec<Arc<Allocation>>> = BTreeMap::new();
    for part in trial.view().growth_in(cell).filter(|part| part.state == AllocationState::Active) {
        growth.entry(part.job).or_default().push(part.clone());
    }
    let mut ended: Vec<&Arc<Allocation>> = Vec::new();
    let mut goal = offer.charge.gpu_total().0.saturating_sub(trial.free_units(offer.model)).max(1);
    let tasks = loop {
        let mut freed = 0_u64;
        while freed < goal
            && ended.len() < VICTIMS_MAX
            && let Some(held) = order.next()
        {
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
        made_ms: asks.now_ms,
    };
    Some(Found::Taken { binding: bind(job, offer, tasks), victims, claim: Box::new(claim) })
}

fn bind(job: &Known, offer: &Offer, tasks: Vec<TaskPlacement>) -> Binding {
    Binding { job: job.id, attempt: job.attempt.next(), model: offer.model, tasks }
}
