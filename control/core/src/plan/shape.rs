//! Whether a placement is what the job asked for: counts, kinds, pool, closeness. Whether it *fits* is the capacity ledger's business.

use super::cells;
use crate::leased_binding::LeasedBinding;
use crate::reject::Reject;
use crate::routing::refusal_of_pool;
use crate::shape_fault::{RankFault, ShapeFault};
use crate::state::State;
use muster_model::capacity::Misfit;
use muster_model::ids::Rank;
use muster_model::{DeviceRequest, GpuModel, HoldMode, Job, JobSpec, Node, TaskPlacement, closeness};

/// Checks the shape of every task and of the gang as a whole.
pub(super) fn check(state: &State, job: &Job, binding: &LeasedBinding) -> Result<(), Reject> {
    let wrong = |fault: ShapeFault| Reject::shape(job.id, fault);
    let spec = &job.spec;
    if binding.tasks.len() != spec.tasks as usize {
        return Err(wrong(ShapeFault::Tasks { asked: spec.tasks, placed: binding.tasks.len() }));
    }
    check_growth(state, job, Vec::new(), binding)
}

/// Checks what a gang gets beside the tasks that it has, and the gang as a whole.
pub(super) fn check_growth(
    state: &State,
    job: &Job,
    mut tasks: Vec<TaskPlacement>,
    binding: &LeasedBinding,
) -> Result<(), Reject> {
    let wrong = |fault: ShapeFault| Reject::shape(job.id, fault);
    let spec = &job.spec;
    check_model(spec, binding.model).map_err(wrong)?;
    let had = tasks.len();
    let mut ground = Vec::with_capacity(had + binding.tasks.len());
    for task in &tasks {
        ground.push(&**state.nodes.get(&task.node).ok_or(Misfit::NoNode { node: task.node })?);
    }
    for (rank, task) in binding.tasks.iter().enumerate() {
        let node = state.nodes.get(&task.node).ok_or(Misfit::NoNode { node: task.node })?;
        // Consecutive ranks mostly share a node: its pool was judged already.
        let first_there = ground.last().is_none_or(|last: &&Node| last.id != node.id);
        check_rank(state, spec, binding, task, node, first_there).map_err(|fault| {
            wrong(ShapeFault::Rank { rank: Rank((had + rank) as u32), node: node.spec.name.clone(), fault })
        })?;
        ground.push(&**node);
    }
    let all = if had == 0 {
        &binding.tasks
    } else {
        tasks.extend_from_slice(&binding.tasks);
        &tasks
    };
    closeness::check(&spec.topology, spec.numa, all, &ground).map_err(|too_far| wrong(too_far.into()))
}

fn check_model(spec: &JobSpec, model: Option<GpuModel>) -> Result<(), ShapeFault> {
    match (spec.request.devices.mode(), model) {
        (None, None) => Ok(()),
        (None, Some(model)) => Err(ShapeFault::NoGpuAsked { model }),
        (Some(_), None) => Err(ShapeFault::NoModel),
        (Some(_), Some(model)) if spec.possible_on(model) => Ok(()),
        (Some(_), Some(model)) => Err(ShapeFault::Model { model }),
    }
}

fn check_rank(
    state: &State,
    spec: &JobSpec,
    binding: &LeasedBinding,
    task: &TaskPlacement,
    node: &Node,
    first_there: bool,
) -> Result<(), RankFault> {
    if node.cell != binding.cell {
        let [there, asked] = [node.cell, binding.cell].map(|cell| cells::name(state, cell));
        return Err(RankFault::OtherCell { there, asked });
    }
    if first_there && let Some(refusal) = refusal_of_pool(state, &node.spec.pool, spec) {
        return Err(RankFault::Pool { pool: node.spec.pool.clone(), refusal });
    }
    if let Some(asked) = spec.driver_min
        && !spec.eligibility().has_driver_on(node)
    {
        return Err(RankFault::Driver { asked, there: node.spec.driver.clone() });
    }
    check_devices(spec, binding.model, task, node)
}

fn check_devices(spec: &JobSpec, model: Option<GpuModel>, task: &TaskPlacement, node: &Node) -> Result<(), RankFault> {
    let devices = &spec.request.devices;
    let asked = devices.cards() as usize;
    if task.devices.len() != asked {
        return Err(RankFault::Devices { asked, placed: task.devices.len() });
    }
    for (place, hold) in task.devices.iter().enumerate() {
        let gpu = hold.gpu;
        if task.devices[..place].iter().any(|other| other.gpu == gpu) {
            return Err(RankFault::Twice { gpu });
        }
        let Some(card) = node.spec.gpus.get(usize::from(gpu)) else {
            return Err(RankFault::NoGpu { gpu });
        };
        if Some(card.model) != model {
            return Err(RankFault::OtherModel { gpu, model: card.model });
        }
        if !spec.eligibility().accepts_card(card, node) {
            return Err(RankFault::Selector { gpu });
        }
        if !is_asked(devices, card.model, hold.mode) {
            return Err(RankFault::Hold { gpu, mode: hold.mode });
        }
    }
    Ok(())
}

/// Whether a card of `model` would be held as was asked.
fn is_asked(devices: &DeviceRequest, model: GpuModel, mode: HoldMode) -> bool {
    match (devices, mode) {
        (DeviceRequest::Whole { .. }, HoldMode::Whole) => true,
        (DeviceRequest::Mig { .. }, HoldMode::Mig(place)) => {
            let legal = model.facts().mig.is_some_and(|family| place.shape.starts(family).contains(&place.start));
            legal && devices.mig_shape(model) == Some(place.shape)
        }
        (DeviceRequest::Mps { percent, memory_mib, .. }, HoldMode::Mps { percent: held, memory_mib: held_mib }) => {
            *percent == held && *memory_mib == held_mib
        }
        (DeviceRequest::TimeSlice { memory_mib, .. }, HoldMode::TimeSlice { memory_mib: held_mib }) => {
            *memory_mib == held_mib
        }
        _ => false,
    }
}
