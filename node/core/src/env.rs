//! The environment of a rank: what PyTorch, NCCL and CUDA look for, and Muster's own words.
//!
//! Names are those of `torch.distributed` and torchrun, so that a script which runs under torchrun runs here unchanged. What must
//! stay true: what Muster sets wins over the job's own environment, because a job that could set its devices could leave them.

use crate::mps::MpsLimits;
use crate::task::TaskSpec;
use muster_model::GpuModel;
use muster_model::checkpoint::NOTE_VARIABLE;
use muster_model::mig::MigPlacement;
use muster_model::task::HoldMode;
use std::collections::BTreeMap;

/// Where a client finds the MPS server of its card.
pub const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// What NCCL and Gloo read to know over which interface to reach other ranks.
const OWN_INTERFACE: [&str; 2] = ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"];

/// How the devices of this node are called at the moment the task starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceNames {
    /// UUID of each card.
    pub cards: Vec<String>,
    /// Model of each.
    pub models: Vec<GpuModel>,
    /// UUIDs of the MIG devices of each MIG instance that stands now, by card and place: one for each compute instance.
    pub instances: BTreeMap<(u16, MigPlacement), Vec<String>>,
    /// Folder of the control pipe of each card's MPS server.
    pub mps_pipes: BTreeMap<u16, String>,
}

/// A device that has no name: it was not prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GPU {card} has no {what}")]
pub struct NotPrepared {
    /// Which card.
    pub card: u16,
    /// What is missing on it.
    pub what: String,
}

/// The whole environment of a task beside what it inherits from the host.
///
/// # Errors
/// When one of its devices is not there.
pub fn task_env(spec: &TaskSpec, names: &DeviceNames) -> Result<BTreeMap<String, String>, NotPrepared> {
    let mut env = spec.env.clone();
    if spec.private_network {
        // They look for a network card otherwise, or for the address of the host's name.
        for name in OWN_INTERFACE {
            env.entry(name.to_owned()).or_insert_with(|| "lo".to_owned());
        }
    }
    let mut set = |name: &str, value: String| {
        env.insert(name.to_owned(), value);
    };
    let world = spec.world.as_ref();
    let node_rank = world.map_or(spec.node_rank, |world| world.node_rank);
    set("RANK", world.map_or(spec.key.rank.0, |world| world.rank).to_string());
    set("LOCAL_RANK", world.map_or(spec.local_rank, |world| world.local_rank).to_string());
    set("WORLD_SIZE", world.map_or(spec.world_size, |world| world.workers).to_string());
    set("LOCAL_WORLD_SIZE", world.map_or(spec.local_world_size, |world| world.local_workers).to_string());
    set("NODE_RANK", node_rank.to_string());
    set("GROUP_RANK", node_rank.to_string());
    if let Some(world) = world {
        set("MUSTER_WORKERS", world.workers.to_string());
        set("MUSTER_WORKERS_MIN", world.workers_min.to_string());
        set("MUSTER_WORKERS_MAX", world.workers_max.to_string());
        set("MUSTER_WORLD_GENERATION", world.generation.to_string());
    }
    set("MASTER_ADDR", spec.master_addr.clone());
    set("MASTER_PORT", spec.master_port.to_string());
    if let Some(block) = spec.ports.block() {
        set("MUSTER_PORTS", block.to_string());
    }
    set("TORCHELASTIC_RESTART_COUNT", spec.restart_count.to_string());
    set("MUSTER_RESTART_COUNT", spec.restart_count.to_string());
    set("MUSTER_JOB_ID", spec.job.to_string());
    set("MUSTER_JOB_NAME", spec.job_name.clone());
    set("MUSTER_ATTEMPT", spec.attempt.to_string());
    set("MUSTER_ALLOCATION_ID", spec.key.allocation.to_string());
    set("MUSTER_TENANT", spec.tenant.clone());
    set("MUSTER_TASK", spec.key.to_string());
    set(NOTE_VARIABLE, spec.checkpoint_note.clone());
    // CUDA orders cards by speed unless told otherwise.
    set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
    set("CUDA_VISIBLE_DEVICES", visible_devices(spec, names)?);
    for hold in &spec.devices {
        let model = names.models.get(usize::from(hold.gpu)).copied();
        if let Some(limits) = model.and_then(|model| MpsLimits::of(model, hold.mode)) {
            let pipe = names
                .mps_pipes
                .get(&hold.gpu)
                .ok_or_else(|| NotPrepared { card: hold.gpu, what: "MPS server".to_owned() })?;
            set(PIPE_VARIABLE, pipe.clone());
            // A server grants all of its clients as much as the largest share, which may be another's.
            set("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", limits.percent.to_string());
            // Devices are counted as the client sees them, and a share sees one card.
            set("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={}M", limits.memory_mib));
        }
    }
    Ok(env)
}

/// UUIDs of cards and of MIG instances: an index means another card behind a private `/dev`, and after a card has died. A task without devices
/// sees none.
fn visible_devices(spec: &TaskSpec, names: &DeviceNames) -> Result<String, NotPrepared> {
    let mut visible: Vec<String> = Vec::with_capacity(spec.devices.len());
    for hold in &spec.devices {
        let card = hold.gpu;
        let uuid = || names.cards.get(usize::from(card)).map(std::slice::from_ref);
        let instance = |place| names.instances.get(&(card, place)).map(Vec::as_slice);
        let (named, what) = match hold.mode {
            HoldMode::Mig(place) => (instance(place), format!("MIG instance {place}")),
            HoldMode::Whole | HoldMode::TimeSlice { .. } | HoldMode::Mps { .. } => (uuid(), "UUID".to_owned()),
        };
        visible.extend_from_slice(named.ok_or(NotPrepared { card, what })?);
    }
    Ok(visible.join(","))
}
