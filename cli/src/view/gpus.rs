//! GPUs as they are shown: how they are driven, who holds them, what is withheld and what is to be done about it.

use crate::output::{Block, Columns};
use crate::units::show_mebibytes;
use muster_model::node::Repair;
use muster_proto::v1;
use serde::Serialize;

/// A card.
#[derive(Clone, Debug, Serialize)]
pub struct GpuView {
    /// Its node.
    pub node: String,
    /// Its index there.
    pub index: u32,
    /// Model.
    pub model: String,
    /// MiB.
    pub memory_mib: u64,
    /// How it is driven: free, whole, mig, mps, time-slice; unavailable when it is free and may not be given.
    pub mode: String,
    /// What is held of it.
    pub held: String,
    /// By which jobs.
    pub jobs: Vec<u64>,
    /// Why nothing new may be given of it, if so.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unavailable: String,
    /// What is to be done about what is withheld of it, if anything: reset, reboot, inspect.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub repair: String,
    /// NVML's UUID.
    pub uuid: String,
}

impl GpuView {
    /// From the message.
    #[must_use]
    pub fn new(view: &v1::GpuView) -> Self {
        let gpu = view.gpu.clone().unwrap_or_default();
        GpuView {
            node: view.node.clone(),
            index: view.index,
            model: gpu.model,
            memory_mib: gpu.memory_mib,
            mode: view.mode.clone(),
            held: view.held.clone(),
            jobs: view.jobs.clone(),
            unavailable: view.unavailable.clone(),
            repair: repair(gpu.repair).to_owned(),
            uuid: gpu.uuid,
        }
    }
}

fn repair(wire: i32) -> &'static str {
    match v1::Repair::try_from(wire) {
        Ok(v1::Repair::Wait) => "",
        Ok(v1::Repair::Reset) => Repair::Reset.word(),
        Ok(v1::Repair::Reboot) => Repair::Reboot.word(),
        Ok(v1::Repair::Inspect) | Err(_) => Repair::Inspect.word(),
    }
}

/// The table of cards.
#[must_use]
pub fn gpus_table(gpus: &[GpuView], wide: bool) -> Vec<Block> {
    let narrow = ["NODE", "GPU", "MODEL", "MODE", "HELD", "JOBS", "REPAIR", "UNAVAILABLE"];
    let more = ["MEMORY", "UUID"];
    let heads: Vec<&'static str> = if wide { narrow.iter().chain(&more).copied().collect() } else { narrow.to_vec() };
    let mut columns = Columns::new(&heads).right(&["GPU", "MEMORY"]);
    let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    for gpu in gpus {
        let mut row = vec![
            gpu.node.clone(),
            gpu.index.to_string(),
            gpu.model.clone(),
            dash(gpu.mode.clone()),
            dash(gpu.held.clone()),
            dash(gpu.jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
            dash(gpu.repair.clone()),
            dash(gpu.unavailable.clone()),
        ];
        if wide {
            row.extend([show_mebibytes(gpu.memory_mib), gpu.uuid.clone()]);
        }
        columns.row(row);
    }
    vec![columns.block()]
}
