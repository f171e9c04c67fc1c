//! What a waiting job is told.

use super::fleet::*;
use crate::explain;
use muster_model::*;

/// The first reason's code, text and fix must contain these.
#[track_caller]
fn check(fleet: &mut Fleet, spec: JobSpec, code: &str, text: &str, fix: &str) {
    let job = fleet.submit(spec);
    fleet.settle();
    let said = explain(&fleet.view, job).expect("live");
    let reason = said.reasons.first().expect("it waits for a reason");
    assert_eq!(reason.code(), code, "{}", reason.text());
    assert!(reason.text().contains(text), "text: {}", reason.text());
    assert!(reason.fix().contains(fix), "fix: {}", reason.fix());
}

/// Three nodes of four, with a job of one card on each of the last two.
fn scattered() -> Fleet {
    let host = |name, leaf| Host::new(name, GpuModel::H100, 4).at("b1", leaf);
    let mut fleet = Fleet::new([host("a", "l1"), host("b", "l2"), host("c", "l3"), Host::new("t", GpuModel::T4, 8)]);
    for _ in 0..3 {
        fleet.submit(gang(1, 3));
    }
    fleet.settle();
    fleet
}

fn leafy(spec: JobSpec) -> JobSpec {
    JobSpec { topology: Topology { required: Some(TopologyLevel::Leaf), ..Topology::default() }, ..spec }
}

#[test]
fn too_few_are_free() {
    check(
        &mut scattered(),
        gang(4, 1),
        "no_free_gpus",
        "3 h100 free in cell cell-1, largest free node 1; 4 needed",
        "model t4",
    );
}

#[test]
fn all_are_taken() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 4), Host::new("b", GpuModel::H100, 4)]);
    fleet.submit(gang(2, 4));
    fleet.settle();
    check(&mut fleet, gang(1, 4), "no_free_gpus", "0 h100 free in cell cell-1, largest free node 0; 4 needed", "");
    check(&mut fleet, leafy(gang(1, 4)), "no_free_gpus", "0 h100 free in cell cell-1", "");
    check(&mut fleet, mig("1g.10gb"), "no_free_share", "no h100 in cell cell-1 has room for a MIG slice 1g.10gb", "");
    check(&mut fleet, JobSpec { pool: Some("dev".into()), ..gang(1, 1) }, "no_pool", "there are default", "");
}

#[test]
fn enough_are_free_but_apart() {
    check(
        &mut scattered(),
        leafy(gang(3, 1)),
        "topology",
        "3 h100 free in cell cell-1, largest free leaf 1; 3 needed",
        "block",
    );
    check(&mut scattered(), gang(1, 2), "nodes_too_full", "3 h100 free", "model t4");
}

#[test]
fn larger_than_the_cell() {
    check(&mut scattered(), gang(13, 1), "larger_than_cell", "13 h100 needed", "3 tasks instead of 13");
    check(&mut scattered(), leafy(gang(5, 1)), "larger_than_cell", "5 h100", "accept model t4 too");
}

#[test]
fn a_ceiling_at_any_level() {
    let mut fleet = scattered();
    fleet.tenant("lab", |t| t.max.gpu.insert(GpuModel::H100, GpuUnits::cards(2)).map_or((), |_| ()));
    fleet.tenant("lab/nlp", |_| {});
    let spec = JobSpec { tenant: "lab/nlp".into(), ..gang(3, 1) };
    check(
        &mut fleet,
        spec,
        "over_max",
        "max of lab is reached: 0 of gpu.h100 in use, 3 asked, max 2",
        "raise the max of lab to 3",
    );
}

#[test]
fn trust_and_pools() {
    let mut fleet = scattered();
    fleet.tenant("guest", |t| t.trust = Trust::Untrusted);
    check(&mut fleet, JobSpec { tenant: "guest".into(), ..slice(100) }, "untrusted", "MIG", "MIG slice");
    check(
        &mut fleet,
        JobSpec { pool: Some("dev".into()), ..gang(1, 1) },
        "no_pool",
        "in pool dev; there are default",
        "pool",
    );
}

#[test]
fn nobody_schedules_the_cell_and_a_place_is_free() {
    let mut fleet = scattered();
    fleet.cell(CELL, None);
    let job = fleet.submit(gang(1, 1));
    fleet.deliver(usize::MAX);
    let codes: Vec<&str> = explain(&fleet.view, job).expect("live").reasons.iter().map(|r| r.code()).collect();
    assert_eq!(codes, ["cell_without_shard", "just_queued"]);
}

#[test]
fn holders_and_position_are_named() {
    let mut fleet = scattered();
    let first = fleet.submit(gang(4, 1));
    let second = fleet.submit(JobSpec { priority: 1, ..gang(5, 1) });
    fleet.settle();
    let said = explain(&fleet.view, first).expect("live");
    assert_eq!(said.position, Some(1), "the other one has a higher priority");
    assert_eq!(explain(&fleet.view, second).expect("live").position, Some(0));
    let figures = said.reasons[0].figures();
    assert_eq!(figures["needed"], "4");
    assert_eq!(figures["holder_1"], "job 1: 3 cards, from a");
    let running = explain(&fleet.view, JobId(1)).expect("live");
    assert_eq!((running.phase, running.reasons.len()), ("starting", 0));
    assert_eq!(explain(&fleet.view, JobId(77)), None);
}
