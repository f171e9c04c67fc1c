//! Real cards, by NVIDIA's driver.
//!
//! What must stay true:
//! - this process never calls the driver: a [`helper`] does, one thread for each card, so a call that hangs costs its card and a helper that dies costs nothing
//!   but what was under way;
//! - nothing is remembered that the driver can be asked: state is read anew each time, and what an earlier agent or helper has left half done is repaired by the
//!   next step on that card;
//! - what only this agent knows is in four places (what MPS servers were told to grant is set anew): which index is which card ([`slots`]), which cards are time-sliced ([`time_slices`]), which MIG instances it
//!   cuts into several compute instances ([`splits`]), and the folder of each card's MPS daemon ([`mps`]).

mod boot_marks;
mod commands;
mod device_nodes;
pub mod doctor;
pub mod helper;
mod inventory;
mod islands;
mod link;
mod models;
mod mps;
mod node_links;
pub mod recorder;
pub mod recording;
mod resets;
mod slots;
mod splits;
mod state;
mod steps;
mod time_slices;
mod wire;

use self::boot_marks::BootMarks;
use self::link::{AskError, Link};
use self::slots::Slot;
use self::wire::{About, Answer, Ask, Event, Fault};
use super::sample::{CardSample, Readings};
use super::{CardState, GpuAnswer, GpuBackend, GpuError, GpuProcess};
use crate::exec::DeviceNode;
use futures::future::FutureExt;
use futures::stream::{BoxStream, StreamExt};
use muster_model::mig::MigPlacement;
use muster_model::node::Gpu;
use muster_model::node_links::NodeLinks;
use muster_node_core::health::{HealthEvent, Instance, PciAddress, RecoveryAction, Xid, XidEvent};
use muster_node_core::slices::SliceUse;
use muster_node_core::{CardStep, Driver, MpsLimits};
use muster_runtime::Host as Machine;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// A listing of eight cards takes milliseconds; a process that should not be there is found within two of these.
const PROCESSES_EVERY: Duration = Duration::from_secs(5);
/// A neighbour is short of memory from the moment at which a task takes too much: it has it back in two of these.
const SHARES_EVERY: Duration = Duration::from_secs(1);
/// Activity is the exact mean between two samples, so more of them would add nothing to sums.
const SAMPLES_EVERY: Duration = Duration::from_secs(10);
/// Two readings fall into each minute of the rule about lowered clocks.
const READINGS_EVERY: Duration = Duration::from_secs(30);

/// Where things are on a host with NVIDIA cards.
#[derive(Clone, Debug)]
pub struct NvmlConfig {
    /// NVML, as the dynamic linker finds it or as a path: `libnvidia-ml.so.1`.
    pub library: PathBuf,
    /// `nvidia-smi`.
    pub smi: PathBuf,
    /// `nvidia-cuda-mps-control`.
    pub mps_control: PathBuf,
    /// Program and arguments that start the helper; the library follows.
    pub helper: Vec<OsString>,
    /// Where the logs of MPS daemons are, by UUID.
    pub folder: PathBuf,
    /// Where the control pipes of MPS daemons are: a short path, since the address of a socket has 107 bytes at the most; tasks may go through it.
    pub pipes: PathBuf,
    /// What `/sys` is below: `/`, but in tests.
    pub driver_root: PathBuf,
}

/// The cards of a host with NVIDIA's driver.
pub struct NvmlGpus {
    inner: Arc<Inner>,
    samples_every: Duration,
    readings_every: Duration,
}

struct Inner {
    machine: Machine,
    config: NvmlConfig,
    link: Link,
    /// The cards by index.
    slots: Mutex<Vec<(Slot, Presence)>>,
    listed: OnceCell<()>,
    /// Cards are listed by one caller at a time.
    listing: tokio::sync::Mutex<()>,
    /// Cards that are time-sliced.
    time_slices: BootMarks,
    /// MIG instances with several compute instances.
    splits: BootMarks,
    /// What the MPS daemon of a card was told to grant, by the daemon's process: its own words for it are rounded.
    mps_limits: Mutex<BTreeMap<u16, (u32, MpsLimits)>>,
}

/// Whether the card of an index is there.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Presence {
    Here,
    /// NVML lists it, or may, but it could not be read when the cards were listed.
    Unread(String),
    /// NVML does not list it.
    Missing(String),
}

impl NvmlGpus {
    /// The cards of this host; the driver is not asked yet. Within a runtime.
    ///
    /// # Errors
    /// The files of an earlier agent cannot be read.
    pub fn open(machine: Machine, config: NvmlConfig, boot_id: &str) -> Result<Self, GpuError> {
        let storage = |why: String| GpuError::Storage { why };
        let slots: Vec<Slot> = match machine.files.read(slots::FILE).map_err(|error| storage(error.to_string()))? {
            Some(bytes) => {
                serde_json::from_slice(&bytes).map_err(|error| storage(format!("{}: {error}", slots::FILE)))?
            }
            None => Vec::new(),
        };
        let marks =
            |name| BootMarks::open(machine.files.clone(), name, boot_id).map_err(|error| storage(error.to_string()));
        let (time_slices, splits) = (marks(time_slices::FILE)?, marks(splits::FILE)?);
        let mut command = config.helper.clone();
        command.push(config.library.clone().into_os_string());
        let link = Link::new(&machine, command);
        let slots = Mutex::new(slots.into_iter().map(|slot| (slot, Presence::Here)).collect());
        let (listed, listing) = (OnceCell::new(), tokio::sync::Mutex::new(()));
        let mps_limits = Mutex::default();
        let inner = Inner { machine, config, link, slots, listed, listing, time_slices, splits, mps_limits };
        let inner = Arc::new(inner);
        Ok(NvmlGpus { inner, samples_every: SAMPLES_EVERY, readings_every: READINGS_EVERY })
    }

    /// How often telemetry and health are to be read; 10 s and 30 s unless this is called.
    #[must_use]
    pub const fn polled_every(mut self, samples: Duration, readings: Duration) -> Self {
        (self.samples_every, self.readings_every) = (samples, readings);
        self
    }

    /// A helper that has answered nobody for so long is asked about the host, and ended if it does not answer that; 20 s unless this is called.
    #[must_use]
    pub fn silent_after(self, most: Duration) -> Self {
        self.inner.link.set_silent_max(most);
        self
    }

    /// Versions of the driver and of CUDA.
    ///
    /// # Errors
    /// The helper does not start: there is no driver, or no card.
    pub async fn host(&self) -> Result<Driver, GpuError> {
        let versions = self.inner.link.versions().await;
        let versions = versions.map_err(|error| GpuError::Host { why: error.to_string() })?;
        let cuda = format!("{}.{}", versions.cuda / 1_000, versions.cuda % 1_000 / 10);
        Ok(Driver { version: versions.driver, cuda })
    }

    /// What the driver wants to be done about a card.
    ///
    /// # Errors
    /// The driver fails, or does not tell.
    pub async fn read_recovery_action(&self, card: u16) -> Result<RecoveryAction, GpuError> {
        match self.inner.ask(card, Ask::RecoveryAction, "reading the recovery action").await? {
            Answer::RecoveryAction(code) => Ok(RecoveryAction::from_code(code)),
            _ => Err(self.inner.unexpected(card, "reading the recovery action")),
        }
    }

    /// The process of the helper that runs, for diagnosis.
    #[must_use]
    pub fn helper_pid(&self) -> Option<u32> {
        self.inner.link.pid()
    }
}

impl Inner {
    /// The card of an index.
    async fn slot(&self, card: u16) -> Result<(Slot, Presence), GpuError> {
        self.listed.get_or_try_init(|| self.list()).await?;
        let slots = self.slots.lock();
        slots.get(usize::from(card)).cloned().ok_or(GpuError::NoCard { card, cards: slots.len() })
    }

    async fn ask(&self, card: u16, ask: Ask, doing: &str) -> Result<Answer, GpuError> {
        let (slot, presence) = self.slot(card).await?;
        if let Presence::Missing(why) = presence {
            return Err(GpuError::Refused { card, why });
        }
        let answer = self.link.ask(About::Card(slot.facts.card), ask).await;
        if answer.is_ok() && presence != Presence::Here {
            self.found(card);
        }
        answer.map_err(|error| match error {
            AskError::Fault(Fault::Refused(why)) => GpuError::Refused { card, why },
            other => GpuError::Driver { card, doing: doing.to_owned(), why: other.to_string() },
        })
    }

    /// A card that could not be read answers.
    fn found(&self, card: u16) {
        if let Some((_, presence)) = self.slots.lock().get_mut(usize::from(card)) {
            *presence = Presence::Here;
        }
        self.watch_all();
    }

    fn watch_all(&self) {
        let slots = self.slots.lock().clone();
        let here = slots.into_iter().filter(|(_, presence)| *presence == Presence::Here);
        self.link.watch(here.map(|(slot, _)| slot.facts.card).collect());
    }

    /// Asks for a change that has no other answer than that it is made.
    async fn change(&self, card: u16, ask: Ask, doing: &str) -> Result<(), GpuError> {
        match self.ask(card, ask, doing).await? {
            Answer::Done => Ok(()),
            _ => Err(self.unexpected(card, doing)),
        }
    }

    fn unexpected(&self, card: u16, doing: &str) -> GpuError {
        GpuError::Driver { card, doing: doing.to_owned(), why: AskError::Unexpected.to_string() }
    }

    async fn processes(&self, card: u16) -> Result<Vec<GpuProcess>, GpuError> {
        let doing = "listing its processes";
        let Answer::Processes(seen) = self.ask(card, Ask::Processes, doing).await? else {
            return Err(self.unexpected(card, doing));
        };
        let process =
            |seen: wire::SeenProcess| GpuProcess { pid: seen.pid, place: seen.place, used_mib: seen.used_mib };
        Ok(seen.into_iter().map(process).collect())
    }

    async fn memory_used(&self, card: u16, place: Option<MigPlacement>) -> Result<Option<u64>, GpuError> {
        let doing = "reading how much of its memory is in use";
        match self.ask(card, Ask::MemoryUsed(place), doing).await? {
            Answer::MemoryUsed(used_mib) => Ok(used_mib),
            _ => Err(self.unexpected(card, doing)),
        }
    }

    async fn slices_memory(&self, card: u16) -> Result<Vec<SliceUse>, GpuError> {
        let doing = "reading how much memory of its MIG instances is in use";
        match self.ask(card, Ask::SlicesMemory, doing).await? {
            Answer::SlicesMemory(slices) => Ok(slices),
            _ => Err(self.unexpected(card, doing)),
        }
    }

    async fn sample(&self, card: u16) -> Result<CardSample, GpuError> {
        let doing = "reading its telemetry";
        match self.ask(card, Ask::Sample, doing).await? {
            Answer::Sample(sample) => Ok(*sample),
            _ => Err(self.unexpected(card, doing)),
        }
    }

    async fn readings(&self, card: u16) -> Result<Readings, GpuError> {
        let doing = "reading its health";
        match self.ask(card, Ask::Readings, doing).await? {
            Answer::Readings(readings) => Ok(readings),
            _ => Err(self.unexpected(card, doing)),
        }
    }

    /// What an event means to those who look after the card; `None` when the card has no index.
    fn health_event(&self, pci: &str, event: Event) -> Option<(u16, HealthEvent)> {
        let index = self.slots.lock().iter().position(|(slot, _)| slot.facts.card.pci == pci)?;
        let event = match event {
            Event::Xid { code, instance, .. } => {
                let instance = instance.map(|(id, place)| Instance { id, place });
                let at_ms = self.machine.clock.wall_ms();
                HealthEvent::Xid(XidEvent::from_nvml(Xid(code), instance, at_ms))
            }
            Event::RecoveryAction(code) => HealthEvent::RecoveryAction(RecoveryAction::from_code(code)),
            Event::Lost => HealthEvent::Lost,
        };
        Some((index as u16, event))
    }
}

impl GpuBackend for NvmlGpus {
    fn cards(&self) -> GpuAnswer<'_, Vec<Gpu>> {
        self.inner.cards().boxed()
    }

    fn state(&self, card: u16) -> GpuAnswer<'_, CardState> {
        self.inner.state(card).boxed()
    }

    fn take(&self, card: u16, step: CardStep) -> GpuAnswer<'_, ()> {
        self.inner.take(card, step).boxed()
    }

    fn events(&self) -> BoxStream<'static, (u16, HealthEvent)> {
        let listener = self.inner.link.events();
        let weak = Arc::downgrade(&self.inner);
        let next = |(mut listener, weak): (Receiver<(String, Event)>, Weak<Inner>)| async move {
            loop {
                match listener.recv().await {
                    Ok((pci, event)) => {
                        let event = weak.upgrade()?.health_event(&pci, event);
                        if let Some(event) = event {
                            return Some((event, (listener, weak)));
                        }
                    }
                    Err(RecvError::Lagged(lost)) => tracing::error!(lost, "events of GPUs were not taken in time"),
                    Err(RecvError::Closed) => return None,
                }
            }
        };
        futures::stream::unfold((listener, weak), next).boxed()
    }

    fn processes(&self, card: u16) -> GpuAnswer<'_, Vec<GpuProcess>> {
        self.inner.processes(card).boxed()
    }

    fn device_nodes(&self, card: u16, instance: Option<u64>) -> Result<Vec<DeviceNode>, GpuError> {
        let slots = self.inner.slots.lock();
        let cards = slots.len();
        let (slot, _) = slots.get(usize::from(card)).ok_or(GpuError::NoCard { card, cards })?;
        device_nodes::of(&self.inner.config.driver_root, &slot.facts.card.pci, instance).map_err(|error| {
            GpuError::Driver { card, doing: "finding its device nodes".to_owned(), why: error.to_string() }
        })
    }

    fn fabric_nodes(&self, channel: Option<u16>) -> Result<Vec<DeviceNode>, GpuError> {
        device_nodes::of_fabric(&self.inner.config.driver_root, channel)
            .map_err(|error| GpuError::Host { why: format!("finding the network cards of the node: {error}") })
    }

    fn is_cleaned(&self) -> bool {
        true
    }

    fn erases_memory(&self) -> bool {
        let params = std::fs::read_to_string(self.inner.config.driver_root.join("proc/driver/nvidia/params"));
        // A driver that does not say it has its default, which is to erase.
        !params.is_ok_and(|params| params.contains("RMDisableScrubOnFree=1"))
    }

    fn memory_used(&self, card: u16, place: Option<MigPlacement>) -> GpuAnswer<'_, Option<u64>> {
        self.inner.memory_used(card, place).boxed()
    }

    fn slices_memory(&self, card: u16) -> GpuAnswer<'_, Vec<SliceUse>> {
        self.inner.slices_memory(card).boxed()
    }

    fn processes_every(&self) -> Option<Duration> {
        Some(PROCESSES_EVERY)
    }

    fn shares_every(&self) -> Option<Duration> {
        Some(SHARES_EVERY)
    }

    fn end_mps_clients(&self, card: u16, pids: Vec<u32>) -> GpuAnswer<'_, ()> {
        async move { self.inner.end_mps_clients(card, &pids).await }.boxed()
    }

    fn samples_every(&self) -> Option<Duration> {
        Some(self.samples_every)
    }

    fn sample(&self, card: u16) -> GpuAnswer<'_, CardSample> {
        self.inner.sample(card).boxed()
    }

    fn readings_every(&self) -> Option<Duration> {
        Some(self.readings_every)
    }

    fn readings(&self, card: u16) -> GpuAnswer<'_, Readings> {
        self.inner.readings(card).boxed()
    }

    fn node_links(&self) -> GpuAnswer<'_, Option<NodeLinks>> {
        async move { self.inner.node_links().await.map(Some) }.boxed()
    }

    fn recovery_action(&self, card: u16) -> GpuAnswer<'_, Option<RecoveryAction>> {
        async move { self.read_recovery_action(card).await.map(Some) }.boxed()
    }

    fn locate(&self, pci: PciAddress) -> Option<u16> {
        let is_there = |slot: &Slot| slot.facts.card.pci.parse() == Ok(pci);
        let index = self.inner.slots.lock().iter().position(|(slot, _)| is_there(slot))?;
        u16::try_from(index).ok()
    }
}
