//! Which index a card has, for as long as the host exists.
//!
//! What must stay true: an index means one card, or the one that was put in its place; a card that is not there keeps its index, so those behind it do not
//! move; a new card never takes the index of one that may come back.

use super::wire::Facts;
use muster_model::GpuModel;
use serde::{Deserialize, Serialize};

/// The file that pins them.
pub(super) const FILE: &str = "gpu-slots.json";
/// Indexes of one host, those of cards that have gone among them; `u8` numbers of islands must do.
const SLOTS_MAX: usize = 256;

/// The card of one index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Slot {
    pub(super) model: GpuModel,
    pub(super) facts: Facts,
}

/// What has changed, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Added {
        index: usize,
    },
    /// Another card is where that of this index was.
    Swapped {
        index: usize,
        old: String,
    },
    /// There are no indexes left.
    Full {
        uuid: String,
    },
}

/// Gives every card that was seen its index.
pub(super) fn assign(slots: &mut Vec<Slot>, seen: &[Slot]) -> Vec<Change> {
    let mut changes = Vec::new();
    let is_seen = |slot: &Slot| seen.iter().any(|other| other.facts.card.uuid == slot.facts.card.uuid);
    let gone: Vec<bool> = slots.iter().map(|slot| !is_seen(slot)).collect();
    for card in seen {
        let (uuid, pci) = (&card.facts.card.uuid, &card.facts.card.pci);
        if let Some(known) = slots.iter_mut().find(|slot| slot.facts.card.uuid == *uuid) {
            known.clone_from(card);
            continue;
        }
        let place = slots.iter().zip(&gone).position(|(slot, gone)| *gone && slot.facts.card.pci == *pci);
        match place {
            Some(index) => {
                let old = std::mem::replace(&mut slots[index], card.clone()).facts.card.uuid;
                changes.push(Change::Swapped { index, old });
            }
            None if slots.len() < SLOTS_MAX => {
                changes.push(Change::Added { index: slots.len() });
                slots.push(card.clone());
            }
            None => changes.push(Change::Full { uuid: uuid.clone() }),
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::nvml::wire::CardId;

    fn card(uuid: &str, pci: &str) -> Slot {
        let card = CardId { pci: pci.to_owned(), uuid: uuid.to_owned() };
        let facts = Facts { card, name: String::new(), memory_mib: 1, fabric: None, links: Vec::new() };
        Slot { model: GpuModel::H100, facts }
    }

    fn check(before: &[(&str, &str)], seen: &[(&str, &str)], after: &[&str], changes: &[Change]) {
        let cards = |list: &[(&str, &str)]| list.iter().map(|(uuid, pci)| card(uuid, pci)).collect::<Vec<_>>();
        let mut slots = cards(before);
        assert_eq!(assign(&mut slots, &cards(seen)), changes);
        assert_eq!(slots.iter().map(|slot| slot.facts.card.uuid.as_str()).collect::<Vec<_>>(), after);
        let again = slots.clone();
        assert_eq!(assign(&mut slots, &cards(seen)), [], "seen again, nothing changes");
        assert_eq!(slots, again);
    }

    #[test]
    fn indexes_stay_with_their_cards() {
        let added = |index| Change::Added { index };
        check(&[], &[("a", "1"), ("b", "2")], &["a", "b"], &[added(0), added(1)]);
        check(&[("a", "1"), ("b", "2")], &[("b", "2")], &["a", "b"], &[]);
        check(&[("a", "1"), ("b", "2")], &[("b", "2"), ("c", "3")], &["a", "b", "c"], &[added(2)]);
        let swapped = Change::Swapped { index: 0, old: "a".to_owned() };
        check(&[("a", "1"), ("b", "2")], &[("c", "1"), ("b", "2")], &["c", "b"], &[swapped]);
        // Two cards that have changed places are the same cards.
        check(&[("a", "1"), ("b", "2")], &[("b", "1"), ("a", "2")], &["a", "b"], &[]);
    }
}
