//! What cards a host has.
//!
//! What must stay true: each card is read by itself, so one that hangs is missing and the others are there; a card of a model that Muster does not know costs
//! only itself; the indexes are on disk before they are reported.

use super::link::AskError;
use super::slots::{self, Change, Slot};
use super::wire::{About, Answer, Ask, Facts};
use super::{Inner, Presence, islands, models};
use crate::gpu::GpuError;
use futures::future::join_all;
use muster_model::node::{Gpu, Repair};
use std::time::Duration;
use tokio::time::timeout;

/// For what a card is; a driver that needs longer is in trouble.
const FACTS_MAX: Duration = Duration::from_secs(4);
/// Indexes that NVML is asked for.
const CARDS_MAX: u32 = 64;

impl Inner {
    pub(super) async fn cards(&self) -> Result<Vec<Gpu>, GpuError> {
        self.list().await?;
        // Whoever asks for the state of a card now finds them listed.
        let _ = self.listed.set(());
        let slots = self.slots.lock().clone();
        let islands = islands::islands(slots.iter().map(|(slot, _)| &slot.facts));
        let gpu = |((slot, presence), island): ((Slot, Presence), u8)| Gpu {
            uuid: slot.facts.card.uuid.clone(),
            model: slot.model,
            memory_mib: slot.facts.memory_mib,
            numa: self.numa(&slot.facts.card.pci),
            island,
            withheld: match presence {
                Presence::Here => None,
                Presence::Unread(why) | Presence::Missing(why) => Some(why),
            },
            withheld_slices: Vec::new(),
            repair: Repair::Wait,
        };
        Ok(slots.into_iter().zip(islands).map(gpu).collect())
    }

    /// Lists the cards, and gives each its index.
    pub(super) async fn list(&self) -> Result<(), GpuError> {
        let one = self.listing.lock().await;
        let driver = |error: AskError| GpuError::Host { why: error.to_string() };
        let count = match self.link.ask(About::Host, Ask::Count).await.map_err(driver)? {
            Answer::Count(count) => count.min(CARDS_MAX),
            _ => return Err(driver(AskError::Unexpected)),
        };
        let answers = join_all((0..count).map(|index| self.facts(index))).await;
        let mut seen = Vec::new();
        let mut silent = None;
        for answer in answers {
            match answer {
                Ok(facts) => seen.extend(known(facts)),
                Err(why) => {
                    tracing::error!(why, "a GPU cannot be read");
                    silent = Some(why);
                }
            }
        }
        self.pin(&seen, silent).await?;
        self.watch_all();
        drop(one);
        Ok(())
    }

    async fn facts(&self, index: u32) -> Result<Facts, String> {
        match timeout(FACTS_MAX, self.link.ask(About::Index(index), Ask::Facts)).await {
            Ok(Ok(Answer::Facts(facts))) => Ok(facts),
            Ok(Ok(_)) => Err(AskError::Unexpected.to_string()),
            Ok(Err(error)) => Err(format!("GPU {index} of NVML: {error}")),
            Err(_) => Err(format!("GPU {index} of NVML: the driver does not answer")),
        }
    }

    /// Gives the cards their indexes, and keeps them.
    async fn pin(&self, seen: &[Slot], silent: Option<String>) -> Result<(), GpuError> {
        let mut pinned: Vec<Slot> = self.slots.lock().iter().map(|(slot, _)| slot.clone()).collect();
        let before = pinned.clone();
        let changes = slots::assign(&mut pinned, seen);
        if pinned != before {
            let storage = |why: String| GpuError::Storage { why: format!("{}: {why}", slots::FILE) };
            let bytes = serde_json::to_vec(&pinned).map_err(|error| storage(error.to_string()))?;
            self.machine.files.write(slots::FILE, bytes).await.map_err(|error| storage(error.to_string()))?;
        }
        for change in changes {
            match change {
                Change::Added { index } => {
                    tracing::info!(card = index, uuid = pinned[index].facts.card.uuid, "a new GPU")
                }
                Change::Swapped { index, old } => {
                    tracing::warn!(card = index, old, new = pinned[index].facts.card.uuid, "a GPU was swapped");
                }
                Change::Full { uuid } => {
                    tracing::error!(uuid, "no index is left for a GPU; remove {} on an empty node", slots::FILE);
                }
            }
        }
        let presence = |slot: &Slot| {
            let (uuid, pci) = (&slot.facts.card.uuid, &slot.facts.card.pci);
            match &silent {
                _ if seen.iter().any(|other| other.facts.card == slot.facts.card) => Presence::Here,
                Some(why) => Presence::Unread(format!("GPU {uuid} at {pci} cannot be read: {why}")),
                None => Presence::Missing(format!("GPU {uuid} at {pci} is missing: NVML does not list it")),
            }
        };
        let slots = pinned.into_iter().map(|slot| {
            let presence = presence(&slot);
            (slot, presence)
        });
        *self.slots.lock() = slots.collect();
        Ok(())
    }

    /// The NUMA node of a card's bus; 0 where the host has none.
    pub(super) fn numa(&self, pci: &str) -> u8 {
        let file = self.config.driver_root.join("sys/bus/pci/devices").join(pci).join("numa_node");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.trim().parse::<i32>().ok().and_then(|node| u8::try_from(node).ok()).unwrap_or_default()
    }
}

/// With its model; a card of an unknown one is left out.
fn known(facts: Facts) -> Option<Slot> {
    let model = models::model(&facts.name, facts.memory_mib);
    if model.is_none() {
        let (name, uuid) = (&facts.name, &facts.card.uuid);
        tracing::error!(name, uuid, memory_mib = facts.memory_mib, "Muster does not know this GPU; it is left out");
    }
    model.map(|model| Slot { model, facts })
}
