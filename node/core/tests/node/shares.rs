//! Tasks that take more of a shared card than their share.

use crate::world::key;
use muster_model::GpuModel;
use muster_model::capacity::shares::{ShareRule, usable_mib};
use muster_model::request::SharingMode;
use muster_model::sharing::CardSharing;
use muster_model::task::HoldMode;
use muster_node_core::TaskKey;
use muster_node_core::shares::{OverShare, READINGS, SeenProcess, ShareWatch, SharedCard};
use proptest::prelude::*;

const H100: GpuModel = GpuModel::H100;

fn share(memory_mib: u64) -> HoldMode {
    HoldMode::Mps { percent: 20, memory_mib }
}

fn process(task: u64, pid: u32, used_mib: u64) -> SeenProcess {
    SeenProcess { task: key(task, 0), pid, used_mib: Some(used_mib) }
}

/// Reads GPU 3.
fn read(watch: &mut ShareWatch, holds: &[(TaskKey, HoldMode)], processes: &[SeenProcess]) -> Vec<OverShare> {
    watch.read(&SharedCard { card: 3, model: H100, holds, processes }, &CardSharing::default())
}

#[test]
fn who_is_over_twice_in_a_row_is_named_once_and_alone() {
    let holds = [(key(1, 0), share(16 << 10)), (key(2, 0), share(16 << 10))];
    let mut watch = ShareWatch::default();
    let (over, within) = (process(1, 11, 21 << 10), process(2, 12, 16 << 10));
    assert_eq!(read(&mut watch, &holds, &[over, within]), []);
    // A reading in between that shows it within its share begins the count anew.
    assert_eq!(read(&mut watch, &holds, &[process(1, 11, 9 << 10), within]), []);
    assert_eq!(read(&mut watch, &holds, &[over, within]), []);
    let found = read(&mut watch, &holds, &[over, within]);
    let [OverShare { task, pids, reason }] = &found[..] else { panic!("{found:?}") };
    assert_eq!((*task, pids.as_slice()), (key(1, 0), &[11][..]));
    assert_eq!(reason, "used 21 GiB of GPU 3, its share is 16 GiB");
    assert_eq!(read(&mut watch, &holds, &[over, within]), [], "it is being ended");
    // A card that could not be read says nothing of anybody.
    let mut watch = ShareWatch::default();
    assert_eq!(read(&mut watch, &holds, &[over]), []);
    watch.forget(3);
    assert_eq!(read(&mut watch, &holds, &[over]), []);
}

#[test]
fn a_task_s_processes_count_together_and_what_is_not_known_counts_for_nothing() {
    let holds = [(key(1, 0), share(4 << 10)), (key(2, 0), HoldMode::TimeSlice { memory_mib: 4 << 10 })];
    for (processes, is_over) in [
        (vec![process(1, 1, 2_048), process(1, 2, 2_048), process(1, 3, 1_024)], true),
        (vec![process(1, 1, 2_048), process(1, 2, 2_048), process(2, 3, 1_024)], false),
        (vec![SeenProcess { used_mib: None, ..process(1, 1, 0) }; 3], false),
        (vec![process(1, 1, usable_mib(H100, SharingMode::Mps, 4 << 10))], false),
        (vec![process(1, 1, usable_mib(H100, SharingMode::Mps, 4 << 10) + 1)], true),
        (vec![process(2, 1, usable_mib(H100, SharingMode::TimeSlice, 4 << 10) + 1)], true),
        // Somebody else's, whom the cleaning and the watch for strangers look after.
        (vec![process(9, 1, 70 << 10)], false),
    ] {
        let mut watch = ShareWatch::default();
        assert_eq!(read(&mut watch, &holds, &processes), []);
        assert_eq!(read(&mut watch, &holds, &processes).len(), usize::from(is_over), "{processes:?}");
    }
}

#[test]
fn more_processes_than_a_client_may_have_end_the_task() {
    for (mode, most, of) in [
        (share(40 << 10), 6, "a client of its MPS server"),
        (HoldMode::TimeSlice { memory_mib: 40 << 10 }, 8, "a time-sliced task there"),
    ] {
        let holds = [(key(1, 0), mode)];
        let processes: Vec<SeenProcess> = (0..=most).map(|pid| process(1, pid, 400)).collect();
        let mut watch = ShareWatch::default();
        for _ in 0..5 {
            assert_eq!(read(&mut watch, &holds, &processes[1..]), []);
        }
        assert_eq!(read(&mut watch, &holds, &processes), []);
        let found = read(&mut watch, &holds, &processes);
        let reason = format!("had {} processes on GPU 3, {of} may have {most}", most + 1);
        assert_eq!(found.iter().map(|over| over.reason.clone()).collect::<Vec<_>>(), [reason]);
    }
}

fn any_mode() -> impl Strategy<Value = HoldMode> {
    (1_u64..40_960).prop_map(share)
}

proptest! {
    /// The laws of the watch: nobody is named who was within the share in one of the last readings, whoever is over in all of them is, and as long
    /// as nobody is over, a card that the ledger has filled has memory for all.
    #[test]
    fn only_who_is_over_is_named(
        modes in prop::collection::vec(any_mode(), 1..6),
        readings in prop::collection::vec(prop::collection::vec(0_u64..48_000, 6), 1..8),
    ) {
        let holds: Vec<(TaskKey, HoldMode)> = (1..).zip(&modes).map(|(id, mode)| (key(id, 0), *mode)).collect();
        let allowed = |mode: &HoldMode| match mode {
            HoldMode::Mps { memory_mib, .. } => usable_mib(H100, SharingMode::Mps, *memory_mib),
            _ => unreachable!("all are shares"),
        };
        let mut watch = ShareWatch::default();
        for (at, reading) in readings.iter().enumerate() {
            let seen: Vec<SeenProcess> = (1..).zip(reading).take(modes.len()).map(|(id, used)| process(id, id as u32, *used)).collect();
            let named: Vec<TaskKey> = read(&mut watch, &holds, &seen).into_iter().map(|over| over.task).collect();
            for (index, (key, mode)) in holds.iter().enumerate() {
                let is_over = |at: usize| readings[at][index] > allowed(mode);
                let run = (0..=at).rev().take_while(|at| is_over(*at)).count();
                prop_assert_eq!(named.contains(key), run == usize::from(READINGS), "{} after {} readings over", key, run);
            }
        }
        let rule = ShareRule::WithoutOverhead;
        let taken: u64 = modes.iter().map(allowed).sum();
        let memory: u64 = modes.iter().map(|mode| match mode { HoldMode::Mps { memory_mib, .. } => *memory_mib, _ => 0 }).sum();
        prop_assert_eq!(taken, rule.all_take_mib(H100, SharingMode::Mps, modes.len() as u64, memory));
    }
}
