//! The durable health of a node's cards, by UUID.
//!
//! What must stay true: the serialised form is the whole state; a card is found again by its UUID whatever its index is; a card that is
//! first seen later in a boot belongs to that boot, so that the next one lifts what a boot lifts.

use super::card::CardHealth;
use super::effect::{Effect, Mode};
use super::event::{GpuUuid, HealthEvent};
use super::verdict::{Scope, Verdict};
use super::{TEXT_MAX, cut};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The cards of a node. Its serialised form is what the agent keeps on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    boot_id: Option<String>,
    cards: BTreeMap<GpuUuid, CardHealth>,
}

impl Ledger {
    /// What is known of the cards.
    #[must_use]
    pub const fn cards(&self) -> &BTreeMap<GpuUuid, CardHealth> {
        &self.cards
    }

    /// The agent has started in this boot; to be told before anything else. Gives what follows, in the order to take it. `now_ms` is Unix
    /// time, here and below.
    pub fn booted(&mut self, boot_id: &str, now_ms: u64, mode: Mode) -> Vec<Effect> {
        let event = HealthEvent::Booted { boot_id: cut(boot_id, TEXT_MAX) };
        self.boot_id = Some(cut(boot_id, TEXT_MAX));
        self.observe_all(&event, now_ms, mode)
    }

    /// Takes one event of one card; gives what follows, in the order to take it.
    pub fn observe(&mut self, uuid: &GpuUuid, event: &HealthEvent, now_ms: u64, mode: Mode) -> Vec<Effect> {
        let boot_id = &self.boot_id;
        let card = self.cards.entry(uuid.clone()).or_insert_with(|| CardHealth::new(boot_id.clone()));
        card.observe(uuid, event, now_ms, mode)
    }

    /// The same for every card that is known, as for [`HealthEvent::Tick`].
    pub fn observe_all(&mut self, event: &HealthEvent, now_ms: u64, mode: Mode) -> Vec<Effect> {
        self.cards.iter_mut().flat_map(|(uuid, card)| card.observe(uuid, event, now_ms, mode)).collect()
    }

    /// When a tick has something to do, in ms of Unix time.
    #[must_use]
    pub fn due_ms(&self) -> Option<u64> {
        self.cards.values().filter_map(CardHealth::due_ms).min()
    }

    /// A card has left the node for good.
    pub fn forget(&mut self, uuid: &GpuUuid) {
        self.cards.remove(uuid);
    }

    /// Why nothing may be started on a card or slice; `None` when nothing is wrong with it, and always in [`Mode::ObserveOnly`].
    #[must_use]
    pub fn withheld(&self, uuid: &GpuUuid, scope: Scope, mode: Mode) -> Option<Verdict> {
        match mode {
            Mode::ObserveOnly => None,
            Mode::Enforce => self.cards.get(uuid)?.verdict(scope),
        }
    }
}
