//! Growing elastic gangs into what is idle, last of all in a pass.
//!
//! Who grows next is decided as who starts next: floors first, then the smallest weighted share of burst. What must stay true:
//! - growth goes through the gates of a start, is burst whatever floor would cover it, and stands on the model and in the cell of its minimum, as
//!   close to it as the job requires;
//! - a step at most doubles a gang, and the next follows after a while: a new size costs the job a rendezvous, and idle devices are shared;
//! - nothing grows on a model on which growth is being given back for a waiting job.

use super::gate::{self, Pass};
use crate::job_class::Offer;
use crate::proposal::{Bounds, Plan, Proposal};
use crate::queue::order::{Head, Order};
use crate::search::{Steps, single_task};
use crate::view::{Known, MayGrow, View};
use muster_model::capacity::Ended;
use muster_model::{Allocation, Binding, Node, NumaPolicy, TaskPlacement, closeness};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Gangs that one pass looks at: each costs a few searches.
const LOOKED_AT_MAX: usize = 32;
/// Nodes that are tried one by one for a gang that must stay in one domain.
const NODES_MAX: usize = 512;

/// Gives idle devices to gangs that can use them.
pub(crate) fn grow(view: &mut View, pass: &Pass, bounds: &Bounds, steps: &mut Steps, plan: &mut Plan) {
    let mut waiting: BTreeMap<_, Vec<Arc<Known>>> = BTreeMap::new();
    for job in view.growers(pass.cell, pass.now_ms) {
        waiting.entry(job.tenant).or_default().push(job);
    }
    if waiting.is_empty() {
        return;
    }
    // The first of each tenant at the end, to be taken from there.
    waiting.values_mut().for_each(|jobs| jobs.sort_by_key(|job| std::cmp::Reverse(job.queue_key)));
    let head = |jobs: &Vec<Arc<Known>>| {
        let job = jobs.last()?;
        Some(Head::new(job.tenant, job.queue_key, job.may_grow.as_ref()?.class.clone()))
    };
    let mut order = Order::of(view.ledger(), waiting.values().filter_map(head));
    for _ in 0..LOOKED_AT_MAX {
        if plan.at_a_bound(bounds, *steps) {
            return;
        }
        let Some(tenant) = order.next().map(|head| head.tenant) else { return };
        if let Some(job) = waiting.get_mut(&tenant).and_then(Vec::pop) {
            plan.decisions += 1;
            match one(view, pass, &job, steps) {
                Some(binding) => plan.proposals.push(Proposal::Grow(binding)),
                None => view.cannot_grow(job.id, pass.now_ms),
            }
        }
        order.update(view.ledger(), [(tenant, waiting.get(&tenant).and_then(head))]);
    }
}

/// As many more tasks of one gang as there is room for, up to its present size; charged to the view.
fn one(view: &mut View, pass: &Pass, job: &Known, steps: &mut Steps) -> Option<Binding> {
    let grow = job.may_grow.clone()?;
    let minimum = view.allocations.get(grow.minimum.0)?.clone();
    if view.gives_back(pass.cell, minimum.model) {
        return None;
    }
    let unit = grow.class.tasks.max(1);
    let most = grow.more.min(grow.tasks.max(unit));
    let mut tasks = most - most % unit;
    let found = loop {
        if tasks == 0 {
            return None;
        }
        if let Some(found) = place(view, pass, (job, &grow, &minimum), tasks, steps) {
            break found;
        }
        let half = tasks / 2;
        tasks = half - half % unit;
    };
    let binding = Binding { job: job.id, attempt: job.attempt, model: minimum.model, tasks: found };
    view.assume_growth(job, &grow.class, &binding, pass.cell, pass.now_ms);
    Some(binding)
}

/// A place for so many more tasks, through the gates.
fn place(
    view: &mut View,
    pass: &Pass,
    (job, grow, minimum): (&Known, &MayGrow, &Allocation),
    tasks: u32,
    steps: &mut Steps,
) -> Option<Vec<TaskPlacement>> {
    let class = grow.class.with(tasks, grow.class.topology.required);
    let offer: Offer = *class.offers().iter().find(|offer| offer.model == minimum.model)?;
    let capacity = &view.fleet.capacity;
    capacity.lending_allows(&Ended::default(), job.tenant, &offer.charge).ok()?;
    let had: Vec<TaskPlacement> =
        minimum.tasks.iter().chain(view.growth_of(job.id).flat_map(|part| &part.tasks)).cloned().collect();
    if let Ok(found) = gate::pass(view, pass, job, &class, &offer, steps)
        && close_enough(view, grow, &had, &found)
    {
        return Some(found);
    }
    if tasks != 1 || class.topology.required.is_none() {
        return None;
    }
    gate::before_place(view, pass, job, &class, &offer).ok()?;
    let ask = pass.ask(job, &class, offer.model);
    let nodes = view.fleet.capacity.nodes();
    let there = nodes.get(&minimum.tasks.first()?.node)?;
    let near = nodes.values().filter(|other| other.node.spec.place.block == there.node.spec.place.block);
    for other in near.take(NODES_MAX).filter(|other| ask.may_stay_on(&view.fleet, other.node.id)) {
        steps.0 += 1;
        let found = single_task::on_node(&view.fleet, &ask, other, 0);
        let found = found.filter(|found| close_enough(view, grow, &had, found));
        if let Some(found) = found.filter(|found| gate::prove(view, job, &class, &offer, found).is_ok()) {
            return Some(found);
        }
    }
    None
}

/// Whether the gang is as close together with these tasks as its job requires. What NUMA asks for, each task by itself has.
fn close_enough(view: &View, grow: &MayGrow, had: &[TaskPlacement], more: &[TaskPlacement]) -> bool {
    let topology = &grow.class.topology;
    if topology.required.is_none() && topology.required_spread().is_none() {
        return true;
    }
    let all: Vec<TaskPlacement> = had.iter().chain(more).cloned().collect();
    let nodes = view.fleet.capacity.nodes();
    let ground: Option<Vec<&Node>> = all.iter().map(|task| Some(&*nodes.get(&task.node)?.node)).collect();
    ground.is_some_and(|ground| closeness::check(topology, NumaPolicy::None, &all, &ground).is_ok())
}
