//! Cards that exist only here, with the rules of real ones.
//!
//! What must stay true: the geometry of MIG and the rule that a card changes its mode only when empty are enforced here too, so a
//! plan that breaks them fails in every test; the state survives an agent's restart in a small file, and a reboot of the host
//! clears it, as it clears that of real cards.

use super::{CardState, GpuAnswer, GpuBackend, GpuError, GpuProcess, MigInstance};
use futures::future::FutureExt;
use futures::stream::{BoxStream, StreamExt};
use muster_model::mig::{self, MigPlacement};
use muster_model::node::Gpu;
use muster_model::request::SharingMode;
use muster_node_core::health::{HealthEvent, PciAddress, RecoveryAction};
use muster_node_core::{CardStep, MpsStart};
use muster_runtime::Files;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Between two looks at the processes of a test.
const PROCESSES_EVERY: Duration = Duration::from_millis(100);
/// The PCI bus of the first simulated card.
const FIRST_BUS: u8 = 0x10;
/// The file in which the state is kept.
const FILE: &str = "simulated-gpus.json";

/// Events that a listener has not taken yet; beyond this the oldest are lost, as in the driver.
const EVENTS_MAX: usize = 128;

/// Simulated cards of one node.
pub struct SimGpus {
    gpus: Vec<Gpu>,
    files: Option<Arc<dyn Files>>,
    inner: Mutex<Inner>,
    /// What listeners of events have not taken yet.
    events: broadcast::Sender<(u16, HealthEvent)>,
}

#[derive(Default)]
struct Inner {
    kept: Kept,
    /// Cards on which processes run.
    busy: BTreeSet<u16>,
    /// Processes that cards list.
    processes: BTreeMap<u16, Vec<u32>>,
    /// Memory in use of cards that are to be cleaned between two tasks, in MiB.
    memory: Option<BTreeMap<u16, u64>>,
    /// Cards that answer nothing.
    hanging: BTreeSet<u16>,
    /// How long the readings of a card take.
    slow: BTreeMap<u16, Duration>,
    /// What the driver wants to be done about cards, where it tells.
    recovery: BTreeMap<u16, RecoveryAction>,
    /// The next change of a card fails with this.
    faults: BTreeMap<u16, String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    boot_id: String,
    next_handle: u64,
    cards: Vec<CardState>,
}

impl SimGpus {
    /// Cards as `gpus` describes them. With `files`, they are as an earlier agent of the same boot has left them.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn open(gpus: Vec<Gpu>, boot_id: &str, files: Option<Arc<dyn Files>>) -> Result<Self, GpuError> {
        let storage = |why: String| GpuError::Storage { why };
        let read = files.as_ref().map(|files| files.read(FILE)).transpose().map_err(|e| storage(e.to_string()))?;
        let kept = match read.flatten() {
            Some(bytes) => serde_json::from_slice::<Kept>(&bytes).map_err(|e| storage(format!("{FILE}: {e}")))?,
            None => Kept::default(),
        };
        let fits =
            kept.boot_id == boot_id && kept.cards.iter().map(|card| &card.uuid).eq(gpus.iter().map(|gpu| &gpu.uuid));
        let kept = if fits { kept } else { fresh(&gpus, boot_id) };
        let (inner, events) = (Mutex::new(Inner { kept, ..Inner::default() }), broadcast::channel(EVENTS_MAX).0);
        Ok(SimGpus { gpus, files, inner, events })
    }

    /// The next change of `card` fails with these words.
    pub fn fail_next(&self, card: u16, why: &str) {
        self.inner.lock().faults.insert(card, why.to_owned());
    }

    /// Whether processes run on a card: it is not empty then.
    pub fn set_busy(&self, card: u16, is_busy: bool) {
        let mut inner = self.inner.lock();
        if is_busy {
            inner.busy.insert(card);
        } else {
            inner.busy.remove(&card);
        }
    }

    /// Whether a card answers nothing from now on.
    pub fn set_hanging(&self, card: u16, hangs: bool) {
        let mut inner = self.inner.lock();
        if hangs {
            inner.hanging.insert(card);
        } else {
            inner.hanging.remove(&card);
        }
    }

    /// Readings of a card take this long from now on.
    pub fn set_slow(&self, card: u16, takes: Duration) {
        self.inner.lock().slow.insert(card, takes);
    }

    /// What the driver wants to be done about a card from now on.
    pub fn set_recovery_action(&self, card: u16, action: RecoveryAction) {
        self.inner.lock().recovery.insert(card, action);
    }

    /// Something happens to a card; whoever listens to events now gets it.
    pub fn tell(&self, card: u16, event: HealthEvent) {
        // Without a listener nobody wants it.
        let _ = self.events.send((card, event));
    }

    /// Cards have memory from now on, and are cleaned between two tasks; `used_mib` of this one is in use.
    pub fn set_memory(&self, card: u16, used_mib: u64) {
        self.inner.lock().memory.get_or_insert_default().insert(card, used_mib);
    }

    /// The processes that a card lists from now on.
    pub fn set_processes(&self, card: u16, pids: &[u32]) {
        self.inner.lock().processes.insert(card, pids.to_vec());
    }

    fn hangs(&self, card: u16) -> bool {
        self.inner.lock().hanging.contains(&card)
    }

    /// Changes a card under the rules, and gives what is to be kept.
    fn change(&self, card: u16, step: CardStep) -> Result<Kept, GpuError> {
        let inner = &mut *self.inner.lock();
        let cards = inner.kept.cards.len();
        if let Some(why) = inner.faults.remove(&card) {
            return Err(GpuError::Driver { card, doing: step.to_string(), why });
        }
        let Some(state) = inner.kept.cards.get_mut(usize::from(card)) else {
            return Err(GpuError::NoCard { card, cards });
        };
        let is_empty = !inner.busy.contains(&card);
        apply(state, step, is_empty, &mut inner.kept.next_handle).map_err(|why| GpuError::Refused { card, why })?;
        Ok(inner.kept.clone())
    }
}

/// One step under the rules of real cards; else why it is refused.
fn apply(state: &mut CardState, step: CardStep, is_empty: bool, next_handle: &mut u64) -> Result<(), String> {
    match step {
        CardStep::DestroyInstance(place) => state.instances.retain(|instance| instance.place != place),
        CardStep::CreateInstance(place, count) => return create(state, (place, count), next_handle),
        CardStep::EnableMig if state.model.facts().mig.is_none() => return Err(format!("{} has no MIG", state.model)),
        CardStep::EnableMig => return set_mode(state, step, is_empty, (SharingMode::Whole, SharingMode::Mig)),
        CardStep::DisableMig => return set_mode(state, step, is_empty, (SharingMode::Mig, SharingMode::Whole)),
        CardStep::StartMps(MpsStart { limits, user, for_all }) => {
            set_mode(state, step, is_empty, (SharingMode::Whole, SharingMode::Mps))?;
            state.mps_pipe = Some(format!("/run/muster/mps/{}", state.uuid));
            (state.mps_limits, state.mps_user) = (Some(limits), user.filter(|_| !for_all));
        }
        CardStep::SetMpsLimits(_) if state.mps_pipe.is_none() => return Err("no MPS server runs on it".to_owned()),
        CardStep::SetMpsLimits(limits) => state.mps_limits = Some(limits),
        CardStep::StopMps => {
            set_mode(state, step, is_empty, (SharingMode::Mps, SharingMode::Whole))?;
            (state.mps_pipe, state.mps_limits, state.mps_user) = (None, None, None);
        }
        CardStep::NoteMig(_) => return Err("its MIG mode changes without a reset".to_owned()),
        CardStep::Reset if !is_empty => return Err("processes run on it".to_owned()),
        CardStep::Reset => state.instances.clear(),
        CardStep::SetTimeSlice(_) => {
            return set_mode(state, step, is_empty, (SharingMode::Whole, SharingMode::TimeSlice));
        }
        CardStep::ClearTimeSlice => {
            return set_mode(state, step, is_empty, (SharingMode::TimeSlice, SharingMode::Whole));
        }
    }
    Ok(())
}

fn set_mode(
    state: &mut CardState,
    step: CardStep,
    is_empty: bool,
    (from, to): (SharingMode, SharingMode),
) -> Result<(), String> {
    if state.mode == to {
        return Ok(());
    }
    if state.mode != from || !state.instances.is_empty() || !is_empty {
        let (mode, instances) = (state.mode.word(), state.instances.len());
        return Err(format!(
            "{step} needs an empty GPU in mode {}; this GPU is in mode {mode} and has {instances} instances{}",
            from.word(),
            if is_empty { "" } else { ", and processes run on it" }
        ));
    }
    state.mode = to;
    Ok(())
}

fn create(state: &mut CardState, (place, count): (MigPlacement, u8), next_handle: &mut u64) -> Result<(), String> {
    let standing: Vec<MigPlacement> = state.instances.iter().map(|instance| instance.place).collect();
    if let Some(there) = state.instances.iter().find(|instance| instance.place == place) {
        let parts = there.uuids.len();
        return match parts == usize::from(count) {
            true => Ok(()),
            false => Err(format!("{place} stands with {parts} compute instances; destroy it first")),
        };
    }
    let slices = place.shape.compute_slices();
    if count == 0 || !slices.is_multiple_of(count) {
        return Err(format!("{slices} compute slices have no {count} equal parts"));
    }
    let family = state.model.facts().mig.ok_or_else(|| format!("{} has no MIG", state.model))?;
    if state.mode != SharingMode::Mig {
        return Err(format!("it is in mode {}, not in MIG mode", state.mode.word()));
    }
    if !mig::can_stand(family, &standing, place) {
        return Err(format!("{place} conflicts with {standing:?}"));
    }
    let handle = *next_handle;
    *next_handle += 1;
    let card = state.uuid.trim_start_matches("GPU-");
    let uuids = (0..count).map(|part| match part {
        0 => format!("MIG-{card}-{handle}"),
        part => format!("MIG-{card}-{handle}-{part}"),
    });
    state.instances.push(MigInstance { handle, uuids: uuids.collect(), place });
    state.instances.sort_by_key(|instance| instance.place.start);
    Ok(())
}

fn fresh(gpus: &[Gpu], boot_id: &str) -> Kept {
    let card = |gpu: &Gpu| CardState {
        uuid: gpu.uuid.clone(),
        model: gpu.model,
        mode: SharingMode::Whole,
        instances: Vec::new(),
        mps_pipe: None,
        mps_limits: None,
        mps_user: None,
        withheld: None,
        is_reset_pending: false,
        mode_needs_reset: false,
    };
    Kept { boot_id: boot_id.to_owned(), next_handle: 1, cards: gpus.iter().map(card).collect() }
}

impl GpuBackend for SimGpus {
    fn cards(&self) -> GpuAnswer<'_, Vec<Gpu>> {
        std::future::ready(Ok(self.gpus.clone())).boxed()
    }

    fn state(&self, card: u16) -> GpuAnswer<'_, CardState> {
        if self.hangs(card) {
            return std::future::pending().boxed();
        }
        let inner = self.inner.lock();
        let (cards, at) = (inner.kept.cards.len(), usize::from(card));
        let with_health =
            |(card, gpu): (&CardState, &Gpu)| CardState { withheld: gpu.withheld.clone(), ..card.clone() };
        let state = inner.kept.cards.get(at).zip(self.gpus.get(at)).map(with_health);
        let (state, takes) = (state.ok_or(GpuError::NoCard { card, cards }), inner.slow.get(&card).copied());
        drop(inner);
        async move {
            if let Some(takes) = takes {
                tokio::time::sleep(takes).await;
            }
            state
        }
        .boxed()
    }

    fn recovery_action(&self, card: u16) -> GpuAnswer<'_, Option<RecoveryAction>> {
        if self.hangs(card) {
            return std::future::pending().boxed();
        }
        std::future::ready(Ok(self.inner.lock().recovery.get(&card).copied())).boxed()
    }

    fn is_cleaned(&self) -> bool {
        self.inner.lock().memory.is_some()
    }

    fn memory_used(&self, card: u16, _place: Option<MigPlacement>) -> GpuAnswer<'_, Option<u64>> {
        let used_mib = self.inner.lock().memory.as_ref().and_then(|memory| memory.get(&card).copied());
        std::future::ready(Ok(used_mib)).boxed()
    }

    /// Simulated cards are used by nobody, but where a test says otherwise before the agent starts.
    fn processes_every(&self) -> Option<Duration> {
        (!self.inner.lock().processes.is_empty()).then_some(PROCESSES_EVERY)
    }

    fn processes(&self, card: u16) -> GpuAnswer<'_, Vec<GpuProcess>> {
        if self.hangs(card) {
            return std::future::pending().boxed();
        }
        let pids = self.inner.lock().processes.get(&card).cloned().unwrap_or_default();
        let process = |pid| GpuProcess { pid, place: None, used_mib: None };
        std::future::ready(Ok(pids.into_iter().map(process).collect())).boxed()
    }

    /// Simulated cards sit at `0000:10:00` and behind.
    fn locate(&self, pci: PciAddress) -> Option<u16> {
        let index = u16::from(pci.bus.checked_sub(FIRST_BUS)?);
        (pci.domain == 0 && pci.device == 0 && usize::from(index) < self.gpus.len()).then_some(index)
    }

    fn take(&self, card: u16, step: CardStep) -> GpuAnswer<'_, ()> {
        if self.hangs(card) {
            return std::future::pending().boxed();
        }
        let changed = self.change(card, step);
        async move {
            let kept = changed?;
            if let Some(files) = &self.files {
                let storage = |why: String| GpuError::Storage { why };
                let bytes = serde_json::to_vec(&kept).map_err(|e| storage(e.to_string()))?;
                files.write(FILE, bytes).await.map_err(|e| storage(e.to_string()))?;
            }
            Ok(())
        }
        .boxed()
    }

    fn events(&self) -> BoxStream<'static, (u16, HealthEvent)> {
        let next = |mut listener: broadcast::Receiver<_>| async {
            loop {
                match listener.recv().await {
                    Ok(event) => return Some((event, listener)),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            }
        };
        futures::stream::unfold(self.events.subscribe(), next).boxed()
    }
}
