//! Placement by example: the cases that users name.

use super::fleet::*;
use muster_model::*;
use std::collections::BTreeSet;

fn h100(names: &[&'static str], gpus: u16) -> Fleet {
    Fleet::new(names.iter().map(|name| Host::new(name, GpuModel::H100, gpus)))
}

/// Node id and cards of each rank.
fn places(fleet: &Fleet, job: JobId) -> Vec<(u32, Vec<u16>)> {
    let allocation = fleet.allocation_of(job).expect("runs");
    allocation.tasks.iter().map(|task| (task.node.0, task.devices.iter().map(|hold| hold.gpu).collect())).collect()
}

fn cards_used(fleet: &Fleet) -> BTreeSet<(NodeId, u16)> {
    let tasks = fleet.allocations.values().flat_map(|allocation| &allocation.tasks);
    tasks.flat_map(|task| task.devices.iter().map(move |hold| (task.node, hold.gpu))).collect()
}

#[test]
fn two_gangs_of_eight_on_twelve_gpus_never_hold_six_each() {
    let mut fleet = h100(&["a", "b", "c"], 4);
    let jobs = [fleet.submit(gang(8, 1)), fleet.submit(gang(8, 1))];
    fleet.settle();
    assert_eq!(jobs.map(|job| fleet.runs(job)), [true, false]);
    assert_eq!(fleet.allocation_of(jobs[0]).expect("runs").tasks.len(), 8);
    fleet.end(jobs[0], false);
    fleet.settle();
    assert!(fleet.runs(jobs[1]), "the second starts whole when the first has gone");
}

#[test]
fn after_two_3g_no_1g_fits() {
    let mut fleet = h100(&["a"], 1);
    let big = [fleet.submit(mig("3g.40gb")), fleet.submit(mig("3g.40gb"))];
    fleet.settle();
    let small = fleet.submit(mig("1g.10gb"));
    fleet.settle();
    assert!(big.iter().all(|job| fleet.runs(*job)) && !fleet.runs(small));
    let said = crate::explain(&fleet.view, small, 0).expect("live");
    assert_eq!(said.reasons[0].code(), "no_free_share");
    assert!(
        said.reasons[0]
            .text()
            .contains("no h100 of cell cell-1 has room for a slice 1g.10gb under MIG; no whole GPU is free"),
        "{}",
        said.reasons[0].text()
    );
}

#[test]
fn five_jobs_of_fifteen_percent_run_on_one_h100_in_slices() {
    let mut fleet = h100(&["a", "b"], 4);
    let jobs: Vec<JobId> = (0..5).map(|_| fleet.submit(mig("1g.10gb"))).collect();
    fleet.settle();
    assert!(jobs.iter().all(|job| fleet.runs(*job)));
    assert_eq!(cards_used(&fleet).len(), 1);
}

#[test]
fn four_replicas_on_one_card_run_and_the_fifth_waits_and_says_why() {
    let mut fleet = h100(&["a"], 1);
    let jobs: Vec<JobId> = (0..5).map(|_| fleet.submit(slice(10_000))).collect();
    fleet.settle();
    assert_eq!(jobs.iter().filter(|job| fleet.runs(**job)).count(), 4);
    let said = crate::explain(&fleet.view, jobs[4], 0).expect("live");
    assert_eq!(said.reasons[0].code(), "no_free_share");
    assert!(
        said.reasons[0].text().contains("no h100 of cell cell-1 has room for a share of 9.76 GiB under time-slicing"),
        "{}",
        said.reasons[0].text()
    );
}

#[test]
fn a_mig_slice_stands_where_the_largest_remainder_is_kept() {
    let mut fleet = h100(&["a"], 1);
    let small = fleet.submit(mig("1g.10gb"));
    fleet.settle();
    let big = [fleet.submit(mig("3g.40gb")), fleet.submit(mig("2g.20gb"))];
    fleet.settle();
    assert!(big.iter().all(|job| fleet.runs(*job)), "a slice in the wrong place would shut them out");
    assert!(fleet.runs(small));
}

#[test]
fn shares_fill_the_tightest_card_before_they_open_another() {
    let mut fleet = h100(&["a", "b"], 2);
    let jobs: Vec<JobId> = [(60, 10_000), (30, 10_000), (50, 10_000), (40, 10_000)]
        .into_iter()
        .map(|(percent, memory)| fleet.submit(mps(percent, memory)))
        .collect();
    fleet.settle();
    assert!(jobs.iter().all(|job| fleet.runs(*job)));
    assert_eq!(cards_used(&fleet).len(), 2, "60 + 40 and 30 + 50, or 60 + 30 and 50 + 40");
    // Whole cards are still found on one node.
    let gang = fleet.submit(gang(1, 2));
    fleet.settle();
    assert!(fleet.runs(gang));
}

#[test]
fn a_gang_takes_the_tightest_place_that_holds_it() {
    let hosts = || {
        let host = |name, leaf| Host::new(name, GpuModel::H100, 4).at("b1", leaf);
        [host("a", "l1"), host("b", "l1"), host("c", "l1"), host("d", "l2"), host("e", "l2")]
    };
    let check = |spec: JobSpec, expected: &[u32]| {
        let mut fleet = Fleet::new(hosts());
        let job = fleet.submit(spec);
        fleet.settle();
        let nodes: BTreeSet<u32> = places(&fleet, job).into_iter().map(|(node, _)| node).collect();
        assert_eq!(nodes, expected.iter().copied().collect());
    };
    check(gang(1, 4), &[1]);
    check(gang(2, 2), &[1]);
    // Eight cards: the leaf with two nodes holds them exactly, the one with three would have four left.
    check(gang(2, 4), &[4, 5]);
    check(gang(3, 4), &[1, 2, 3]);
    check(gang(5, 4), &[1, 2, 3, 4, 5]);
}

#[test]
fn a_required_level_is_kept_or_the_gang_waits() {
    let check = |level, runs: bool| {
        let host = |name, leaf| Host::new(name, GpuModel::H100, 4).at("b1", leaf);
        let mut fleet = Fleet::new([host("a", "l1"), host("b", "l2")]);
        let topology = Topology { required: Some(level), ..Topology::default() };
        let job = fleet.submit(JobSpec { topology, ..gang(2, 3) });
        fleet.settle();
        assert_eq!(fleet.runs(job), runs, "{level}");
    };
    check(TopologyLevel::Island, false);
    check(TopologyLevel::Node, false);
    check(TopologyLevel::Leaf, false);
    check(TopologyLevel::Block, true);
    check(TopologyLevel::Region, true);
}

#[test]
fn consecutive_ranks_fill_islands_and_nodes() {
    let host = |name| Host { per_island: 4, ..Host::new(name, GpuModel::H100, 8) };
    let mut fleet = Fleet::new([host("a"), host("b")]);
    let one = fleet.submit(gang(1, 1));
    fleet.settle();
    assert_eq!(places(&fleet, one), vec![(1, vec![0])]);
    // Three of the first island are left: a task of four goes into the second, and a pair of two-card tasks shares one island.
    let four = fleet.submit(gang(1, 4));
    fleet.settle();
    assert_eq!(places(&fleet, four), vec![(1, vec![4, 5, 6, 7])]);
    let pair = fleet.submit(gang(4, 2));
    fleet.settle();
    assert_eq!(places(&fleet, pair), vec![(2, vec![0, 1]), (2, vec![2, 3]), (2, vec![4, 5]), (2, vec![6, 7])]);
}

#[test]
fn single_cards_go_where_least_is_left() {
    let mut fleet = h100(&["a", "b"], 4);
    let three = fleet.submit(gang(1, 3));
    fleet.settle();
    let one = fleet.submit(gang(1, 1));
    fleet.settle();
    assert_eq!((places(&fleet, three)[0].0, places(&fleet, one)[0].0), (1, 1));
    let whole = fleet.submit(gang(1, 4));
    fleet.settle();
    assert_eq!(places(&fleet, whole)[0].0, 2);
}

#[test]
fn the_remainder_of_a_gang_goes_where_it_leaves_least() {
    let mut fleet = h100(&["a", "b", "c", "d"], 4);
    let three = fleet.submit(gang(1, 3));
    fleet.settle();
    // Nine cards: two empty nodes and the one that is left of node 1, not the fourth node.
    let nine = fleet.submit(gang(9, 1));
    fleet.settle();
    let nodes: BTreeSet<u32> = places(&fleet, nine).into_iter().map(|(node, _)| node).collect();
    assert!(nodes.contains(&places(&fleet, three)[0].0) && nodes.len() == 3, "{nodes:?}");
}

#[test]
fn cpu_only_gangs_and_other_models_find_their_nodes() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 4), Host::new("b", GpuModel::T4, 4)]);
    let mut spec = job(10, DeviceRequest::None);
    spec.request.cpu_milli = 12_000;
    let cpu = fleet.submit(spec);
    let any = fleet.submit(job(1, DeviceRequest::Whole { count: 4, models: vec![] }));
    let both = fleet.submit(job(1, DeviceRequest::Whole { count: 1, models: vec![GpuModel::A100_80, GpuModel::T4] }));
    fleet.settle();
    assert!([cpu, any, both].iter().all(|job| fleet.runs(*job)));
    assert_eq!(fleet.allocation_of(both).expect("runs").model, Some(GpuModel::T4));
    assert_eq!(fleet.allocation_of(cpu).expect("runs").model, None);
}

#[test]
fn pools_keep_out_what_they_do_not_serve() {
    let mut fleet = h100(&["a"], 4);
    let rules = Pool { modes: [request::SharingMode::Whole].into(), ..Pool::standard() };
    fleet.ledger.put_pool(rules.clone());
    fleet.view.apply(&Change::put(Object::Pool(rules)));
    let share = fleet.submit(mig("1g.10gb"));
    let elsewhere = fleet.submit(JobSpec { pool: Some("dev".into()), ..gang(1, 1) });
    let fine = fleet.submit(gang(1, 1));
    fleet.settle();
    assert_eq!([share, elsewhere, fine].map(|job| fleet.runs(job)), [false, false, true]);
}

#[test]
fn segments_stand_on_one_island_each_inside_the_required_level() {
    let host = |name, leaf| Host { per_island: 4, ..Host::new(name, GpuModel::H100, 8).at("b1", leaf) };
    let mut fleet = Fleet::new([host("a", "l1"), host("b", "l1"), host("c", "l2")]);
    // One card of the first island is held: three are left there, where no segment of four fits.
    let one = fleet.submit(gang(1, 1));
    fleet.settle();
    assert_eq!(places(&fleet, one), vec![(1, vec![0])]);
    let topology = Topology { required: Some(TopologyLevel::Leaf), segment_tasks: Some(2), ..Topology::default() };
    let job = fleet.submit(JobSpec { topology, ..gang(6, 2) });
    fleet.settle();
    let segment = |node, first: u16| [(node, vec![first, first + 1]), (node, vec![first + 2, first + 3])];
    assert_eq!(places(&fleet, job), [segment(1, 4), segment(2, 0), segment(2, 4)].concat());
    // Two segments are left on the other leaf, none here: three more find no leaf.
    let more = fleet.submit(JobSpec { topology, ..gang(6, 2) });
    fleet.settle();
    assert!(!fleet.runs(more));
}

#[test]
fn the_smallest_island_that_holds_a_gang_is_taken() {
    let mut fleet = Fleet::new([
        Host { per_island: 8, ..Host::new("large", GpuModel::H100, 8) },
        Host { per_island: 4, ..Host::new("small", GpuModel::H100, 8) },
    ]);
    let four = fleet.submit(gang(1, 4));
    fleet.settle();
    assert_eq!(places(&fleet, four)[0].0, 2, "the island of eight stays whole");
    let eight = fleet.submit(gang(1, 8));
    fleet.settle();
    assert_eq!(places(&fleet, eight)[0].0, 1);
}
