//! The copy of the books that a plan is proved on.
//!
//! What must stay true: a proof begins and, when it fails, ends with the copy as it was; when it succeeds the copy is as after the plan;
//! every placement on it is found by the search that places real work and proved by the model's arithmetic.

use super::report::Move;
use super::victims::Victim;
use crate::index::{GROUP_LEVELS, group_of};
use crate::job_class::JobClass;
use crate::place::{Ask, Steps, place};
use crate::view::{Known, View};
use muster_model::{Allocation, AllocationId, AllocationState, CellId, Epoch, GpuModel, NodeId, TaskPlacement};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

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

/// The copy.
pub(super) struct Trial {
    pub(super) view: View,
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

impl Trial {
    pub(super) fn of(view: &View) -> Self {
        Trial { view: view.clone(), stand_ins: 0, steps: Steps::default() }
    }

    /// A place that the search finds and the books hold.
    pub(super) fn place(&mut self, ask: &Ask<'_>) -> Option<Vec<TaskPlacement>> {
        self.steps.0 += 1;
        let charge = ask.class.charge_on(ask.model);
        let tasks = place(&self.view, ask, &mut self.steps)?;
        let request = &ask.class.request;
        let books = &self.view.capacity;
        books.prove(ask.tenant, &tasks, request.cpu_milli, request.memory_mib, &charge).ok()?;
        Some(tasks)
    }

    /// Charges a job that would start at `tasks`; answers what stands for it.
    pub(super) fn start(&mut self, wanted: &Wanted<'_>, tasks: Vec<TaskPlacement>) -> Allocation {
        self.stand_ins += 1;
        let (job, class, model) = (wanted.job, wanted.class, Some(wanted.model));
        let allocation = Allocation {
            id: AllocationId(STAND_IN_LAST - self.stand_ins),
            job: job.id,
            attempt: job.attempt.next(),
            tenant: job.tenant,
            cell: wanted.cell,
            cell_epoch: Epoch(0),
            model,
            cpu_milli: class.request.cpu_milli,
            memory_mib: class.request.memory_mib,
            charge: class.charge_on(model),
            tasks,
            task_states: Vec::new(),
            node_epochs: BTreeMap::new(),
            state: AllocationState::Active,
            bound_ms: 0,
            failures: Vec::new(),
        };
        self.view.charge(&allocation);
        allocation
    }

    /// Proves that `victims` can be moved one by one, after which `wanted` fits; without `wanted`, that they can be moved to other
    /// cards without opening a free one. Victims that need not move after all are left where they are, the dearest first, when
    /// `spare` says so. The copy is then as after all of it.
    pub(super) fn prove(&mut self, wanted: Option<&Wanted<'_>>, victims: &[&Victim], spare: bool) -> Option<Proof> {
        let mut moving: Vec<&Victim> = victims.to_vec();
        for victim in &moving {
            self.view.release(&victim.allocation);
        }
        let planned = self.new_places(wanted, &mut moving, spare);
        for victim in &moving {
            self.view.charge(&victim.allocation);
        }
        let moves = self.in_order(planned?)?;
        let Some(wanted) = wanted else { return Some(Proof { moves, tasks: Vec::new() }) };
        match self.place(&wanted.ask()) {
            Some(tasks) => {
                self.start(wanted, tasks.clone());
                Some(Proof { moves, tasks })
            }
            None => {
                self.take_back(&moves, victims);
                None
            }
        }
    }

    /// Where each of `moving` would go, all released; the copy ends as it began, but for what is spared, which is charged again.
    fn new_places<'v>(
        &mut self,
        wanted: Option<&Wanted<'_>>,
        moving: &mut Vec<&'v Victim>,
        spare: bool,
    ) -> Option<Vec<(&'v Victim, Vec<TaskPlacement>)>> {
        let Some(wanted) = wanted else { return self.places_for(moving) };
        let mut tasks = self.place(&wanted.ask())?;
        if spare {
            let mut dearest: Vec<&Victim> = moving.clone();
            dearest.sort_by_key(|victim| (Reverse(victim.loss.unit_seconds), victim.allocation.id));
            for victim in dearest {
                self.view.charge(&victim.allocation);
                match self.place(&wanted.ask()) {
                    Some(found) => {
                        moving.retain(|other| other.allocation.id != victim.allocation.id);
                        tasks = found;
                    }
                    None => self.view.release(&victim.allocation),
                }
            }
        }
        let stand_in = self.start(wanted, tasks);
        let found = self.places_for(moving);
        self.view.release(&stand_in);
        found
    }

    /// A new place for each, in some order in which all find one; the copy ends as it began.
    fn places_for<'v>(&mut self, moving: &[&'v Victim]) -> Option<Vec<(&'v Victim, Vec<TaskPlacement>)>> {
        orders(moving).into_iter().find_map(|order| {
            let mut found: Vec<(&Victim, Vec<TaskPlacement>)> = Vec::with_capacity(order.len());
            let mut charged: Vec<Allocation> = Vec::with_capacity(order.len());
            for victim in &order {
                let Some(tasks) = self.elsewhere(victim) else { break };
                let moved = Allocation { tasks: tasks.clone(), ..Allocation::clone(&victim.allocation) };
                self.view.charge(&moved);
                charged.push(moved);
                found.push((victim, tasks));
            }
            for moved in &charged {
                self.view.release(moved);
            }
            (found.len() == order.len()).then_some(found)
        })
    }

    /// Another place, no further apart than the present one.
    fn elsewhere(&mut self, victim: &Victim) -> Option<Vec<TaskPlacement>> {
        let held = &victim.allocation;
        let ask = Ask::lasting(held.cell, held.tenant, &victim.class, held.model);
        let tasks = self.place(&ask)?;
        let as_close = spread(&self.view, &tasks) <= spread(&self.view, &held.tasks);
        (as_close && tasks != held.tasks).then_some(tasks)
    }

    /// Makes the moves one by one, each where it is possible at its turn. When they cannot be ordered, the copy ends as it began.
    fn in_order(&mut self, planned: Vec<(&Victim, Vec<TaskPlacement>)>) -> Option<Vec<Move>> {
        let victims: Vec<&Victim> = planned.iter().map(|(victim, _)| *victim).collect();
        let (mut left, mut moves) = (planned, Vec::new());
        while !left.is_empty() {
            let Some(at) = left.iter().position(|(victim, to)| self.make(victim, to)) else {
                self.take_back(&moves, &victims);
                return None;
            };
            let (victim, to) = left.remove(at);
            moves.push(victim.moved(to));
        }
        Some(moves)
    }

    /// Makes one move if the books allow it now.
    fn make(&mut self, victim: &Victim, to: &[TaskPlacement]) -> bool {
        let held = &victim.allocation;
        self.view.release(held);
        let books = &self.view.capacity;
        let fits = books.prove(held.tenant, to, held.cpu_milli, held.memory_mib, &held.charge).is_ok();
        if fits {
            self.view.charge(&Allocation { tasks: to.to_vec(), ..Allocation::clone(held) });
        } else {
            self.view.charge(held);
        }
        fits
    }

    /// Undoes moves that were made.
    pub(super) fn take_back(&mut self, moves: &[Move], victims: &[&Victim]) {
        let of = |made: &Move| victims.iter().find(|victim| victim.allocation.id == made.allocation);
        let made: Vec<(&Move, &&Victim)> = moves.iter().filter_map(|made| Some((made, of(made)?))).collect();
        for (made, victim) in &made {
            self.view.release(&Allocation { tasks: made.to.clone(), ..Allocation::clone(&victim.allocation) });
        }
        for (_, victim) in &made {
            self.view.charge(&victim.allocation);
        }
    }

    /// Whole cards of `model` that are free in `cell`.
    pub(super) fn free_cards(&self, cell: CellId, model: GpuModel) -> u64 {
        self.view.index.shelves(cell, Some(model)).map(|(_, shelf)| shelf.free()).sum()
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
pub(super) fn spread(view: &View, tasks: &[TaskPlacement]) -> usize {
    let on: BTreeSet<NodeId> = tasks.iter().map(|task| task.node).collect();
    let nodes: Vec<_> = on.iter().filter_map(|id| view.capacity.nodes().get(id)).map(|there| &there.node).collect();
    let Some(first) = nodes.first() else { return 0 };
    if nodes.len() == 1 {
        return usize::from(islands(view, tasks).len() > 1);
    }
    let together = |level| {
        let of_first = group_of(&first.spec.place, level);
        nodes.iter().all(|node| group_of(&node.spec.place, level) == of_first)
    };
    GROUP_LEVELS.into_iter().position(together).map_or(5, |at| at + 2)
}

/// The islands that tasks stand on.
pub(super) fn islands(view: &View, tasks: &[TaskPlacement]) -> BTreeSet<(NodeId, u8)> {
    let cards = tasks.iter().flat_map(|task| task.devices.iter().map(move |hold| (task.node, hold.gpu)));
    cards
        .filter_map(|(node, gpu)| {
            let there = view.capacity.nodes().get(&node)?;
            Some((node, there.node.spec.gpus.get(usize::from(gpu))?.island))
        })
        .collect()
}
