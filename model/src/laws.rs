//! The laws, numbered in one place. Each that anything can break today ([`IN_FORCE`]) has a property test named after it (`law_6_...`), and
//! those that a history shows are checked in the simulation.
//!
//! 1. A GPU, MIG placement or share is held by at most one allocation; memory is never oversubscribed.
//! 2. An allocation of a gang is bound whole or not at all, and preempted whole or not at all.
//! 3. No tenant at any level exceeds its max; children's guarantees sum to at most the parent's, per GPU model.
//! 4. An allocation charged to a floor is never preempted for another tenant.
//! 5. An acknowledged submission is never lost; at most one attempt of a job is live; an id is never used twice.
//! 6. A rank of a job never runs in two places at once.
//! 7. Only the holder of the newest epoch of a cell can bind in it.
//! 8. Untrusted tenants share a card only through MIG; shares of one card belong to one trust domain.
//! 9. Every interval an agent reports enters the usage ledger once.
//! 10. The same log gives the same state, byte for byte, on every replica and every replay, at one feature level.
//! 11. A rejected command changes nothing.
//! 12. Reclaim cannot cycle: each one strictly raises floor-covered use (or, inside one class of burst, strictly raises
//!     priority).
//! 13. No device passes to another tenant before its recorded clean-up: what a node says is being cleaned is not released, and what could not be
//!     cleaned is withheld.

use std::fmt;

/// The laws that something could break today.
pub const IN_FORCE: [u8; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];

/// A law by its number, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Law(pub u8);

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "law {}", self.0)
    }
}

/// A law that was found broken, and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{law} is broken: {what}")]
pub struct Broken {
    /// Which.
    pub law: Law,
    /// How, with the ids involved.
    pub what: String,
}
