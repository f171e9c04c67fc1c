//! The health of one card: events in, effects out.
//!
//! What must stay true: the serialised form is the whole state, so that a restart of the agent at any point changes nothing; one fault that
//! two sources report counts once; a task is ended only for a fault that was told soon after it happened; all that is kept is bounded; a
//! reading that says again what is known changes nothing but when it was last seen.

use super::effect::{Effect, EffectKind, Mode};
use super::event::{GpuUuid, HealthEvent, RemappedRows, XidEvent, XidSource};
use super::recent::{RecentXids, Seen};
use super::recovery::RecoveryAction;
use super::rules::{self, Ends};
use super::slowdown::{Said, Samples};
use super::standing::{FOREIGN_MAX, Standing};
use super::verdict::{Cause, Condition, Scope, Verdict, VerdictKind, WayBack};
use super::xid::{Action, Xid};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// How long NVML's report of an application's Xid waits for the kernel's, which names the process, in ms.
pub const NAME_WAIT_MS: u64 = 2_000;
/// An Xid that is told later than this, in ms, ends nobody: who holds the card now may have come since.
pub const STALE_MS: u64 = 60_000;
/// How long after an Xid the driver's recovery action counts more than the table, in ms: before, it may have been read too early.
pub const SETTLE_MS: u64 = 10_000;
/// Events kept of a card for an operator: two or three faults with what led to them.
pub const HISTORY_MAX: usize = 64;
/// Ends that wait for a name; the next ends everyone at once.
const WAITING_MAX: usize = 16;

/// A fault that ends everyone unless the kernel names the process in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    event: XidEvent,
    since_ms: u64,
}

/// What is known of the health of one card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardHealth {
    boot_id: Option<String>,
    standing: Standing,
    double_bits: u64,
    /// Up to here an operator has accepted them.
    double_bits_accepted: u64,
    slowdown: Samples,
    recent: RecentXids,
    waiting: VecDeque<Waiting>,
    history: VecDeque<(u64, HealthEvent)>,
}

/// Where effects of one card go.
struct Effects<'a> {
    uuid: &'a GpuUuid,
    mode: Mode,
    list: Vec<Effect>,
}

impl Effects<'_> {
    fn push(&mut self, kind: EffectKind) {
        let observed = self.mode == Mode::ObserveOnly;
        self.list.push(Effect { uuid: self.uuid.clone(), observed, kind });
    }

    fn end(&mut self, scope: Scope, process: Option<u32>, cause: String, by_job: bool) {
        self.push(EffectKind::EndHolders { scope, process, cause, by_job });
    }

    /// The holders that an Xid ends: one process, or all.
    fn end_by(&mut self, event: &XidEvent, process: Option<u32>) {
        let by_job = event.xid.action() == Action::Record;
        self.end(rules::scope_of(event), process, rules::in_words(event), by_job);
    }

    /// In the order to take them: a card is withheld before its holders end, or the next task would start on it.
    fn in_order(mut self) -> Vec<Effect> {
        self.list.sort_by_key(|effect| match effect.kind {
            EffectKind::VerdictChanged { .. } => 0,
            EffectKind::EndHolders { .. } => 1,
            EffectKind::ReadRecoveryAction => 2,
            EffectKind::Record(_) => 3,
        });
        self.list
    }
}

impl CardHealth {
    /// A card that is seen for the first time, in this boot.
    pub(super) fn new(boot_id: Option<String>) -> Self {
        CardHealth { boot_id, ..CardHealth::default() }
    }

    /// Everything that is wrong and not lifted, in order of cause and scope.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        self.standing.conditions()
    }

    /// The verdict of every scope that something is wrong with by itself; what is wrong with the card concerns its slices too.
    #[must_use]
    pub fn verdicts(&self) -> BTreeMap<Scope, Verdict> {
        self.standing.verdicts()
    }

    /// The worst of what stands on any part of `scope`; `None` when it may be used. The whole card is concerned by each of its slices.
    #[must_use]
    pub fn verdict(&self, scope: Scope) -> Option<Verdict> {
        self.standing.verdict(scope)
    }

    /// What happened to the card, oldest first, with times in ms of Unix time; at most [`HISTORY_MAX`].
    pub fn history(&self) -> impl Iterator<Item = (u64, &HealthEvent)> {
        self.history.iter().map(|(at_ms, event)| (*at_ms, event))
    }

    /// The foreign processes that are held against the card or that an operator has accepted, until they have gone.
    pub fn foreign_processes(&self) -> impl Iterator<Item = u32> {
        self.standing.foreign_pids()
    }

    /// Whether a reading of the driver's recovery action would lift something.
    #[must_use]
    pub fn waits_for_recovery_action(&self) -> bool {
        self.conditions().iter().any(|one| one.ways_back.contains(&WayBack::RecoveryActionRead))
    }

    /// When [`HealthEvent::Tick`] has something to do, in ms of Unix time.
    #[must_use]
    pub fn due_ms(&self) -> Option<u64> {
        self.waiting.iter().map(|waiting| waiting.since_ms.saturating_add(NAME_WAIT_MS)).min()
    }

    /// Takes one event of this card; gives what follows, in the order to take it. `now_ms` is Unix time.
    pub(super) fn observe(&mut self, uuid: &GpuUuid, event: &HealthEvent, now_ms: u64, mode: Mode) -> Vec<Effect> {
        let mut out = Effects { uuid, mode, list: Vec::new() };
        let event = &event.bounded();
        let (verdicts, before) = (self.verdicts(), self.essence());
        let is_counted = self.take(event, now_ms, &mut out);
        // After it was taken: it may name the process of a fault that waits for that.
        self.end_overdue(now_ms, &mut out);
        if is_counted || self.essence() != before {
            if self.history.len() >= HISTORY_MAX {
                self.history.pop_front();
            }
            self.history.push_back((now_ms, event.clone()));
            out.push(EffectKind::Record(event.clone()));
        }
        tell_changes(&verdicts, &self.verdicts(), &mut out);
        out.in_order()
    }

    /// What is wrong, without when it was seen.
    fn essence(&self) -> Vec<(Cause, Scope, VerdictKind)> {
        self.conditions().iter().map(|one| (one.cause, one.scope, one.kind)).collect()
    }

    /// Says whether the event counts by itself, whatever it changes.
    fn take(&mut self, event: &HealthEvent, now_ms: u64, out: &mut Effects<'_>) -> bool {
        match event {
            HealthEvent::Xid(xid) => return self.xid(xid, now_ms, out),
            HealthEvent::Cleared { at_ms, .. } => self.clear(*at_ms),
            HealthEvent::ResetDone => {
                self.begin_anew();
                self.standing.reset();
            }
            HealthEvent::Booted { boot_id } => return self.booted(boot_id, now_ms),
            reading => {
                self.reading(reading, now_ms, out);
                return false;
            }
        }
        true
    }

    /// What may be told again at every poll.
    fn reading(&mut self, event: &HealthEvent, now_ms: u64, out: &mut Effects<'_>) {
        match event {
            HealthEvent::RecoveryAction(action) => self.recovery_action(*action, now_ms),
            HealthEvent::RemappedRows(rows) => self.rows(*rows, now_ms),
            HealthEvent::DoubleBitErrors(count) => self.count_double_bits(*count, now_ms),
            HealthEvent::Slowdown(is_slow) => match self.slowdown.add(*is_slow, now_ms) {
                Said::Slow => self.standing.raise(rules::of_slowdown(now_ms)),
                Said::Cool => self.standing.lift(WayBack::CoolMinutes, |_| true),
                Said::Undecided => {}
            },
            HealthEvent::LinksDown(0) => {
                self.standing.read_well(Cause::LinksDown);
                self.standing.lift(WayBack::LinksUp, |_| true);
            }
            HealthEvent::LinksDown(down) => self.standing.read(rules::of_links(*down, now_ms), u64::from(*down)),
            HealthEvent::DriverSilent { since_ms } => self.standing.raise(rules::of_silence(*since_ms, now_ms)),
            HealthEvent::DriverAnswers => self.standing.lift(WayBack::DriverAnswers, |_| true),
            HealthEvent::Lost => self.lose(now_ms, event, now_ms, out),
            HealthEvent::FellOffTheBus { seq, at_ms } => {
                if seq.is_none_or(|seq| self.recent.is_new_record(seq)) {
                    self.lose(*at_ms, event, now_ms, out);
                }
            }
            HealthEvent::ForeignProcess { pid, user, command } => {
                let is_known = self.standing.has(Cause::ForeignProcess(*pid));
                if is_known || self.standing.foreign_processes() < FOREIGN_MAX {
                    self.standing.read(rules::of_foreign_process(*pid, user, command, now_ms), 0);
                }
            }
            HealthEvent::ForeignGone { pid } => {
                let cause = Cause::ForeignProcess(*pid);
                self.standing.read_well(cause);
                self.standing.lift(WayBack::ProcessEnds, |one| one.cause == cause);
            }
            HealthEvent::Unclean { place, what } => {
                self.standing.raise(rules::of_remains(*place, what, now_ms));
            }
            HealthEvent::Cleaned { place } => {
                let scope = place.map_or(Scope::Card, Scope::Slice);
                self.standing.lift(WayBack::CleanedUp, |one| one.scope == scope);
            }
            HealthEvent::Tick
            | HealthEvent::Xid(_)
            | HealthEvent::Cleared { .. }
            | HealthEvent::ResetDone
            | HealthEvent::Booted { .. } => {}
        }
    }

    fn lose(&mut self, at_ms: u64, evidence: &HealthEvent, now_ms: u64, out: &mut Effects<'_>) {
        let condition = rules::of_loss(at_ms.min(now_ms), evidence.clone());
        if !self.standing.has(Cause::Lost) && now_ms.saturating_sub(at_ms) <= STALE_MS {
            out.end(Scope::Card, None, condition.what.clone(), false);
        }
        self.standing.raise(condition);
    }

    fn xid(&mut self, event: &XidEvent, now_ms: u64, out: &mut Effects<'_>) -> bool {
        let by_text = (event.xid == Xid::RECOVERY_ACTION_CHANGED)
            .then(|| RecoveryAction::from_kernel_text(&event.text))
            .flatten();
        match self.recent.see(event) {
            Seen::Before => return false,
            Seen::ByTheOtherSource => {
                if let Some(action) = by_text {
                    self.recovery_action(action, now_ms);
                }
                self.end_named(event, out);
                return false;
            }
            Seen::New => {}
        }
        if let Some(action) = by_text {
            self.recovery_action(action, now_ms);
            return true;
        }
        if event.xid.action() == Action::QueryRecoveryAction {
            out.push(EffectKind::ReadRecoveryAction);
        }
        // The state of the rows says more than the Xid; where it is not known, the Xid holds until it is read.
        let rows_are_known = self.standing.has(Cause::RemapFailed) || self.standing.has(Cause::RemapPending);
        if !(event.xid == Xid::REMAP_FAILED && rows_are_known)
            && let Some(condition) = rules::of_xid(event, now_ms)
        {
            self.standing.raise(condition);
        }
        if now_ms.saturating_sub(event.at_ms) <= STALE_MS {
            self.end_holders(event, now_ms, out);
        }
        true
    }

    fn end_holders(&mut self, event: &XidEvent, now_ms: u64, out: &mut Effects<'_>) {
        match rules::ends_of(event, event.source == XidSource::Nvml) {
            Ends::Nobody => {}
            Ends::Process(pid) => out.end_by(event, Some(pid)),
            Ends::EveryoneUnlessNamed if self.waiting.len() < WAITING_MAX => {
                self.waiting.push_back(Waiting { event: event.clone(), since_ms: now_ms });
            }
            Ends::Everyone | Ends::EveryoneUnlessNamed => out.end_by(event, None),
        }
    }

    /// The other source has told of a fault whose ends wait for a name.
    fn end_named(&mut self, event: &XidEvent, out: &mut Effects<'_>) {
        let name = |event: &XidEvent| (event.xid, event.instance.map(|instance| instance.id));
        if let Some(at) = self.waiting.iter().position(|waiting| name(&waiting.event) == name(event))
            && let Some(waiting) = self.waiting.remove(at)
        {
            let told = XidEvent { instance: waiting.event.instance, ..event.clone() };
            out.end_by(&told, told.pid);
        }
    }

    fn end_overdue(&mut self, now_ms: u64, out: &mut Effects<'_>) {
        // A wall clock that went back makes nobody wait.
        let is_over = |waiting: &Waiting| waiting.since_ms.abs_diff(now_ms) >= NAME_WAIT_MS;
        for waiting in self.waiting.iter().filter(|waiting| is_over(waiting)) {
            out.end_by(&waiting.event, None);
        }
        self.waiting.retain(|waiting| !is_over(waiting));
    }

    /// The driver's own word: it takes the place of what the table said of Xids that it has had time to judge.
    fn recovery_action(&mut self, action: RecoveryAction, now_ms: u64) {
        // The driver asks for a reset until there was one: this is how a reset is seen.
        if action == RecoveryAction::None && self.standing.asks_for_reset() {
            (self.double_bits, self.double_bits_accepted) = (0, 0);
            self.standing.lift(WayBack::Reset, |one| now_ms.saturating_sub(one.last_ms) >= SETTLE_MS);
        }
        self.standing.lift(WayBack::RecoveryActionRead, |one| match one.cause {
            Cause::Xid(_) => now_ms.saturating_sub(one.last_ms) >= SETTLE_MS,
            Cause::RecoveryAction => one.evidence != HealthEvent::RecoveryAction(action),
            _ => true,
        });
        match rules::of_recovery_action(action, now_ms) {
            Some(condition) => self.standing.read(condition, u64::from(action.code())),
            None => self.standing.read_well(Cause::RecoveryAction),
        }
    }

    fn rows(&mut self, rows: RemappedRows, now_ms: u64) {
        self.standing.lift(WayBack::RowsRead, |one| one.cause != Cause::RemapPending || !rows.pending);
        for (is_so, cause, condition) in [
            (rows.failed, Cause::RemapFailed, rules::of_failed_remap(rows, now_ms)),
            (rows.pending, Cause::RemapPending, rules::of_pending_remap(rows, now_ms)),
        ] {
            if is_so {
                self.standing.read(condition, 0);
            } else {
                self.standing.read_well(cause);
            }
        }
    }

    fn count_double_bits(&mut self, count: u64, now_ms: u64) {
        if count < self.double_bits {
            // The driver counts anew.
            self.double_bits_accepted = 0;
        }
        self.double_bits = count;
        if count > self.double_bits_accepted {
            self.standing.raise(rules::of_double_bits(count, now_ms));
        }
    }

    fn clear(&mut self, at_ms: u64) {
        self.standing.clear(at_ms);
        if !self.standing.has(Cause::DoubleBitErrors) {
            self.double_bits_accepted = self.double_bits;
        }
        if !self.standing.has(Cause::Slowdown) {
            self.slowdown.forget();
        }
    }

    /// Says whether it is another boot than before.
    fn booted(&mut self, boot_id: &str, now_ms: u64) -> bool {
        if self.boot_id.as_deref() == Some(boot_id) {
            return false;
        }
        let was_known = self.boot_id.replace(boot_id.to_owned()).is_some();
        if was_known {
            self.begin_anew();
            self.recent.forget();
            self.slowdown.forget();
            self.standing.booted(now_ms);
        }
        was_known
    }

    /// After a reset or a boot: errors are counted anew, and nobody who held the card then holds it now.
    fn begin_anew(&mut self) {
        self.waiting.clear();
        (self.double_bits, self.double_bits_accepted) = (0, 0);
    }
}

fn tell_changes(before: &BTreeMap<Scope, Verdict>, after: &BTreeMap<Scope, Verdict>, out: &mut Effects<'_>) {
    let scopes = before.keys().chain(after.keys().filter(|scope| !before.contains_key(scope)));
    for scope in scopes {
        let (old, new) = (before.get(scope), after.get(scope));
        let essence = |verdict: &Verdict| (verdict.kind, verdict.cause);
        if old.map(essence) != new.map(essence) {
            let from = old.map_or(VerdictKind::Use, |verdict| verdict.kind);
            out.push(EffectKind::VerdictChanged { scope: *scope, from, to: new.cloned() });
        }
    }
}
