//! What the agent knows of its cards, and the work on them: each card is read and set by attempts of its own.
//!
//! What must stay true:
//! - nobody waits here: the reconciler reads what is known and hands over what is needed; it is woken when a card has changed;
//! - one attempt is made on a card at a time, and what it changes is not planned with until the card was read again;
//! - a card whose driver does not answer in time is withheld until it answers, and costs no other card anything;
//! - an attempt that failed is made again after a wait that doubles, and at once when something else is asked of the card.

mod attempt;

use crate::gpu::{CardState, GpuBackend};
use muster_model::GpuModel;
use muster_model::mig::MigPlacement;
use muster_model::node::{Gpu, Repair, Withheld};
use muster_model::request::SharingMode;
use muster_model::validate::bounds::TEXT_BYTES_MAX;
use muster_model::validate::clipped;
use muster_node_core::{CardObserved, CardStep, CardWork, DeviceNames};
use muster_runtime::Host;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Until a failed attempt is made again; the wait doubles while attempts fail.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// A card is reset at most so often in [`RESETS_WITHIN`]: what two resets do not repair a third one will not.
const RESETS_MAX: usize = 2;
const RESETS_WITHIN: Duration = Duration::from_secs(24 * 3_600);
/// Resets that wait to be heard of: one is done at a time.
const RESETS_TOLD_MAX: usize = 1;

/// A card was reset; the other side says when it has taken that into account.
pub(crate) type WasReset = (u16, oneshot::Sender<()>);

/// The cards of one agent.
pub(crate) struct Cards {
    host: Host,
    backend: Arc<dyn GpuBackend>,
    gpus: Vec<Gpu>,
    slots: Mutex<Vec<Slot>>,
    /// Wakes the reconciler.
    replan: Arc<Notify>,
    /// Wakes who waits for the first reading.
    read: Notify,
    /// Tells who keeps verdicts of resets.
    tell_reset: mpsc::Sender<WasReset>,
    resets: Mutex<Option<mpsc::Receiver<WasReset>>>,
    stop: CancellationToken,
}

#[derive(Default)]
struct Slot {
    /// As it was read last.
    state: Option<CardState>,
    work: Work,
    trouble: Option<Trouble>,
    /// A fault has taken its MPS server down, which is not started again yet.
    mps_failed: bool,
    /// When it was reset, as far as that counts.
    was_reset: VecDeque<Instant>,
}

impl Slot {
    /// Why the card cannot be used until it is reset, or was reset in vain.
    fn needs_reset(&self) -> Option<(String, Repair)> {
        let failed = self.trouble.as_ref().filter(|trouble| !trouble.is_silent);
        if let Some(trouble) = failed.filter(|trouble| trouble.steps.contains(&CardStep::Reset)) {
            let repair = if self.was_reset.len() >= RESETS_MAX { Repair::Reboot } else { Repair::Reset };
            return Some((trouble.why.clone(), repair));
        }
        let state = self.state.as_ref()?;
        let is_change = |step: &CardStep| matches!(step, CardStep::EnableMig | CardStep::DisableMig);
        let failed = failed.filter(|trouble| state.mode_needs_reset && trouble.steps.iter().any(is_change));
        failed.map(|trouble| (trouble.why.clone(), Repair::Reset))
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Work {
    #[default]
    None,
    Reading,
    Changing,
    /// The same, with a reset of the card: nothing else of the node begins meanwhile.
    Resetting,
}

/// The last attempt did not succeed.
#[derive(Clone, Debug)]
struct Trouble {
    why: String,
    /// The driver did not answer.
    is_silent: bool,
    /// What was to be done.
    steps: Vec<CardStep>,
    wait: Duration,
    again_at: Instant,
}

impl Cards {
    /// Begins to read the cards; none is known when it returns.
    pub(crate) fn open(
        host: Host,
        backend: Arc<dyn GpuBackend>,
        gpus: Vec<Gpu>,
        replan: Arc<Notify>,
        stop: CancellationToken,
    ) -> Arc<Cards> {
        let slots = Mutex::new(gpus.iter().map(|_| Slot { work: Work::Reading, ..Slot::default() }).collect());
        let (tell_reset, resets) = mpsc::channel(RESETS_TOLD_MAX);
        let (read, resets) = (Notify::new(), Mutex::new(Some(resets)));
        let cards = Arc::new(Cards { host, backend, gpus, slots, replan, read, tell_reset, resets, stop });
        for card in 0..cards.gpus.len() {
            cards.clone().spawn(card, Vec::new());
        }
        cards
    }

    /// What the plan may count on.
    pub(crate) fn observed(&self) -> Vec<CardObserved> {
        let slots = self.slots.lock();
        let is_reset_under_way = slots.iter().any(|slot| slot.work == Work::Resetting);
        let observed = |(gpu, slot): (&Gpu, &Slot)| {
            let (silent, failed) = match &slot.trouble {
                Some(trouble) if trouble.is_silent => (Some(trouble.why.clone()), None),
                other => (None, other.as_ref().map(|trouble| trouble.why.clone())),
            };
            let known = slot.state.as_ref().filter(|_| silent.is_none());
            CardObserved {
                model: gpu.model,
                setting: known.map(CardState::setting),
                // A reset may reach cards that are linked with it: nothing starts on any card meanwhile.
                changing: slot.work == Work::Changing || is_reset_under_way,
                failed,
                failed_steps: slot.trouble.as_ref().map(|trouble| trouble.steps.clone()).unwrap_or_default(),
                mps_failed: slot.mps_failed,
                withheld_slices: Vec::new(),
                asks_for_reset: known.is_some_and(|state| state.is_reset_pending),
                mode_needs_reset: known.is_some_and(|state| state.mode_needs_reset),
                withheld: silent.clone().or_else(|| slot.state.as_ref().and_then(|state| state.withheld.clone())),
            }
        };
        self.gpus.iter().zip(slots.iter()).map(observed).collect()
    }

    /// What takes no new work; a card that has not been read yet is withheld too.
    pub(crate) fn withheld(&self) -> Vec<Withheld> {
        let unread = || Some("the driver has not answered yet".to_owned());
        let why = |slot: &Slot| match (&slot.trouble, &slot.state) {
            (Some(trouble), _) if trouble.is_silent => Some((trouble.why.clone(), Repair::Wait)),
            (_, Some(state)) => slot.needs_reset().or_else(|| {
                let repair = if state.is_reset_pending { Repair::Reset } else { Repair::Wait };
                state.withheld.clone().map(|why| (why, repair))
            }),
            (_, None) => unread().map(|why| (why, Repair::Wait)),
        };
        let withheld = |(gpu, slot)| {
            let (why, repair) = why(slot)?;
            Some(Withheld { gpu, slice: None, reason: clipped(why, TEXT_BYTES_MAX), by_verdict: false, repair })
        };
        (0_u16..).zip(self.slots.lock().iter()).filter_map(withheld).collect()
    }

    /// How the devices are called now.
    pub(crate) fn names(&self) -> DeviceNames {
        let mut names = DeviceNames {
            cards: self.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            models: self.gpus.iter().map(|gpu| gpu.model).collect(),
            ..DeviceNames::default()
        };
        for (card, slot) in (0_u16..).zip(self.slots.lock().iter()) {
            let Some(state) = &slot.state else { continue };
            names.instances.extend(state.instances.iter().map(|made| ((card, made.place), made.uuids.clone())));
            names.mps_pipes.extend(state.mps_pipe.clone().map(|pipe| (card, pipe)));
        }
        names
    }

    /// Their UUIDs, by index.
    pub(crate) fn uuids(&self) -> impl Iterator<Item = String> + '_ {
        self.gpus.iter().map(|gpu| gpu.uuid.clone())
    }

    /// Whoever keeps verdicts hears of resets here; once.
    pub(crate) fn resets(&self) -> Option<mpsc::Receiver<WasReset>> {
        self.resets.lock().take()
    }

    /// Whether a card may be reset once more.
    fn may_reset(&self, card: u16) -> bool {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get_mut(usize::from(card)) else { return false };
        slot.was_reset.retain(|at| at.elapsed() < RESETS_WITHIN);
        slot.was_reset.len() < RESETS_MAX
    }

    /// A card was reset, or may have been.
    fn count_reset(&self, card: u16) {
        if let Some(slot) = self.slots.lock().get_mut(usize::from(card)) {
            slot.was_reset.push_back(Instant::now());
        }
    }

    /// How a card was driven when it was read last.
    pub(crate) fn mode(&self, card: u16) -> Option<SharingMode> {
        self.slots.lock().get(usize::from(card))?.state.as_ref().map(|state| state.mode)
    }

    /// The model of a card.
    pub(crate) fn model(&self, card: u16) -> Option<GpuModel> {
        self.gpus.get(usize::from(card)).map(|gpu| gpu.model)
    }

    /// Where the MIG instance of this number stands, if there is one; absent when the card has not been read yet.
    pub(crate) fn place_of(&self, card: u16, instance: u8) -> Option<Option<MigPlacement>> {
        let slots = self.slots.lock();
        let state = slots.get(usize::from(card))?.state.as_ref()?;
        Some(state.instances.iter().find(|made| made.handle == u64::from(instance)).map(|made| made.place))
    }

    /// A fault of a card has ended its MPS server, if it has one: it is started again before anybody else starts there.
    pub(crate) fn mps_failed(&self, card: u16) {
        if let Some(slot) = self.slots.lock().get_mut(usize::from(card)) {
            slot.mps_failed = slot.state.as_ref().is_none_or(|state| state.mode == SharingMode::Mps);
        }
    }

    /// The cards, by UUID, whose MPS server has failed and is not started again yet.
    pub(crate) fn failed_mps(&self) -> BTreeSet<String> {
        let slots = self.slots.lock();
        self.gpus.iter().zip(&*slots).filter(|(_, slot)| slot.mps_failed).map(|(gpu, _)| gpu.uuid.clone()).collect()
    }

    /// Whether the driver does not answer for a card.
    pub(crate) fn is_silent(&self, card: u16) -> bool {
        let slots = self.slots.lock();
        slots.get(usize::from(card)).and_then(|slot| slot.trouble.as_ref()).is_some_and(|trouble| trouble.is_silent)
    }

    /// The driver has not answered another question about a card: it is silent until it is read again.
    pub(crate) fn was_silent(&self, card: u16, doing: &str, waited: Duration) {
        {
            let mut slots = self.slots.lock();
            // What is under way has a deadline of its own.
            let slot = slots.get_mut(usize::from(card)).filter(|slot| slot.work == Work::None);
            let Some(slot) = slot.filter(|slot| slot.trouble.as_ref().is_none_or(|trouble| !trouble.is_silent)) else {
                return;
            };
            let why = attempt::silence(&self.host, card, doing, waited);
            let (steps, wait, again_at) = (Vec::new(), AGAIN_MIN, Instant::now() + AGAIN_MIN);
            slot.trouble = Some(Trouble { why, is_silent: true, steps, wait, again_at });
        }
        self.replan.notify_one();
    }

    /// Whether the MIG instance of this UUID stood on a card when it was read last.
    pub(crate) fn stands(&self, card: u16, uuid: &str) -> bool {
        let slots = self.slots.lock();
        let state = slots.get(usize::from(card)).and_then(|slot| slot.state.as_ref());
        state.is_some_and(|state| state.instances.iter().any(|made| made.uuids.iter().any(|name| name == uuid)))
    }

    /// The number of the MIG instance that stands there.
    pub(crate) fn instance_at(&self, card: u16, place: MigPlacement) -> Option<u64> {
        let slots = self.slots.lock();
        let state = slots.get(usize::from(card))?.state.as_ref()?;
        state.instances.iter().find(|made| made.place == place).map(|made| made.handle)
    }

    /// Waits until every card was read or is known to be silent.
    pub(crate) async fn until_read(&self) {
        loop {
            let read = self.read.notified();
            if self.slots.lock().iter().all(|slot| slot.state.is_some() || slot.trouble.is_some()) {
                return;
            }
            read.await;
        }
    }

    /// Takes over what each card needs, and starts what is due. Says when to come again, if something waits for a time.
    pub(crate) fn take(self: &Arc<Self>, needed: &[CardWork]) -> Option<Instant> {
        let now = Instant::now();
        let mut again_at: Option<Instant> = None;
        let mut due: Vec<(usize, Vec<CardStep>)> = Vec::new();
        {
            let mut slots = self.slots.lock();
            for CardWork { card, steps } in needed {
                let index = usize::from(*card);
                // A reset is done alone: it takes the helper of all cards away, and may reach cards that are linked with this one. Whoever ends wakes the
                // reconciler.
                let resets = steps.contains(&CardStep::Reset);
                let in_the_way = |slot: &Slot| match slot.work {
                    Work::None => false,
                    Work::Reading | Work::Changing => resets,
                    Work::Resetting => true,
                };
                if slots.iter().any(in_the_way) {
                    continue;
                }
                let Some(slot) = slots.get_mut(index).filter(|slot| slot.work == Work::None) else { continue };
                match &slot.trouble {
                    // What failed is not needed any more.
                    Some(trouble) if steps.is_empty() && !trouble.is_silent => slot.trouble = None,
                    Some(trouble) if (trouble.is_silent || trouble.steps == *steps) && trouble.again_at > now => {
                        again_at = Some(again_at.map_or(trouble.again_at, |at| at.min(trouble.again_at)));
                        continue;
                    }
                    Some(_) => {}
                    None if steps.is_empty() => continue,
                    None => {}
                }
                let is_silent = slot.trouble.as_ref().is_some_and(|trouble| trouble.is_silent);
                if steps.is_empty() && !is_silent {
                    continue;
                }
                slot.work = match steps.is_empty() {
                    true => Work::Reading,
                    false if resets => Work::Resetting,
                    false => Work::Changing,
                };
                due.push((index, steps.clone()));
            }
        }
        for (index, steps) in due {
            self.clone().spawn(index, steps);
        }
        again_at
    }

    fn spawn(self: Arc<Self>, index: usize, steps: Vec<CardStep>) {
        let cards = self.clone();
        drop(self.host.spawn(async move {
            tokio::select! {
                biased;
                () = cards.stop.cancelled() => {}
                () = attempt::make(&cards, index, steps) => {}
            }
        }));
    }

    /// An attempt is over: what was read after it, and what went wrong.
    fn over(&self, index: usize, read: Option<CardState>, trouble: Option<(String, bool)>, steps: Vec<CardStep>) {
        {
            let mut slots = self.slots.lock();
            let slot = &mut slots[index];
            slot.work = Work::None;
            if trouble.is_none() && steps.contains(&CardStep::StopMps) {
                slot.mps_failed = false;
            }
            if let Some(state) = read {
                slot.mps_failed &= state.mode == SharingMode::Mps;
                slot.state = Some(state);
            }
            let before = slot.trouble.take();
            slot.trouble = trouble.map(|(why, is_silent)| {
                let wait = before.as_ref().map_or(AGAIN_MIN, |before| (before.wait * 2).min(AGAIN_MAX));
                // Since when it is silent is said as it was first.
                let why = match before {
                    Some(before) if before.is_silent && is_silent => before.why,
                    _ => why,
                };
                Trouble { why, is_silent, steps, wait, again_at: Instant::now() + wait }
            });
        }
        self.read.notify_waiters();
        self.replan.notify_one();
    }
}
