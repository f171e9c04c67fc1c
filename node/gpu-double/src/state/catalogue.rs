//! The cards and network cards of a host that nobody has described further.
//!
//! What must stay true: models differ as their data sheets do; what one host has that another of its model has not is set by the builders.

use super::card::{Architecture, Card, PciAddress};
use super::gauges::Gauges;
use super::health::Health;
use super::instance::MigState;
use muster_model::GpuModel;
use serde::{Deserialize, Serialize};

/// PCI buses of the cards of an eight-GPU board, the first four on NUMA node 0.
const BUSES: [u32; 8] = [0x17, 0x2a, 0x3a, 0x5d, 0x9a, 0xab, 0xba, 0xdb];

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Name below `sys/class/infiniband`.
    pub name: String,
    /// Where it is.
    pub pci: PciAddress,
    /// NUMA node.
    pub numa: i32,
    /// PCI switch; see [`Card::switch`].
    pub switch: u32,
    /// PCI host bridge.
    pub bridge: u32,
}

fn address(slot: usize, is_nic: bool) -> PciAddress {
    PciAddress { domain: (slot / 8) as u32, bus: BUSES[slot % 8] + u32::from(is_nic), device: 0 }
}

/// NUMA node, PCI switch and host bridge.
const fn place(model: GpuModel, slot: usize) -> (i32, u32, u32) {
    let on_switch = match model {
        GpuModel::A100_40 | GpuModel::A100_80 => 2,
        _ => 1,
    };
    let switch = (slot / on_switch) as u32;
    ((slot % 8 / 4) as i32, switch, switch)
}

/// The network card beside the card of a slot.
pub(super) fn nic(model: GpuModel, slot: usize) -> Nic {
    let (numa, switch, bridge) = place(model, slot);
    Nic { name: format!("mlx5_{slot}"), pci: address(slot, true), numa, switch, bridge }
}

/// A healthy, idle card without UUID and serial number.
pub(super) fn card(model: GpuModel, slot: usize) -> Card {
    let (name, device_id, architecture, power_limit_w, memory_clock_mhz) = kind(model);
    let (numa, switch, bridge) = place(model, slot);
    let has_mig = model.facts().mig.is_some();
    Card {
        model,
        name: name.to_owned(),
        uuid: String::new(),
        serial: String::new(),
        pci: address(slot, false),
        pci_device_id: device_id << 16 | 0x10de,
        minor: slot as u32,
        numa,
        switch,
        bridge,
        memory_mib: model.memory_mib(),
        reserved_mib: if has_mig { 628 } else { 400 },
        architecture,
        links: Vec::new(),
        fabric: None,
        mig: MigState::default(),
        processes: Vec::new(),
        clients: Vec::new(),
        memory_other_bytes: 0,
        compute_mode: 0,
        is_persistent: false,
        is_accounting: false,
        time_slice: 0,
        gauges: Gauges {
            power_limit_mw: power_limit_w * 1_000,
            power_mw: power_limit_w * 100,
            memory_clock_mhz,
            ..Gauges::default()
        },
        health: Health::default(),
        is_absent: false,
    }
}

/// Name, PCI device id, generation, power limit in watts, memory clock in MHz.
const fn kind(model: GpuModel) -> (&'static str, u32, Architecture, u32, u32) {
    match model {
        GpuModel::A30 => ("NVIDIA A30", 0x20b7, Architecture::Ampere, 165, 1_215),
        GpuModel::A100_40 => ("NVIDIA A100-SXM4-40GB", 0x20b0, Architecture::Ampere, 400, 1_215),
        GpuModel::A100_80 => ("NVIDIA A100-SXM4-80GB", 0x20b2, Architecture::Ampere, 400, 1_593),
        GpuModel::A10 => ("NVIDIA A10", 0x2236, Architecture::Ampere, 150, 6_251),
        GpuModel::H100 => ("NVIDIA H100 80GB HBM3", 0x2330, Architecture::Hopper, 700, 2_619),
        GpuModel::H100_94 => ("NVIDIA H100 NVL", 0x2321, Architecture::Hopper, 400, 2_619),
        GpuModel::GH200 => ("NVIDIA GH200 480GB", 0x2342, Architecture::Hopper, 900, 2_619),
        GpuModel::H200 => ("NVIDIA H200", 0x2335, Architecture::Hopper, 700, 3_201),
        GpuModel::B200 => ("NVIDIA B200", 0x2901, Architecture::Blackwell, 1_000, 3_996),
        GpuModel::L40S => ("NVIDIA L40S", 0x26b9, Architecture::Ada, 350, 9_001),
        GpuModel::T4 => ("Tesla T4", 0x1eb8, Architecture::Turing, 70, 5_001),
        GpuModel::V100_16 => ("Tesla V100-SXM2-16GB", 0x1db1, Architecture::Volta, 300, 877),
        GpuModel::V100_32 => ("Tesla V100-SXM2-32GB", 0x1db5, Architecture::Volta, 300, 877),
        GpuModel::P100 => ("Tesla P100-SXM2-16GB", 0x15f9, Architecture::Pascal, 300, 715),
    }
}
