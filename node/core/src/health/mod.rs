//! What is wrong with a card, and what to do about it: events in, verdicts and effects out.
//!
//! [`kmsg`] reads the kernel's log, [`xid`] says what a code means, [`event`] is all that can be observed of a card, [`ledger`] turns
//! events into durable verdicts ([`verdict`]) and effects ([`effect`]). How many verdicts are followed at once in a cell is decided by the control plane.
//! What must stay true:
//! - cards are known by UUID, never by index;
//! - a verdict says why and what brings the card back, and is lifted by that alone: neither time nor a restart of the agent lifts it;
//! - a fault that the driver confines to a MIG instance touches no other instance;
//! - one fault that two sources report counts once;
//! - nothing here knows the allocation of devices: who holds a card or slice, and how a task is ended, is the agent's.
//!
//! Times are milliseconds of Unix time, since a verdict outlives the boot that CLOCK_BOOTTIME counts from. A wall clock that jumps moves
//! only the windows in which events are matched.

mod card;
pub mod effect;
pub mod event;
pub mod kmsg;
pub mod ledger;
mod recent;
pub mod recovery;
mod rules;
mod slowdown;
mod standing;
pub mod verdict;
pub mod xid;

pub use card::{CardHealth, HISTORY_MAX, NAME_WAIT_MS, SETTLE_MS, STALE_MS};
pub use effect::{Effect, EffectKind, Mode};
pub use event::{GpuUuid, HealthEvent, Instance, RemappedRows, XidEvent, XidSource};
pub use kmsg::{KernelEvent, KernelXid, KmsgRecord, PciAddress};
pub use ledger::Ledger;
pub use recent::MATCH_WINDOW_MS;
pub use recovery::RecoveryAction;
pub use slowdown::{MINUTES as SLOWDOWN_MINUTES, SLOW_MIN as SLOWDOWN_SLOW_MIN};
pub use standing::{FOREIGN_MAX, REBOOT_WINDOW_MS};
pub use verdict::{Cause, Condition, Scope, Verdict, VerdictKind, WayBack};
pub use xid::Xid;

/// Longest text that is kept of an event, in bytes: a kernel message has at most about 1,000.
pub const TEXT_MAX: usize = 256;

/// `text` without control characters, cut to `max` bytes at the edge of a character.
#[must_use]
pub(crate) fn cut(text: &str, max: usize) -> String {
    let mut kept = String::new();
    for letter in text.chars().filter(|letter| !letter.is_control()) {
        if kept.len() + letter.len_utf8() > max {
            break;
        }
        kept.push(letter);
    }
    kept
}
