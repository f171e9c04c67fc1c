//! Processes on the cards that Muster did not start: their card is withheld, and they are named with user and command.
//!
//! What must stay true: a process counts as a stranger only when two looks in a row have seen it and no task has it, since a task that is just ending is nobody's for a moment;
//! what the driver runs itself (MPS) is none; a card whose processes cannot be listed keeps what is known of it; one whose
//! listing overruns is silent until it is read again.

use super::{Health, Tell, User};
use crate::gpu::GpuProcess;
use crate::process_info;
use muster_model::request::SharingMode;
use muster_node_core::health::{GpuUuid, HealthEvent};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// A listing takes milliseconds; what a driver in trouble does not answer is asked for again at the next look.
const LIST_MAX: Duration = Duration::from_secs(5);

/// Looks at every card again and again, each by itself, until nobody listens.
pub(super) async fn watch(health: Arc<Health>, every: Duration, tell: Tell) {
    let cards = 0..health.parts.gpus.len() as u16;
    futures::future::join_all(cards.map(|card| health.watch_strangers(card, every, &tell))).await;
}

impl Health {
    async fn watch_strangers(&self, card: u16, every: Duration, tell: &Tell) {
        let mut every = tokio::time::interval(every);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Unknown processes that the last look has seen.
        let mut seen = BTreeSet::new();
        loop {
            every.tick().await;
            if self.parts.cards.is_silent(card) {
                continue;
            }
            match tokio::time::timeout(LIST_MAX, self.parts.backend.processes(card)).await {
                Err(_) => {
                    self.users.lock().remove(&card);
                    self.parts.cards.was_silent(card, "listing its processes", LIST_MAX);
                }
                Ok(Err(_)) => drop(self.users.lock().remove(&card)),
                Ok(Ok(listed)) => {
                    for event in self.look(card, &listed, &mut seen) {
                        if tell.send((card, event)).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }

    /// What a listing says of strangers. `seen` is what the last look has seen, and is replaced.
    fn look(&self, card: u16, listed: &[GpuProcess], seen: &mut BTreeSet<u32>) -> Vec<HealthEvent> {
        let user = |GpuProcess { pid, place, .. }: &GpuProcess| {
            (*pid, User { task: self.parts.executor.task_of(*pid), place: *place })
        };
        let users: Vec<(u32, User)> = listed.iter().map(user).collect();
        self.users.lock().insert(card, users.iter().map(|(_, user)| *user).collect());
        let is_stranger = |(pid, user): &&(u32, User)| user.task.is_none() && !self.is_mps(card, *pid);
        let strangers: BTreeSet<u32> = users.iter().filter(is_stranger).map(|(pid, _)| *pid).collect();
        let told = self.strangers_told(card);
        let gone = told.difference(&strangers).map(|pid| HealthEvent::ForeignGone { pid: *pid });
        let new = strangers.iter().filter(|pid| !told.contains(pid) && seen.contains(pid));
        let new = new.map(|pid| HealthEvent::ForeignProcess {
            pid: *pid,
            user: process_info::user(*pid),
            command: process_info::command(*pid),
        });
        let events = gone.chain(new).collect();
        *seen = strangers;
        events
    }

    fn is_mps(&self, card: u16, pid: u32) -> bool {
        self.parts.cards.mode(card) == Some(SharingMode::Mps) && process_info::is_mps_server(pid)
    }

    /// Those that the ledger holds against the card, or that an operator has accepted.
    pub(super) fn strangers_told(&self, card: u16) -> BTreeSet<u32> {
        let Some(gpu) = self.parts.gpus.get(usize::from(card)) else { return BTreeSet::new() };
        let ledger = self.ledger.lock();
        let known = ledger.cards().get(&GpuUuid(gpu.uuid.clone()));
        known.into_iter().flat_map(|known| known.foreign_processes()).collect()
    }
}
