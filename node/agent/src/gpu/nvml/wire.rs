//! What the agent and its helper process say to each other, one JSON line each.
//!
//! What must stay true: every request has a number and is answered at most once; a card is named by its PCI address and its UUID, so that neither a
//! reboot nor a swapped card can make a request mean another one.

use crate::gpu::sample::{CardSample, Readings};
use muster_model::mig::MigPlacement;
use muster_node_core::slices::SliceUse;
use serde::{Deserialize, Serialize};

/// A card, as it is sent to the helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CardId {
    /// As sysfs writes it: `0000:17:00.0`.
    pub(super) pci: String,
    pub(super) uuid: String,
}

/// A line to the helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToHelper {
    Ask {
        number: u64,
        about: About,
        ask: Ask,
    },
    /// Nobody waits for this answer any more; what has not been begun when this is read is not to be done. What was begun shows in the next reading, since
    /// the requests of a card are taken in their order.
    Forget(u64),
}

/// What a request is about; requests about different things do not wait for each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum About {
    Host,
    /// The card that NVML gives this index now.
    Index(u32),
    Card(CardId),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    Count,
    Facts,
    State,
    /// Tell of its events from now on.
    Watch,
    SetMig(bool),
    /// Note the mode that the next reset brings.
    NoteMig(bool),
    /// With so many equal compute instances.
    Create(MigPlacement, u8),
    Destroy(MigPlacement),
    /// Compute mode EXCLUSIVE_PROCESS, or the default one.
    SetExclusive(bool),
    Processes,
    RecoveryAction,
    /// Of the card, or of the MIG instance there.
    MemoryUsed(Option<MigPlacement>),
    /// Of each MIG instance.
    SlicesMemory,
    /// Telemetry.
    Sample,
    /// Readings for its health.
    Readings,
    /// How near the other cards are.
    Ancestors,
}

impl Ask {
    /// Asked again and again of a card: such requests have a thread of their own, so that they never stand before a step.
    pub(super) const fn is_polled(self) -> bool {
        matches!(self, Ask::Sample | Ask::SlicesMemory | Ask::Readings | Ask::Ancestors)
    }
}

/// A line of the helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FromHelper {
    /// The first line, when NVML could be loaded.
    Ready(Versions),
    /// The first line, and the last, when not.
    Failed(String),
    Answer {
        number: u64,
        result: Result<Answer, Fault>,
    },
    Event {
        pci: String,
        event: Event,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Versions {
    pub(super) driver: String,
    /// 1000 times the major one plus 10 times the minor one.
    pub(super) cuda: i32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Count(u32),
    Facts(Facts),
    State(Seen),
    Processes(Vec<SeenProcess>),
    RecoveryAction(u32),
    /// In MiB; none when no such instance stands.
    MemoryUsed(Option<u64>),
    SlicesMemory(Vec<SliceUse>),
    Sample(Box<CardSample>),
    Readings(Readings),
    /// PCI address of each other card, and the level of the nearest common part (`nvmlGpuTopologyLevel_t`).
    Ancestors(Vec<(String, u32)>),
}

/// Why a request was not granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Fault {
    /// The card cannot, as it stands.
    Refused(String),
    /// A call of the driver failed.
    Nvml { call: String, code: u32, words: String },
}

/// What a card is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) card: CardId,
    pub(super) name: String,
    pub(super) memory_mib: u64,
    /// Cluster and clique of the NVLink fabric, once it is set up.
    pub(super) fabric: Option<([u8; 16], u32)>,
    /// The other ends of its active NVLinks, as PCI addresses.
    pub(super) links: Vec<Link>,
}

/// An active NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) is_switch: bool,
    pub(super) pci: String,
}

/// How a card is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Absent when the card has no MIG.
    pub(super) mig: Option<MigMode>,
    /// The MIG mode changes without a reset.
    pub(super) is_resetless: bool,
    pub(super) is_exclusive: bool,
    /// All GPU instances, whole or not.
    pub(super) instances: Vec<SeenInstance>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MigMode {
    pub(super) current: bool,
    pub(super) pending: bool,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeenInstance {
    pub(super) id: u32,
    /// Absent when it has a profile that Muster does not use.
    pub(super) place: Option<MigPlacement>,
    /// UUIDs of its MIG devices, when equal compute instances fill it; else empty.
    pub(super) uuids: Vec<String>,
    pub(super) compute_instances: u32,
}

/// A process that uses a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeenProcess {
    pub(super) pid: u32,
    pub(super) place: Option<MigPlacement>,
    pub(super) used_mib: Option<u64>,
}

/// Something that NVML has told by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Event {
    Xid { code: u16, instance: Option<(u8, Option<MigPlacement>)>, compute_instance: Option<u32> },
    RecoveryAction(u32),
    Lost,
}
