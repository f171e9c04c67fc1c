//! A naive placer: puts a queued job where it happens to fit, without any wish for a good place.

use super::Chance;
use muster_control_core::{LeasedBinding, State};
use muster_model::capacity::CardUse;
use muster_model::ids::NodeId;
use muster_model::mig::{self, MigPlacement};
use muster_model::{DeviceHold, DeviceRequest, GpuModel, HoldMode, Job, Node, TaskPlacement};
use std::collections::BTreeSet;

/// A binding for `job` under its cell's present lease, right in shape if enough cards were found; it may still not fit.
pub(crate) fn place(state: &State, chance: &mut Chance, job: &Job) -> Option<LeasedBinding> {
    let cell = state.cells.get(&job.cell?)?;
    let models: Vec<GpuModel> = job.spec.request.devices.possible_models().collect();
    let model = chance.pick(&models);
    let suits = |node: &&Node| {
        node.cell == cell.id && model.is_none_or(|model| node.spec.gpus.iter().any(|gpu| gpu.model == model))
    };
    let nodes: Vec<&Node> = state.nodes.values().map(AsRef::as_ref).filter(suits).collect();
    let mut taken = BTreeSet::new();
    let mut tasks = Vec::new();
    for _ in 0..job.spec.tasks {
        let node = chance.pick(&nodes)?;
        tasks.push(TaskPlacement { node: node.id, devices: holds(state, chance, job, node, model, &mut taken)? });
    }
    Some(LeasedBinding { cell: cell.id, epoch: cell.epoch, job: job.id, attempt: job.attempt.next(), model, tasks })
}

fn holds(
    state: &State,
    chance: &mut Chance,
    job: &Job,
    node: &Node,
    model: Option<GpuModel>,
    taken: &mut BTreeSet<(NodeId, u16)>,
) -> Option<Vec<DeviceHold>> {
    let Some(model) = model else { return Some(Vec::new()) };
    let there = state.capacity().nodes().get(&node.id)?;
    let cards: Vec<(u16, &CardUse)> = (0_u16..).zip(&there.cards).collect();
    let of_model = |gpu: u16| node.spec.gpus.get(usize::from(gpu)).is_some_and(|gpu| gpu.model == model);
    let cards: Vec<_> = cards.into_iter().filter(|(gpu, _)| of_model(*gpu)).collect();
    if let DeviceRequest::Whole { count, .. } = &job.spec.request.devices {
        let mut free: Vec<DeviceHold> = Vec::new();
        for (gpu, card) in cards {
            if free.len() < *count as usize && *card == CardUse::Free && taken.insert((node.id, gpu)) {
                free.push(DeviceHold { gpu, mode: HoldMode::Whole });
            }
        }
        return Some(free);
    }
    let (gpu, card) = chance.pick(&cards)?;
    let mode = match &job.spec.request.devices {
        DeviceRequest::Mig { profile, .. } => {
            let (family, shape) = (model.facts().mig?, mig::parse_profile(model, profile)?);
            let standing: Vec<MigPlacement> = match card {
                CardUse::Mig(instances) => instances.iter().map(|(place, _)| *place).collect(),
                _ => Vec::new(),
            };
            let free: Vec<MigPlacement> = mig::free_starts(family, &standing, shape).collect();
            HoldMode::Mig(chance.pick(&free).unwrap_or(MigPlacement { shape, start: 0 }))
        }
        DeviceRequest::Mps { percent, memory_mib, .. } => HoldMode::Mps { percent: *percent, memory_mib: *memory_mib },
        DeviceRequest::TimeSlice { memory_mib, .. } => HoldMode::TimeSlice { memory_mib: *memory_mib },
        DeviceRequest::None | DeviceRequest::Whole { .. } => return None,
    };
    Some(vec![DeviceHold { gpu, mode }])
}
