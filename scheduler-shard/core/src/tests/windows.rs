//! Windows: who is placed on their nodes before, while and after they are open, and what the others are told.

use super::fleet::*;
use crate::explain;
use muster_model::*;
use std::collections::BTreeSet;

const HOUR_S: u64 = 3_600;
const NOW_MS: u64 = 1_000_000;

fn limited(spec: JobSpec, hours: u64) -> JobSpec {
    JobSpec { time_limit_s: Some(hours * HOUR_S), grace_s: 0, ..spec }
}

/// Two nodes of eight cards.
fn two_nodes() -> Fleet {
    let mut fleet = Fleet::new(["a", "b"].map(|name| Host::new(name, GpuModel::H100, 8)));
    fleet.now_ms = NOW_MS;
    fleet
}

/// From two hours on, for two hours, on these nodes.
fn window(fleet: &mut Fleet, kind: WindowKind, nodes: &[u32], open: bool) {
    let start_ms = NOW_MS + 2_000 * HOUR_S;
    fleet.view.apply(&Change::put(Object::Window(Window {
        name: "w".into(),
        kind,
        nodes: nodes.iter().map(|node| NodeId(*node)).collect(),
        start_ms,
        end_ms: Some(start_ms + 2_000 * HOUR_S),
        reason: String::new(),
        tenants: if kind == WindowKind::Reservation { [fleet.tenants["org"].id].into() } else { BTreeSet::new() },
        flex: false,
        preempt: false,
        open,
        made_ms: NOW_MS,
    })));
}

#[test]
fn what_is_over_by_the_start_is_placed_and_the_rest_goes_elsewhere_or_waits() {
    let mut fleet = two_nodes();
    window(&mut fleet, WindowKind::Maintenance, &[1], false);
    let [endless, long, short] =
        [gang(1, 8), limited(gang(1, 8), 8), limited(gang(1, 8), 1)].map(|spec| fleet.submit(spec));
    fleet.settle();
    assert_eq!([endless, long, short].map(|job| fleet.runs(job)), [true, false, true]);
    assert_eq!(fleet.allocation_of(endless).expect("it runs").tasks[0].node, NodeId(2));
    fleet.end(short, false);
    fleet.settle();
    let said = explain(&fleet.view, long, fleet.now_ms).expect("live").reasons.remove(0);
    assert_eq!(said.code(), "in_window");
    let text = said.text();
    assert!(text.contains("node a has maintenance w from") && text.contains("time limit of 8 h"), "{text}");
    assert!(said.fix().starts_with("set a time limit of at most"), "{}", said.fix());

    window(&mut fleet, WindowKind::Maintenance, &[1], true);
    let now = fleet.submit(limited(gang(1, 1), 1));
    fleet.settle();
    assert!(!fleet.runs(now) && !fleet.runs(long), "nobody is placed on a node with maintenance");
    fleet.view.apply(&Change::Delete(Key::Window("w".into())));
    fleet.settle();
    assert!(fleet.runs(long), "it opens again, and who waits is tried");
}

#[test]
fn a_gang_that_ends_in_time_stands_on_nodes_with_and_without_windows() {
    let mut fleet = two_nodes();
    window(&mut fleet, WindowKind::Drain, &[1], false);
    let [long, short] = [limited(gang(2, 8), 4), limited(gang(2, 8), 1)].map(|spec| fleet.submit(spec));
    fleet.settle();
    assert_eq!([long, short].map(|job| fleet.runs(job)), [false, true]);
}

#[test]
fn a_reservation_serves_those_that_name_it_while_it_is_open() {
    let mut fleet = two_nodes();
    window(&mut fleet, WindowKind::Reservation, &[1], false);
    let named = |hours| JobSpec { reservation: Some("w".into()), ..limited(gang(1, 4), hours) };
    let [mine, late] = [1, 8].map(|hours| fleet.submit(named(hours)));
    fleet.settle();
    assert!(!fleet.runs(mine));
    let code = |fleet: &Fleet, job| explain(&fleet.view, job, fleet.now_ms).expect("live").reasons[0].text();
    assert!(code(&fleet, mine).contains("reservation w, which it names, begins at"), "{}", code(&fleet, mine));
    fleet.now_ms += 2_000 * HOUR_S;
    window(&mut fleet, WindowKind::Reservation, &[1], true);
    let other = fleet.submit(limited(gang(2, 8), 1));
    fleet.settle();
    assert_eq!([mine, late, other].map(|job| fleet.runs(job)), [true, false, false]);
    assert_eq!(fleet.allocation_of(mine).expect("it runs").tasks[0].node, NodeId(1));
    assert!(code(&fleet, late).contains("its time limit") || code(&fleet, late).contains("time limit must end"));
}
