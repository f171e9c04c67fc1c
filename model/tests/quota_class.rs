//! Who paid for an allocation: what is recorded, against the class of each millisecond written down by itself.

use muster_model::attempt::{ATTEMPTS_MAX, AttemptRecord, note_attempt};
use muster_model::ids::{AllocationId, JobId, TenantId};
use muster_model::quota_class::{CLASS_SEGMENTS_MAX, CLASS_SEGMENTS_PER_JOB_MAX, CLASS_SUMS_MAX};
use muster_model::{Allocation, BurstTier, ClassRecord, QuotaClass, RequiredTopology, TopologyLevel};
use proptest::prelude::*;
use std::collections::BTreeMap;

const BOUND_MS: u64 = 1_000;

fn class(number: u32) -> QuotaClass {
    match number {
        0 => QuotaClass::Burst(BurstTier::Standard),
        1 => QuotaClass::Burst(BurstTier::Spot),
        2 => QuotaClass::Burst(BurstTier::Marked),
        account => QuotaClass::Guaranteed(TenantId(account)),
    }
}

/// For how long each class held until `end_ms`, as the record says.
fn times(record: &ClassRecord, end_ms: u64) -> BTreeMap<QuotaClass, u64> {
    let mut times: BTreeMap<QuotaClass, u64> = record.sums.iter().map(|sum| (sum.class, sum.ms)).collect();
    let ends = record.segments.iter().skip(1).map(|next| next.from_ms).chain([end_ms]);
    for (segment, end_ms) in record.segments.iter().zip(ends) {
        *times.entry(segment.class).or_default() += end_ms - segment.from_ms;
    }
    times.retain(|_, ms| *ms > 0);
    times
}

/// Sets the classes one after the other, each after so many ms, and answers for how long each held, counted ms by ms.
fn play(record: &mut ClassRecord, steps: &[(u32, u64)]) -> (BTreeMap<QuotaClass, u64>, u64) {
    let (mut now_ms, mut held, mut times) = (BOUND_MS, QuotaClass::Burst(BurstTier::Standard), BTreeMap::new());
    for (number, after_ms) in steps {
        for _ in 0..*after_ms {
            *times.entry(held).or_insert(0) += 1;
        }
        now_ms += after_ms;
        held = class(*number);
        record.set(held, BOUND_MS, now_ms);
        assert_eq!(record.now(), Some(held));
        assert_eq!(record.fault(BOUND_MS), None, "{record:?}");
    }
    for _ in 0..7 {
        *times.entry(held).or_insert(0) += 1;
    }
    (times, now_ms + 7)
}

proptest! {
    /// However often the class changes, each millisecond is counted for the class that it had.
    #[test]
    fn each_millisecond_has_one_class(steps in prop::collection::vec((0..6_u32, 0..4_u64), 1..300), folded in any::<bool>()) {
        let mut record = ClassRecord::default();
        let (expected, end_ms) = play(&mut record, &steps);
        if folded {
            record.fold(end_ms);
            prop_assert!(record.segments.is_empty());
        }
        prop_assert_eq!(times(&record, end_ms), expected);
        prop_assert_eq!(record.unattributed_ms, 0);
        prop_assert!(record.segments.len() <= CLASS_SEGMENTS_MAX);
    }

    /// More classes than can be added up apart: what cannot is nobody's, never another's.
    #[test]
    fn what_cannot_be_attributed_is_billed_to_nobody(steps in prop::collection::vec((0..90_u32, 0..4_u64), 100..400)) {
        let mut record = ClassRecord::default();
        let (expected, end_ms) = play(&mut record, &steps);
        let recorded = times(&record, end_ms);
        for (class, ms) in &recorded {
            prop_assert!(ms <= expected.get(class).unwrap_or(&0), "{class:?} is billed {ms}");
        }
        let all: u64 = recorded.values().sum();
        prop_assert_eq!(all + record.unattributed_ms, end_ms - BOUND_MS);
        prop_assert!(record.sums.len() <= CLASS_SUMS_MAX);
    }

    /// A clock that was wrong is set back: no time is ahead, and none is counted twice.
    #[test]
    fn times_are_set_back_together(steps in prop::collection::vec((0..6_u32, 0..4_u64), 1..150), back_ms in 0..300_u64) {
        let mut record = ClassRecord::default();
        let (_, end_ms) = play(&mut record, &steps);
        let now_ms = end_ms.saturating_sub(back_ms);
        let bound_ms = BOUND_MS.min(now_ms);
        let last = record.now();
        record.set_back(bound_ms, now_ms);
        prop_assert!(!record.is_ahead(now_ms));
        prop_assert_eq!(record.fault(bound_ms), None);
        prop_assert_eq!(record.now(), last);
        let all: u64 = times(&record, now_ms).values().sum();
        prop_assert_eq!(all + record.unattributed_ms, now_ms - bound_ms);
    }
}

#[test]
fn a_record_that_leaves_time_out_is_found() {
    let mut record = ClassRecord::default();
    record.set(class(3), BOUND_MS, BOUND_MS + 5);
    assert_eq!((record.segments.len(), record.fault(BOUND_MS)), (2, None), "burst until the first class was recorded");
    record.segments.remove(0);
    assert!(record.fault(BOUND_MS).is_some_and(|fault| fault.contains("1000 is the first time")), "{record:?}");
    record.set(class(4), BOUND_MS, BOUND_MS + 9);
    record.segments[1].from_ms = BOUND_MS + 5;
    assert!(record.fault(BOUND_MS + 5).is_some());
}

/// A job that is preempted again and again, each attempt with many classes, stays small: the old attempts keep sums.
#[test]
fn old_attempts_keep_how_long_each_class_held() {
    let mut records = Vec::new();
    for number in 0..ATTEMPTS_MAX as u64 {
        let mut held = Allocation::usual(AllocationId(number), JobId(1), TenantId(1), Vec::new());
        held.bound_ms = BOUND_MS;
        held.topology = RequiredTopology { level: Some(TopologyLevel::Leaf), segment_tasks: Some(8) };
        for step in 0..60 {
            held.set_class(class(3 + u32::from(step % 2 == 0)), BOUND_MS + 10 * step);
        }
        note_attempt(&mut records, AttemptRecord::of(&held, None, BOUND_MS + 600, String::new()));
    }
    let kept: usize = records.iter().map(|record| record.classes.segments.len()).sum();
    assert!(kept <= CLASS_SEGMENTS_PER_JOB_MAX && records.last().is_some_and(|last| last.classes.segments.len() == 60));
    for record in &records {
        let expected = BTreeMap::from([(class(3), 300), (class(4), 300)]);
        assert_eq!(times(&record.classes, record.ended_ms), expected, "attempt {}", record.attempt);
        assert_eq!(record.topology.tightest(), Some(TopologyLevel::Island));
    }
}
