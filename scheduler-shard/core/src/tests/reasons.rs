//! What a waiting job is told.

use super::fleet::*;
use crate::explain;
use muster_model::*;

/// The first reason's code, text and fix must contain these.
#[track_caller]
fn check(fleet: &mut Fleet, spec: JobSpec, code: &str, text: &str, fix: &str) {
    let job = fleet.submit(spec);
    fleet.settle();
    let said = explain(&fleet.view, job, 0).expect("live");
    super::limited::check_names_no_other(fleet, job, &said);
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
        "3 of 12 h100 are free in cell cell-1; 4 h100 needed",
        "model t4",
    );
}

#[test]
fn all_are_taken() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 4), Host::new("b", GpuModel::H100, 4)]);
    fleet.submit(gang(2, 4));
    fleet.settle();
    check(&mut fleet, gang(1, 4), "no_free_gpus", "0 of 8 h100 are free in cell cell-1; 4 h100 needed", "");
    check(&mut fleet, leafy(gang(1, 4)), "no_free_gpus", "0 of 8 h100 are free in cell cell-1; 4 h100 needed", "");
    check(
        &mut fleet,
        mig("1g.10gb"),
        "no_free_share",
        "no h100 of cell cell-1 has room for a slice 1g.10gb under MIG",
        "",
    );
    check(
        &mut fleet,
        JobSpec { pool: Some("dev".into()), ..gang(1, 1) },
        "no_pool",
        "pool default (the only one with h100 in cell cell-1) is not dev",
        "",
    );
}

#[test]
fn enough_are_free_but_apart() {
    check(
        &mut scattered(),
        leafy(gang(3, 1)),
        "topology",
        "3 h100 are free in cell cell-1, at most 1 in one leaf; 3 h100 needed in one leaf",
        "block",
    );
    check(
        &mut scattered(),
        gang(1, 2),
        "nodes_too_full",
        "3 h100 are free in cell cell-1, at most 1 on one node: room for 0 tasks of 2 h100 each, 1 task needed",
        "model t4",
    );
}

#[test]
fn larger_than_the_cell() {
    check(
        &mut scattered(),
        gang(13, 1),
        "larger_than_cell",
        "13 h100 needed, its nodes that take new work have 12 h100",
        "3 tasks instead of 13",
    );
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
        "quota of lab: 0 of 2 h100 in use; this job needs 3 more",
        "raise the max of lab to 3 h100",
    );
}

#[test]
fn trust_and_pools() {
    let mut fleet = scattered();
    fleet.tenant("guest", |t| t.trust = Trust::Untrusted);
    check(&mut fleet, JobSpec { tenant: "guest".into(), ..slice(100) }, "untrusted", "only through MIG", "");
    check(
        &mut fleet,
        JobSpec { pool: Some("dev".into()), ..gang(1, 1) },
        "no_pool",
        "pool default (the only one with h100 in cell cell-1) is not dev, the pool that the job requires",
        "",
    );
}

#[test]
fn nobody_schedules_the_cell_and_a_place_is_free() {
    let mut fleet = scattered();
    fleet.cell(CELL, None);
    let job = fleet.submit(gang(1, 1));
    fleet.deliver(usize::MAX);
    let codes: Vec<&str> = explain(&fleet.view, job, 0).expect("live").reasons.iter().map(|r| r.code()).collect();
    assert_eq!(codes, ["cell_without_shard", "just_queued"]);
}

#[test]
fn holders_and_position_are_named() {
    let mut fleet = scattered();
    let first = fleet.submit(gang(4, 1));
    let second = fleet.submit(JobSpec { priority: 1, ..gang(5, 1) });
    fleet.settle();
    let said = explain(&fleet.view, first, 0).expect("live");
    assert_eq!(said.position, Some(1), "the other one has a higher priority");
    assert_eq!(explain(&fleet.view, second, 0).expect("live").position, Some(0));
    let figures = said.reasons[0].figures();
    assert_eq!(figures["needed"], "4");
    assert_eq!(
        figures["holder_1"],
        "job 1 holds 3 GPUs on a, may not be preempted: it has the same tenant and no lower priority"
    );
    let running = explain(&fleet.view, JobId(1), 0).expect("live");
    assert_eq!((running.phase, running.reasons.len()), ("starting", 0));
    assert_eq!(explain(&fleet.view, JobId(77), 0), None);
}

/// A node of eight with six free beside a job of two, one with five free, one all taken: nothing has eight.
fn broken() -> Fleet {
    let mut fleet = Fleet::new(["a", "b", "c"].map(|name| Host::new(name, GpuModel::H100, 8)));
    for cards in [3, 6, 8] {
        fleet.submit(gang(1, cards));
        fleet.settle();
    }
    fleet.submit(gang(1, 2));
    fleet.settle();
    fleet
}

/// The first reason's figures must be among these, and its holders these: job, cards, node.
#[track_caller]
fn check_figures(fleet: &mut Fleet, spec: JobSpec, figures: &[(&str, &str)], holders: &[(u64, u64, &str)]) {
    let job = fleet.submit(spec);
    fleet.settle();
    let said = explain(&fleet.view, job, 0).expect("live");
    let reason = said.reasons.first().expect("it waits for a reason");
    let told = reason.figures();
    for (name, value) in figures {
        assert_eq!(told.get(*name).map(String::as_str), Some(*value), "{name}: {told:?}");
    }
    let blockers: Vec<(u64, u64, &str)> =
        reason.holders.iter().map(|one| (one.job.0, one.cards, one.node.as_str())).collect();
    assert_eq!(blockers, holders, "{}", reason.text());
}

#[test]
fn each_reason_has_its_figures_and_names_who_stands_in_the_best_place() {
    let at =
        |level, spec: JobSpec| JobSpec { topology: Topology { required: Some(level), ..Topology::default() }, ..spec };
    let mut fleet = broken();
    let held: Vec<(u32, u64, usize)> = fleet
        .allocations
        .values()
        .map(|held| (held.tasks[0].node.0, held.job.0, held.tasks[0].devices.len()))
        .collect();
    // What the engine made of it: the test's figures follow from these places.
    assert_eq!(
        held.iter().map(|(node, _, cards)| (*node, *cards)).collect::<Vec<_>>(),
        [(1, 3), (2, 6), (3, 8), (2, 2)]
    );
    let small = held[0].1;
    // Eight on one node: only a lacks as few as three.
    check_figures(
        &mut fleet,
        at(TopologyLevel::Island, gang(1, 8)),
        &[("free", "5"), ("needed", "8"), ("largest_node", "5")],
        &[(small, 3, "a")],
    );
    let mut scattered = scattered();
    check_figures(
        &mut scattered,
        at(TopologyLevel::Node, gang(2, 1)),
        &[("free", "3"), ("largest_node", "1"), ("needed", "2")],
        &[(1, 3, "a")],
    );
    check_figures(
        &mut scattered,
        gang(1, 2),
        &[("free", "3"), ("largest_node", "1"), ("needed_on_one_node", "2"), ("needed", "2")],
        &[(1, 3, "a")],
    );
}

#[test]
fn a_wider_level_is_told_with_its_bandwidth() {
    let host = |name, leaf| Host { per_island: 4, ..Host::new(name, GpuModel::H100, 8).at("b1", leaf) };
    let mut fleet = Fleet::new([host("a", "l1"), host("b", "l2")]);
    let topology = Topology { required: Some(TopologyLevel::Island), ..Topology::default() };
    let hold = |fleet: &mut Fleet, node: u32, gpu: u16| {
        let job = fleet.submit(gang(1, 1));
        let tasks =
            vec![TaskPlacement { node: NodeId(node), devices: vec![DeviceHold { gpu, mode: HoldMode::Whole }] }];
        let binding = muster_model::Binding { job, attempt: Attempt(1), model: Some(GpuModel::H100), tasks };
        assert_eq!(fleet.decide(crate::Proposal::Bind(binding)), Some(job));
        fleet.deliver(usize::MAX);
    };
    // One card of each island is taken.
    for (node, gpu) in [(1, 0), (1, 4), (2, 0), (2, 4)] {
        hold(&mut fleet, node, gpu);
    }
    let job = fleet.submit(JobSpec { topology, ..gang(4, 1) });
    fleet.settle();
    let said = explain(&fleet.view, job, 0).expect("live");
    assert_eq!(said.reasons[0].code(), "topology");
    assert_eq!(
        said.reasons[0].text(),
        "12 h100 are free in cell cell-1, at most 3 in one island; 4 h100 needed in one island"
    );
    let told: Vec<String> = said.wider.iter().map(|wider| wider.text()).collect();
    assert_eq!(
        told[0],
        "node instead of island: 64 GB/s (PCIe) instead of 450 GB/s (NVLink) for each GPU (14 %); it would start at once"
    );
    assert_eq!(
        told[1],
        "leaf instead of island: 50 GB/s (network) instead of 450 GB/s (NVLink) for each GPU (11 %); it would start at once"
    );
    assert_eq!(told.len(), 4, "block and region too");
}
