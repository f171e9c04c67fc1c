//! Whether a machine that has shown a chain is taken for whom it says it is: one pure rule for both networks and both sides.
//!
//! The chain and the key were checked by whoever calls (by TLS, or by the simulation). Here the name, the dates and the pin decide. What
//! must stay true:
//! - a machine of another cluster, or another one than was expected, is never accepted;
//! - a certificate that is past its end by no more than [`GRACE_MS`] is accepted with an alarm, so that no expiry ends a fleet's work;
//!   whoever has a list of pins must find the machine in it;
//! - one that is before its beginning is accepted with an alarm, however early it is: an issuer has signed it at that time, so it is the clock of this side
//!   that is behind, and a machine that refused would never hear the time;
//! - control nodes accept each other by their pins whatever the date: elections depend on no clock.

use super::authority::EARLIER_MS;
use super::name::MachineName;
use super::scheme::{Presented, SpkiHash};

/// How long after its end a certificate is accepted with an alarm.
pub const GRACE_MS: u64 = 90 * 24 * 3_600_000;

/// Who a peer is, as both networks put it beside each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Its name.
    pub name: MachineName,
    /// The hash of its key.
    pub spki_sha256: SpkiHash,
    /// When its certificate was made, in ms since the Unix epoch.
    pub issued_ms: u64,
    /// How far its certificate was past its end when the connection was made; 0: it was not.
    pub expired_ms: u64,
}

/// Whom a side wants to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wanted {
    /// Any machine of the cluster; what it may do is decided by its name.
    Machine,
    /// Any control node of the cluster.
    Control,
    /// This control node.
    Member(u64),
}

/// The side that judges.
#[derive(Clone, Copy, Debug)]
pub struct Judging<'a> {
    /// The cluster whose roots it trusts.
    pub cluster: &'a str,
    /// Its own name, if it has one.
    pub own: Option<&'a MachineName>,
    /// Whom it wants to see.
    pub wanted: Wanted,
    /// Its certificate clock; `None`: it has never heard the time, and cannot judge dates.
    pub now_ms: Option<u64>,
}

/// What the list of pins says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The key is pinned to this name.
    Confirmed,
    /// This side has no list: an agent or a shard trusts the root alone.
    NoList,
    /// It is not.
    Refused(NotAdmitted),
}

/// Why a machine is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NotAdmitted {
    /// In words for the log and for the machine itself.
    pub why: String,
}

/// How far a certificate is out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfDate {
    /// Past its end.
    Expired {
        /// By so much.
        by_ms: u64,
    },
    /// Before its beginning: the clock of this side is behind.
    Early {
        /// By so much.
        by_ms: u64,
    },
}

/// Accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Who.
    pub identity: PeerIdentity,
    /// To be said in the log and counted.
    pub alarm: Option<OutOfDate>,
}

/// Not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Of another cluster.
    #[error("it belongs to cluster {got}, not to {expected}")]
    OtherCluster {
        /// This side's.
        expected: String,
        /// Its.
        got: String,
    },
    /// Another machine than was expected.
    #[error("it is {got}, not {expected}")]
    OtherMachine {
        /// Who was expected.
        expected: String,
        /// Who it is.
        got: MachineName,
    },
    /// Past its end for too long.
    #[error(
        "its certificate is {} days past its end; at most {} days are accepted: enrol the machine again",
        .by_ms / DAY_MS,
        GRACE_MS / DAY_MS
    )]
    Expired {
        /// By how much.
        by_ms: u64,
    },
    /// Its key is not pinned, or it is suspended.
    #[error("it is not admitted: {0}")]
    NotAdmitted(NotAdmitted),
}

const DAY_MS: u64 = 24 * 3_600_000;

/// See the module. `pin` is asked at most once, and only about a machine that is the wanted one.
///
/// # Errors
/// [`Refusal`].
pub fn judge(side: Judging<'_>, them: &Presented, pin: impl FnOnce(&PeerIdentity) -> Pin) -> Result<Accepted, Refusal> {
    if them.name.cluster() != side.cluster {
        return Err(Refusal::OtherCluster { expected: side.cluster.to_owned(), got: them.name.cluster().to_owned() });
    }
    let other = |expected: String| Err(Refusal::OtherMachine { expected, got: them.name.clone() });
    match (side.wanted, them.name.control_id()) {
        (Wanted::Machine, _) | (Wanted::Control, Some(_)) => {}
        (Wanted::Member(id), Some(got)) if id == got => {}
        (Wanted::Control, None) => return other("a control node".to_owned()),
        (Wanted::Member(id), _) => return other(format!("control node {id}")),
    }
    let alarm = side.now_ms.and_then(|now_ms| out_of_date(them, now_ms));
    let expired_ms = if let Some(OutOfDate::Expired { by_ms }) = alarm { by_ms } else { 0 };
    let issued_ms = them.validity.from_ms.saturating_add(EARLIER_MS);
    let identity = PeerIdentity { name: them.name.clone(), spki_sha256: them.spki_sha256, issued_ms, expired_ms };
    let is_pinned = match pin(&identity) {
        Pin::Confirmed => true,
        Pin::NoList => false,
        Pin::Refused(why) => return Err(Refusal::NotAdmitted(why)),
    };
    let both_members = side.own.is_some_and(|own| own.control_id().is_some()) && them.name.control_id().is_some();
    if expired_ms > GRACE_MS && !(both_members && is_pinned) {
        return Err(Refusal::Expired { by_ms: expired_ms });
    }
    Ok(Accepted { identity, alarm })
}

fn out_of_date(them: &Presented, now_ms: u64) -> Option<OutOfDate> {
    let validity = them.validity;
    if now_ms > validity.until_ms {
        Some(OutOfDate::Expired { by_ms: now_ms - validity.until_ms })
    } else if now_ms < validity.from_ms {
        Some(OutOfDate::Early { by_ms: validity.from_ms - now_ms })
    } else {
        None
    }
}
