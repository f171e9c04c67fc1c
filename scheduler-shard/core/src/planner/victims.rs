//! What may be moved, and what each move would lose.
//!
//! What must stay true: only a job that says so is ever moved, whole, and only from hosts that can be reached.

use super::report::Move;
use crate::job_class::JobClass;
use crate::view::View;
use muster_model::movable::Loss;
use muster_model::{Allocation, AllocationId, AllocationState, CellId, GpuModel, GpuUnits, NodeHealth, TaskPlacement};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A running job that may be moved.
#[derive(Clone, Debug)]
pub(super) struct Victim {
    pub(super) allocation: Arc<Allocation>,
    pub(super) class: Arc<JobClass>,
    pub(super) model: GpuModel,
    pub(super) units: GpuUnits,
    pub(super) loss: Loss,
}

/// By allocation.
pub(super) type Victims = BTreeMap<AllocationId, Victim>;

impl Victim {
    /// The same, standing at `tasks`.
    pub(super) fn at(&self, tasks: Vec<TaskPlacement>) -> Arc<Allocation> {
        Arc::new(Allocation { tasks, ..Allocation::clone(&self.allocation) })
    }

    pub(super) fn moved(&self, to: Vec<TaskPlacement>) -> Move {
        let held = &self.allocation;
        Move {
            job: held.job,
            allocation: held.id,
            model: self.model,
            units: self.units,
            from: held.tasks.clone(),
            to,
            loss: self.loss,
        }
    }
}

/// The movable work of `cell`, at `now_ms` of the state's clock.
pub(super) fn of_cell(view: &View, cell: CellId, now_ms: u64) -> Victims {
    let reachable = |held: &Allocation| {
        let mut nodes = held.tasks.iter().filter_map(|task| view.fleet.capacity.nodes().get(&task.node));
        nodes.all(|there| there.node.health == NodeHealth::Ready)
    };
    let here = view.allocations.values().filter(|held| held.cell == cell);
    let active = here.filter(|held| held.state == AllocationState::Active && reachable(held));
    active
        .filter_map(|held| {
            let job = view.jobs.get(held.job.0).filter(|job| job.phase.allocation() == Some(held.id))?;
            let may = job.movable.as_ref()?;
            let model = held.model?;
            let units = held.charge.gpu_total();
            let ran_s = now_ms.saturating_sub(held.bound_ms) / 1_000;
            let loss = may.how.loss(units, ran_s);
            Some((held.id, Victim { allocation: held.clone(), class: may.class.clone(), model, units, loss }))
        })
        .collect()
}
