//! What is made to go wrong: calls that hang, are slow or fail; lost cards; events; a caller who is not root.
//!
//! What must stay true: an event is given once to each event set that was registered before it; beyond [`EVENTS_MAX`] the oldest is lost, as
//! in the driver; a rule names a card by its slot in the fleet file, so that it means the same card after a reboot.

use super::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// Events that are kept for those who have not asked yet: the driver's own queue for each client is of this order.
pub const EVENTS_MAX: usize = 128;

/// `nvmlEventTypeXidCriticalError`.
pub const XID: u64 = 8;

/// What a rule does to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The call does not return until the rule is lifted.
    Hang,
    /// The call takes this long.
    SlowMs(u64),
    /// The call fails.
    Fail(Refusal),
}

/// A rule about calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Calls about this card only; otherwise all calls, also those that are about no card.
    pub card: Option<u32>,
    /// Calls of this function only.
    pub function: Option<String>,
    /// What happens.
    pub effect: Effect,
}

impl Rule {
    fn is_about(&self, function: &str, card: Option<usize>) -> bool {
        self.function.as_deref().is_none_or(|own| own == function)
            && self.card.is_none_or(|own| card == Some(own as usize))
    }
}

/// Something that event sets are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number; they grow.
    pub number: u64,
    /// Slot of its card.
    pub card: u32,
    /// `nvmlEventType*`.
    pub kind: u64,
    /// For an Xid its code.
    pub data: u64,
    /// GPU instance.
    pub gpu_instance: Option<u32>,
    /// Compute instance.
    pub compute_instance: Option<u32>,
}

/// The fault file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultPlan {
    /// Rules about calls; the first that fits counts.
    pub rules: Vec<Rule>,
    /// Slots of cards that have fallen off the bus.
    pub lost: BTreeSet<u32>,
    /// Slots of cards whose process lists are empty, whoever uses them.
    pub hides_processes: BTreeSet<u32>,
    /// The caller is not root: privileged calls are refused.
    pub no_permission: bool,
    /// Functions that this driver lacks: they answer "not supported".
    pub unsupported: BTreeSet<String>,
    /// Events, oldest first.
    pub events: VecDeque<Event>,
    /// The number of the next event.
    pub next_event: u64,
    /// The number of the next record of the kernel's log.
    pub next_kernel_record: u64,
}

impl FaultPlan {
    /// What happens to a call, if anything.
    #[must_use]
    pub fn effect(&self, function: &str, card: Option<usize>) -> Option<Effect> {
        self.rules.iter().find(|rule| rule.is_about(function, card)).map(|rule| rule.effect)
    }

    /// Whether a card has fallen off the bus.
    #[must_use]
    pub fn is_lost(&self, slot: usize) -> bool {
        self.lost.iter().any(|lost| *lost as usize == slot)
    }

    /// Adds an event.
    pub fn add_event(&mut self, card: u32, kind: u64, data: u64, instance: (Option<u32>, Option<u32>)) {
        let (gpu_instance, compute_instance) = instance;
        self.events.push_back(Event { number: self.next_event, card, kind, data, gpu_instance, compute_instance });
        self.next_event += 1;
        while self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    /// The oldest event from number `from` on that one of `registered` (slot, kinds, first number) waits for.
    #[must_use]
    pub fn next_for(&self, from: u64, registered: &[(usize, u64, u64)]) -> Option<&Event> {
        let is_wanted = |event: &Event| {
            registered.iter().any(|&(slot, kinds, first)| {
                slot == event.card as usize && kinds & event.kind != 0 && event.number >= first
            })
        };
        self.events.iter().find(|event| event.number >= from && is_wanted(event))
    }
}
