//! Whether a waiting job would get through the gates if some allocations ended: tried on the view itself, and undone.
//!
//! What must stay true: when the trial is dropped the view is as it was, at the cost of what was ended and not of the fleet's size; nobody is
//! woken by it; the gates are those of the pass.

use super::gate::{self, Gate, Pass};
use super::guard;
use crate::fleet::{Savepoint, UndoLog};
use crate::job_class::{JobClass, Offer};
use crate::search::Steps;
use crate::view::{Known, View};
use muster_model::{
    Allocation, AllocationId, CellId, GpuModel, GpuUnits, JobId, NodeId, ResourceVec, TaskPlacement, TenantId,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// See the module.
pub(crate) struct IfEnded<'v> {
    view: &'v mut View,
    log: UndoLog,
    job: Arc<Known>,
    class: Arc<JobClass>,
    cell: CellId,
    now_ms: u64,
    steps: Steps,
    /// Gangs whose reserved nodes are among what the job may use in this trial.
    opened: Vec<JobId>,
}

impl<'v> IfEnded<'v> {
    /// A trial for a job that waits in `cell`; none where the view knows no such job.
    pub(crate) fn begin(view: &'v mut View, id: JobId, cell: CellId, now_ms: u64) -> Option<Self> {
        let job = view.jobs.get(id.0)?.clone();
        let class = job.class.clone()?;
        // What is reserved for it is among what it may use, as in a pass.
        view.apply_reservation(id, false);
        Some(IfEnded {
            view,
            log: UndoLog::default(),
            job,
            class,
            cell,
            now_ms,
            steps: Steps::default(),
            opened: Vec::new(),
        })
    }

    /// The job may use what is reserved for gangs that no floor covers.
    pub(crate) fn open_burst_reservations(&mut self) {
        self.opened = self.view.burst_reservations(self.cell).filter(|id| *id != self.job.id).collect();
        self.opened.iter().for_each(|id| self.view.apply_reservation(*id, false));
    }

    /// The allocation has ended.
    pub(crate) fn end(&mut self, allocation: &Arc<Allocation>) {
        self.log.release(&mut self.view.fleet, allocation.clone());
    }

    /// An allocation that had ended runs after all.
    pub(crate) fn restore(&mut self, allocation: &Arc<Allocation>) {
        self.log.charge(&mut self.view.fleet, allocation.clone());
    }

    /// Whether the job may reclaim from this allocation, those that have ended gone.
    pub(crate) fn view(&self) -> &View {
        self.view
    }

    /// The floor account that would pay for the job.
    pub(crate) fn account_for(&self, charge: &ResourceVec) -> Option<TenantId> {
        self.view.fleet.capacity.account_for(self.job.tenant, charge)
    }

    /// Units of whole cards of a model that are free in the cell.
    pub(crate) fn free_units(&self, model: Option<GpuModel>) -> u64 {
        let buckets = self.view.fleet.index.buckets(self.cell, model);
        buckets.map(|(_, bucket)| bucket.free()).sum::<u64>() * GpuUnits::CARD.0
    }

    /// Whether the capacity ledger takes the job at this place.
    pub(crate) fn takes(&self, offer: &Offer, tasks: &[TaskPlacement]) -> bool {
        gate::prove(self.view, &self.job, &self.class, offer, tasks).is_ok()
    }

    /// Where the job would stand on the model of `offer`.
    ///
    /// # Errors
    /// The first gate that is closed.
    pub(crate) fn place(&mut self, offer: &Offer) -> Result<Vec<TaskPlacement>, Gate> {
        let guards = guard::guards(self.view, self.cell);
        let pass = Pass { cell: self.cell, now_ms: self.now_ms, guards };
        gate::pass(self.view, &pass, &self.job, &self.class, offer, &mut self.steps)
    }

    /// Lets go on whoever is not in the way of the place; answers the others, in their order.
    pub(crate) fn restore_unneeded<'a>(
        &mut self,
        offer: &Offer,
        tasks: &[TaskPlacement],
        ended: Vec<&'a Arc<Allocation>>,
    ) -> Vec<&'a Arc<Allocation>> {
        let mut cards: BTreeSet<(NodeId, u16)> = BTreeSet::new();
        for task in tasks {
            cards.extend(task.devices.iter().map(|hold| (task.node, hold.gpu)));
        }
        let on_place = |held: &Arc<Allocation>| {
            held.tasks.iter().any(|task| task.devices.iter().any(|hold| cards.contains(&(task.node, hold.gpu))))
        };
        // Growth goes with the minimum of its gang.
        let gangs = ended.iter().filter(|held| !held.is_growth && on_place(held)).map(|held| held.job);
        let gangs: BTreeSet<JobId> = gangs.collect();
        let meets = |held: &Arc<Allocation>| on_place(held) || gangs.contains(&held.job);
        let mut needed: Vec<(usize, &Arc<Allocation>)> = Vec::new();
        let mut restored: Vec<(usize, &Arc<Allocation>)> = Vec::new();
        for (at, held) in ended.into_iter().enumerate() {
            if meets(held) {
                needed.push((at, held));
            } else {
                self.restore(held);
                restored.push((at, held));
            }
        }
        // CPU, memory or a max of the tenant may need some of them after all.
        let mut back = restored.into_iter();
        while !self.takes(offer, tasks)
            && let Some((at, held)) = back.next()
        {
            self.end(held);
            needed.push((at, held));
        }
        // Shares of a card may fit beside some of those on the card.
        if offer.charge.gpu_total().0 < muster_model::GpuUnits::CARD.0 {
            needed.retain(|(_, held)| {
                self.restore(held);
                let fits = self.takes(offer, tasks);
                if !fits {
                    self.end(held);
                }
                !fits
            });
        }
        needed.sort_unstable_by_key(|(at, _)| *at);
        needed.into_iter().map(|(_, held)| held).collect()
    }
}

impl Drop for IfEnded<'_> {
    fn drop(&mut self) {
        self.log.roll_back_to(Savepoint::default(), &mut self.view.fleet);
        self.view.apply_reservation(self.job.id, true);
        self.opened.iter().for_each(|id| self.view.apply_reservation(*id, true));
    }
}

/// Whether job `id`, which waits in `cell`, would start if these allocations ended; the view stays as it is.
pub fn starts_if_ended(view: &mut View, id: JobId, cell: CellId, ended: &[AllocationId], now_ms: u64) -> bool {
    let held: Vec<Arc<Allocation>> = ended.iter().filter_map(|one| view.allocation(*one).cloned()).collect();
    let Some(mut trial) = IfEnded::begin(view, id, cell, now_ms) else { return false };
    held.iter().for_each(|one| trial.end(one));
    let offers = trial.class.clone();
    offers.offers().iter().any(|offer| trial.place(offer).is_ok())
}
