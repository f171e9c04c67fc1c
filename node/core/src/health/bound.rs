//! How much of a cell may be withheld at once: a fault of a monitor must not take the fleet away.
//!
//! What must stay true: the number of withheld cards never passes the bound; what is withheld already comes first, then the worst, then the
//! oldest. The function knows only what is wanted now, so that when the bound lifts nothing old is replayed: a verdict that was over the
//! bound and has been lifted meanwhile is not among the wanted.

use super::event::GpuUuid;
use super::verdict::{Scope, VerdictKind};
use muster_model::NodeId;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The bound of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WithholdBound {
    /// Share of the cell's cards, in percent; over 100 is 100. One card may always be withheld unless it is 0.
    pub share_max_percent: u8,
    /// And at most so many cards.
    pub count_max: Option<u32>,
}

impl Default for WithholdBound {
    /// Half of the cell, as NVSentinel's.
    fn default() -> Self {
        WithholdBound { share_max_percent: 50, count_max: None }
    }
}

/// A card or slice that a verdict asks to withhold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withholding {
    /// Its node.
    pub node: NodeId,
    /// Its card.
    pub uuid: GpuUuid,
    /// The card or a slice of it.
    pub scope: Scope,
    /// What the verdict asks for.
    pub kind: VerdictKind,
    /// Since when the verdict stands, in ms of Unix time.
    pub since_ms: u64,
    /// It is withheld now.
    pub is_active: bool,
}

/// The wanted withholdings, parted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounded {
    /// May be withheld, in order of precedence.
    pub allowed: Vec<Withholding>,
    /// Over the bound, still in use; in order of precedence.
    pub over: Vec<Withholding>,
}

impl WithholdBound {
    /// How many cards of a cell with so many may be withheld.
    #[must_use]
    pub fn limit(&self, cards_total: u32) -> u32 {
        let share = u64::from(cards_total) * u64::from(self.share_max_percent.min(100)) / 100;
        let at_least = u32::from(self.share_max_percent > 0).min(cards_total);
        let share = u32::try_from(share).unwrap_or(u32::MAX).max(at_least);
        share.min(self.count_max.unwrap_or(u32::MAX))
    }

    /// Parts what is wanted into what is allowed and what is over the bound. A card counts once, however many of its slices are
    /// withheld, and as a whole. What asks for [`VerdictKind::Use`] is neither.
    #[must_use]
    pub fn part(&self, cards_total: u32, mut wanted: Vec<Withholding>) -> Bounded {
        wanted.retain(|one| one.kind != VerdictKind::Use);
        wanted.sort_by_cached_key(|one| {
            (!one.is_active, Reverse(one.kind), one.since_ms, one.node, one.uuid.clone(), one.scope)
        });
        let limit = self.limit(cards_total) as usize;
        let mut cards: BTreeSet<(NodeId, GpuUuid)> = BTreeSet::new();
        let mut parted = Bounded::default();
        for one in wanted {
            let card = (one.node, one.uuid.clone());
            if cards.contains(&card) || cards.len() < limit {
                cards.insert(card);
                parted.allowed.push(one);
            } else {
                parted.over.push(one);
            }
        }
        parted
    }
}
