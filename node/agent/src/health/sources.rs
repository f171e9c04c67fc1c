//! Where events come from: the kernel's log, the driver's own events, readings that are asked for. Each tells the loop of [`Health::run`], which waits for none.
//!
//! What must stay true: an event is stamped and placed when it is received; a card whose driver does not answer costs no other card anything; the kernel's log
//! is read after the cards, so that the number of a MIG instance can be placed.

use super::kernel_log::{self, Heard};
use super::{Health, Tell, shares, strangers};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use muster_node_core::health::{GpuUuid, HealthEvent, KernelEvent, XidEvent};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// A driver that needs longer for one value is in trouble.
const READ_MAX: Duration = Duration::from_secs(5);
/// Between two readings of the recovery action of a card that waits for one.
const READ_EVERY: Duration = Duration::from_secs(30);
/// The kernel's log waits no longer for the cards to be read: one that is silent for so long is withheld anyway.
const CARDS_MAX: Duration = Duration::from_secs(10);

/// A source in a task of its own, which ends with this.
pub(super) struct Source(JoinHandle<()>);

impl Drop for Source {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Health {
    /// Starts those that read files: they may wait for a disk.
    pub(super) fn start_sources(self: &Arc<Self>, tell: &Tell) -> Vec<Source> {
        let mut sources = Vec::new();
        if let Some(path) = self.parts.config.kernel_log.clone() {
            sources.push(self.parts.host.spawn(self.clone().hear_kernel(path, tell.clone())));
        }
        if let Some(every) = self.parts.backend.processes_every() {
            sources.push(self.parts.host.spawn(strangers::watch(self.clone(), every, tell.clone())));
        }
        if let Some(every) = self.parts.backend.shares_every() {
            sources.push(self.parts.host.spawn(shares::watch(self.clone(), every)));
        }
        sources.into_iter().map(Source).collect()
    }

    async fn hear_kernel(self: Arc<Self>, path: PathBuf, tell: Tell) {
        let _ = timeout(CARDS_MAX, self.parts.cards.until_read()).await;
        kernel_log::follow(path, &|heard| self.placed(heard), tell).await;
    }

    /// What the kernel has said, as an event of a card.
    fn placed(&self, heard: Heard) -> Option<(u16, HealthEvent)> {
        let pci = match &heard.event {
            KernelEvent::Xid(xid) => xid.pci,
            KernelEvent::FellOffTheBus(pci) => *pci,
        };
        let Some(card) = self.parts.backend.locate(pci) else {
            tracing::warn!(node = %self.parts.host.name, %pci, event = ?heard.event, "the kernel reports a fault of a GPU that this node does not have");
            return None;
        };
        let at_ms = self.parts.host.clock.wall_ms().saturating_sub(heard.age_ms);
        let event = match heard.event {
            KernelEvent::Xid(mut xid) => {
                let place = xid.gpu_instance.and_then(|instance| self.parts.cards.place_of(card, instance));
                if place.is_none() {
                    // The card was not read yet: any of its instances may be meant.
                    xid.gpu_instance = None;
                }
                HealthEvent::Xid(XidEvent::from_kernel(xid, heard.seq, at_ms, place.flatten()))
            }
            KernelEvent::FellOffTheBus(_) => HealthEvent::FellOffTheBus { seq: heard.seq, at_ms },
        };
        Some((card, event))
    }

    /// Tells what the driver tells by itself and what it is asked, for ever.
    pub(super) async fn hear_driver(&self, tell: Tell) {
        let mut events = self.parts.backend.events();
        let hear = async {
            while let Some(event) = events.next().await {
                if tell.send(event).await.is_err() {
                    return;
                }
            }
        };
        futures::future::join(hear, self.read_recovery_actions(&tell)).await;
        std::future::pending().await
    }

    /// Reads recovery actions: when an Xid asks for one, when the agent starts, and again and again while that could lift something.
    async fn read_recovery_actions(&self, tell: &Tell) {
        let Some(mut asked) = self.reads.lock().take() else { return };
        let mut under_way = BTreeSet::new();
        let mut readings = FuturesUnordered::new();
        let mut again_at = Instant::now();
        loop {
            let waiting = self.waiting_for_recovery_action();
            let again = async {
                match waiting.is_empty() {
                    true => std::future::pending().await,
                    false => tokio::time::sleep_until(again_at).await,
                }
            };
            let due = tokio::select! {
                Some(card) = asked.recv() => vec![card],
                Some(card) = readings.next(), if !readings.is_empty() => {
                    under_way.remove(&card);
                    continue;
                }
                () = self.verdicts_changed.notified() => {
                    if waiting.is_empty() {
                        again_at = Instant::now() + READ_EVERY;
                    }
                    continue;
                }
                () = again => {
                    again_at = Instant::now() + READ_EVERY;
                    waiting
                }
            };
            let new = due.into_iter().filter(|card| under_way.insert(*card)).collect::<Vec<_>>();
            readings.extend(new.into_iter().map(|card| self.read_recovery_action(card, tell)));
        }
    }

    /// Cards that a reading may bring back.
    fn waiting_for_recovery_action(&self) -> Vec<u16> {
        let ledger = self.ledger.lock();
        let waits = |uuid: &str| {
            ledger.cards().get(&GpuUuid(uuid.to_owned())).is_some_and(|card| card.waits_for_recovery_action())
        };
        (0_u16..).zip(&self.parts.gpus).filter(|(_, gpu)| waits(&gpu.uuid)).map(|(card, _)| card).collect()
    }

    /// Asks the driver what it wants to be done about a card, where it tells.
    async fn read_recovery_action(&self, card: u16, tell: &Tell) -> u16 {
        match timeout(READ_MAX, self.parts.backend.recovery_action(card)).await {
            Ok(Ok(Some(action))) => drop(tell.send((card, HealthEvent::RecoveryAction(action))).await),
            Ok(Ok(None)) => {}
            unread => {
                tracing::warn!(node = %self.parts.host.name, gpu = card, ?unread, "cannot read the recovery action of a GPU");
            }
        }
        card
    }
}
