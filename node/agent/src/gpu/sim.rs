//! Cards that exist only here, with the rules of real ones.
//!
//! What must stay true: the geometry of MIG and the rule that a card changes its mode only when empty are enforced here too, so a
//! plan that breaks them fails in every test; the state survives an agent's restart in a small file, and a reboot of the host
//! clears it, as it clears that of real cards.

use super::{CardState, GpuAnswer, GpuBackend, GpuError, MigInstance};
use futures::future::FutureExt;
use muster_model::mig::{self, MigPlacement};
use muster_model::node::Gpu;
use muster_model::request::SharingMode;
use muster_runtime::Files;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The file in which the state is kept.
const FILE: &str = "simulated-gpus.json";

/// Simulated cards of one node.
pub struct SimGpus {
    gpus: Vec<Gpu>,
    files: Option<Arc<dyn Files>>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    kept: Kept,
    /// Cards on which processes run.
    busy: BTreeSet<u16>,
    /// The next call on a card fails with this.
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
        Ok(SimGpus { gpus, files, inner: Mutex::new(Inner { kept, ..Inner::default() }) })
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

    /// Changes a card under the rules and keeps the result.
    fn change<T: Send + 'static>(
        &self,
        card: u16,
        doing: &'static str,
        change: impl FnOnce(&mut CardState, &mut u64, bool) -> Result<T, String>,
    ) -> GpuAnswer<'_, T> {
        let changed = {
            let inner = &mut *self.inner.lock();
            let cards = inner.kept.cards.len();
            if let Some(why) = inner.faults.remove(&card) {
                Err(GpuError::Driver { card, doing, why })
            } else if let Some(state) = inner.kept.cards.get_mut(usize::from(card)) {
                let is_empty = !inner.busy.contains(&card);
                change(state, &mut inner.kept.next_handle, is_empty)
                    .map_err(|why| GpuError::Refused { card, why })
                    .map(|answer| (answer, inner.kept.clone()))
            } else {
                Err(GpuError::NoCard { card, cards })
            }
        };
        async move {
            let (answer, kept) = changed?;
            if let Some(files) = &self.files {
                let storage = |why: String| GpuError::Storage { why };
                let bytes = serde_json::to_vec(&kept).map_err(|e| storage(e.to_string()))?;
                files.write(FILE, bytes).await.map_err(|e| storage(e.to_string()))?;
            }
            Ok(answer)
        }
        .boxed()
    }

    fn set_mode(&self, card: u16, doing: &'static str, from: SharingMode, to: SharingMode) -> GpuAnswer<'_, ()> {
        self.change(card, doing, move |state, _, is_empty| {
            if state.mode == to {
                return Ok(());
            }
            if to == SharingMode::Mig && state.model.facts().mig.is_none() {
                return Err(format!("{} has no MIG", state.model));
            }
            if state.mode != from || !state.instances.is_empty() || !is_empty {
                let (mode, instances) = (state.mode.word(), state.instances.len());
                return Err(format!(
                    "{doing} needs an empty GPU in mode {}; this GPU is in mode {mode} and has {instances} instances{}",
                    from.word(),
                    if is_empty { "" } else { ", and processes run on it" }
                ));
            }
            state.mode = to;
            Ok(())
        })
    }
}

fn fresh(gpus: &[Gpu], boot_id: &str) -> Kept {
    let card = |gpu: &Gpu| CardState {
        uuid: gpu.uuid.clone(),
        model: gpu.model,
        mode: SharingMode::Whole,
        instances: Vec::new(),
        mps_pipe: None,
        withheld: None,
    };
    Kept { boot_id: boot_id.to_owned(), next_handle: 1, cards: gpus.iter().map(card).collect() }
}

impl GpuBackend for SimGpus {
    fn cards(&self) -> GpuAnswer<'_, Vec<Gpu>> {
        std::future::ready(Ok(self.gpus.clone())).boxed()
    }

    fn state(&self) -> GpuAnswer<'_, Vec<CardState>> {
        let inner = self.inner.lock();
        let with_health =
            |(card, gpu): (&CardState, &Gpu)| CardState { withheld: gpu.withheld.clone(), ..card.clone() };
        let cards = inner.kept.cards.iter().zip(&self.gpus).map(with_health).collect();
        std::future::ready(Ok(cards)).boxed()
    }

    fn set_mig(&self, card: u16, on: bool) -> GpuAnswer<'_, ()> {
        if on {
            self.set_mode(card, "entering MIG mode", SharingMode::Whole, SharingMode::Mig)
        } else {
            self.set_mode(card, "leaving MIG mode", SharingMode::Mig, SharingMode::Whole)
        }
    }

    fn create_instance(&self, card: u16, place: MigPlacement) -> GpuAnswer<'_, MigInstance> {
        self.change(card, "creating an instance", move |state, next_handle, _| {
            if let Some(standing) = state.instances.iter().find(|instance| instance.place == place) {
                return Ok(standing.clone());
            }
            let family = state.model.facts().mig.ok_or_else(|| format!("{} has no MIG", state.model))?;
            if state.mode != SharingMode::Mig {
                return Err(format!("it is in mode {}, not in MIG mode", state.mode.word()));
            }
            let standing: Vec<MigPlacement> = state.instances.iter().map(|instance| instance.place).collect();
            if !mig::can_stand(family, &standing, place) {
                return Err(format!("{place} conflicts with {standing:?}"));
            }
            let handle = *next_handle;
            *next_handle += 1;
            let uuid = format!("MIG-{}-{handle}", state.uuid.trim_start_matches("GPU-"));
            let instance = MigInstance { handle, uuid, place };
            state.instances.push(instance.clone());
            state.instances.sort_by_key(|instance| instance.place.start);
            Ok(instance)
        })
    }

    fn destroy_instance(&self, card: u16, place: MigPlacement) -> GpuAnswer<'_, ()> {
        self.change(card, "destroying an instance", move |state, _, _| {
            state.instances.retain(|instance| instance.place != place);
            Ok(())
        })
    }

    fn start_mps(&self, card: u16) -> GpuAnswer<'_, String> {
        self.change(card, "starting MPS", move |state, _, is_empty| {
            if let Some(pipe) = &state.mps_pipe {
                return Ok(pipe.clone());
            }
            if state.mode != SharingMode::Whole || !is_empty {
                return Err(format!("MPS needs an empty GPU; this GPU is in mode {}", state.mode.word()));
            }
            let pipe = format!("/run/muster/mps/{}", state.uuid);
            state.mode = SharingMode::Mps;
            state.mps_pipe = Some(pipe.clone());
            Ok(pipe)
        })
    }

    fn stop_mps(&self, card: u16) -> GpuAnswer<'_, ()> {
        self.change(card, "stopping MPS", |state, _, is_empty| {
            if state.mode == SharingMode::Mps && !is_empty {
                return Err("the MPS server still has clients".to_owned());
            }
            if state.mode == SharingMode::Mps {
                state.mode = SharingMode::Whole;
            }
            state.mps_pipe = None;
            Ok(())
        })
    }

    fn set_time_slice(&self, card: u16, on: bool) -> GpuAnswer<'_, ()> {
        if on {
            self.set_mode(card, "starting time-slicing", SharingMode::Whole, SharingMode::TimeSlice)
        } else {
            self.set_mode(card, "ending time-slicing", SharingMode::TimeSlice, SharingMode::Whole)
        }
    }
}
