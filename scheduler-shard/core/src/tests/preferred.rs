//! The level that a gang prefers is tried first, whatever it asks for.

use super::fleet::*;
use muster_model::*;
use std::collections::BTreeSet;

fn preferring(level: Option<TopologyLevel>, tasks: u32, percent: u8) -> JobSpec {
    let topology = Topology { preferred: level, ..Topology::default() };
    JobSpec { tasks, topology, ..mps(percent, 1_000) }
}

fn names(fleet: &Fleet, job: JobId) -> BTreeSet<String> {
    let held = fleet.allocations.values().find(|held| held.job == job).expect("it runs");
    held.tasks.iter().map(|task| fleet.nodes[&task.node].spec.name.clone()).collect()
}

/// Two cards are shared already, far apart; two are empty, close together. Shares go to the fullest cards unless a level is preferred.
#[test]
fn shares_stand_as_close_as_they_prefer() {
    for (level, places) in [
        (TopologyLevel::Leaf, [("b1", "l1"), ("b2", "l2"), ("b3", "l3"), ("b3", "l3")]),
        (TopologyLevel::Block, [("b1", "l1"), ("b2", "l2"), ("b3", "l3"), ("b3", "l4")]),
    ] {
        let names_of = ["a", "b", "c", "d"];
        let hosts = names_of
            .into_iter()
            .zip(places)
            .map(|(name, (block, leaf))| Host::new(name, GpuModel::H100, 1).at(block, leaf));
        let mut fleet = Fleet::new(hosts);
        // The first two cards are begun.
        for closed in [[2, 3, 4], [1, 3, 4]] {
            let drain = |fleet: &mut Fleet, drained| {
                for id in closed {
                    let node = fleet.nodes[&NodeId(id)].clone();
                    fleet.put_node(Node { drained, ..node });
                }
            };
            drain(&mut fleet, true);
            fleet.submit(mps(40, 1_000));
            fleet.settle();
            drain(&mut fleet, false);
        }
        let anyhow = fleet.submit(preferring(None, 2, 60));
        fleet.settle();
        assert_eq!(names(&fleet, anyhow), ["a", "b"].map(str::to_owned).into(), "{level}");
        fleet.end(anyhow, false);
        fleet.settle();
        let close = fleet.submit(preferring(Some(level), 2, 60));
        fleet.settle();
        assert_eq!(names(&fleet, close), ["c", "d"].map(str::to_owned).into(), "{level}");
        // What is preferred is not required.
        let last = fleet.submit(preferring(Some(level), 2, 60));
        fleet.settle();
        assert_eq!(names(&fleet, last), ["a", "b"].map(str::to_owned).into(), "{level}");
    }
}

/// Whole cards: wherever one domain of the level holds the gang, it stands in one.
#[test]
fn gangs_of_whole_cards_stand_as_close_as_they_prefer() {
    use TopologyLevel::{Block, Island, Leaf, Node};
    let host = |name, block, leaf| Host { per_island: 2, ..Host::new(name, GpuModel::H100, 4).at(block, leaf) };
    for (level, tasks, held) in [(Island, 2, 1), (Node, 4, 1), (Leaf, 8, 2), (Block, 12, 3)] {
        let mut fleet =
            Fleet::new([host("a", "b1", "l1"), host("b", "b2", "l2"), host("c", "b2", "l2"), host("d", "b2", "l3")]);
        let topology = Topology { preferred: Some(level), ..Topology::default() };
        let job = fleet.submit(JobSpec { topology, ..gang(tasks, 1) });
        fleet.settle();
        assert_eq!(names(&fleet, job).len(), held, "{level}");
        let allocation = fleet.allocations.values().find(|held| held.job == job).expect("it runs");
        let ground: Vec<&muster_model::Node> = allocation.tasks.iter().map(|task| &fleet.nodes[&task.node]).collect();
        let required = Topology { required: Some(level), ..Topology::default() };
        assert_eq!(closeness::check(&required, NumaPolicy::None, &allocation.tasks, &ground), Ok(()), "{level}");
    }
}
