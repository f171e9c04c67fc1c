//! What is asked for and what is free, as the measure of fragmentation sees them.
//!
//! What must stay true: two nodes are in one state exactly when no demand could tell them apart; cards are therefore kept sorted, and
//! which card of a node has so much left is the fleet's business.

/// A whole card, in milli-GPU.
pub const CARD_MILLI: u16 = 1_000;

/// Kinds of cards, as a set of indices below 64; which index is which model is the caller's choice. The empty set is "any".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kinds(pub u64);

impl Kinds {
    /// Any kind.
    pub const ANY: Kinds = Kinds(0);

    /// These kinds; an index of 64 or more is left out.
    #[must_use]
    pub fn of(kinds: impl IntoIterator<Item = u8>) -> Self {
        Kinds(kinds.into_iter().filter(|kind| *kind < 64).fold(0, |set, kind| set | 1 << kind))
    }

    /// Whether a card of this kind will do.
    #[must_use]
    pub fn admit(self, kind: u8) -> bool {
        self.0 == 0 || (kind < 64 && self.0 >> kind & 1 == 1)
    }
}

/// What one pod or task asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Demand {
    /// Cards; 0 asks for none.
    pub cards: u16,
    /// What it takes of each card, in milli-GPU: less than a whole only with one card.
    pub milli: u16,
    /// Kinds of cards that will do.
    pub kinds: Kinds,
    /// Host CPU in milli-cores.
    pub cpu_milli: u64,
    /// Host memory in MiB.
    pub memory_mib: u64,
}

impl Demand {
    /// All of its cards together, in milli-GPU.
    #[must_use]
    pub fn gpu_milli(&self) -> u64 {
        u64::from(self.cards) * u64::from(self.milli)
    }
}

/// What is free on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeState {
    /// The kind of its cards.
    pub kind: u8,
    /// What is left of each card in milli-GPU, ascending.
    cards: Vec<u16>,
    /// Host CPU in milli-cores.
    pub cpu_milli: u64,
    /// Host memory in MiB.
    pub memory_mib: u64,
}

impl NodeState {
    /// A node with so much left of each card, in any order.
    #[must_use]
    pub fn new(kind: u8, mut cards: Vec<u16>, cpu_milli: u64, memory_mib: u64) -> Self {
        cards.sort_unstable();
        NodeState { kind, cards, cpu_milli, memory_mib }
    }

    /// What is left of each card in milli-GPU, ascending.
    #[must_use]
    pub fn cards(&self) -> &[u16] {
        &self.cards
    }

    /// What is left of all cards, in milli-GPU.
    #[must_use]
    pub fn gpu_milli(&self) -> u64 {
        self.cards.iter().map(|left| u64::from(*left)).sum()
    }

    /// What is left of the cards that are begun and not full.
    pub(super) fn begun(&self) -> impl Iterator<Item = u16> + '_ {
        self.cards.iter().copied().filter(|left| (1..CARD_MILLI).contains(left))
    }

    /// Whether `demand` fits beside what is there.
    #[must_use]
    pub fn fits(&self, demand: &Demand) -> bool {
        let room = self.cards.iter().filter(|left| **left >= demand.milli).count();
        self.cpu_milli >= demand.cpu_milli
            && self.memory_mib >= demand.memory_mib
            && room >= usize::from(demand.cards)
            && (demand.cards == 0 || demand.kinds.admit(self.kind))
    }

    /// The same with `demand` placed on cards that have `left` each; `None` when there are not as many such cards, or no host room.
    #[must_use]
    pub fn with(&self, demand: &Demand, left: u16) -> Option<NodeState> {
        let mut after = self.clone();
        after.cpu_milli = after.cpu_milli.checked_sub(demand.cpu_milli)?;
        after.memory_mib = after.memory_mib.checked_sub(demand.memory_mib)?;
        for _ in 0..demand.cards {
            let at = after.cards.iter().position(|card| *card == left)?;
            after.cards[at] = left.checked_sub(demand.milli)?;
            after.cards.sort_unstable();
        }
        Some(after)
    }

    /// The distinct amounts left of a card on which `demand` could go. Whole cards are interchangeable, so there is one way for them.
    pub fn ways(&self, demand: &Demand) -> impl Iterator<Item = u16> + '_ {
        let (cards, milli) = (demand.cards, demand.milli);
        let mut before = None;
        let distinct = self.cards.iter().copied().filter(move |left| before.replace(*left) != Some(*left));
        let gpu = distinct.filter(move |left| cards > 0 && *left >= milli);
        gpu.chain((cards == 0).then_some(0))
    }
}
