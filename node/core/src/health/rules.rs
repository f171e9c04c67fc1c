//! Which condition an observation makes: the rules, without memory.
//!
//! What must stay true: every condition has a way back; what needs a person's look is lifted by an operator alone; a reading that has its
//! own way back (links, rows, the recovery action) is not lifted by a restart of anything that did not change it.

use super::event::{HealthEvent, RemappedRows, XidEvent};
use super::recovery::RecoveryAction;
use super::verdict::{Cause, Condition, Scope, VerdictKind, WayBack};
use super::xid::{Action, Harm, Xid};
use muster_model::mig::MigPlacement;
use std::collections::BTreeSet;

/// What a fault is and asks for, before time and evidence are put to it.
struct Fault<'a> {
    cause: Cause,
    scope: Scope,
    kind: VerdictKind,
    what: String,
    ways_back: &'a [WayBack],
}

impl Fault<'_> {
    fn seen(self, since_ms: u64, last_ms: u64, evidence: HealthEvent) -> Condition {
        Condition {
            cause: self.cause,
            scope: self.scope,
            kind: self.kind,
            what: self.what,
            since_ms,
            last_ms,
            evidence,
            ways_back: self.ways_back.iter().copied().collect::<BTreeSet<_>>(),
        }
    }
}

/// What an Xid is about: an error that the driver confines to an instance touches its slice alone.
pub(crate) fn scope_of(event: &XidEvent) -> Scope {
    match event.instance {
        Some(instance) if event.xid.is_confined() => {
            // A place that no card has would be a slice that nobody can ask for.
            instance.place.filter(|place| place.start < 8).map_or(Scope::Card, Scope::Slice)
        }
        _ => Scope::Card,
    }
}

/// Whose tasks an Xid ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Nobody,
    Process(u32),
    Everyone,
    /// Everyone, unless the other source names the process.
    EveryoneUnlessNamed,
}

pub(crate) fn ends_of(event: &XidEvent, is_from_nvml: bool) -> Ends {
    // Confined to an instance that has gone: its holders have, too, and nobody else is meant.
    let has_gone = event.xid.is_confined() && event.instance.is_some_and(|instance| instance.place.is_none());
    match (event.xid.harm(), event.pid) {
        (Harm::Everyone, _) => Ends::Everyone,
        (Harm::Process | Harm::NamedProcess, Some(pid)) => Ends::Process(pid),
        (Harm::Process, None) if has_gone => Ends::Nobody,
        (Harm::Process, None) if is_from_nvml => Ends::EveryoneUnlessNamed,
        (Harm::Process, None) => Ends::Everyone,
        (Harm::Nobody | Harm::NamedProcess, _) => Ends::Nobody,
    }
}

/// An Xid in words, with what the driver says of the process.
pub(crate) fn in_words(event: &XidEvent) -> String {
    let mut words = format!("{} ({})", event.xid, event.xid.meaning());
    match (event.pid, &event.process) {
        (Some(pid), Some(name)) => words.push_str(&format!(" of process {pid} ({name})")),
        (Some(pid), None) => words.push_str(&format!(" of process {pid}")),
        _ => {}
    }
    words
}

pub(crate) fn of_xid(event: &XidEvent, now_ms: u64) -> Option<Condition> {
    use WayBack::{NewBoot, OperatorsClear, RecoveryActionRead, Reset, RowsRead};
    let cause = if event.xid.row().is_some() { Cause::Xid(event.xid.0) } else { Cause::UnknownXid };
    let (kind, cause, ways_back): (_, _, &[WayBack]) = match event.xid.action() {
        Action::Record => return None,
        Action::ResetWhenIdle if event.xid == Xid::REMAP_FAILED => {
            (VerdictKind::ResetWhenIdle, cause, &[Reset, NewBoot, RecoveryActionRead, RowsRead, OperatorsClear])
        }
        Action::ResetWhenIdle => {
            (VerdictKind::ResetWhenIdle, cause, &[Reset, NewBoot, RecoveryActionRead, OperatorsClear])
        }
        Action::Reboot => (VerdictKind::Reboot, cause, &[Reset, NewBoot, RecoveryActionRead, OperatorsClear]),
        Action::Inspect => (VerdictKind::Inspect, cause, &[OperatorsClear]),
        Action::QueryRecoveryAction => {
            (VerdictKind::Withhold, Cause::RecoveryActionUnread, &[RecoveryActionRead, Reset, NewBoot, OperatorsClear])
        }
    };
    let fault = Fault { cause, scope: scope_of(event), kind, what: in_words(event), ways_back };
    Some(fault.seen(event.at_ms, event.at_ms.min(now_ms), HealthEvent::Xid(event.clone())))
}

pub(crate) fn of_recovery_action(action: RecoveryAction, now_ms: u64) -> Option<Condition> {
    use WayBack::{NewBoot, OperatorsClear, RecoveryActionRead, Reset};
    let driver: &[WayBack] = &[RecoveryActionRead, Reset, NewBoot, OperatorsClear];
    let (kind, ways_back): (_, &[WayBack]) = match action {
        RecoveryAction::None => return None,
        RecoveryAction::GpuReset | RecoveryAction::DrainAndReset => (VerdictKind::ResetWhenIdle, driver),
        RecoveryAction::NodeReboot => (VerdictKind::Reboot, driver),
        RecoveryAction::DrainP2p | RecoveryAction::RecoverImexDomain => (VerdictKind::Withhold, driver),
        RecoveryAction::Unknown(_) => (VerdictKind::Inspect, &[OperatorsClear]),
    };
    let what = format!("the driver asks for recovery: {action}");
    let fault = Fault { cause: Cause::RecoveryAction, scope: Scope::Card, kind, what, ways_back };
    Some(fault.seen(now_ms, now_ms, HealthEvent::RecoveryAction(action)))
}

pub(crate) fn of_failed_remap(rows: RemappedRows, now_ms: u64) -> Condition {
    let what = format!(
        "a memory row could not be remapped ({} rows are, for uncorrectable errors {})",
        u64::from(rows.correctable) + u64::from(rows.uncorrectable),
        rows.uncorrectable
    );
    on_card(Cause::RemapFailed, VerdictKind::Inspect, what, &[WayBack::OperatorsClear]).seen(
        now_ms,
        now_ms,
        HealthEvent::RemappedRows(rows),
    )
}

pub(crate) fn of_pending_remap(rows: RemappedRows, now_ms: u64) -> Condition {
    use WayBack::{NewBoot, OperatorsClear, Reset, RowsRead};
    let what = "a memory row is to be remapped, which a reset does".to_owned();
    let ways = [Reset, NewBoot, RowsRead, OperatorsClear];
    on_card(Cause::RemapPending, VerdictKind::ResetWhenIdle, what, &ways).seen(
        now_ms,
        now_ms,
        HealthEvent::RemappedRows(rows),
    )
}

pub(crate) fn of_double_bits(count: u64, now_ms: u64) -> Condition {
    let what = format!("{count} uncorrectable (double-bit) memory errors since the last reset");
    let ways = [WayBack::Reset, WayBack::NewBoot, WayBack::OperatorsClear];
    on_card(Cause::DoubleBitErrors, VerdictKind::ResetWhenIdle, what, &ways).seen(
        now_ms,
        now_ms,
        HealthEvent::DoubleBitErrors(count),
    )
}

pub(crate) fn of_slowdown(now_ms: u64) -> Condition {
    let what = "clocks were lowered for heat or power in six of ten minutes".to_owned();
    on_card(Cause::Slowdown, VerdictKind::Withhold, what, &[WayBack::CoolMinutes, WayBack::OperatorsClear]).seen(
        now_ms,
        now_ms,
        HealthEvent::Slowdown(true),
    )
}

pub(crate) fn of_links(down: u16, now_ms: u64) -> Condition {
    use WayBack::{LinksUp, NewBoot, OperatorsClear, Reset};
    let what = format!("{down} NVLinks are down");
    on_card(Cause::LinksDown, VerdictKind::ResetWhenIdle, what, &[LinksUp, Reset, NewBoot, OperatorsClear]).seen(
        now_ms,
        now_ms,
        HealthEvent::LinksDown(down),
    )
}

pub(crate) fn of_silence(since_ms: u64, now_ms: u64) -> Condition {
    let what = "the driver does not answer for this card".to_owned();
    on_card(Cause::DriverSilent, VerdictKind::Withhold, what, &[WayBack::DriverAnswers]).seen(
        since_ms.min(now_ms),
        now_ms,
        HealthEvent::DriverSilent { since_ms },
    )
}

pub(crate) fn of_loss(at_ms: u64, evidence: HealthEvent) -> Condition {
    let what = "the card is lost: it does not answer on its bus".to_owned();
    let ways = [WayBack::Reset, WayBack::NewBoot, WayBack::OperatorsClear];
    on_card(Cause::Lost, VerdictKind::Reboot, what, &ways).seen(at_ms, at_ms, evidence)
}

pub(crate) fn of_foreign_process(pid: u32, user: &str, command: &str, now_ms: u64) -> Condition {
    let what = format!("process {pid} of user {user} has the card open and was not started by Muster: {command}");
    let ways = [WayBack::ProcessEnds, WayBack::NewBoot, WayBack::OperatorsClear];
    let evidence = HealthEvent::ForeignProcess { pid, user: user.to_owned(), command: command.to_owned() };
    on_card(Cause::ForeignProcess(pid), VerdictKind::Withhold, what, &ways).seen(now_ms, now_ms, evidence)
}

pub(crate) fn of_remains(place: Option<MigPlacement>, what: &str, now_ms: u64) -> Condition {
    let scope = place.map_or(Scope::Card, Scope::Slice);
    let ways_back: &[WayBack] = &[WayBack::CleanedUp, WayBack::NewBoot, WayBack::OperatorsClear];
    let fault = Fault { cause: Cause::Unclean, scope, kind: VerdictKind::Withhold, what: what.to_owned(), ways_back };
    fault.seen(now_ms, now_ms, HealthEvent::Unclean { place, what: what.to_owned() })
}

fn on_card<'a>(cause: Cause, kind: VerdictKind, what: String, ways_back: &'a [WayBack]) -> Fault<'a> {
    Fault { cause, scope: Scope::Card, kind, what, ways_back }
}
