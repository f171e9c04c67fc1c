//! The laws of health, against any events.

use super::strategies::{any_code, any_event, any_history, any_instance, any_xid};
use super::{FIRST, Node, SECOND, T0, ended, in_slice, kernel, recorded, uuid};
use muster_node_core::health::{
    Cause, Condition, FOREIGN_MAX, HISTORY_MAX, HealthEvent, Ledger, MATCH_WINDOW_MS, Mode, RecoveryAction, STALE_MS,
    Scope, VerdictKind, WayBack, Xid, XidEvent, XidSource,
};
use proptest::prelude::*;

/// The same, told at once when it happens.
fn at(event: &HealthEvent, now_ms: u64) -> HealthEvent {
    match event {
        HealthEvent::Xid(xid) => HealthEvent::Xid(XidEvent { at_ms: now_ms, ..xid.clone() }),
        HealthEvent::FellOffTheBus { seq, .. } => HealthEvent::FellOffTheBus { seq: *seq, at_ms: now_ms },
        HealthEvent::Cleared { by, reason, .. } => {
            HealthEvent::Cleared { by: by.clone(), reason: reason.clone(), at_ms: now_ms }
        }
        other => other.clone(),
    }
}

fn stored_and_read(ledger: &Ledger) -> Ledger {
    serde_json::from_slice(&serde_json::to_vec(ledger).expect("JSON")).expect("its own JSON")
}

/// Which ways back an event opens, and for which conditions.
fn opens(event: &HealthEvent, one: &Condition, before: &[Condition]) -> Option<WayBack> {
    match event {
        _ if says_reset(event, before) && !one.ways_back.contains(&WayBack::RecoveryActionRead) => Some(WayBack::Reset),
        HealthEvent::RecoveryAction(_) => Some(WayBack::RecoveryActionRead),
        HealthEvent::Xid(xid) if xid.xid == Xid(154) => Some(WayBack::RecoveryActionRead),
        HealthEvent::RemappedRows(_) => Some(WayBack::RowsRead),
        HealthEvent::Slowdown(false) => Some(WayBack::CoolMinutes),
        HealthEvent::LinksDown(0) => Some(WayBack::LinksUp),
        HealthEvent::DriverAnswers => Some(WayBack::DriverAnswers),
        HealthEvent::ForeignGone { pid } if one.cause == Cause::ForeignProcess(*pid) => Some(WayBack::ProcessEnds),
        HealthEvent::Cleared { .. } => Some(WayBack::OperatorsClear),
        HealthEvent::ResetDone => Some(WayBack::Reset),
        HealthEvent::Booted { .. } => Some(WayBack::NewBoot),
        _ => None,
    }
}

/// The driver asks for nothing any more after it had asked for a reset.
fn says_reset(event: &HealthEvent, before: &[Condition]) -> bool {
    let now = match event {
        HealthEvent::RecoveryAction(action) => Some(*action),
        HealthEvent::Xid(xid) if xid.xid == Xid(154) => RecoveryAction::from_kernel_text(&xid.text),
        _ => None,
    };
    let asked = |one: &Condition| match one.evidence {
        HealthEvent::RecoveryAction(action) => [1, 2, 4].contains(&action.code()),
        _ => false,
    };
    now == Some(RecoveryAction::None) && before.iter().any(asked)
}

/// What the rules say of the ways back, told a second time and without their table.
fn may_lift(event: &HealthEvent, one: &Condition, before: &[Condition]) -> bool {
    match (one.kind, one.cause) {
        (_, Cause::DriverSilent) => matches!(event, HealthEvent::DriverAnswers),
        (VerdictKind::Inspect, _) => matches!(event, HealthEvent::Cleared { .. }),
        (_, Cause::Slowdown) => matches!(event, HealthEvent::Slowdown(false) | HealthEvent::Cleared { .. }),
        (_, Cause::Lost | Cause::DoubleBitErrors) => {
            says_reset(event, before)
                || matches!(event, HealthEvent::ResetDone | HealthEvent::Booted { .. } | HealthEvent::Cleared { .. })
        }
        _ => {
            use HealthEvent::{DriverAnswers, FellOffTheBus, Lost, Tick};
            !matches!(event, Tick | Lost | FellOffTheBus { .. } | DriverAnswers)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// The agent may be restarted after any event: it reads its ledger and tells the boot that it is in.
    #[test]
    fn a_verdict_survives_a_restart(history in any_history(40)) {
        let (mut steady, mut restarted) = (Node::new(), Node::new());
        let mut boot = "boot-1".to_owned();
        for (pause, event) in &history {
            let event = at(event, steady.now_ms + pause);
            if let HealthEvent::Booted { boot_id } = &event {
                boot.clone_from(boot_id);
            }
            for node in [&mut steady, &mut restarted] {
                node.pass(*pause);
            }
            restarted.ledger = stored_and_read(&restarted.ledger);
            prop_assert_eq!(&steady.ledger, &restarted.ledger);
            prop_assert_eq!(steady.tell(event.clone()), restarted.tell(event));
            let before = restarted.card().verdicts();
            restarted.ledger = stored_and_read(&restarted.ledger);
            let again = HealthEvent::Booted { boot_id: boot.clone() };
            prop_assert_eq!(restarted.tell(again.clone()), steady.tell(again));
            prop_assert_eq!(before, restarted.card().verdicts());
        }
    }

    /// An error that the driver confines to an instance, from either source, with or without a process, ends and withholds nothing of
    /// another instance.
    #[test]
    fn a_slice_fault_touches_no_other_slice(
        faults in prop::collection::vec((prop::sample::select(vec![13_u16, 31, 43, 45, 48, 68, 94, 109, 171, 172]), any_xid(), 0..4_000_u64), 1..20)
    ) {
        let mut node = Node::new();
        for (code, xid, pause) in faults {
            node.pass(pause);
            let event = XidEvent { xid: Xid(code), instance: in_slice(FIRST), at_ms: node.now_ms, ..xid };
            let mut effects = node.tell(HealthEvent::Xid(event));
            effects.extend(node.tell(HealthEvent::Tick));
            for (scope, _) in ended(&effects) {
                prop_assert!(!scope.touches(Scope::Slice(SECOND)), "{scope}");
            }
            prop_assert_eq!(node.verdict(Scope::Slice(SECOND)), None);
        }
        node.pass(60_000);
        for (scope, _) in ended(&node.tell(HealthEvent::Tick)) {
            prop_assert!(!scope.touches(Scope::Slice(SECOND)), "{scope}");
        }
    }

    /// Both sources tell every fault, in either order and each up to the window late: each is recorded once and ends holders once at most.
    #[test]
    fn one_xid_from_two_sources_counts_once(
        faults in prop::collection::vec((any_code(), any_instance(), prop::option::of(1..5_u32), 0..60_000_u64, 0..=MATCH_WINDOW_MS, any::<bool>()), 1..20)
    ) {
        let mut reports = Vec::new();
        // Faults of one code and instance are told apart by time.
        let mut names = std::collections::BTreeSet::new();
        let faults: Vec<_> = faults.into_iter().filter(|(code, instance, ..)| names.insert((*code, *instance))).collect();
        for (code, instance, pid, after, late, kernel_first) in &faults {
            let (first, second) = (T0 + after, T0 + after + late);
            let (of_kernel, of_nvml) = if *kernel_first { (first, second) } else { (second, first) };
            reports.push((of_kernel, kernel(*code, *instance, *pid, of_kernel)));
            reports.push((of_nvml, XidEvent::from_nvml(Xid(*code), *instance, of_nvml)));
        }
        reports.sort_by_key(|(at_ms, _)| *at_ms);
        let mut node = Node::new();
        let mut effects = Vec::new();
        for (at_ms, report) in reports {
            node.now_ms = at_ms;
            effects.extend(node.tell(HealthEvent::Xid(report)));
        }
        node.pass(60_000);
        effects.extend(node.tell(HealthEvent::Tick));
        prop_assert_eq!(recorded(&effects), faults.len());
        prop_assert!(ended(&effects).len() <= faults.len(), "{:?}", ended(&effects));
    }

    /// A new reader of /dev/kmsg, or an agent that starts again, reads the records of this boot once more.
    #[test]
    fn a_record_that_is_read_again_counts_once(faults in prop::collection::vec((any_code(), any_instance()), 1..20)) {
        let mut node = Node::new();
        let event = |seq: usize, (code, instance)| {
            let source = XidSource::Kernel { seq: Some(seq as u64) };
            HealthEvent::Xid(XidEvent { source, ..kernel(code, instance, None, T0) })
        };
        for (seq, fault) in faults.iter().enumerate() {
            prop_assert_eq!(recorded(&node.tell(event(seq, *fault))), 1);
        }
        node.clear();
        for (seq, fault) in faults.iter().enumerate() {
            prop_assert_eq!(node.tell(event(seq, *fault)), vec![]);
        }
        prop_assert_eq!(node.card().conditions(), &[]);
    }

    #[test]
    fn severity_only_falls_by_its_way_back(history in any_history(60)) {
        let mut node = Node::new();
        node.tell(HealthEvent::Tick);
        for (pause, event) in history {
            node.pass(pause);
            let event = at(&event, node.now_ms);
            let before = node.card().conditions().to_vec();
            node.tell(event.clone());
            for old in &before {
                let same = |one: &&Condition| (one.cause, one.scope) == (old.cause, old.scope);
                let kind = node.card().conditions().iter().find(same).map_or(VerdictKind::Use, |one| one.kind);
                if kind < old.kind {
                    let way = opens(&event, old, &before);
                    prop_assert!(way.is_some_and(|way| old.ways_back.contains(&way)), "{event:?} lifted {old:?}");
                    prop_assert!(may_lift(&event, old, &before), "{event:?} lifted {old:?}");
                }
                prop_assert!(!old.ways_back.is_empty());
            }
        }
    }

    /// However bad it was: an answer of the driver and an operator bring it back.
    #[test]
    fn no_card_is_lost_for_ever(history in any_history(60)) {
        let mut node = Node::new();
        for (pause, event) in history {
            node.pass(pause);
            node.tell(at(&event, node.now_ms));
        }
        node.tell(HealthEvent::DriverAnswers);
        node.clear();
        prop_assert_eq!(node.card().conditions(), &[]);
        prop_assert_eq!(node.verdict(Scope::Card), None);
    }

    #[test]
    fn what_is_only_observed_ends_and_withholds_nothing(history in any_history(40)) {
        let (mut enforced, mut observed) = (Node::new(), Node::new());
        observed.mode = Mode::ObserveOnly;
        for (pause, event) in history {
            enforced.pass(pause);
            observed.pass(pause);
            let event = at(&event, enforced.now_ms);
            let told = observed.ledger.observe(&uuid(), &event, observed.now_ms, Mode::ObserveOnly);
            prop_assert!(told.iter().all(|effect| effect.observed));
            let told: Vec<_> = told.into_iter().map(|effect| effect.kind).collect();
            let done = enforced.ledger.observe(&uuid(), &event, enforced.now_ms, Mode::Enforce);
            prop_assert!(done.iter().all(|effect| !effect.observed));
            prop_assert_eq!(told, done.into_iter().map(|effect| effect.kind).collect::<Vec<_>>());
            prop_assert_eq!(&observed.ledger, &enforced.ledger);
            for scope in [Scope::Card, Scope::Slice(FIRST)] {
                prop_assert_eq!(observed.verdict(scope), None);
            }
        }
    }

    /// Whoever holds the card now may have come after a fault that is told late.
    #[test]
    fn what_is_told_late_ends_nobody(xid in any_xid(), late in STALE_MS + 1..STALE_MS * 100) {
        let mut node = Node::new();
        let event = XidEvent { at_ms: node.now_ms, ..xid };
        node.pass(late);
        let mut effects = node.tell(HealthEvent::Xid(event));
        node.pass(60_000);
        effects.extend(node.tell(HealthEvent::Tick));
        prop_assert_eq!(ended(&effects), vec![]);
    }

    /// The driver's word counts more than the table, once it has had time to judge.
    #[test]
    fn the_recovery_action_overrides_the_table(code in any_code(), action in (0..6_u32).prop_map(RecoveryAction::from_code)) {
        let mut node = Node::new();
        node.xid(code);
        let by_table = node.kind(Scope::Card);
        node.pass(60_000);
        node.tell(HealthEvent::RecoveryAction(action));
        let by_driver = match action {
            RecoveryAction::None => VerdictKind::Use,
            RecoveryAction::GpuReset | RecoveryAction::DrainAndReset => VerdictKind::ResetWhenIdle,
            RecoveryAction::NodeReboot => VerdictKind::Reboot,
            _ => VerdictKind::Withhold,
        };
        let expected = if by_table == VerdictKind::Inspect { VerdictKind::Inspect } else { by_driver };
        prop_assert_eq!(node.kind(Scope::Card), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever comes, and whatever the wall clock does.
    #[test]
    fn what_is_kept_is_bounded(
        events in prop::collection::vec((any_event(), any::<u64>(), any::<u64>()), 400..800), storm in any_xid(), pids in 0..3_000_u32
    ) {
        let mut node = Node::new();
        for (event, now_ms, at_ms) in events {
            node.now_ms = now_ms % (T0 * 2);
            let event = if let HealthEvent::Xid(xid) = event { HealthEvent::Xid(XidEvent { at_ms, ..xid }) } else { event };
            node.tell(event);
        }
        for pid in 0..pids {
            let text = "x".repeat(10_000);
            node.tell(HealthEvent::ForeignProcess { pid, user: text.clone(), command: text.clone() });
            node.tell(HealthEvent::Xid(XidEvent { source: XidSource::Nvml, text, at_ms: node.now_ms, ..storm.clone() }));
            if pid % 100 == 0 {
                node.clear();
            }
        }
        let card = node.card();
        prop_assert!(card.history().count() <= HISTORY_MAX);
        prop_assert!(card.conditions().len() <= FOREIGN_MAX + 100, "{}", card.conditions().len());
        let size = serde_json::to_vec(&node.ledger).expect("JSON").len();
        prop_assert!(size < 256 * 1_024, "{size} bytes");
    }
}
