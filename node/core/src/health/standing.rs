//! The conditions that stand on a card.
//!
//! What must stay true: a condition is put on or becomes worse in [`Standing::raise`] alone, and is taken away in [`Standing::lift`] alone, by
//! a way back that it names; a card that has been rebooted for twice in [`REBOOT_WINDOW_MS`] and asks for a third reboot is withheld for
//! inspection instead; a reading that an operator has accepted is no fault while it says the same; there is one condition of each cause
//! and scope, so their number is bounded by the table of Xids, the places of a card, and the foreign processes that are kept.

use super::event::HealthEvent;
use super::recovery::RecoveryAction;
use super::verdict::{Cause, Condition, Scope, Verdict, VerdictKind, WayBack};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Two reboots in so long, in ms (a week), and the next is an inspection: what comes back that soon no reboot repairs.
pub const REBOOT_WINDOW_MS: u64 = 7 * 24 * 3_600_000;
/// Reboots that are tried.
const REBOOTS_MAX: usize = 2;
/// Foreign processes kept of a card; another one is told again at the next look.
pub const FOREIGN_MAX: usize = 32;
/// Readings that an operator has accepted: the foreign processes, and each other cause of a reading once.
const ACCEPTED_MAX: usize = FOREIGN_MAX + 8;

/// A reading that an operator has taken for well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Accepted {
    cause: Cause,
    level: u64,
}

/// What stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Standing {
    /// In order of cause and scope.
    conditions: Vec<Condition>,
    accepted: Vec<Accepted>,
    /// Boots that a reboot verdict of this card asked for, in ms of Unix time.
    reboots: VecDeque<u64>,
}

impl Standing {
    pub(super) fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    pub(super) fn verdicts(&self) -> BTreeMap<Scope, Verdict> {
        let mut worst: BTreeMap<Scope, &Condition> = BTreeMap::new();
        for condition in &self.conditions {
            worst.entry(condition.scope).and_modify(|old| *old = worse(old, condition)).or_insert(condition);
        }
        worst.into_iter().map(|(scope, condition)| (scope, condition.into())).collect()
    }

    pub(super) fn verdict(&self, scope: Scope) -> Option<Verdict> {
        self.conditions.iter().filter(|one| one.scope.touches(scope)).reduce(worse).map(Verdict::from)
    }

    pub(super) fn has(&self, cause: Cause) -> bool {
        self.conditions.iter().any(|one| one.cause == cause)
    }

    pub(super) fn foreign_processes(&self) -> usize {
        self.conditions.iter().filter(|one| matches!(one.cause, Cause::ForeignProcess(_))).count()
    }

    /// Those that stand against the card, and those that were accepted.
    pub(super) fn foreign_pids(&self) -> impl Iterator<Item = u32> {
        let causes = self.conditions.iter().map(|one| one.cause).chain(self.accepted.iter().map(|one| one.cause));
        causes.filter_map(|cause| if let Cause::ForeignProcess(pid) = cause { Some(pid) } else { None })
    }

    /// The driver asks for something that resets the card.
    pub(super) fn asks_for_reset(&self) -> bool {
        use RecoveryAction::{DrainAndReset, GpuReset, NodeReboot};
        let asked = |one: &Condition| match one.evidence {
            HealthEvent::RecoveryAction(action) => matches!(action, GpuReset | DrainAndReset | NodeReboot),
            _ => false,
        };
        self.conditions.iter().any(asked)
    }

    /// A reading says that something is wrong, and how much.
    pub(super) fn read(&mut self, condition: Condition, level: u64) {
        if !self.accepted.contains(&Accepted { cause: condition.cause, level }) {
            self.read_well(condition.cause);
            self.raise(condition);
        }
    }

    /// A reading says that it is well: what an operator accepted is over.
    pub(super) fn read_well(&mut self, cause: Cause) {
        self.accepted.retain(|one| one.cause != cause);
    }

    /// The one place where a condition is put on or becomes worse.
    pub(super) fn raise(&mut self, mut new: Condition) {
        let is_recent = |then: &&u64| then.abs_diff(new.last_ms) <= REBOOT_WINDOW_MS;
        let recent = self.reboots.iter().filter(is_recent).count();
        if new.kind == VerdictKind::Reboot && recent >= REBOOTS_MAX {
            new.kind = VerdictKind::Inspect;
            new.what.push_str(&format!(", again after {recent} reboots"));
            new.ways_back = [WayBack::OperatorsClear].into();
        }
        match self.conditions.binary_search_by_key(&(new.cause, new.scope), |one| (one.cause, one.scope)) {
            Err(at) => self.conditions.insert(at, new),
            Ok(at) => {
                let old = &mut self.conditions[at];
                // A reading that says the same again is nothing new.
                if old.evidence != new.evidence {
                    (old.last_ms, old.evidence) = (new.last_ms, new.evidence);
                }
                if new.kind >= old.kind {
                    (old.kind, old.what, old.ways_back) = (new.kind, new.what, new.ways_back);
                }
            }
        }
    }

    /// The one place where conditions are taken away: those that name `way`, if `also` holds.
    pub(super) fn lift(&mut self, way: WayBack, also: impl Fn(&Condition) -> bool) {
        self.conditions.retain(|one| !(one.ways_back.contains(&way) && also(one)));
    }

    /// An operator has taken the card for well at this time: what came later stands; readings that say the same again are no fault.
    pub(super) fn clear(&mut self, at_ms: u64) {
        self.reboots.clear();
        for condition in self.conditions.iter().filter(|one| one.last_ms <= at_ms) {
            let level = match (&condition.evidence, condition.cause) {
                (HealthEvent::RecoveryAction(action), Cause::RecoveryAction) => u64::from(action.code()),
                (HealthEvent::LinksDown(down), Cause::LinksDown) => u64::from(*down),
                (_, Cause::RemapFailed | Cause::RemapPending | Cause::ForeignProcess(_)) => 0,
                _ => continue,
            };
            self.accepted.retain(|one| one.cause != condition.cause);
            self.accepted.push(Accepted { cause: condition.cause, level });
        }
        let excess = self.accepted.len().saturating_sub(ACCEPTED_MAX);
        self.accepted.drain(..excess);
        self.lift(WayBack::OperatorsClear, |one| one.last_ms <= at_ms);
    }

    pub(super) fn reset(&mut self) {
        self.accept_nothing_that_a_reset_changes();
        self.lift(WayBack::Reset, |_| true);
    }

    pub(super) fn booted(&mut self, now_ms: u64) {
        self.accept_nothing_that_a_reset_changes();
        if self.conditions.iter().any(|one| one.kind == VerdictKind::Reboot) {
            self.reboots.push_back(now_ms);
            let excess = self.reboots.len().saturating_sub(REBOOTS_MAX);
            self.reboots.drain(..excess);
        }
        self.lift(WayBack::NewBoot, |_| true);
    }

    /// What is read after a reset is news, but for rows that have no spare.
    fn accept_nothing_that_a_reset_changes(&mut self) {
        self.accepted.retain(|one| one.cause == Cause::RemapFailed);
    }
}

/// The worse of two; the older of two that are alike.
fn worse<'a>(one: &'a Condition, other: &'a Condition) -> &'a Condition {
    let order =
        |condition: &Condition| (condition.kind, Reverse((condition.since_ms, condition.cause, condition.scope)));
    if order(other) > order(one) { other } else { one }
}
