//! The meter: what tasks used, what was cleaned up after them, and what was held on for their gangs.

use crate::world::key;
use muster_model::ids::{AllocationId, Rank};
use muster_model::task::CleanUp;
use muster_model::usage::UseKind;
use muster_node_core::{Meter, TaskKey};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const S: u64 = 1_000_000_000;

#[test]
fn an_allocation_is_metered_once_with_all_its_tasks() {
    let mut meter = Meter::default();
    meter.started(key(1, 0), 7_000, 0);
    meter.started(key(1, 1), 1_000, S);
    assert!(meter.cut(2 * S));
    assert!(
        meter.ended(key(1, 0), 3 * S, 3 * S)
            && meter.ended(key(1, 1), 4 * S, 4 * S)
            && !meter.ended(key(1, 1), 5 * S, 5 * S)
    );
    meter.started(key(1, 1), 1_000, S);
    meter.cleaned_up(key(1, 0), &CleanUp::default(), 5 * S);
    meter.cleaned_up(key(1, 1), &CleanUp::default(), 5 * S);
    meter.given_back(|_| false);
    assert!(!meter.is_holding(), "what has ended is not metered again while its record can be seen");
    assert!(meter.cut(9 * S) && !meter.cut(10 * S), "nothing is held any more");
    assert_eq!(meter.batch(0, u64::MAX), None, "no stream yet");
    assert_eq!(meter.adopt(5, 0), 0);
    let (incarnation, intervals) = meter.batch(0, u64::MAX).expect("two intervals");
    let figures: Vec<_> = intervals.iter().map(|i| (i.seq, i.duration_ms, i.gpu_unit_ms)).collect();
    assert_eq!((incarnation, figures), (5, vec![(1, 2_000, 15_000_000), (2, 2_000, 9_000_000)]));
    assert!(meter.counted(5, 1) && !meter.counted(4, 2));
    assert_eq!(meter.pending(), 1);
}

/// What a meter has cut of each kind, in GPU units × ms.
fn cut_by_kind(meter: &Meter) -> BTreeMap<UseKind, u64> {
    let mut sums = BTreeMap::new();
    for interval in meter.batch(0, u64::MAX).map_or_else(Vec::new, |(_, intervals)| intervals) {
        *sums.entry(interval.kind).or_default() += interval.gpu_unit_ms;
    }
    sums
}

#[test]
fn devices_are_metered_as_clean_and_then_as_idle_while_their_gang_holds_them() {
    let mut meter = Meter::default();
    meter.adopt(1, 0);
    meter.started(key(1, 0), 1_000, 0);
    meter.ended(key(1, 0), 2 * S, 2 * S);
    meter.cleaned_up(key(1, 0), &CleanUp::UnderWay, 3 * S);
    let held: BTreeSet<TaskKey> = [key(1, 0)].into();
    meter.held_on(&held, 4 * S);
    assert!(meter.cut(4 * S));
    assert_eq!(cut_by_kind(&meter), [(UseKind::Run, 2_000_000), (UseKind::Clean, 1_000_000)].into(), "not clean yet");
    meter.cleaned_up(key(1, 0), &CleanUp::Done { took_ms: 3_000 }, 5 * S);
    meter.cleaned_up(key(1, 0), &CleanUp::Done { took_ms: 3_000 }, 6 * S);
    // The control plane may say only later that it holds them on. Nothing is counted beyond what it has confirmed.
    meter.held_on(&held, 9 * S);
    meter.held_on(&held, 8 * S);
    // The record of the task is forgotten, and the agent is started again.
    meter.forget(key(1, 0));
    let bytes = serde_json::to_vec(&meter).expect("any meter can be stored");
    let mut meter: Meter = serde_json::from_slice(&bytes).expect("and read");
    meter.keep(9 * S, |_| false);
    assert!(meter.is_holding());
    meter.held_on(&held, 12 * S);
    meter.given_back(|_| false);
    meter.held_on(&held, 20 * S);
    assert!(!meter.is_holding() && meter.cut(20 * S) && !meter.cut(30 * S));
    let all = [(UseKind::Run, 2_000_000), (UseKind::Clean, 3_000_000), (UseKind::Idle, 7_000_000)].into();
    assert_eq!(cut_by_kind(&meter), all);
}

/// A record is forgotten only when the meter on disk knows that the devices are clean: an agent that is started again goes on with what is idle.
#[test]
fn a_task_whose_devices_are_not_clean_is_not_forgotten() {
    let mut meter = Meter::default();
    meter.adopt(1, 0);
    meter.started(key(1, 0), 1_000, 0);
    assert!(meter.ended(key(1, 0), S, S) && !meter.cleaned_up(key(1, 0), &CleanUp::UnderWay, 2 * S));
    assert_eq!((meter.settled().len(), meter.forgettable().len()), (1, 0));
    // Nobody cleans between two agents.
    meter.keep(50 * S, |_| true);
    assert!(meter.cleaned_up(key(1, 0), &CleanUp::Done { took_ms: 1 }, 51 * S));
    assert_eq!(meter.forgettable(), [key(1, 0)].into());
    meter.cut(51 * S);
    assert_eq!(cut_by_kind(&meter), [(UseKind::Run, 1_000_000), (UseKind::Clean, 2_000_000)].into());
}

#[test]
fn what_is_withheld_or_of_another_boot_is_not_held_on() {
    let ended = |at_ns| {
        let mut meter = Meter::default();
        meter.adopt(1, 0);
        meter.started(key(1, 0), 1_000, 0);
        meter.ended(key(1, 0), at_ns, at_ns);
        meter
    };
    let mut withheld = ended(S);
    withheld.cleaned_up(key(1, 0), &CleanUp::Failed { reason: "a process is left".to_owned() }, 3 * S);
    let mut booted = ended(S);
    booted.cleaned_up(key(1, 0), &CleanUp::Done { took_ms: 0 }, 2 * S);
    booted.boot();
    for (meter, clean) in [(&mut withheld, Some(2_000_000)), (&mut booted, None)] {
        meter.held_on(&[key(1, 0)].into(), 9 * S);
        meter.cut(9 * S);
        let expected: BTreeMap<UseKind, u64> =
            [(UseKind::Run, 1_000_000)].into_iter().chain(clean.map(|sum| (UseKind::Clean, sum))).collect();
        assert_eq!((cut_by_kind(meter), meter.is_holding()), (expected, false));
    }
}

#[test]
fn a_record_of_an_earlier_version_is_read() {
    let stored = r#"{"incarnation":4,"last_seq":2,"open":[[{"allocation":1,"rank":0},{"gpu_units":7000,"since_ns":5}]],
        "closed":{"2":{"gpu_unit_ns":1,"longest_ns":1}},"settled":[{"allocation":2,"rank":0}],
        "pending":[{"seq":2,"allocation":1,"duration_ms":3,"gpu_unit_ms":9}]}"#;
    let meter: Meter = serde_json::from_str(stored).expect("fields that came later have defaults");
    assert_eq!((meter.is_holding(), meter.pending()), (true, 1));
    assert_eq!(cut_by_kind(&meter), [(UseKind::Run, 9)].into());
}

#[test]
fn the_record_reads_back_and_goes_on() {
    let mut meter = Meter::default();
    meter.adopt(3, 7);
    meter.started(key(1, 0), u64::MAX, 0);
    meter.started(key(2, 0), u64::MAX, 0);
    meter.ended(key(2, 0), u64::MAX / 2, u64::MAX / 2);
    meter.cut(S);
    meter.ended(key(1, 0), u64::MAX, u64::MAX);
    let bytes = serde_json::to_vec(&meter).expect("any meter can be stored");
    let mut back: Meter = serde_json::from_slice(&bytes).expect("and read");
    assert_eq!(back, meter);
    assert_eq!(back.adopt(3, 8), 0);
    assert_eq!(back.batch(0, u64::MAX).map(|(_, intervals)| intervals[0].seq), Some(9));
    assert!(!back.lacks_what_follows(8) && !back.lacks_what_follows(20) && back.lacks_what_follows(4));
    assert_eq!(back.adopt(4, 0), 1, "what may have been counted under another stream is not sent again");
}

/// Law 9: two streams of one number: a folder that was deleted came back after a power loss, with what had been counted under another node's number.
#[test]
fn a_record_of_another_stream_of_the_same_number_is_left_and_nothing_of_it_is_sent_again() {
    let mut meter = Meter::default();
    meter.adopt(1, 11);
    meter.started(key(1, 0), 1_000, 0);
    meter.cut(S);
    meter.adopt(1, 4);
    assert!(meter.lacks_what_follows(4) && !meter.counted(1, 4));
    meter.leave();
    assert_eq!(meter.incarnation(), Some(2), "a number that the control plane refuses");
    assert_eq!(meter.adopt(3, 0), 1, "nobody knows whether it was counted");
    meter.ended(key(1, 0), 3 * S, 3 * S);
    meter.cut(3 * S);
    assert_eq!(meter.batch(0, u64::MAX).map(|(stream, intervals)| (stream, intervals[0].seq)), Some((3, 1)));
}

proptest! {
    /// A moment of a task's devices is counted once: as run until the task is over, as clean until they are clean, and as idle up to the newest
    /// confirmation after that.
    #[test]
    fn a_moment_is_counted_as_one_kind(steps in prop::collection::vec((0_u8..8, 1_u64..5_000), 1..40)) {
        const TASK: TaskKey = TaskKey { allocation: AllocationId(1), rank: Rank(0) };
        let mut meter = Meter::default();
        meter.adopt(1, 0);
        meter.started(TASK, 1_000, 0);
        let (mut now_ms, mut over_ms, mut clean_ms, mut seen_ms, mut held_ms) = (0, None, None, 0, 0);
        let (mut given_back, mut run_ms, mut cut_ms) = (false, 0, 0);
        for (what, ms) in steps {
            now_ms += ms;
            let now_ns = now_ms * 1_000_000;
            match what {
                0 | 1 => {
                    // It ended a while ago, perhaps before the last cut.
                    let ended_ms = now_ms - ms / 2;
                    if meter.ended(TASK, ended_ms * 1_000_000, now_ns) {
                        run_ms = ended_ms.max(cut_ms);
                        over_ms = Some(now_ms);
                    }
                }
                2 if over_ms.is_some() && clean_ms.is_none() => {
                    meter.cleaned_up(TASK, &CleanUp::UnderWay, now_ns);
                    seen_ms = now_ms;
                }
                3 if over_ms.is_some() => {
                    meter.cleaned_up(TASK, &CleanUp::Done { took_ms: 1 }, now_ns);
                    clean_ms = clean_ms.or(Some(now_ms));
                }
                4 | 5 => {
                    meter.held_on(&[TASK].into(), now_ns);
                    held_ms = if clean_ms.is_some() && !given_back { now_ms } else { held_ms };
                }
                6 => {
                    meter.given_back(|_| false);
                    given_back |= clean_ms.is_some();
                }
                _ => {
                    meter.cut(now_ns);
                    cut_ms = now_ms;
                }
            }
        }
        meter.cut(now_ms * 1_000_000);
        let run = over_ms.map_or(now_ms, |_| run_ms) * 1_000;
        let clean = over_ms.map_or(0, |over_ms| clean_ms.unwrap_or(seen_ms).max(over_ms) - over_ms) * 1_000;
        let idle = clean_ms.map_or(0, |clean_ms| held_ms.max(clean_ms) - clean_ms) * 1_000;
        let sums = cut_by_kind(&meter);
        let of = |kind| sums.get(&kind).copied().unwrap_or(0);
        prop_assert_eq!((of(UseKind::Run), of(UseKind::Clean), of(UseKind::Idle)), (run, clean, idle));
        prop_assert!(run + clean + idle <= now_ms * 1_000);
    }

    /// Law 9, the agent's half: numbers have no gaps, and what was counted plus what waits is what was held, to the millisecond
    /// of each interval, whatever is lost or said twice.
    #[test]
    fn every_interval_is_numbered_once(steps in prop::collection::vec((0_u8..4, 0_u64..3, 1_u64..5_000), 1..60)) {
        let mut meter = Meter::default();
        meter.adopt(1, 0);
        let (mut now, mut mark, mut counted, mut held) = (0_u64, 0_u64, 0_u128, 0_u128);
        let mut open: BTreeMap<TaskKey, u64> = BTreeMap::new();
        for (what, task, ms) in steps {
            now += ms * 1_000_000;
            let task = key(task / 2, task as u32);
            match what {
                0 => {
                    meter.forget(task);
                    meter.started(task, 1_000, now);
                    open.entry(task).or_insert(now);
                }
                1 => {
                    meter.ended(task, now, now);
                    held += open.remove(&task).map_or(0, |since| u128::from((now - since) / 1_000_000) * 1_000);
                }
                2 => {
                    meter.cut(now);
                }
                _ => {
                    if let Some((incarnation, intervals)) = meter.batch(mark, u64::MAX) {
                        for interval in intervals {
                            prop_assert_eq!(interval.seq, mark + 1);
                            mark = interval.seq;
                            counted += u128::from(interval.gpu_unit_ms);
                        }
                        // Every third acknowledgement is lost; the next one covers it.
                        if mark % 3 != 0 {
                            meter.counted(incarnation, mark);
                        }
                    }
                }
            }
        }
        for (task, since) in open {
            meter.ended(task, now, now);
            held += u128::from((now - since) / 1_000_000) * 1_000;
        }
        meter.cut(now);
        meter.counted(1, mark);
        let waiting: u128 = meter.batch(mark, u64::MAX).map_or(0, |(_, all)| all.iter().map(|i| u128::from(i.gpu_unit_ms)).sum());
        prop_assert_eq!(counted + waiting, held);
    }
}
