//! A card: what it is, how it is set, who uses it.
//!
//! What must stay true: every field can be written to the fleet file and read again; a field that is left out has the value of a healthy,
//! idle card.

use super::gauges::Gauges;
use super::health::Health;
use super::instance::MigState;
use super::refusal::{Answer, Refusal};
use muster_model::GpuModel;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A place on the PCI bus; the function is always 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u32,
    /// Device.
    pub device: u32,
}

impl fmt::Display for PciAddress {
    /// As sysfs writes it: `0000:17:00.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

impl PciAddress {
    /// As NVML writes it: `00000000:17:00.0`, in capitals.
    #[must_use]
    pub fn nvml(self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// As the kernel's log writes it: `0000:17:00`.
    #[must_use]
    pub fn kernel(self) -> String {
        format!("{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

/// Generations; the numbers are those of `nvml.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Architecture {
    /// Pascal.
    Pascal = 4,
    /// Volta.
    Volta = 5,
    /// Turing.
    Turing = 6,
    /// Ampere: a change of the MIG mode needs a reset, and the mode outlives a reboot.
    Ampere = 7,
    /// Ada.
    Ada = 8,
    /// Hopper: a change of the MIG mode needs no reset, and the mode ends with a reboot; GPM is supported.
    Hopper = 9,
    /// Blackwell.
    Blackwell = 10,
}

/// What an NVLink leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkRemote {
    /// Another card.
    Card(PciAddress),
    /// An NVSwitch.
    Switch(PciAddress),
}

impl LinkRemote {
    /// Where the other end is.
    #[must_use]
    pub const fn address(&self) -> PciAddress {
        match self {
            LinkRemote::Card(address) | LinkRemote::Switch(address) => *address,
        }
    }
}

/// An NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Whether it is up.
    pub is_active: bool,
    /// NVLink's version.
    pub version: u32,
    /// The other end.
    pub remote: LinkRemote,
}

/// Where a card is in the NVLink fabric that a fabric manager has set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// Zero inside one host.
    pub cluster_uuid: [u8; 16],
    /// Which clique.
    pub clique: u32,
    /// 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// What came of it; 0 is success.
    pub status: u32,
    /// As in `nvml.h`.
    pub health_mask: u32,
}

/// How a process uses a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    /// CUDA.
    #[default]
    Compute,
    /// Graphics.
    Graphics,
    /// Client of an MPS server.
    Mps,
}

/// A process that uses a card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// How it uses the card.
    #[serde(default)]
    pub kind: ProcessKind,
    /// Memory of the card that it holds.
    pub memory_bytes: u64,
    /// Its GPU instance, under MIG.
    #[serde(default)]
    pub gpu_instance: Option<u32>,
    /// Its compute instance, under MIG.
    #[serde(default)]
    pub compute_instance: Option<u32>,
    /// When the process of this id started (field 22 of `/proc/PID/stat`): with it the entry ends with the process, without it the entry
    /// stays until it is removed.
    #[serde(default)]
    pub started_ticks: Option<u64>,
}

/// A process that has NVML open on a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Its process id.
    pub pid: u32,
    /// When it started, if it is a real process; see [`Process::started_ticks`].
    #[serde(default)]
    pub started_ticks: Option<u64>,
}

/// A card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Model.
    pub model: GpuModel,
    /// NVML's name of it.
    pub name: String,
    /// UUID.
    pub uuid: String,
    /// Serial number of the board.
    pub serial: String,
    /// Where it is.
    pub pci: PciAddress,
    /// Device id in the high half, vendor id in the low one.
    pub pci_device_id: u32,
    /// Minor number of its device node.
    pub minor: u32,
    /// NUMA node of its bus; -1 where the host has none.
    pub numa: i32,
    /// PCI switch: cards and NICs of one number share it.
    pub switch: u32,
    /// PCI host bridge.
    pub bridge: u32,
    /// Memory.
    pub memory_mib: u64,
    /// Memory that the driver keeps for itself.
    pub reserved_mib: u64,
    /// Generation.
    pub architecture: Architecture,
    /// NVLinks, by number.
    #[serde(default)]
    pub links: Vec<Link>,
    /// NVLink fabric.
    #[serde(default)]
    pub fabric: Option<Fabric>,
    /// MIG.
    #[serde(default)]
    pub mig: MigState,
    /// Who uses it.
    #[serde(default)]
    pub processes: Vec<Process>,
    /// Who has NVML open on it.
    #[serde(default)]
    pub clients: Vec<Client>,
    /// Memory in use that no listed process holds.
    #[serde(default)]
    pub memory_other_bytes: u64,
    /// `nvmlComputeMode_t`.
    #[serde(default)]
    pub compute_mode: u32,
    /// Persistence mode.
    #[serde(default)]
    pub is_persistent: bool,
    /// Accounting mode.
    #[serde(default)]
    pub is_accounting: bool,
    /// Time slice: 0 default, 1 short, 2 medium, 3 long.
    #[serde(default)]
    pub time_slice: u32,
    /// Temperatures, power, load.
    #[serde(default)]
    pub gauges: Gauges,
    /// Error counters.
    #[serde(default)]
    pub health: Health,
    /// It was lost when the host booted last, and so has no index.
    #[serde(default)]
    pub is_absent: bool,
}

/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;

/// Memory of a card or of a slice, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What the driver keeps.
    pub reserved: u64,
    /// In use.
    pub used: u64,
    /// Free.
    pub free: u64,
}

impl Memory {
    fn new(total: u64, reserved: u64, used: u64) -> Self {
        let used = used.min(total.saturating_sub(reserved));
        Memory { total, reserved, used, free: total - reserved.min(total) - used }
    }
}

impl Card {
    /// Memory of the whole card.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let of_processes: u64 = self.processes.iter().map(|process| process.memory_bytes).sum();
        let of_instances: u64 = self.mig.instances.iter().map(|instance| instance.memory_other_bytes).sum();
        let used = of_processes.saturating_add(of_instances).saturating_add(self.memory_other_bytes);
        Memory::new(self.memory_mib * MIB, self.reserved_mib * MIB, used)
    }

    /// Memory of one GPU instance.
    ///
    /// # Errors
    /// There is no such instance.
    pub fn instance_memory(&self, gpu_instance: u32) -> Answer<Memory> {
        let instance = self.instance(gpu_instance)?;
        let profile = super::profiles::by_id(self.model, instance.profile_id).ok_or(Refusal::Unknown)?;
        let theirs = self.processes.iter().filter(|process| process.gpu_instance == Some(gpu_instance));
        let used = theirs.map(|process| process.memory_bytes).sum::<u64>() + instance.memory_other_bytes;
        Ok(Memory::new(profile.memory_mib() * MIB, 0, used))
    }

    /// The processes of one kind, of the whole card or of one compute instance.
    pub fn listed(&self, kind: ProcessKind, of: Option<(u32, u32)>) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |process| {
            process.kind == kind
                && of.is_none_or(|(gpu, compute)| {
                    process.gpu_instance == Some(gpu) && process.compute_instance.is_none_or(|own| own == compute)
                })
        })
    }

    /// Whether a change of the MIG mode needs no reset (field 184).
    #[must_use]
    pub fn is_resetless(&self) -> bool {
        self.has_mig() && self.architecture >= Architecture::Hopper
    }

    /// Whether it can be cut.
    #[must_use]
    pub const fn has_mig(&self) -> bool {
        self.model.facts().mig.is_some()
    }
}
