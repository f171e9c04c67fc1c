//! The rules one by one.

use super::{FIRST, MINUTE, Node, SECOND, ended, in_slice, kernel, recorded, uuid};
use muster_model::mig::{MigPlacement, MigShape};
use muster_node_core::health::VerdictKind::{Inspect, Reboot, ResetWhenIdle, Use, Withhold};
use muster_node_core::health::{
    Cause, EffectKind, HealthEvent, Instance, KernelEvent, Mode, NAME_WAIT_MS, REBOOT_WINDOW_MS, RecoveryAction,
    RemappedRows, SLOWDOWN_MINUTES, SLOWDOWN_SLOW_MIN, STALE_MS, Scope, VerdictKind, WayBack, Xid, XidEvent, kmsg,
};

fn check(code: u16, kind: VerdictKind, ends: &[(Scope, Option<u32>)]) {
    let mut node = Node::new();
    let effects = node.xid(code);
    assert_eq!(node.kind(Scope::Card), kind, "{code}");
    assert_eq!(ended(&effects), ends, "{code}");
    assert_eq!(recorded(&effects), 1, "{code}");
    let changed = effects.iter().any(|effect| matches!(effect, EffectKind::VerdictChanged { .. }));
    assert_eq!(changed, kind != Use, "{code}");
}

#[test]
fn what_an_xid_of_each_class_does() {
    let its_process: &[_] = &[(Scope::Card, Some(123))];
    let everyone: &[_] = &[(Scope::Card, None)];
    check(13, Use, its_process);
    check(43, Use, &[]);
    check(45, Use, &[]);
    check(63, Use, &[]);
    check(94, ResetWhenIdle, its_process);
    check(48, ResetWhenIdle, its_process);
    check(109, ResetWhenIdle, its_process);
    check(95, ResetWhenIdle, everyone);
    check(64, ResetWhenIdle, &[]);
    check(79, Reboot, everyone);
    check(54, Inspect, &[]);
    check(167, Inspect, &[]);
    check(999, Inspect, &[]);
    check(154, Withhold, &[]);
    check(149, Withhold, &[]);
}

#[test]
fn a_verdict_says_what_is_wrong_since_when_and_what_brings_the_card_back() {
    let mut node = Node::new();
    node.xid(95);
    let verdict = node.verdict(Scope::Card).expect("a verdict");
    assert_eq!(
        verdict.reason,
        "Xid 95 (an uncorrectable memory error hit every application) of process 123 (python), since \
         2026-11-24T01:00:00Z; it is to be reset when idle; what brings it back: a reset that the driver asked \
         for or a new boot or the driver asking for no recovery or muster clear-gpu"
    );
    assert!(matches!(verdict.evidence, HealthEvent::Xid(xid) if xid.xid == Xid(95)));
    node.tell(HealthEvent::Xid(kernel(4711, None, None, node.now_ms)));
    let reason = node.verdict(Scope::Card).expect("a verdict").reason;
    assert!(
        reason.starts_with("Xid 4711 (a code that this version does not know)") && reason.contains("to be inspected"),
        "{reason}"
    );
}

#[test]
fn a_contained_error_ends_its_process_and_withholds_its_slice() {
    let mut node = Node::new();
    let line = "NVRM: Xid (PCI:0000:17:00 GPU-I:07): 94, pid=123, name=python, Ch 00000008";
    let Some(KernelEvent::Xid(xid)) = kmsg::parse_line(line) else { panic!("{line}") };
    let effects = node.tell(HealthEvent::Xid(XidEvent::from_kernel(xid, Some(1), node.now_ms, Some(FIRST))));
    assert_eq!(ended(&effects), [(Scope::Slice(FIRST), Some(123))]);
    // The card is withheld before its holder ends.
    assert!(matches!(effects[0], EffectKind::VerdictChanged { scope: Scope::Slice(FIRST), from: Use, to: Some(_) }));
    assert_eq!(node.kind(Scope::Slice(FIRST)), ResetWhenIdle);
    assert_eq!(node.kind(Scope::Slice(SECOND)), Use);
    // A larger instance at the same place has the same memory, and so has the card.
    let half = MigPlacement { shape: MigShape::G3, start: 0 };
    assert_eq!(node.kind(Scope::Slice(half)), ResetWhenIdle);
    assert_eq!(node.kind(Scope::Card), ResetWhenIdle);
    node.tell(HealthEvent::ResetDone);
    assert_eq!(node.kind(Scope::Card), Use);
}

#[test]
fn an_uncontained_error_of_an_instance_takes_the_card() {
    let mut node = Node::new();
    let effects = node.tell(HealthEvent::Xid(kernel(95, in_slice(FIRST), Some(123), node.now_ms)));
    assert_eq!(ended(&effects), [(Scope::Card, None)]);
    assert_eq!(node.kind(Scope::Slice(SECOND)), ResetWhenIdle);
}

#[test]
fn an_error_of_an_instance_that_has_gone_ends_nobody() {
    let mut node = Node::new();
    let gone = Some(Instance { id: 3, place: None });
    assert_eq!(ended(&node.tell(HealthEvent::Xid(kernel(94, gone, None, node.now_ms)))), []);
    assert_eq!(node.kind(Scope::Slice(SECOND)), ResetWhenIdle, "nobody knows which slice it was");
}

#[test]
fn nvml_waits_for_the_kernel_to_name_the_process() {
    let nvml = |node: &Node| HealthEvent::Xid(XidEvent::from_nvml(Xid(13), None, node.now_ms));
    let mut node = Node::new();
    assert_eq!(ended(&node.tell(nvml(&node))), []);
    node.pass(NAME_WAIT_MS / 2);
    assert_eq!(ended(&node.xid(13)), [(Scope::Card, Some(123))]);
    node.pass(NAME_WAIT_MS);
    assert_eq!(node.tell(HealthEvent::Tick), []);
    // The kernel's log cannot be read.
    node.pass(MINUTE);
    node.tell(nvml(&node));
    assert_eq!(node.ledger.due_ms(), Some(node.now_ms + NAME_WAIT_MS));
    node.pass(NAME_WAIT_MS);
    assert_eq!(ended(&node.tell(HealthEvent::Tick)), [(Scope::Card, None)]);
    assert_eq!(node.ledger.due_ms(), None);
}

#[test]
fn two_faults_of_one_source_are_two() {
    let mut node = Node::new();
    let told = recorded(&node.xid(13)) + recorded(&node.xid(13));
    assert_eq!(told, 2);
    // NVML tells the same two.
    for _ in 0..2 {
        let event = HealthEvent::Xid(XidEvent::from_nvml(Xid(13), None, node.now_ms));
        assert_eq!(recorded(&node.tell(event)), 0);
    }
    let third = HealthEvent::Xid(XidEvent::from_nvml(Xid(13), None, node.now_ms));
    assert_eq!(recorded(&node.tell(third)), 1);
}

#[test]
fn xid_154_is_read_by_its_text_from_whichever_source_has_it() {
    let mut node = Node::new();
    let effects = node.tell(HealthEvent::Xid(XidEvent::from_nvml(Xid(154), None, node.now_ms)));
    assert!(effects.contains(&EffectKind::ReadRecoveryAction));
    assert_eq!(node.kind(Scope::Card), Withhold);
    let text = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)".to_owned();
    node.tell(HealthEvent::Xid(XidEvent { text, ..kernel(154, None, None, node.now_ms) }));
    assert_eq!(node.kind(Scope::Card), Reboot);
    node.tell(HealthEvent::RecoveryAction(RecoveryAction::None));
    assert_eq!(node.kind(Scope::Card), Use);
}

#[test]
fn a_recovery_action_that_was_read_too_early_lifts_nothing() {
    let mut node = Node::new();
    node.xid(95);
    node.tell(HealthEvent::RecoveryAction(RecoveryAction::None));
    assert_eq!(node.kind(Scope::Card), ResetWhenIdle);
    node.pass(MINUTE);
    node.tell(HealthEvent::RecoveryAction(RecoveryAction::None));
    assert_eq!(node.kind(Scope::Card), Use);
}

#[test]
fn xid_64_gives_way_to_the_state_of_the_rows() {
    let rows = |pending, failed| HealthEvent::RemappedRows(RemappedRows { pending, failed, ..RemappedRows::default() });
    let mut node = Node::new();
    node.xid(64);
    node.pass(MINUTE);
    node.tell(rows(false, false));
    assert_eq!(node.kind(Scope::Card), Use);
    node.tell(rows(true, false));
    assert_eq!(node.kind(Scope::Card), ResetWhenIdle);
    node.xid(64);
    assert_eq!(node.card().conditions().len(), 1, "the rows say it already");
    node.tell(HealthEvent::ResetDone);
    assert_eq!(node.kind(Scope::Card), Use);
    node.tell(rows(false, true));
    assert_eq!(node.kind(Scope::Card), Inspect);
    for event in [HealthEvent::ResetDone, rows(false, false), HealthEvent::RecoveryAction(RecoveryAction::None)] {
        node.tell(event);
        assert_eq!(node.kind(Scope::Card), Inspect);
    }
    node.clear();
    assert_eq!(node.kind(Scope::Card), Use);
}

#[test]
fn what_an_operator_accepts_is_no_fault_until_it_changes() {
    let failed = HealthEvent::RemappedRows(RemappedRows { failed: true, ..RemappedRows::default() });
    let foreign = HealthEvent::ForeignProcess { pid: 7, user: "bob".into(), command: "nvtop".into() };
    let mut node = Node::new();
    let readings = [failed, foreign.clone(), HealthEvent::LinksDown(2), HealthEvent::DoubleBitErrors(1)];
    for event in &readings {
        node.tell(event.clone());
    }
    node.clear();
    for event in &readings {
        assert_eq!(node.tell(event.clone()), [], "{event:?}");
    }
    node.tell(HealthEvent::LinksDown(3));
    assert_eq!(node.kind(Scope::Card), ResetWhenIdle);
    node.tell(HealthEvent::LinksDown(0));
    node.tell(HealthEvent::DoubleBitErrors(2));
    assert_eq!(node.kind(Scope::Card), ResetWhenIdle);
    node.tell(HealthEvent::ResetDone);
    node.tell(HealthEvent::DoubleBitErrors(0));
    assert_eq!(node.kind(Scope::Card), Use);
    node.tell(foreign);
    assert_eq!(node.kind(Scope::Card), Withhold, "after a reset it was asked for anew");
    node.tell(HealthEvent::ForeignGone { pid: 7 });
    assert_eq!(node.kind(Scope::Card), Use);
}

#[test]
fn slowdown_in_six_of_ten_minutes_withholds_and_ten_cool_ones_lift() {
    let mut node = Node::new();
    let told = |node: &mut Node, is_slow| {
        node.pass(MINUTE);
        node.tell(HealthEvent::Slowdown(is_slow));
        // Twice in a minute is once.
        node.tell(HealthEvent::Slowdown(is_slow));
        node.kind(Scope::Card)
    };
    for at in 1..=SLOWDOWN_SLOW_MIN {
        let expected = if at < SLOWDOWN_SLOW_MIN { Use } else { Withhold };
        assert_eq!(told(&mut node, true), expected, "minute {at}");
    }
    for at in 1..=SLOWDOWN_MINUTES {
        let expected = if at < SLOWDOWN_MINUTES { Withhold } else { Use };
        assert_eq!(told(&mut node, false), expected, "cool minute {at}");
    }
    // Five in ten, again and again, are no fault.
    for at in 0..40 {
        assert_eq!(told(&mut node, at % 2 == 0), Use);
    }
}

#[test]
fn a_silent_driver_is_lifted_by_its_answer_alone() {
    let mut node = Node::new();
    node.tell(HealthEvent::DriverSilent { since_ms: node.now_ms - 5_000 });
    let verdict = node.verdict(Scope::Card).expect("a verdict");
    assert_eq!((verdict.kind, verdict.since_ms), (Withhold, node.now_ms - 5_000));
    node.clear();
    node.boot("boot-2");
    node.tell(HealthEvent::ResetDone);
    assert_eq!(node.kind(Scope::Card), Withhold);
    node.tell(HealthEvent::DriverAnswers);
    assert_eq!(node.kind(Scope::Card), Use);
}

#[test]
fn a_third_reboot_in_a_week_is_an_inspection() {
    let mut node = Node::new();
    for boot in ["boot-2", "boot-3"] {
        node.xid(79);
        assert_eq!(node.kind(Scope::Card), Reboot);
        node.pass(MINUTE * 10);
        node.boot(boot);
        assert_eq!(node.kind(Scope::Card), Use);
    }
    // A boot that this card did not ask for does not count.
    node.boot("boot-4");
    node.xid(79);
    assert_eq!(node.kind(Scope::Card), Inspect);
    node.boot("boot-5");
    node.tell(HealthEvent::ResetDone);
    assert_eq!(node.kind(Scope::Card), Inspect);
    node.clear();
    node.xid(79);
    assert_eq!(node.kind(Scope::Card), Reboot, "the operator's clear begins anew");
    node.boot("boot-6");
    node.pass(REBOOT_WINDOW_MS + MINUTE);
    node.xid(79);
    node.boot("boot-7");
    node.xid(79);
    assert_eq!(node.kind(Scope::Card), Reboot, "the first was more than a week ago");
}

#[test]
fn a_card_that_is_lost_ends_its_holders_once() {
    let mut node = Node::new();
    assert_eq!(ended(&node.tell(HealthEvent::Lost)), [(Scope::Card, None)]);
    node.pass(MINUTE);
    assert_eq!(node.tell(HealthEvent::Lost), []);
    let verdict = node.verdict(Scope::Card).expect("a verdict");
    assert_eq!(verdict.kind, Reboot);
    assert!(verdict.ways_back.contains(&WayBack::NewBoot));
}

#[test]
fn a_card_that_is_first_seen_later_belongs_to_the_boot() {
    let mut node = Node::new();
    node.xid(95);
    node.boot("boot-1");
    assert_eq!(node.kind(Scope::Card), ResetWhenIdle, "the agent was restarted, the node was not");
    node.boot("boot-2");
    assert_eq!(node.kind(Scope::Card), Use);
    assert_eq!(node.card().history().count(), 2);
    node.ledger.forget(&uuid());
    assert!(node.ledger.cards().is_empty());
}

#[test]
fn observing_tells_and_does_not_withhold() {
    let mut node = Node::new();
    node.mode = Mode::ObserveOnly;
    let event = HealthEvent::Xid(kernel(95, None, None, node.now_ms));
    let effects = node.ledger.observe(&uuid(), &event, node.now_ms, Mode::ObserveOnly);
    assert!(effects.len() == 3 && effects.iter().all(|effect| effect.observed));
    assert_eq!(node.verdict(Scope::Card), None);
    assert_eq!(node.card().verdict(Scope::Card).map(|verdict| verdict.kind), Some(ResetWhenIdle));
}

/// The kernel tells its records again to each agent that starts.
#[test]
fn a_card_that_fell_off_the_bus_is_told_once_and_ends_only_who_held_it_then() {
    let mut node = Node::new();
    let fell = |seq, at_ms| HealthEvent::FellOffTheBus { seq: Some(seq), at_ms };
    let at_ms = node.now_ms;
    assert_eq!(ended(&node.tell(fell(7, at_ms))), [(Scope::Card, None)]);
    node.pass(MINUTE);
    node.clear();
    assert_eq!(node.tell(fell(7, at_ms)), []);
    assert_eq!(node.kind(Scope::Card), Use, "the operator has cleared it");
    // One that is told for the first time, long after it was written.
    node.pass(STALE_MS + 1);
    let effects = node.tell(fell(8, at_ms + MINUTE));
    assert_eq!((ended(&effects), node.kind(Scope::Card)), (vec![], Reboot));
    let verdict = node.verdict(Scope::Card).expect("a verdict");
    assert_eq!(verdict.since_ms, at_ms + MINUTE);
    node.boot("boot-2");
    let now_ms = node.now_ms;
    assert_eq!(ended(&node.tell(fell(1, now_ms))), [(Scope::Card, None)], "the kernel counts anew");
}

#[test]
fn a_clear_means_what_came_before_it() {
    let mut node = Node::new();
    node.xid(95);
    node.tell(HealthEvent::LinksDown(2));
    node.pass(MINUTE);
    let cleared_ms = node.now_ms;
    node.pass(1);
    node.xid(79);
    node.tell(HealthEvent::DoubleBitErrors(3));
    // Says what was known when the card was cleared.
    node.tell(HealthEvent::LinksDown(2));
    node.clear_as_of(cleared_ms);
    let causes: Vec<Cause> = node.card().conditions().iter().map(|one| one.cause).collect();
    assert_eq!(causes, [Cause::Xid(79), Cause::DoubleBitErrors]);
    node.tell(HealthEvent::LinksDown(2));
    node.tell(HealthEvent::DoubleBitErrors(3));
    assert_eq!(node.card().conditions().len(), 2);
    node.clear();
    node.tell(HealthEvent::DoubleBitErrors(3));
    assert_eq!(node.kind(Scope::Card), Use);
    // An old fault that is told late came before.
    let late = HealthEvent::Xid(kernel(95, None, None, cleared_ms - MINUTE));
    node.tell(late);
    node.clear_as_of(cleared_ms);
    assert_eq!(node.kind(Scope::Card), Use);
}

/// The loop was held up: the name is taken after the time for it is over, and before everyone is ended.
#[test]
fn a_name_that_is_there_already_counts_before_the_time_is_over() {
    let mut node = Node::new();
    node.tell(HealthEvent::Xid(XidEvent::from_nvml(Xid(13), None, node.now_ms)));
    let at_ms = node.now_ms;
    node.pass(NAME_WAIT_MS + 1_000);
    let named = HealthEvent::Xid(kernel(13, None, Some(123), at_ms));
    assert_eq!(ended(&node.tell(named)), [(Scope::Card, Some(123))]);
    assert_eq!(ended(&node.tell(HealthEvent::Tick)), []);
}

#[test]
fn a_reset_is_seen_by_a_driver_that_asks_for_it_no_more() {
    let mut node = Node::new();
    node.tell(HealthEvent::Lost);
    node.tell(HealthEvent::DoubleBitErrors(2));
    node.pass(MINUTE);
    node.tell(HealthEvent::RecoveryAction(RecoveryAction::None));
    assert_eq!(node.kind(Scope::Card), Reboot, "the driver had not asked for a reset");
    node.tell(HealthEvent::RecoveryAction(RecoveryAction::GpuReset));
    node.xid(95);
    node.tell(HealthEvent::RecoveryAction(RecoveryAction::None));
    let causes: Vec<Cause> = node.card().conditions().iter().map(|one| one.cause).collect();
    assert_eq!(causes, [Cause::Xid(95)], "a fault that the driver may not have judged yet stands");
    node.tell(HealthEvent::DoubleBitErrors(0));
    node.pass(MINUTE);
    assert!(node.card().waits_for_recovery_action());
    node.tell(HealthEvent::RecoveryAction(RecoveryAction::None));
    assert_eq!(node.kind(Scope::Card), Use);
    assert!(!node.card().waits_for_recovery_action());
}

#[test]
fn a_process_that_an_operator_accepted_is_known_until_it_ends() {
    let mut node = Node::new();
    let foreign = HealthEvent::ForeignProcess { pid: 7, user: "bob".into(), command: "nvtop".into() };
    node.tell(foreign.clone());
    node.clear();
    assert_eq!(node.card().foreign_processes().collect::<Vec<_>>(), [7]);
    node.tell(HealthEvent::ForeignGone { pid: 7 });
    assert_eq!(node.card().foreign_processes().count(), 0);
    node.tell(foreign);
    assert_eq!(node.kind(Scope::Card), Withhold, "another process with that number was not accepted");
}
