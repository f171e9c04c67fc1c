//! What one task asks for: devices in one of four ways, with CPU and memory beside them.

use crate::gpu::GpuModel;
use crate::mig::{self, MigShape};
use crate::resources::{GpuUnits, ResourceVec};
use crate::words::words;
use serde::{Deserialize, Serialize};

/// The devices of one task. `models` are the acceptable ones in order of preference; empty means any model that can serve it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeviceRequest {
    /// No GPU: CPU and memory only.
    None,
    /// `count` whole cards of one model on one node.
    Whole {
        /// Cards per task.
        count: u32,
        /// Acceptable models.
        models: Vec<GpuModel>,
    },
    /// One MIG instance, by its usual name.
    Mig {
        /// For example `1g.10gb`.
        profile: String,
        /// Acceptable models.
        models: Vec<GpuModel>,
    },
    /// A share of one card under MPS: enforced compute percentage and pinned memory limit.
    Mps {
        /// Active thread percentage, 1–100.
        percent: u8,
        /// Memory limit in MiB.
        memory_mib: u64,
        /// Acceptable models.
        models: Vec<GpuModel>,
    },
    /// A time-slice of one card: turns of compute, a budget of memory.
    TimeSlice {
        /// Memory budget in MiB.
        memory_mib: u64,
        /// Acceptable models.
        models: Vec<GpuModel>,
    },
}

/// How a card is driven. A card changes mode only when it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SharingMode {
    /// One task has it all.
    Whole,
    /// Cut into instances.
    Mig,
    /// Shared under MPS.
    Mps,
    /// Shared by turns.
    TimeSlice,
}

words!(SharingMode, "sharing mode",
    SharingMode::Whole => "whole", SharingMode::Mig => "mig",
    SharingMode::Mps => "mps", SharingMode::TimeSlice => "time-slice");

impl SharingMode {
    /// The word in files and tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            SharingMode::Whole => "whole",
            SharingMode::Mig => "mig",
            SharingMode::Mps => "mps",
            SharingMode::TimeSlice => "time-slice",
        }
    }
}

impl DeviceRequest {
    /// The mode it needs; `None` for a CPU-only task.
    #[must_use]
    pub const fn mode(&self) -> Option<SharingMode> {
        match self {
            DeviceRequest::None => None,
            DeviceRequest::Whole { .. } => Some(SharingMode::Whole),
            DeviceRequest::Mig { .. } => Some(SharingMode::Mig),
            DeviceRequest::Mps { .. } => Some(SharingMode::Mps),
            DeviceRequest::TimeSlice { .. } => Some(SharingMode::TimeSlice),
        }
    }

    /// Cards that one task touches.
    #[must_use]
    pub const fn cards(&self) -> u32 {
        match self {
            DeviceRequest::None => 0,
            DeviceRequest::Whole { count, .. } => *count,
            _ => 1,
        }
    }

    /// The models the tenant named; empty means any.
    #[must_use]
    pub fn models(&self) -> &[GpuModel] {
        match self {
            DeviceRequest::None => &[],
            DeviceRequest::Whole { models, .. }
            | DeviceRequest::Mig { models, .. }
            | DeviceRequest::Mps { models, .. }
            | DeviceRequest::TimeSlice { models, .. } => models,
        }
    }

    /// The MIG shape it means on `model`.
    #[must_use]
    pub fn mig_shape(&self, model: GpuModel) -> Option<MigShape> {
        match self {
            DeviceRequest::Mig { profile, .. } => mig::parse_profile(model, profile),
            _ => None,
        }
    }

    /// Whether a card of `model` could ever serve it, whatever else stands on it.
    #[must_use]
    pub fn possible_on(&self, model: GpuModel) -> bool {
        let named = self.models().is_empty() || self.models().contains(&model);
        named
            && match self {
                DeviceRequest::None => false,
                DeviceRequest::Whole { .. } => true,
                DeviceRequest::Mig { .. } => self.mig_shape(model).is_some(),
                DeviceRequest::Mps { memory_mib, .. } | DeviceRequest::TimeSlice { memory_mib, .. } => {
                    *memory_mib <= model.memory_mib()
                }
            }
    }

    /// The models that could ever serve it, the preferred first.
    pub fn possible_models(&self) -> impl Iterator<Item = GpuModel> + '_ {
        let named = self.models();
        let all = if named.is_empty() { &GpuModel::ALL[..] } else { named };
        all.iter().copied().filter(|model| self.possible_on(*model))
    }

    /// Memory that one hold gives on `model`, by the data sheet: a card's, an instance's or the share's own, in MiB.
    #[must_use]
    pub fn hold_memory_mib(&self, model: GpuModel) -> Option<u64> {
        match self {
            DeviceRequest::None => None,
            DeviceRequest::Whole { .. } => Some(model.memory_mib()),
            DeviceRequest::Mig { .. } => mig::instance_memory_mib(model, self.mig_shape(model)?),
            DeviceRequest::Mps { memory_mib, .. } | DeviceRequest::TimeSlice { memory_mib, .. } => Some(*memory_mib),
        }
    }

    /// GPU units that one task is charged on `model`: whole cards as such, a MIG instance by the larger of its compute and
    /// memory share, an MPS share by the larger of percentage and memory, a time-slice by its memory (rounded up).
    #[must_use]
    pub fn charge_on(&self, model: GpuModel) -> GpuUnits {
        let by_memory = |mib: u64| GpuUnits((mib * GpuUnits::CARD.0).div_ceil(model.memory_mib()));
        match self {
            DeviceRequest::None => GpuUnits(0),
            DeviceRequest::Whole { count, .. } => GpuUnits::cards(u64::from(*count)),
            DeviceRequest::Mig { .. } => match (model.facts().mig, self.mig_shape(model)) {
                (Some(family), Some(shape)) => shape.charge(family),
                _ => GpuUnits(0),
            },
            DeviceRequest::Mps { percent, memory_mib, .. } => {
                GpuUnits(u64::from(*percent) * GpuUnits::CARD.0 / 100).max(by_memory(*memory_mib))
            }
            DeviceRequest::TimeSlice { memory_mib, .. } => by_memory(*memory_mib),
        }
    }
}

/// Everything one task needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskRequest {
    /// Devices.
    pub devices: DeviceRequest,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// MiB of host memory.
    pub memory_mib: u64,
}

impl TaskRequest {
    /// What one task is charged when it lands on `model` (ignored for a CPU-only task).
    #[must_use]
    pub fn charge_on(&self, model: GpuModel) -> ResourceVec {
        let mut charge = ResourceVec::of_gpu(model, self.devices.charge_on(model));
        charge.cpu_milli = self.cpu_milli;
        charge.memory_mib = self.memory_mib;
        charge
    }
}
