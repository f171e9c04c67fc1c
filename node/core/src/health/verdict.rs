//! What may be done with a card or a slice of it, why, and what brings it back.
//!
//! What must stay true: verdicts order by severity; a scope's verdict is the worst of the conditions that stand on it; a condition names
//! every way that lifts it, and there is at least one.

use super::event::HealthEvent;
use muster_model::mig::MigPlacement;
use muster_model::node::Repair;
use muster_model::utc;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// What a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// The whole card.
    Card,
    /// The memory slices of a MIG instance, whatever stands there later.
    Slice(MigPlacement),
}

impl Scope {
    /// Whether they have something of the card in common.
    #[must_use]
    pub const fn touches(self, other: Self) -> bool {
        match (self, other) {
            // No card has more than eight memory slices.
            (Scope::Slice(one), Scope::Slice(two)) if one.start < 8 && two.start < 8 => {
                one.shape.mask(one.start) & two.shape.mask(two.start) != 0
            }
            _ => true,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Card => f.write_str("the card"),
            Scope::Slice(place) => write!(f, "MIG instance {place}"),
        }
    }
}

/// What may be done. Orders by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum VerdictKind {
    /// Tasks may be started.
    #[default]
    Use,
    /// Nothing new is started.
    Withhold,
    /// Nothing new is started; the card is reset once nobody holds it.
    ResetWhenIdle,
    /// Nothing new is started; the node is to be rebooted.
    Reboot,
    /// Nothing new is started until a person has looked at it.
    Inspect,
}

impl VerdictKind {
    /// What somebody has to do about it.
    #[must_use]
    pub const fn repair(self) -> Repair {
        match self {
            VerdictKind::Use | VerdictKind::Withhold => Repair::Wait,
            VerdictKind::ResetWhenIdle => Repair::Reset,
            VerdictKind::Reboot => Repair::Reboot,
            VerdictKind::Inspect => Repair::Inspect,
        }
    }
}

impl fmt::Display for VerdictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VerdictKind::Use => "in use",
            VerdictKind::Withhold => "withheld",
            VerdictKind::ResetWhenIdle => "withheld, to be reset when idle",
            VerdictKind::Reboot => "withheld, the node is to be rebooted",
            VerdictKind::Inspect => "withheld for inspection",
        })
    }
}

/// What lifts a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WayBack {
    /// A reset of the card. The agent sees one when the driver had asked for it and asks no more.
    Reset,
    /// A new boot of the node.
    NewBoot,
    /// The driver's recovery action, read some seconds later and then again and again: what it says counts from then on.
    RecoveryActionRead,
    /// The remapped rows, read later: what they say counts from then on.
    RowsRead,
    /// Ten minutes without a slowdown.
    CoolMinutes,
    /// All links are up.
    LinksUp,
    /// The foreign process ends.
    ProcessEnds,
    /// The driver answers.
    DriverAnswers,
    /// Nothing of the last task is left.
    CleanedUp,
    /// An operator's clear.
    OperatorsClear,
}

impl fmt::Display for WayBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WayBack::Reset => "a reset that the driver asked for",
            WayBack::NewBoot => "a new boot",
            WayBack::RecoveryActionRead => "the driver asking for no recovery",
            WayBack::RowsRead => "a reading of the remapped rows",
            WayBack::CoolMinutes => "ten minutes without slowdown",
            WayBack::LinksUp => "the links come up",
            WayBack::ProcessEnds => "the process ends",
            WayBack::DriverAnswers => "the driver answers",
            WayBack::CleanedUp => "nothing of the last task is left",
            WayBack::OperatorsClear => "muster clear-gpu",
        })
    }
}

/// What a condition comes from; one of each may stand on a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// An Xid of the table.
    Xid(u16),
    /// Any Xid that the table does not have.
    UnknownXid,
    /// The driver changed its recovery action, and it is not known to what.
    RecoveryActionUnread,
    /// The driver asks for a recovery action.
    RecoveryAction,
    /// Double-bit errors were counted.
    DoubleBitErrors,
    /// A row remap waits for a reset.
    RemapPending,
    /// A row remap has failed.
    RemapFailed,
    /// Clocks lowered for heat or power.
    Slowdown,
    /// NVLinks are down.
    LinksDown,
    /// The driver does not answer.
    DriverSilent,
    /// The card is lost.
    Lost,
    /// This process, which Muster did not start, has the card open.
    ForeignProcess(u32),
    /// Something of the last task is left.
    Unclean,
}

impl Cause {
    /// Whether the card cannot be used whatever a monitor says: it is lost or does not answer, somebody else has it, or it is not clean (law 13). The others
    /// are signs of a fault, and how many of those are followed at once is bounded.
    #[must_use]
    pub const fn is_certain(self) -> bool {
        match self {
            Cause::DriverSilent | Cause::Lost | Cause::ForeignProcess(_) | Cause::Unclean => true,
            Cause::Xid(_)
            | Cause::UnknownXid
            | Cause::RecoveryActionUnread
            | Cause::RecoveryAction
            | Cause::DoubleBitErrors
            | Cause::RemapPending
            | Cause::RemapFailed
            | Cause::Slowdown
            | Cause::LinksDown => false,
        }
    }
}

/// Something that is wrong and has not been lifted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// What it comes from.
    pub cause: Cause,
    /// What it is about.
    pub scope: Scope,
    /// What it asks for.
    pub kind: VerdictKind,
    /// What is wrong, for people; without times and ways back.
    pub what: String,
    /// Since when, in ms of Unix time.
    pub since_ms: u64,
    /// When it last happened, or the reading last said something else, in ms of Unix time.
    pub last_ms: u64,
    /// What was seen last.
    pub evidence: HealthEvent,
    /// What lifts it; any one of them.
    pub ways_back: BTreeSet<WayBack>,
}

/// What may be done with a card or slice: the worst of what stands on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What it is about.
    pub scope: Scope,
    /// What may be done; never [`VerdictKind::Use`].
    pub kind: VerdictKind,
    /// What it comes from.
    pub cause: Cause,
    /// For an operator: what is wrong, since when, what brings it back.
    pub reason: String,
    /// Since when, in ms of Unix time.
    pub since_ms: u64,
    /// What was seen.
    pub evidence: HealthEvent,
    /// What brings it back; any one of them.
    pub ways_back: BTreeSet<WayBack>,
}

impl From<&Condition> for Verdict {
    fn from(condition: &Condition) -> Self {
        let ways: Vec<String> = condition.ways_back.iter().map(WayBack::to_string).collect();
        let asks = match condition.kind {
            VerdictKind::Use | VerdictKind::Withhold => "",
            VerdictKind::ResetWhenIdle => "; it is to be reset when idle",
            VerdictKind::Reboot => "; the node is to be rebooted",
            VerdictKind::Inspect => "; it is to be inspected",
        };
        let since = utc::show(condition.since_ms);
        let reason = format!("{}, since {since}{asks}; what brings it back: {}", condition.what, ways.join(" or "));
        Verdict {
            scope: condition.scope,
            kind: condition.kind,
            cause: condition.cause,
            reason,
            since_ms: condition.since_ms,
            evidence: condition.evidence.clone(),
            ways_back: condition.ways_back.clone(),
        }
    }
}
