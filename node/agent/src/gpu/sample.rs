//! What a backend reads of its cards again and again: telemetry, and readings for their health.
//!
//! What must stay true: what a card does not tell is absent; figures of a MIG instance belong to the UUID that stood before and after they were read.

use muster_model::mig::MigPlacement;
use muster_node_core::health::RemappedRows;
use muster_node_core::telemetry::Figures;
use serde::{Deserialize, Serialize};

/// Telemetry of a card and of its MIG instances at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CardSample {
    /// NVML's name of the card, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// As NVML writes it: `00000000:17:00.0`.
    pub pci_bus_id: String,
    /// Minor number of its device node.
    pub minor: u32,
    /// What the whole card tells.
    pub figures: Figures,
    /// What its MIG instances tell.
    pub instances: Vec<InstanceSample>,
    /// Values that could not be true, and were dropped.
    pub dropped: u32,
    /// Time of a processor that the reading took, in µs.
    pub cpu_us: u64,
}

/// Telemetry of a MIG instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceSample {
    /// GPU instance id, which a later instance may have again.
    pub id: u32,
    /// UUID of the MIG device.
    pub uuid: String,
    /// Where it stands; absent for a profile that Muster does not use.
    pub place: Option<MigPlacement>,
    /// What it tells.
    pub figures: Figures,
}

/// Readings of a card for its health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readings {
    /// Remapped rows; a card with MIG instances does not tell them.
    pub rows: Option<RemappedRows>,
    /// Uncorrected memory errors since the last reset.
    pub double_bits: Option<u64>,
    /// Why clocks are lowered: bits of `nvmlClocksEventReason`.
    pub clocks_event_reasons: Option<u64>,
    /// A bit for each NVLink that is up; absent in MIG mode, which may take links down.
    pub links_up: Option<u32>,
}

/// Heat or the power brake: `HwSlowdown`, `SwThermalSlowdown`, `HwThermalSlowdown`, `HwPowerBrakeSlowdown`. The software's power cap is not among them: a
/// busy card is at its limit.
const SLOWDOWN_REASONS: u64 = 0x8 | 0x20 | 0x40 | 0x80;

impl Readings {
    /// Whether clocks are lowered for heat, or because the power supply asks for it.
    #[must_use]
    pub fn is_slowed(&self) -> Option<bool> {
        self.clocks_event_reasons.map(|reasons| reasons & SLOWDOWN_REASONS != 0)
    }
}
