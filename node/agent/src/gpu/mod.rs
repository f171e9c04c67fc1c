//! The cards of a node, behind what NVML can do: the interface, the backend of real cards, and the one that
//! simulates them.
//!
//! A card obeys one caller at a time, and cards are asked side by side. What must stay true of every backend: a call about one card never waits for another; a card changes its mode only when it is empty; an
//! instance stands only where the geometry lets it; a step that has been taken already is taken again without harm, because a
//! plan is made anew after every failure. What an MPS server grants is set at the server; a client's environment can lower it, and not raise it.

pub mod nvml;
pub mod sample;
pub mod sim;

use self::sample::{CardSample, Readings};

use crate::exec::DeviceNode;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{BoxStream, StreamExt};
use muster_model::GpuModel;
use muster_model::mig::MigPlacement;
use muster_model::node::Gpu;
use muster_model::node_links::NodeLinks;
use muster_model::request::SharingMode;
use muster_node_core::health::{HealthEvent, PciAddress, RecoveryAction};
use muster_node_core::slices::SliceUse;
use muster_node_core::{CardSetting, CardStep, MpsLimits, MpsSetting};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A MIG instance that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    /// The driver's number for it, which a later instance may have again.
    pub handle: u64,
    /// What CUDA calls the MIG devices in it: one for each of its compute instances, which are equal.
    pub uuids: Vec<String>,
    /// Where it stands.
    pub place: MigPlacement,
}

/// How a card is driven now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardState {
    /// NVML's UUID.
    pub uuid: String,
    /// Model.
    pub model: GpuModel,
    /// The mode it is in.
    pub mode: SharingMode,
    /// The instances that stand on it.
    pub instances: Vec<MigInstance>,
    /// Folder of its MPS server's control pipe, while one runs.
    pub mps_pipe: Option<String>,
    /// What that server grants its clients, as far as this agent has set it.
    #[serde(default)]
    pub mps_limits: Option<MpsLimits>,
    /// The only user whose clients it takes; none: those of every user.
    #[serde(default)]
    pub mps_user: Option<u32>,
    /// Why nothing may be started on it, if so: a fault, or a process that Muster did not start.
    pub withheld: Option<String>,
    /// Another MIG mode than this one is noted, and comes with the next reset.
    #[serde(default)]
    pub is_reset_pending: bool,
    /// A change of its MIG mode takes a reset.
    #[serde(default)]
    pub mode_needs_reset: bool,
}

impl CardState {
    /// Its setting, as the plan sees it.
    #[must_use]
    pub fn setting(&self) -> CardSetting {
        match self.mode {
            SharingMode::Whole => CardSetting::Whole,
            SharingMode::Mig => {
                CardSetting::Mig(self.instances.iter().map(|one| (one.place, one.uuids.len() as u8)).collect())
            }
            SharingMode::Mps => CardSetting::Mps(MpsSetting { limits: self.mps_limits, only_user: self.mps_user }),
            SharingMode::TimeSlice => CardSetting::TimeSlice,
        }
    }
}

/// Why a card did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// There is no such card.
    #[error("there is no GPU {card}: this node has {cards} GPUs")]
    NoCard {
        /// Which.
        card: u16,
        /// How many there are.
        cards: usize,
    },
    /// It cannot, as it stands.
    #[error("GPU {card}: {why}")]
    Refused {
        /// Which.
        card: u16,
        /// What stands in the way.
        why: String,
    },
    /// The driver failed.
    #[error("GPU {card}: {doing} failed: {why}")]
    Driver {
        /// Which.
        card: u16,
        /// What was being done.
        doing: String,
        /// The driver's words.
        why: String,
    },
    /// The driver of the host fails, so nothing is known of any card.
    #[error("GPUs: {why}")]
    Host {
        /// What stands in the way.
        why: String,
    },
    /// What the backend keeps of its own cannot be kept.
    #[error("state of the GPUs: {why}")]
    Storage {
        /// The disk's words.
        why: String,
    },
}

/// A process that uses a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// As the host numbers it.
    pub pid: u32,
    /// In which MIG instance; `None` for the whole card.
    pub place: Option<MigPlacement>,
    /// Memory of the card that it holds, in MiB; `None` where the driver does not tell.
    pub used_mib: Option<u64>,
}

/// What a call of a backend answers.
pub type GpuAnswer<'a, T> = BoxFuture<'a, Result<T, GpuError>>;

/// The cards of one node.
pub trait GpuBackend: Send + Sync + 'static {
    /// What cards there are, by index: UUID, model, memory, NUMA node, NVLink island, and health.
    fn cards(&self) -> GpuAnswer<'_, Vec<Gpu>>;

    /// How one is driven now. May take as long as the driver likes: whoever asks sets a deadline, and drops the answer when it has passed.
    fn state(&self, card: u16) -> GpuAnswer<'_, CardState>;

    /// Index of the card at this address.
    fn locate(&self, pci: PciAddress) -> Option<u16>;

    /// Changes one; a change that was made already succeeds. May take as long as the driver likes, as above.
    fn take(&self, card: u16, step: CardStep) -> GpuAnswer<'_, ()>;

    /// What the driver tells of the cards by itself, from now on, with their indexes.
    fn events(&self) -> BoxStream<'static, (u16, HealthEvent)> {
        futures::stream::pending().boxed()
    }

    /// The device nodes that a task needs for a card, or for a MIG instance of it by its number. Asks no driver.
    ///
    /// # Errors
    /// The host does not say which they are.
    fn device_nodes(&self, _card: u16, _instance: Option<u64>) -> Result<Vec<DeviceNode>, GpuError> {
        Ok(Vec::new())
    }

    /// The device nodes of the node's network cards, and of the gang's channel in its NVLink domain, for a task whose ranks on other nodes read and write the memory of its cards. Asks no
    /// driver.
    ///
    /// # Errors
    /// The host does not say which they are.
    fn fabric_nodes(&self, _channel: Option<u16>) -> Result<Vec<DeviceNode>, GpuError> {
        Ok(Vec::new())
    }

    /// Whether devices have to be cleaned between two tasks. Simulated ones have no memory.
    fn is_cleaned(&self) -> bool {
        false
    }

    /// Whether the driver erases memory when it is freed. Asks no driver.
    fn erases_memory(&self) -> bool {
        true
    }

    /// Memory of a card, or of the MIG instance that stands there, that is in use, in MiB, without what the driver keeps for itself; none where it does not tell.
    fn memory_used(&self, _card: u16, _place: Option<MigPlacement>) -> GpuAnswer<'_, Option<u64>> {
        std::future::ready(Ok(None)).boxed()
    }

    /// Memory of each MIG instance of a card in which a task can run; none where it has no memory of its own.
    fn slices_memory(&self, _card: u16) -> GpuAnswer<'_, Vec<SliceUse>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }

    /// How often to look for processes that Muster did not start; none where there cannot be any.
    fn processes_every(&self) -> Option<Duration> {
        None
    }

    /// How often to look what tasks take of the cards that they share; none where nobody can take more than its share.
    fn shares_every(&self) -> Option<Duration> {
        None
    }

    /// Lets go of these clients of a card's MPS server, which are about to be killed: work of theirs that is under way could take the server along.
    fn end_mps_clients(&self, _card: u16, _pids: Vec<u32>) -> GpuAnswer<'_, ()> {
        std::future::ready(Ok(())).boxed()
    }

    /// What the driver wants to be done about a card, where it tells.
    fn recovery_action(&self, _card: u16) -> GpuAnswer<'_, Option<RecoveryAction>> {
        std::future::ready(Ok(None)).boxed()
    }

    /// How often to sample the telemetry of a card; none where there is none.
    fn samples_every(&self) -> Option<Duration> {
        None
    }

    /// Telemetry of a card and of its MIG instances.
    fn sample(&self, card: u16) -> GpuAnswer<'_, CardSample> {
        std::future::ready(Err(GpuError::Refused { card, why: "it has no telemetry".to_owned() })).boxed()
    }

    /// How often to read what a card tells of its health; none where it tells by itself alone.
    fn readings_every(&self) -> Option<Duration> {
        None
    }

    /// What a card answers about its health. [`GpuBackend::events`] reports a lost card too.
    fn readings(&self, card: u16) -> GpuAnswer<'_, Readings> {
        std::future::ready(Err(GpuError::Refused { card, why: "it has no readings".to_owned() })).boxed()
    }

    /// How the cards and network cards of the node reach each other, where that is known.
    fn node_links(&self) -> GpuAnswer<'_, Option<NodeLinks>> {
        std::future::ready(Ok(None)).boxed()
    }

    /// Who uses a card.
    fn processes(&self, _card: u16) -> GpuAnswer<'_, Vec<GpuProcess>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }
}
