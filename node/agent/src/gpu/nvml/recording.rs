//! What a recording of a host has: what the driver tells of its cards, and sysfs of their places ([`super::recorder`]).
//!
//! What must stay true: numbers are those of `nvml.h`; what the card, the driver or the mode does not have has its default.

use muster_model::GpuModel;

/// A host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Version of the driver.
    pub driver: String,
    /// CUDA version of the driver: 1000 times the major one plus 10 times the minor one.
    pub cuda: i32,
    /// The cards, in the order of the driver.
    pub cards: Vec<RecordedCard>,
    /// Network cards: name, and place.
    pub nics: Vec<(String, Place)>,
    /// What could not be read, and why.
    pub unread: Vec<String>,
}

/// Where a device is, by its path in sysfs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// As sysfs writes it: `0000:17:00.0`.
    pub pci: String,
    /// -1 where the host does not say.
    pub numa: i32,
    /// The host bridge above it.
    pub bridge: String,
    /// The nearest part above it that other devices can be below, other than a port of its own.
    pub switch: String,
}

/// A card. Numbers are those of `nvml.h`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedCard {
    /// Absent for a card that the catalogue does not have.
    pub model: Option<GpuModel>,
    /// NVML's name of it.
    pub name: String,
    /// UUID.
    pub uuid: String,
    /// Serial number of the board.
    pub serial: String,
    /// Where it is.
    pub place: Place,
    /// Device id in the high half, vendor id in the low one.
    pub pci_device_id: u32,
    /// Minor number of its device node.
    pub minor: u32,
    /// Memory.
    pub memory_mib: u64,
    /// Memory that the driver keeps for itself.
    pub reserved_mib: u64,
    /// In use by nobody that the driver lists.
    pub used_bytes: u64,
    /// Generation.
    pub architecture: u32,
    /// NVLinks, by number.
    pub links: Vec<RecordedLink>,
    /// Cluster, clique, state, status, health mask of the NVLink fabric.
    pub fabric: Option<([u8; 16], u32, u8, u32, u32)>,
    /// Now, and after a reset.
    pub mig_mode: (bool, bool),
    /// GPU instances that stand.
    pub instances: Vec<RecordedInstance>,
    /// What the driver offers.
    pub profiles: Vec<RecordedProfile>,
    /// `nvmlComputeMode_t`.
    pub compute_mode: u32,
    /// Persistence mode.
    pub is_persistent: bool,
    /// Accounting mode.
    pub is_accounting: bool,
    /// What sensors tell.
    pub sensors: RecordedSensors,
    /// What was counted.
    pub errors: RecordedErrors,
}

/// An NVLink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedLink {
    /// Whether it is up.
    pub is_active: bool,
    /// NVLink's version.
    pub version: u32,
    /// Whether it leads to a switch.
    pub is_switch: bool,
    /// Where it leads, as sysfs writes it.
    pub pci: String,
}

/// A GPU instance with its compute instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedInstance {
    /// Its id.
    pub id: u32,
    /// Id of its profile.
    pub profile_id: u32,
    /// First slice.
    pub start: u32,
    /// Slices.
    pub size: u32,
    /// Its compute instances.
    pub compute: Vec<RecordedCompute>,
}

/// A compute instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedCompute {
    /// Its id.
    pub id: u32,
    /// Id of its profile.
    pub profile_id: u32,
    /// First slice.
    pub start: u32,
    /// Slices.
    pub size: u32,
    /// UUID.
    pub uuid: String,
}

/// A GPU instance profile that the driver offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedProfile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`.
    pub number: u32,
    /// Its id.
    pub id: u32,
    /// Compute slices.
    pub compute_slices: u32,
    /// Memory slices.
    pub memory_slices: u32,
    /// How many of it a card holds.
    pub instances_max: u32,
    /// Memory.
    pub memory_mib: u64,
    /// Where it may start.
    pub starts: Vec<u32>,
}

/// What sensors tell; zero where they do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedSensors {
    /// Of the GPU.
    pub temperature_c: u32,
    /// Of its memory.
    pub memory_temperature_c: u32,
    /// Power.
    pub power_mw: u32,
    /// Its limit.
    pub power_limit_mw: u32,
    /// Energy used so far.
    pub energy_mj: u64,
    /// Why clocks are lowered.
    pub clocks_event_reasons: u64,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: u32,
    /// Clock of the memory.
    pub memory_clock_mhz: u32,
}

/// Errors that were counted; zero where they are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedErrors {
    /// Corrected and uncorrected, since the last reset.
    pub volatile: (u64, u64),
    /// The same of all time.
    pub aggregate: (u64, u64),
    /// Remapped rows: corrected, uncorrected, one is pending, one has failed.
    pub rows: (u32, u32, bool, bool),
    /// Field 230.
    pub recovery_action: u32,
    /// PCIe replays.
    pub pcie_replays: u32,
}
