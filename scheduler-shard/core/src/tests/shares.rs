//! Shares go where the shares that are expected will leave least unfilled.

use super::fleet::*;
use muster_model::*;

fn card_of(fleet: &Fleet, job: JobId) -> u16 {
    fleet.allocation_of(job).expect("runs").tasks[0].devices[0].gpu
}

/// Runs a share of so many percent.
fn run(fleet: &mut Fleet, percent: u8) -> JobId {
    let job = fleet.submit(mps(percent, 1_000));
    fleet.settle();
    job
}

/// Where a share of 30 % goes beside gaps of 40 and 50, after shares of these sizes have come and gone.
fn gap_taken_after(percents: &[u8]) -> u8 {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    for percent in percents.iter().cycle().take(percents.len() * 20) {
        let job = run(&mut fleet, *percent);
        fleet.end(job, false);
        fleet.settle();
    }
    let (first, second) = (run(&mut fleet, 60), run(&mut fleet, 50));
    let gap_40 = card_of(&fleet, first);
    assert_ne!(gap_40, card_of(&fleet, second));
    let third = run(&mut fleet, 30);
    if card_of(&fleet, third) == gap_40 { 40 } else { 50 }
}

#[test]
fn a_share_leaves_the_gap_that_others_will_fill() {
    assert_eq!(gap_taken_after(&[]), 40, "nothing known: the tightest card");
    assert_eq!(gap_taken_after(&[40, 20]), 50, "40s fill the one gap, a 20 what it leaves of the other");
    assert_eq!(gap_taken_after(&[50, 10]), 40, "50s fill the larger gap, a 10 what it leaves of the smaller");
}

#[test]
fn a_fresh_snapshot_forgets_nothing_that_was_learned() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    for _ in 0..20 {
        let job = run(&mut fleet, 40);
        fleet.end(job, false);
        fleet.settle();
    }
    let known = |fleet: &Fleet| fleet.view.fleet.outlook(CELL, GpuModel::H100, request::SharingMode::Mps);
    let before = known(&fleet).expect("shares have come");
    assert_eq!(before.shares, [(400, 20)].into());
    let fresh = fleet.snapshot();
    fleet.view.replace(fresh);
    assert_eq!(known(&fleet), Some(before));
}
