//! Whether a placement is what the job asked for: counts, kinds, pool, closeness. Whether it *fits* is the capacity ledger's business.

use super::cells;
use crate::command::Binding;
use crate::reject::Reject;
use crate::routing::refusal_of_pool;
use crate::state::State;
use muster_model::capacity::Misfit;
use muster_model::{DeviceHold, DeviceRequest, GpuModel, HoldMode, Job, JobSpec, Node, TaskPlacement, closeness};

/// Checks the shape of every task and of the gang as a whole.
pub(super) fn check(state: &State, job: &Job, binding: &Binding) -> Result<(), Reject> {
    let wrong = |why: String| Reject::WrongShape { job: job.id, why };
    let spec = &job.spec;
    if binding.tasks.len() != spec.tasks as usize {
        return Err(wrong(format!("{} tasks were asked, {} are placed", spec.tasks, binding.tasks.len())));
    }
    check_model(spec, binding.model).map_err(wrong)?;
    let mut ground = Vec::with_capacity(binding.tasks.len());
    for (rank, task) in binding.tasks.iter().enumerate() {
        let node = state.nodes.get(&task.node).ok_or(Misfit::NoNode { node: task.node })?;
        let at = |why: String| wrong(format!("rank {rank} on {}: {why}", node.spec.name));
        if node.cell != binding.cell {
            let [there, asked] = [node.cell, binding.cell].map(|cell| cells::name(state, cell));
            return Err(at(format!("the node is in {there}, not in {asked}")));
        }
        // Consecutive ranks mostly share a node: its pool was judged already.
        if ground.last().is_none_or(|last: &&Node| last.id != node.id)
            && let Some(refusal) = refusal_of_pool(state, &node.spec.pool, spec)
        {
            return Err(at(refusal.of(&node.spec.pool).to_string()));
        }
        check_driver(spec, node).map_err(at)?;
        check_devices(spec, binding.model, task, node).map_err(at)?;
        ground.push(&**node);
    }
    closeness::check(&spec.topology, spec.numa, &binding.tasks, &ground).map_err(|too_far| wrong(too_far.to_string()))
}

fn check_driver(spec: &JobSpec, node: &Node) -> Result<(), String> {
    match spec.driver_min {
        Some(min) if !spec.eligibility().has_driver_on(node) => {
            Err(format!("driver older than needed: {min} asked, {:?} there", node.spec.driver))
        }
        _ => Ok(()),
    }
}

fn check_model(spec: &JobSpec, model: Option<GpuModel>) -> Result<(), String> {
    match (spec.request.devices.mode(), model) {
        (None, None) => Ok(()),
        (None, Some(model)) => Err(format!("no GPU was asked, cards of {model} are placed")),
        (Some(_), None) => Err("GPUs were asked, no model is given".to_owned()),
        (Some(_), Some(model)) if spec.possible_on(model) => Ok(()),
        (Some(_), Some(model)) => Err(format!("cards of {model} do not serve the request")),
    }
}

fn check_devices(spec: &JobSpec, model: Option<GpuModel>, task: &TaskPlacement, node: &Node) -> Result<(), String> {
    let devices = &spec.request.devices;
    let cards = devices.cards() as usize;
    if task.devices.len() != cards {
        return Err(format!("{cards} devices were asked, {} are placed", task.devices.len()));
    }
    for (place, hold) in task.devices.iter().enumerate() {
        if task.devices[..place].iter().any(|other| other.gpu == hold.gpu) {
            return Err(format!("GPU {} is placed twice", hold.gpu));
        }
        let Some(gpu) = node.spec.gpus.get(usize::from(hold.gpu)) else {
            return Err(format!("there is no GPU {}", hold.gpu));
        };
        if Some(gpu.model) != model {
            return Err(format!("GPU {} is a {}", hold.gpu, gpu.model));
        }
        if !spec.eligibility().accepts_card(gpu, node) {
            return Err(format!("GPU {} is not one that the selector accepts", hold.gpu));
        }
        check_hold(devices, gpu.model, hold)?;
    }
    Ok(())
}

fn check_hold(devices: &DeviceRequest, model: GpuModel, hold: &DeviceHold) -> Result<(), String> {
    let as_asked = match (devices, hold.mode) {
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
    };
    if as_asked { Ok(()) } else { Err(format!("{} of GPU {} is not what was asked", hold.mode, hold.gpu)) }
}
