//! Pools with pinned layouts: instances come from the slots alone, and what fits none is told so with the figures.

use super::fleet::*;
use crate::explain;
use muster_model::mig::{MigPlacement, PinnedLayout};
use muster_model::*;

/// One node of `cards` H100, of which all or the first `pinned` hold the layout.
fn fleet(cards: u16, slices: &[(&str, u32)], pinned: Option<u16>) -> Fleet {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, cards)]);
    pin(&mut fleet, slices, pinned);
    fleet
}

fn pin(fleet: &mut Fleet, slices: &[(&str, u32)], pinned: Option<u16>) {
    let slices = slices.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    let layout = PinnedLayout::new(GpuModel::H100, &slices, pinned).expect("legal");
    fleet.put_pool(Pool { pinned: [(GpuModel::H100, layout)].into(), ..Pool::standard() });
    fleet.deliver(usize::MAX);
}

fn hold_of(fleet: &Fleet, job: JobId) -> (u16, HoldMode) {
    let hold = fleet.allocation_of(job).expect("runs").tasks[0].devices[0];
    (hold.gpu, hold.mode)
}

fn start_of(fleet: &Fleet, job: JobId) -> (u16, u8) {
    match hold_of(fleet, job) {
        (gpu, HoldMode::Mig(MigPlacement { start, .. })) => (gpu, start),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn told(fleet: &mut Fleet, spec: JobSpec, text: &str, fix: &str) {
    let job = fleet.submit(spec);
    fleet.settle();
    assert!(!fleet.runs(job));
    let said = explain(&fleet.view, job, 0).expect("live");
    assert_eq!((said.reasons[0].code(), said.reasons[0].text().as_str()), ("pinned_layout", text));
    assert!(said.reasons[0].fix().contains(fix), "{}", said.reasons[0].fix());
}

#[test]
fn sevenths_alone_are_served_by_cards_pinned_to_sevenths() {
    let mut fleet = fleet(2, &[("1g.10gb", 7)], None);
    let jobs: Vec<JobId> = (0..14).map(|_| fleet.submit(mig("1g.10gb"))).collect();
    fleet.settle();
    let mut starts: Vec<(u16, u8)> = jobs.iter().map(|job| start_of(&fleet, *job)).collect();
    starts.sort_unstable();
    let all: Vec<(u16, u8)> = (0..2).flat_map(|gpu| (0..7).map(move |start| (gpu, start))).collect();
    assert_eq!(starts, all);
    let text =
        "every h100 of cell cell-1 that it may use has a fixed MIG layout: pool default keeps 1g.10gb x7 on 2 h100: ";
    told(&mut fleet, mig("3g.40gb"), &format!("{text}no 3g.40gb"), "");
    told(&mut fleet, gang(1, 1), &format!("{text}no whole GPU"), "");
    told(&mut fleet, mps(10, 100), &format!("{text}no share of 10 % and 100 MiB"), "");
    told(&mut fleet, mig("1g.10gb"), &format!("{text}14 slots of 1g.10gb, 0 free"), "wait until job 1 has ended");
    let waits = fleet.submit(mig("1g.10gb"));
    fleet.settle();
    let figures = explain(&fleet.view, waits, 0).expect("live").reasons[0].figures();
    assert_eq!(["pinned_cards", "slots", "slots_open"].map(|name| figures[name].as_str()), ["2", "14", "0"]);
    assert!(figures["holder_1"].starts_with("job 1 holds 1 GPU on a"), "{figures:?}");
}

#[test]
fn slots_of_every_size_are_taken_at_their_places() {
    let mut fleet = fleet(1, &[("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)], None);
    let jobs = ["1g.10gb", "3g.40gb", "1g.10gb", "2g.20gb"].map(|profile| fleet.submit(mig(profile)));
    fleet.settle();
    assert_eq!(jobs.map(|job| start_of(&fleet, job)), [(0, 2), (0, 4), (0, 3), (0, 0)]);
}

#[test]
fn part_of_the_cards_may_be_pinned_and_slots_go_first() {
    let mut fleet = fleet(3, &[("3g.40gb", 2)], Some(1));
    let whole = fleet.submit(gang(1, 2));
    let slices = [fleet.submit(mig("3g.40gb")), fleet.submit(mig("3g.40gb"))];
    fleet.settle();
    let held = fleet.allocation_of(whole).expect("runs").tasks[0].devices.iter().map(|hold| hold.gpu);
    assert_eq!(held.collect::<Vec<_>>(), [1, 2], "the pinned card is none to be had whole");
    assert_eq!(slices.map(|job| start_of(&fleet, job)), [(0, 0), (0, 4)]);
    // Three whole cards there will never be.
    let three = fleet.submit(gang(1, 3));
    fleet.settle();
    assert_eq!(explain(&fleet.view, three, 0).expect("live").reasons[0].code(), "larger_than_cell");
    // A slice that the layout lacks is cut from a card that is free.
    fleet.end(whole, false);
    let single = fleet.submit(mig("1g.10gb"));
    fleet.settle();
    assert_eq!(start_of(&fleet, single).0, 1);
}

#[test]
fn what_ran_before_goes_on_and_what_waits_is_woken_by_a_layout() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 1)]);
    let before = fleet.submit(gang(1, 1));
    fleet.settle();
    let slice = fleet.submit(mig("2g.20gb"));
    fleet.settle();
    pin(&mut fleet, &[("2g.20gb", 3)], None);
    fleet.settle();
    assert!(fleet.runs(before) && !fleet.runs(slice));
    fleet.end(before, false);
    fleet.settle();
    assert_eq!(start_of(&fleet, slice), (0, 0));
    let whole = fleet.submit(gang(1, 1));
    fleet.end(slice, false);
    fleet.settle();
    assert!(!fleet.runs(whole), "an empty pinned card is still not to be had whole");
    fleet.put_pool(Pool::standard());
    fleet.settle();
    assert!(fleet.runs(whole), "without the layout it is");
}
