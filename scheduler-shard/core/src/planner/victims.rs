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
            // An elastic gang stands beside what it has grown by.
            let may = job.movable.as_ref().filter(|_| view.growth_of(job.id).next().is_none())?;
            let model = held.model?;
            let units = held.charge.gpu_total();
            // What it has saved since its start is not lost.
            let saved_ms = job.checkpoint_ms.unwrap_or(0).max(held.bound_ms);
            let loss = may.how.loss(units, now_ms.saturating_sub(saved_ms) / 1_000);
            Some((held.id, Victim { allocation: held.clone(), class: may.class.clone(), model, units, loss }))
        })
        .collect()
}

/// Of them those that may be moved at once, in one pool: burst work that is out of its cool-down. What each loses has its grace in it.
pub(super) fn movable_now(view: &View, victims: Victims, pool: &str, now_ms: u64) -> Victims {
    let capacity = &view.fleet.capacity;
    let may = |held: &Allocation, preemptions: u32| {
        let often = capacity.preemptions_max(held).is_some_and(|most| preemptions >= most);
        held.account().is_none()
            && !often
            && now_ms >= held.bound_ms.saturating_add(capacity.cool_down_ms(held))
            && capacity.pools_under(held).all(|there| there.name == pool)
    };
    victims
        .into_iter()
        .filter_map(|(id, victim)| {
            let job = view.jobs.get(victim.allocation.job.0)?;
            let how = job.movable.as_ref()?.how;
            if !may(&victim.allocation, job.preemptions) {
                return None;
            }
            let saved_ms = job.checkpoint_ms.unwrap_or(0).max(victim.allocation.bound_ms);
            let since_s = now_ms.saturating_sub(saved_ms).saturating_add(job.preempt_grace_ms).div_ceil(1_000);
            let loss = how.loss(victim.units, since_s);
            Some((id, Victim { loss, ..victim }))
        })
        .collect()
}
