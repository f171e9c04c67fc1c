//! Cards and slices that are not to be used: what agents say of them, and what of it is followed.
//!
//! What must stay true: what is certain is told from a verdict that may be wrong; what is spared keeps its reason.

use crate::mig::MigPlacement;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What somebody has to do before something that is withheld can be used again; the greater, the more it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Repair {
    /// What the reason says.
    #[default]
    Wait,
    /// Reset the GPU once nobody holds it.
    Reset,
    /// Reboot the node.
    Reboot,
    /// Look at the GPU, or replace it.
    Inspect,
}

impl Repair {
    /// All of them.
    pub const ALL: [Repair; 4] = [Repair::Wait, Repair::Reset, Repair::Reboot, Repair::Inspect];

    /// The word for it in tables, JSON and labels of metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Repair::Wait => "wait",
            Repair::Reset => "reset",
            Repair::Reboot => "reboot",
            Repair::Inspect => "inspect",
        }
    }
}

/// A MIG slice that is not to be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithheldSlice {
    /// Which.
    pub place: MigPlacement,
    /// Why.
    pub reason: String,
}

/// What an agent says of its cards while it is connected: one card, or one slice of it, that is not to be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// Index of the card.
    pub gpu: u16,
    /// Which slice; absent: the whole card.
    pub slice: Option<MigPlacement>,
    /// Why.
    pub reason: String,
    /// A verdict from signs of a fault, which a faulty monitor may give of many cards at once: how many are followed is bounded
    /// ([`crate::Pool::withheld_limit`]). What is lost, held by others or not clean is withheld in any case.
    #[serde(default)]
    pub by_verdict: bool,
    /// What somebody has to do about it.
    #[serde(default)]
    pub repair: Repair,
}

/// What an agent would withhold by verdicts, parted by the bound of its pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdicts {
    /// Cards that are withheld by them.
    pub followed: BTreeSet<u16>,
    /// What is over the bound, and kept in use.
    pub spared: Vec<Withheld>,
}

impl Verdicts {
    /// Cards of which something is kept in use although it would be withheld.
    #[must_use]
    pub fn spared_cards(&self) -> BTreeSet<u16> {
        self.spared.iter().map(|spared| spared.gpu).collect()
    }

    /// What is kept in use although it would be withheld, for people.
    #[must_use]
    pub fn in_words(&self) -> Option<String> {
        let cards: Vec<String> = self.spared_cards().iter().map(ToString::to_string).collect();
        let first = self.spared.first()?;
        Some(format!(
            "GPU {} kept in use, since as many GPUs of the cell are withheld as the pool allows (withheld-max-percent, withheld-max-gpus): {}",
            cards.join(", "),
            first.reason
        ))
    }
}
