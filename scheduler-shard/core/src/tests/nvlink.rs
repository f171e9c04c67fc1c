//! NVLink domains of several nodes, by example: racks of 18 nodes with 4 cards each.

use super::fleet::*;
use muster_model::*;
use std::collections::{BTreeMap, BTreeSet};

const NODES: u32 = 18;

/// So many racks of 72 cards, each under a leaf of its own; the nodes of the first are 1 to 18.
fn racks(count: usize) -> Fleet {
    let leaves = ["l1", "l2", "l3", "l4"];
    let rack = |leaf: &&'static str| {
        let host = |_| Host { nvlink: "nvl72", ..Host::new("n", GpuModel::H100, 4).at("b1", leaf) };
        (0..NODES).map(host).collect::<Vec<_>>()
    };
    Fleet::new(leaves[..count].iter().flat_map(rack))
}

fn rack_of(node: NodeId) -> u32 {
    (node.0 - 1) / NODES + 1
}

/// Racks that a job stands on, with its cards there.
fn racks_of(fleet: &Fleet, job: JobId) -> BTreeMap<u32, usize> {
    let mut cards = BTreeMap::new();
    for task in &fleet.allocation_of(job).expect("runs").tasks {
        *cards.entry(rack_of(task.node)).or_default() += task.devices.len();
    }
    cards
}

fn nodes_of(fleet: &Fleet, job: JobId) -> BTreeSet<NodeId> {
    fleet.allocation_of(job).expect("runs").tasks.iter().map(|task| task.node).collect()
}

fn within(level: TopologyLevel, spec: JobSpec) -> JobSpec {
    JobSpec { topology: Topology { required: Some(level), ..spec.topology }, ..spec }
}

/// Holds so many cards of a rack, four on a node as long as there are four.
fn hold(fleet: &mut Fleet, rack: u32, cards: u32) {
    for first in (0..cards).step_by(4) {
        let node = NodeId((rack - 1) * NODES + first / 4 + 1);
        let mut with = fleet.nodes[&node].clone();
        let held = (cards - first).min(4) as usize;
        with.spec.gpus.iter_mut().take(held).for_each(|gpu| gpu.withheld = Some("held".into()));
        fleet.put_node(with);
    }
    fleet.deliver(usize::MAX);
}

#[test]
fn a_gang_of_sixty_four_goes_onto_the_rack_with_fewest_cards_left_over() {
    let mut fleet = racks(3);
    hold(&mut fleet, 1, 2);
    hold(&mut fleet, 2, 8);
    let big = fleet.submit(within(TopologyLevel::Island, gang(16, 4)));
    fleet.settle();
    assert_eq!(racks_of(&fleet, big), [(2, 64)].into(), "64 are free there, 70 and 72 elsewhere");
    // Consecutive ranks fill its nodes.
    let nodes: Vec<u32> = fleet.allocation_of(big).expect("runs").tasks.iter().map(|task| task.node.0).collect();
    assert_eq!(nodes, (21..37).collect::<Vec<u32>>());
    // The next 64 find 70, where no more than 68 lie in fours.
    let next = fleet.submit(within(TopologyLevel::Island, gang(16, 4)));
    fleet.settle();
    assert_eq!(racks_of(&fleet, next), [(1, 64)].into());
}

#[test]
fn ranks_of_one_card_fill_node_after_node() {
    let mut fleet = racks(1);
    let job = fleet.submit(within(TopologyLevel::Island, gang(64, 1)));
    fleet.settle();
    let tasks = &fleet.allocation_of(job).expect("runs").tasks;
    let nodes: Vec<u32> = tasks.chunks(4).map(|four| four[0].node.0).collect();
    assert!(tasks.chunks(4).all(|four| four.iter().all(|task| task.node == four[0].node)));
    assert_eq!(nodes, (1..17).collect::<Vec<u32>>());
}

#[test]
fn an_island_holds_what_no_node_does_and_a_node_level_means_one_host() {
    let check = |level: TopologyLevel, tasks: u32, runs: bool| {
        let mut fleet = racks(2);
        let job = fleet.submit(within(level, gang(tasks, 4)));
        fleet.settle();
        assert_eq!(fleet.runs(job), runs, "{tasks} x 4 in one {level}");
    };
    check(TopologyLevel::Island, 18, true);
    check(TopologyLevel::Node, 1, true);
    check(TopologyLevel::Node, 2, false);
    check(TopologyLevel::Leaf, 18, true);
    check(TopologyLevel::Leaf, 19, false);
}

#[test]
fn seventy_three_cards_never_fit_an_island_and_say_what_is_largest() {
    let mut fleet = racks(2);
    hold(&mut fleet, 1, 12);
    hold(&mut fleet, 2, 32);
    let job = fleet.submit(within(TopologyLevel::Island, gang(16, 4)));
    fleet.settle();
    assert!(!fleet.runs(job));
    let said = crate::explain(&fleet.view, job, 0).expect("live");
    let text = said.reasons[0].text();
    // Withheld cards are not there, so an empty rack would not hold it either.
    assert!(text.contains("100 h100 are free in cell cell-1, at most 60 in one island"), "{text}");
    assert!(said.reasons[0].fix().contains("require topology"), "{}", said.reasons[0].fix());
    // With jobs in the way instead it is told which rack comes nearest.
    let mut fleet = racks(2);
    let small = [fleet.submit(gang(3, 4)), fleet.submit(within(TopologyLevel::Island, gang(16, 4)))];
    fleet.settle();
    assert!(small.iter().all(|job| fleet.runs(*job)));
    let job = fleet.submit(within(TopologyLevel::Island, gang(16, 4)));
    fleet.settle();
    let said = crate::explain(&fleet.view, job, 0).expect("live");
    let text = said.reasons[0].text();
    assert!(
        text.contains("68 h100 are free in cell cell-1, at most 60 in one island; 64 h100 needed in one island"),
        "{text}"
    );
    assert_eq!(said.reasons[0].figures()["largest_island"], "60");
    assert!(said.reasons[0].fix().contains("require topology block instead of island"), "{}", said.reasons[0].fix());
}

#[test]
fn segments_stand_on_racks_and_cross_their_nodes() {
    let mut fleet = racks(2);
    let topology = Topology { segment_tasks: Some(12), ..Topology::default() };
    // Two segments of 24 cards on 6 nodes each: a rack holds three of them.
    let two = fleet.submit(JobSpec { topology, ..gang(24, 2) });
    fleet.settle();
    assert_eq!(racks_of(&fleet, two), [(1, 48)].into());
    // Three more: one in what is left of the first rack, or all three in the second, which is the tighter level.
    let three = fleet.submit(JobSpec { topology, ..gang(36, 2) });
    fleet.settle();
    assert_eq!(racks_of(&fleet, three), [(2, 72)].into());
    // Segments of 32 cards fit twice on a rack, so four of them need two racks and each stands on one.
    let mut fleet = racks(2);
    let topology = Topology { segment_tasks: Some(8), ..Topology::default() };
    let four = fleet.submit(JobSpec { topology, ..gang(32, 4) });
    fleet.settle();
    assert_eq!(racks_of(&fleet, four), [(1, 64), (2, 64)].into());
    for segment in fleet.allocation_of(four).expect("runs").tasks.chunks(8) {
        assert_eq!(segment.iter().map(|task| rack_of(task.node)).collect::<BTreeSet<_>>().len(), 1);
    }
}

#[test]
fn large_racks_stay_whole_for_those_who_need_them() {
    let mut fleet = racks(1);
    let plain = Host::new("plain", GpuModel::H100, 8).at("b1", "l2");
    let plain = fleet.host(&plain);
    let few: Vec<JobId> = (1..=3).map(|cards| fleet.submit(gang(1, cards))).collect();
    fleet.settle();
    assert!(few.iter().all(|job| nodes_of(&fleet, *job) == [plain].into()), "the island of eight goes first");
    let all = fleet.submit(within(TopologyLevel::Island, gang(18, 4)));
    fleet.settle();
    assert_eq!(racks_of(&fleet, all), [(1, 72)].into());
}

#[test]
fn who_prefers_a_node_gets_one_before_an_island_of_several() {
    // Two islands of four on one host; a rack with eight free on two nodes.
    let mut fleet = racks(1);
    hold(&mut fleet, 1, 64);
    let halves = fleet.host(&Host { per_island: 4, ..Host::new("halves", GpuModel::H100, 8).at("b1", "l2") });
    let check = |fleet: &mut Fleet, preferred: Option<TopologyLevel>, expected: &[u32]| {
        let topology = Topology { preferred, ..Topology::default() };
        let job = fleet.submit(JobSpec { topology, ..gang(8, 1) });
        fleet.settle();
        assert_eq!(nodes_of(fleet, job), expected.iter().copied().map(NodeId).collect(), "{preferred:?}");
        fleet.end(job, false);
        fleet.settle();
    };
    check(&mut fleet, None, &[17, 18]);
    check(&mut fleet, Some(TopologyLevel::Node), &[halves.0]);
}

#[test]
fn a_name_is_a_domain_of_its_leaf_alone() {
    // Both racks call their domain the same; NVLink does not join the two.
    let mut fleet = racks(2);
    hold(&mut fleet, 1, 36);
    hold(&mut fleet, 2, 36);
    let job = fleet.submit(within(TopologyLevel::Island, gang(10, 4)));
    fleet.settle();
    assert!(!fleet.runs(job));
    let nine = fleet.submit(within(TopologyLevel::Island, gang(9, 4)));
    fleet.settle();
    assert_eq!(racks_of(&fleet, nine).len(), 1);
}
