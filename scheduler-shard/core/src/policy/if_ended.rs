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
use muster_model::{Allocation, AllocationId, CellId, JobId, TaskPlacement};
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
}

impl<'v> IfEnded<'v> {
    /// A trial for a job that waits in `cell`; none where the view knows no such job.
    pub(crate) fn begin(view: &'v mut View, id: JobId, cell: CellId, now_ms: u64) -> Option<Self> {
        let job = view.jobs.get(id.0)?.clone();
        let class = job.class.clone()?;
        // What is reserved for it is among what it may use, as in a pass.
        view.apply_reservation(id, false);
        Some(IfEnded { view, log: UndoLog::default(), job, class, cell, now_ms, steps: Steps::default() })
    }

    /// The allocation has ended.
    pub(crate) fn end(&mut self, allocation: &Arc<Allocation>) {
        self.log.release(&mut self.view.fleet, allocation.clone());
    }

    /// An allocation that had ended runs after all.
    pub(crate) fn restore(&mut self, allocation: &Arc<Allocation>) {
        self.log.charge(&mut self.view.fleet, allocation.clone());
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
}

impl Drop for IfEnded<'_> {
    fn drop(&mut self) {
        self.log.roll_back_to(Savepoint::default(), &mut self.view.fleet);
        self.view.apply_reservation(self.job.id, true);
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
