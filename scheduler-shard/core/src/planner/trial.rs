//! The trial that a plan is proved by: what would be moved and started is charged to the fleet, and undone with the trial.
//!
//! What must stay true: a proof begins and, when it fails, ends with the fleet as it was; when it succeeds the fleet is as after the plan;
//! every placement on it is found by the search that places real work and proved by the model's arithmetic.

use super::report::Move;
use super::victims::Victim;
use crate::fleet::index::{GROUP_LEVELS, group_of};
use crate::fleet::{Fleet, Savepoint, Transaction};
use crate::job_class::JobClass;
use crate::queue::{CellQueue, slices_waiting};
use crate::search::{Ask, Steps, place};
use crate::view::Known;
use muster_model::{Allocation, AllocationId, CellId, Epoch, GpuModel, NodeId, TaskPlacement};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Beyond so many moves at once only one order of placing them is tried: four have twenty-four.
const ORDERED_MAX: usize = 4;
/// Stand-ins of a trial take ids from the end, which neither the state nor a view's proposals reach.
const STAND_IN_LAST: u64 = u64::MAX;

/// A waiting job on one model.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) job: &'a Known,
    pub(super) class: &'a JobClass,
    pub(super) cell: CellId,
    pub(super) model: GpuModel,
}

impl<'a> Wanted<'a> {
    pub(super) fn ask(&self) -> Ask<'a> {
        Ask::lasting(self.cell, self.job.tenant, self.class, Some(self.model))
    }
}

/// See the module.
pub(super) struct Trial<'v> {
    pub(super) fleet: Transaction<'v>,
    queues: &'v BTreeMap<CellId, CellQueue>,
    stand_ins: u64,
    pub(super) steps: Steps,
}

/// What was proved.
pub(super) struct Proof {
    /// In the order in which they can be made.
    pub(super) moves: Vec<Move>,
    /// Where the job stands then.
    pub(super) tasks: Vec<TaskPlacement>,
}

impl<'v> Trial<'v> {
    pub(super) fn on(fleet: &'v mut Fleet, queues: &'v BTreeMap<CellId, CellQueue>) -> Self {
        Trial { fleet: Transaction::begin(fleet), queues, stand_ins: 0, steps: Steps::default() }
    }

    /// A place that the search finds and the capacity ledger takes.
    pub(super) fn place(&mut self, ask: &Ask<'_>) -> Option<Vec<TaskPlacement>> {
        self.steps.0 += 1;
        let charge = ask.class.charge_on(ask.model);
        let ask = Ask { slices_waiting: slices_waiting(self.queues, (ask.cell, ask.model), ask.class), ..*ask };
        let tasks = place(&self.fleet, &ask, &mut self.steps)?;
        let request = &ask.class.request;
        self.fleet.capacity.prove(ask.tenant, &tasks, request.cpu_milli, request.memory_mib, &charge).ok()?;
        Some(tasks)
    }

    /// Charges a job that would start at `tasks`.
    pub(super) fn start(&mut self, wanted: &Wanted<'_>, tasks: Vec<TaskPlacement>) {
        self.stand_ins += 1;
        let (job, class, model) = (wanted.job, wanted.class, Some(wanted.model));
        let id = AllocationId(STAND_IN_LAST - self.stand_ins);
        let allocation = Allocation {
            attempt: job.attempt.next(),
            cell: wanted.cell,
            cell_epoch: Epoch(0),
            model,
            cpu_milli: class.request.cpu_milli,
            memory_mib: class.request.memory_mib,
            charge: class.charge_on(model),
            task_states: Vec::new(),
            ..Allocation::usual(id, job.id, job.tenant, tasks)
        };
        self.fleet.charge(Arc::new(allocation));
    }

    /// Proves that `victims` can be moved one by one, after which `wanted` fits; without `wanted`, that they can be moved to other
    /// cards without opening a free one. Victims that need not move after all are left where they are, the dearest first, when
    /// `spare` says so. The fleet is then as after all of it, and as before where there is no proof.
    pub(super) fn prove(&mut self, wanted: Option<&Wanted<'_>>, victims: &[&Victim], spare: bool) -> Option<Proof> {
        let before = self.savepoint();
        let proof = self.try_to_prove(wanted, victims, spare);
        if proof.is_none() {
            self.roll_back_to(before);
        }
        proof
    }

    fn try_to_prove(&mut self, wanted: Option<&Wanted<'_>>, victims: &[&Victim], spare: bool) -> Option<Proof> {
        let before = self.savepoint();
        for victim in victims {
            self.fleet.release(victim.allocation.clone());
        }
        let planned = self.new_places(wanted, victims, spare);
        self.roll_back_to(before);
        let moves = self.in_order(planned?)?;
        let Some(wanted) = wanted else { return Some(Proof { moves, tasks: Vec::new() }) };
        let tasks = self.place(&wanted.ask())?;
        self.start(wanted, tasks.clone());
        Some(Proof { moves, tasks })
    }

    /// Where each of `victims` that has to move would go; all of them are released.
    fn new_places<'m>(
        &mut self,
        wanted: Option<&Wanted<'_>>,
        victims: &[&'m Victim],
        spare: bool,
    ) -> Option<Vec<(&'m Victim, Vec<TaskPlacement>)>> {
        let Some(wanted) = wanted else { return self.places_for(victims) };
        let mut moving: Vec<&Victim> = victims.to_vec();
        let mut tasks = self.place(&wanted.ask())?;
        if spare {
            let mut dearest: Vec<&Victim> = moving.clone();
            dearest.sort_by_key(|victim| (Reverse(victim.loss.unit_seconds), victim.allocation.id));
            for victim in dearest {
                let before = self.savepoint();
                self.fleet.charge(victim.allocation.clone());
                match self.place(&wanted.ask()) {
                    Some(found) => {
                        moving.retain(|other| other.allocation.id != victim.allocation.id);
                        tasks = found;
                    }
                    None => self.roll_back_to(before),
                }
            }
        }
        self.start(wanted, tasks);
        self.places_for(&moving)
    }

    /// A new place for each, in some order in which all find one; the fleet ends as it began.
    fn places_for<'m>(&mut self, moving: &[&'m Victim]) -> Option<Vec<(&'m Victim, Vec<TaskPlacement>)>> {
        let before = self.savepoint();
        orders(moving).into_iter().find_map(|order| {
            let mut found: Vec<(&Victim, Vec<TaskPlacement>)> = Vec::with_capacity(order.len());
            for victim in &order {
                let Some(tasks) = self.elsewhere(victim) else { break };
                self.fleet.charge(victim.at(tasks.clone()));
                found.push((victim, tasks));
            }
            self.roll_back_to(before);
            (found.len() == order.len()).then_some(found)
        })
    }

    /// Another place, no further apart than the present one.
    fn elsewhere(&mut self, victim: &Victim) -> Option<Vec<TaskPlacement>> {
        let held = &victim.allocation;
        let ask = Ask::lasting(held.cell, held.tenant, &victim.class, held.model);
        let tasks = self.place(&ask)?;
        let as_close = spread(&self.fleet, &tasks) <= spread(&self.fleet, &held.tasks);
        (as_close && tasks != held.tasks).then_some(tasks)
    }

    /// Makes the moves one by one, each where it is possible at its turn.
    fn in_order(&mut self, planned: Vec<(&Victim, Vec<TaskPlacement>)>) -> Option<Vec<Move>> {
        let (mut left, mut moves) = (planned, Vec::new());
        while !left.is_empty() {
            let (victim, to) = left.remove(left.iter().position(|(victim, to)| self.make(victim, to))?);
            moves.push(victim.moved(to));
        }
        Some(moves)
    }

    /// Makes one move if the capacity ledger allows it now.
    fn make(&mut self, victim: &Victim, to: &[TaskPlacement]) -> bool {
        let (held, before) = (&victim.allocation, self.savepoint());
        self.fleet.release(held.clone());
        let fits = self.fleet.capacity.prove(held.tenant, to, held.cpu_milli, held.memory_mib, &held.charge).is_ok();
        if fits {
            self.fleet.charge(victim.at(to.to_vec()));
        } else {
            self.roll_back_to(before);
        }
        fits
    }

    pub(super) fn savepoint(&self) -> Savepoint {
        self.fleet.savepoint()
    }

    pub(super) fn roll_back_to(&mut self, savepoint: Savepoint) {
        self.fleet.roll_back_to(savepoint);
    }

    /// Whole cards of `model` that are free in `cell`.
    pub(super) fn free_cards(&self, cell: CellId, model: GpuModel) -> u64 {
        self.fleet.index.buckets(cell, Some(model)).map(|(_, bucket)| bucket.free()).sum()
    }
}

/// The orders in which to look for new places: the largest first, and all others where they are few.
fn orders<'v>(moving: &[&'v Victim]) -> Vec<Vec<&'v Victim>> {
    let mut largest: Vec<&Victim> = moving.to_vec();
    largest.sort_by_key(|victim| (Reverse(victim.units), victim.allocation.id));
    if largest.len() > ORDERED_MAX {
        return vec![largest];
    }
    let mut orders = vec![Vec::new()];
    for _ in 0..largest.len() {
        orders = orders
            .into_iter()
            .flat_map(|begun: Vec<&Victim>| {
                let unused = |victim: &&&Victim| begun.iter().all(|one| one.allocation.id != victim.allocation.id);
                let rest: Vec<&Victim> = largest.iter().filter(unused).copied().collect();
                rest.into_iter().map(move |next| begun.iter().copied().chain([next]).collect())
            })
            .collect();
    }
    orders
}

/// How far apart tasks stand: on one island 0, on one node 1, in one leaf, block or region 2 to 4, otherwise 5.
pub(super) fn spread(fleet: &Fleet, tasks: &[TaskPlacement]) -> usize {
    let on: BTreeSet<NodeId> = tasks.iter().map(|task| task.node).collect();
    let nodes: Vec<_> = on.iter().filter_map(|id| fleet.capacity.nodes().get(id)).map(|there| &there.node).collect();
    let Some(first) = nodes.first() else { return 0 };
    if nodes.len() == 1 {
        return usize::from(islands(fleet, tasks).len() > 1);
    }
    let together = |level| {
        let of_first = group_of(&first.spec.place, level);
        nodes.iter().all(|node| group_of(&node.spec.place, level) == of_first)
    };
    GROUP_LEVELS.into_iter().position(together).map_or(5, |at| at + 2)
}

/// The islands that tasks stand on.
pub(super) fn islands(fleet: &Fleet, tasks: &[TaskPlacement]) -> BTreeSet<(NodeId, u8)> {
    let cards = tasks.iter().flat_map(|task| task.devices.iter().map(move |hold| (task.node, hold.gpu)));
    cards
        .filter_map(|(node, gpu)| {
            let there = fleet.capacity.nodes().get(&node)?;
            Some((node, there.node.spec.gpus.get(usize::from(gpu))?.island))
        })
        .collect()
}
