//! What a tenant was over time, against a list of what it was told.

use muster_model::tenant_history::TENANT_VERSIONS_MAX;
use muster_model::{GpuModel, GpuUnits, ResourceVec, Tenant, TenantHistory, TenantId, TenantVersion};
use proptest::prelude::*;

fn tenant(cards: u64) -> Tenant {
    let guarantee = ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(cards));
    Tenant { guarantee, ..Tenant::usual(TenantId(1), "research") }
}

fn version(cards: u64, from_ms: u64) -> TenantVersion {
    TenantVersion::of(&tenant(cards), from_ms)
}

/// What it was at that time, by the history.
fn at(history: &TenantHistory, ms: u64) -> Option<u64> {
    let found = history.versions.iter().rev().find(|version| version.from_ms <= ms)?;
    Some(found.guarantee.gpu(GpuModel::H100).0 / GpuUnits::CARD.0)
}

proptest! {
    #[test]
    fn a_history_says_what_it_was_at_each_time(steps in prop::collection::vec((0..4_u64, 0..4_u64), 0..60), forgotten in 0..9_usize) {
        let mut history = TenantHistory::new(TenantId(1), version(9, 100), false);
        let (mut now_ms, mut told) = (100, vec![(100, 9)]);
        for (cards, after_ms) in steps {
            now_ms += after_ms;
            history.note(version(cards, now_ms));
            told.push((now_ms, cards));
            prop_assert_eq!(history.fault(Some(&tenant(cards))), None);
        }
        let was = |ms: u64| told.iter().rev().find(|(from_ms, _)| *from_ms <= ms).map(|(_, cards)| *cards);
        for ms in 100..=now_ms {
            prop_assert_eq!(at(&history, ms), was(ms), "at {}", ms);
        }
        let whole = history.versions.len();
        history.forget(forgotten);
        prop_assert_eq!(history.versions.len(), whole - forgotten.min(whole - 1));
        prop_assert_eq!(history.is_cut, whole > 1 && forgotten > 0);
        for ms in history.versions[0].from_ms..=now_ms {
            prop_assert_eq!(at(&history, ms), was(ms), "what is left is what it was");
        }
    }

    #[test]
    fn a_clock_that_was_wrong_leaves_no_time_ahead(steps in prop::collection::vec((0..4_u64, 1..9_u64), 1..20), back_ms in 0..120_u64) {
        let mut history = TenantHistory::new(TenantId(1), version(9, 100), false);
        let (mut now_ms, mut last) = (100, 9);
        for (cards, after_ms) in steps {
            now_ms += after_ms;
            history.note(version(cards, now_ms));
            last = cards;
        }
        let now_ms = now_ms.saturating_sub(back_ms);
        history.set_back(now_ms);
        prop_assert!(history.versions.iter().all(|version| version.from_ms <= now_ms));
        prop_assert_eq!(history.fault(Some(&tenant(last))), None);
    }
}

#[test]
fn the_newest_versions_are_kept_and_it_is_said_that_older_ones_are_not() {
    let mut history = TenantHistory::new(TenantId(1), version(0, 0), false);
    for number in 1..=TENANT_VERSIONS_MAX as u64 + 10 {
        history.note(version(number, number));
    }
    assert_eq!((history.versions.len(), history.is_cut), (TENANT_VERSIONS_MAX, true));
    assert_eq!(history.versions[0].from_ms, 11);
}

#[test]
fn a_removed_tenants_history_ends_with_its_end() {
    let mut history = TenantHistory::new(TenantId(1), version(1, 5), false);
    history.note(version(2, 7));
    assert!(history.fault(None).is_some(), "it is not removed yet");
    history.remove(9);
    assert_eq!((history.fault(None), history.ended(), history.first_ended_ms()), (None, 2, Some(7)));
    assert!(history.fault(Some(&tenant(2))).is_some(), "it is not there any more");
    assert_eq!([6, 8, 10].map(|before_ms| history.ended_before(before_ms)), [0, 1, 2]);
    history.versions[1].from_ms = 5;
    assert!(history.fault(None).is_some_and(|fault| fault.contains("not in order")));
}
