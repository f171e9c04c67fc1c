//! The threads of the helper: one for each card, which takes that card's requests one after another.
//!
//! What must stay true: a call that hangs holds up its card and nothing else; a request that is forgotten before it was begun is not begun; a queue has an
//! end, and who finds it full is told so at once.

use super::driver::{Called, Device, GPU_IS_LOST, Nvml};
use super::mig::Profile;
use super::output::Output;
use super::sampling::Sampler;
use super::threads::start_thread;
use super::{events, facts, holders, readings, steps};
use crate::gpu::nvml::wire::{About, Answer, Ask, CardId, Event, Fault, FromHelper, Seen};
use muster_model::mig::MigPlacement;
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// Requests of one card that wait: the agent asks for one thing at a time, and forgets what has taken too long.
const WAITING_MAX: usize = 16;
/// The requests of one card.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<VecDeque<(u64, About, Ask)>>,
    more: Condvar,
}

impl Queue {
    /// Says whether there was room.
    pub(super) fn push(&self, number: u64, about: About, ask: Ask) -> bool {
        let mut waiting = self.waiting.lock();
        let has_room = waiting.len() < WAITING_MAX;
        if has_room {
            waiting.push_back((number, about, ask));
            self.more.notify_one();
        }
        has_room
    }

    pub(super) fn forget(&self, number: u64) {
        self.waiting.lock().retain(|(other, ..)| *other != number);
    }

    fn next(&self) -> (u64, About, Ask) {
        let mut waiting = self.waiting.lock();
        loop {
            match waiting.pop_front() {
                Some(next) => return next,
                None => self.more.wait(&mut waiting),
            }
        }
    }
}

/// Takes requests for ever.
pub(super) fn start(nvml: &'static Nvml, queue: Arc<Queue>, output: Output) -> Called<()> {
    start_thread("card", move || {
        let mut worker = Worker { nvml, output: output.clone(), known: None };
        loop {
            let (number, about, ask) = queue.next();
            let result = worker.answer(&about, ask);
            output.say(&FromHelper::Answer { number, result });
        }
    })
}

/// A card that was looked up, which is slow on large hosts.
struct Known {
    id: CardId,
    device: Device,
    profiles: Vec<Profile>,
    is_watched: bool,
    sampler: Sampler,
}

struct Worker {
    nvml: &'static Nvml,
    output: Output,
    known: Option<Known>,
}

impl Worker {
    fn answer(&mut self, about: &About, ask: Ask) -> Called<Answer> {
        match (about, ask) {
            (About::Host, Ask::Count) => self.nvml.count().map(Answer::Count),
            (About::Index(index), Ask::Facts) => facts::read(self.nvml.by_index(*index)?).map(Answer::Facts),
            (About::Card(card), ask) => {
                let answer = self.card(card, ask);
                if let (Ask::Watch | Ask::Readings, Err(Fault::Nvml { code: GPU_IS_LOST, .. })) = (ask, &answer) {
                    self.output.say(&FromHelper::Event { pci: card.pci.clone(), event: Event::Lost });
                }
                let is_watched = self.known.as_ref().is_some_and(|known| known.is_watched);
                if matches!(answer, Err(Fault::Nvml { .. })) && !is_watched {
                    self.known = None;
                }
                answer
            }
            (about, ask) => Err(Fault::Refused(format!("{ask:?} is no question about {about:?}"))),
        }
    }

    fn card(&mut self, card: &CardId, ask: Ask) -> Called<Answer> {
        let output = self.output.clone();
        let known = self.look_up(card)?;
        let (device, profiles) = (known.device, known.profiles.as_slice());
        match ask {
            Ask::State => state(device, profiles).map(Answer::State),
            Ask::Watch => {
                if !known.is_watched {
                    events::watch(device, &card.pci, profiles, &output)?;
                    known.is_watched = true;
                }
                Ok(Answer::Done)
            }
            Ask::SetMig(on) => steps::set_mig(device, profiles, on).map(|()| Answer::Done),
            Ask::NoteMig(on) => steps::note_mig(device, profiles, on).map(|()| Answer::Done),
            Ask::Create(place, count) => steps::create(device, profiles, place, count.into()).map(|()| Answer::Done),
            Ask::Destroy(place) => steps::destroy(device, profiles, place).map(|()| Answer::Done),
            Ask::SetExclusive(on) => {
                if device.is_exclusive()? != on {
                    device.set_exclusive(on)?;
                }
                Ok(Answer::Done)
            }
            Ask::MemoryUsed(None) => device.memory_used_mib().map(Some).map(Answer::MemoryUsed),
            Ask::MemoryUsed(Some(place)) => memory_of(device, profiles, place).map(Answer::MemoryUsed),
            Ask::Processes => holders::list(device, profiles).map(Answer::Processes),
            Ask::RecoveryAction => {
                let action = device.field(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)?;
                let none = || Fault::Refused("this driver does not tell a recovery action".to_owned());
                action.map(|action| Answer::RecoveryAction(action as u32)).ok_or_else(none)
            }
            Ask::Sample => {
                let Known { sampler, profiles, .. } = known;
                sampler.sample(device, profiles).map(|sample| Answer::Sample(Box::new(sample)))
            }
            Ask::SlicesMemory => {
                let Known { sampler, profiles, .. } = known;
                sampler.slices_memory(device, profiles).map(Answer::SlicesMemory)
            }
            Ask::Readings => readings::read(device).map(Answer::Readings),
            Ask::Ancestors => facts::ancestors(self.nvml, device).map(Answer::Ancestors),
            Ask::Count | Ask::Facts => Err(Fault::Refused(format!("{ask:?} is no question about a card"))),
        }
    }

    fn look_up(&mut self, card: &CardId) -> Called<&mut Known> {
        let known = match self.known.take().filter(|known| known.id == *card) {
            Some(known) => known,
            None => {
                let device = self.nvml.by_id(card)?;
                let profiles = if device.mig_mode()?.is_some() { device.profiles()? } else { Vec::new() };
                Known { id: card.clone(), device, profiles, is_watched: false, sampler: Sampler::default() }
            }
        };
        Ok(self.known.insert(known))
    }
}

fn memory_of(device: Device, profiles: &[Profile], place: MigPlacement) -> Called<Option<u64>> {
    let instances = device.gpu_instances(profiles)?;
    let there = instances.iter().map(super::mig::GpuInstance::seen).find(|seen| seen.place == Some(place));
    // Its compute instances share one memory.
    match there.and_then(|seen| seen.uuids.into_iter().next()) {
        Some(uuid) => device.nvml.by_uuid(&uuid)?.memory_used_mib().map(Some),
        None => Ok(None),
    }
}

fn state(device: Device, profiles: &[Profile]) -> Called<Seen> {
    let mig = device.mig_mode()?;
    let instances = match mig {
        Some(mode) if mode.current => {
            device.gpu_instances(profiles)?.iter().map(super::mig::GpuInstance::seen).collect()
        }
        _ => Vec::new(),
    };
    let is_resetless = mig.is_some() && steps::is_resetless(device)?;
    Ok(Seen { mig, is_resetless, is_exclusive: device.is_exclusive()?, instances })
}
