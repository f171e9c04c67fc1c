//! Any events, in any order, at any times.

use super::{FIRST, SECOND, in_slice};
use muster_model::mig::{MigPlacement, MigShape};
use muster_node_core::health::xid::TABLE;
use muster_node_core::health::{HealthEvent, Instance, RecoveryAction, RemappedRows, Xid, XidEvent, XidSource};
use proptest::prelude::*;

pub(crate) fn any_code() -> impl Strategy<Value = u16> {
    let known: Vec<u16> = TABLE.iter().map(|row| row.code).collect();
    prop_oneof![8 => prop::sample::select(known), 3 => prop::sample::select(vec![13, 94, 95, 79, 64, 154]), 1 => any::<u16>()]
}

pub(crate) fn any_instance() -> impl Strategy<Value = Option<Instance>> {
    let half = MigPlacement { shape: MigShape::G3, start: 0 };
    prop::sample::select(vec![
        None,
        in_slice(FIRST),
        in_slice(SECOND),
        Some(Instance { id: 1, place: Some(half) }),
        Some(Instance { id: 3, place: None }),
    ])
}

fn any_action() -> impl Strategy<Value = RecoveryAction> {
    (0..7_u32).prop_map(RecoveryAction::from_code)
}

/// An Xid at a time that its reader adds.
pub(crate) fn any_xid() -> impl Strategy<Value = XidEvent> {
    let source = prop_oneof![
        Just(XidSource::Nvml),
        Just(XidSource::Kernel { seq: None }),
        (0..200_u64).prop_map(|seq| XidSource::Kernel { seq: Some(seq) }),
    ];
    let text = prop_oneof![
        3 => Just("Ch 00000008".to_owned()),
        1 => any_action().prop_map(|to| format!("GPU recovery action changed from 0x0 (None) to {:#x} (?)", to.code())),
    ];
    (any_code(), any_instance(), source, prop::option::of(1..5_u32), text).prop_map(
        |(code, instance, source, pid, text)| {
            let process = pid.map(|pid| format!("process-{pid}"));
            XidEvent { xid: Xid(code), instance, source, at_ms: 0, pid, process, text }
        },
    )
}

pub(crate) fn any_event() -> impl Strategy<Value = HealthEvent> {
    let rows =
        (any::<bool>(), any::<bool>(), 0..3_u32, 0..3_u32).prop_map(|(pending, failed, correctable, uncorrectable)| {
            RemappedRows { pending, failed, correctable, uncorrectable }
        });
    prop_oneof![
        8 => any_xid().prop_map(HealthEvent::Xid),
        1 => Just(HealthEvent::Tick),
        2 => any_action().prop_map(HealthEvent::RecoveryAction),
        2 => rows.prop_map(HealthEvent::RemappedRows),
        1 => (0..4_u64).prop_map(HealthEvent::DoubleBitErrors),
        2 => any::<bool>().prop_map(HealthEvent::Slowdown),
        1 => (0..3_u16).prop_map(HealthEvent::LinksDown),
        1 => any::<u64>().prop_map(|since_ms| HealthEvent::DriverSilent { since_ms }),
        1 => Just(HealthEvent::DriverAnswers),
        1 => Just(HealthEvent::Lost),
        1 => prop::option::of(0..200_u64).prop_map(|seq| HealthEvent::FellOffTheBus { seq, at_ms: 0 }),
        1 => (1..4_u32).prop_map(|pid| HealthEvent::ForeignProcess { pid, user: "bob".to_owned(), command: "top".to_owned() }),
        1 => (1..4_u32).prop_map(|pid| HealthEvent::ForeignGone { pid }),
        1 => Just(HealthEvent::Cleared { by: "alice".to_owned(), reason: String::new(), at_ms: 0 }),
        1 => Just(HealthEvent::ResetDone),
        1 => (1..4_u8).prop_map(|boot| HealthEvent::Booted { boot_id: format!("boot-{boot}") }),
    ]
}

/// Events with how long after the one before they come, in ms; a few minutes, a few seconds, or none.
pub(crate) fn any_history(events_max: usize) -> impl Strategy<Value = Vec<(u64, HealthEvent)>> {
    let pause = prop_oneof![Just(0), 0..5_000_u64, 5_000..120_000_u64, Just(60_000)];
    prop::collection::vec((pause, any_event()), 0..events_max)
}
