//! Q4: on small random fleets, an exhaustive search never finds a place of a strictly better level or a tighter one for a gang than the
//! engine's; gangs that fit one island stand on one.
//!
//! The search here is written from the rules alone: it knows nodes and cards, not states, groups or indexes.

use super::fleet::*;
use crate::{Bounds, Proposal, plan};
use muster_model::capacity::NodeUse;
use muster_model::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A small fleet: nodes in leaves and blocks, islands of several sizes, some cards held.
#[derive(Clone, Debug)]
struct Ground {
    /// Per node: block, leaf, cards, cards per island.
    nodes: Vec<(usize, usize, u16, u16)>,
    /// Cards held by one-card jobs, as picks into all cards.
    held: Vec<(prop::sample::Index, prop::sample::Index)>,
}

fn ground() -> impl Strategy<Value = Ground> {
    let node =
        (0..2_usize, 0..3_usize, prop::sample::select(vec![2_u16, 4, 8]), prop::sample::select(vec![1_u16, 2, 4, 8]));
    let held = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    (prop::collection::vec(node, 1..9), prop::collection::vec(held, 0..30))
        .prop_map(|(nodes, held)| Ground { nodes, held })
}

const BLOCKS: [&str; 2] = ["b1", "b2"];
const LEAVES: [&str; 3] = ["l1", "l2", "l3"];
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Builds the fleet and holds the cards without asking the engine.
fn build(ground: &Ground) -> Fleet {
    let host = |(name, (block, leaf, gpus, per_island)): (usize, &(usize, usize, u16, u16))| Host {
        per_island: *per_island,
        ..Host::new(NAMES[name], GpuModel::H100, *gpus).at(BLOCKS[*block], LEAVES[*leaf])
    };
    let mut fleet = Fleet::new(ground.nodes.iter().enumerate().map(host));
    let mut taken = BTreeSet::new();
    for (number, (node, gpu)) in ground.held.iter().enumerate() {
        let at = node.index(ground.nodes.len());
        let gpu = gpu.index(usize::from(ground.nodes[at].2)) as u16;
        if !taken.insert((at, gpu)) {
            continue;
        }
        let holder = AllocationId(10_000 + number as u64);
        fleet.view.apply(&Change::put(Object::Allocation(Allocation {
            id: holder,
            job: JobId(holder.0),
            attempt: Attempt(1),
            tenant: TenantId(1),
            cell: CELL,
            cell_epoch: Epoch(1),
            model: Some(GpuModel::H100),
            cpu_milli: 0,
            memory_mib: 0,
            charge: ResourceVec::of_gpu(GpuModel::H100, GpuUnits::CARD),
            tasks: vec![TaskPlacement {
                node: NodeId(at as u32 + 1),
                devices: vec![DeviceHold { gpu, mode: HoldMode::Whole }],
            }],
            task_states: vec![TaskState::Running],
            node_epochs: BTreeMap::new(),
            state: AllocationState::Active,
            bound_ms: 0,
        })));
    }
    fleet
}

/// How close a gang stands: the level (island 0 … cell 5), whether a task crosses islands, then what is left free of the island and of what
/// it stands in.
type Closeness = (usize, bool, u64, u64);

fn islands(there: &NodeUse) -> BTreeMap<u8, u64> {
    let mut free: BTreeMap<u8, u64> = BTreeMap::new();
    for (card, gpu) in there.cards.iter().zip(&there.node.spec.gpus) {
        *free.entry(gpu.island).or_default() += u64::from(*card == capacity::CardUse::Free);
    }
    free
}

fn sizes(there: &NodeUse) -> u64 {
    let mut sizes: BTreeMap<u8, u64> = BTreeMap::new();
    there.node.spec.gpus.iter().for_each(|gpu| *sizes.entry(gpu.island).or_default() += 1);
    sizes.into_values().max().unwrap_or(0)
}

/// How units may lie on a node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// Inside islands.
    Inside,
    Anyhow,
    /// Inside islands, unless no island of the node is large enough.
    Segment,
}

/// Units of `each` cards that a node holds.
fn units(there: &NodeUse, each: u64, lie: Lie) -> u64 {
    let islands = islands(there);
    if lie == Lie::Inside || lie == Lie::Segment && sizes(there) >= each {
        return islands.values().map(|free| free / each).sum();
    }
    islands.values().sum::<u64>() / each
}

fn domain(place: &Place, level: usize) -> String {
    match level {
        2 => place.domain(TopologyLevel::Leaf),
        3 => place.domain(TopologyLevel::Block),
        4 => place.domain(TopologyLevel::Region),
        _ => String::new(),
    }
}

/// The closest that any placement of `count` units of `each` cards stands, looking at every island, node and domain.
fn closest(fleet: &Fleet, count: u64, each: u64, lies: &[Lie]) -> Option<Closeness> {
    lies.iter().filter_map(|lie| closest_so(fleet, count, each, *lie)).min()
}

fn closest_so(fleet: &Fleet, count: u64, each: u64, lie: Lie) -> Option<Closeness> {
    let crosses = lie == Lie::Anyhow;
    let nodes: Vec<&NodeUse> = fleet.view.capacity().nodes().values().collect();
    let needed = count * each;
    let free = |there: &NodeUse| islands(there).values().sum::<u64>();
    let on_island = nodes.iter().flat_map(|there| {
        let left = free(there).saturating_sub(needed);
        islands(there).into_values().filter(|free| *free >= needed).map(move |free| (0, false, free - needed, left))
    });
    let on_node = nodes
        .iter()
        .filter(|there| units(there, each, lie) >= count)
        .map(|there| (1, crosses, 0, free(there) - needed));
    let in_domains = (2..6).flat_map(|level| {
        let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for there in &nodes {
            let sum = sums.entry(domain(&there.node.spec.place, level)).or_default();
            *sum = (sum.0 + free(there), sum.1 + units(there, each, lie));
        }
        sums.into_values()
            .filter(|(_, held)| *held >= count)
            .map(|(free, _)| (level, crosses, 0, free - needed))
            .collect::<Vec<_>>()
    });
    on_island.chain(on_node).chain(in_domains).min()
}

/// How close the engine's placement stands.
fn measured(fleet: &Fleet, tasks: &[TaskPlacement], segments: bool) -> Closeness {
    let nodes = fleet.view.capacity().nodes();
    let island =
        |task: &TaskPlacement, hold: &DeviceHold| nodes[&task.node].node.spec.gpus[usize::from(hold.gpu)].island;
    let lies_across =
        |task: &TaskPlacement| task.devices.iter().map(|hold| island(task, hold)).collect::<BTreeSet<u8>>().len() > 1;
    let crosses = !segments && tasks.iter().any(lies_across);
    let on: BTreeSet<NodeId> = tasks.iter().map(|task| task.node).collect();
    let free = |there: &NodeUse| islands(there).values().sum::<u64>();
    // The view has charged the proposal already: what is free is what is left.
    if let [node] = on.iter().copied().collect::<Vec<_>>()[..] {
        let there = &nodes[&node];
        let gpus = tasks.iter().flat_map(|task| &task.devices).map(|hold| &there.node.spec.gpus[usize::from(hold.gpu)]);
        let used: BTreeSet<u8> = gpus.map(|gpu| gpu.island).collect();
        if let [island] = used.iter().copied().collect::<Vec<_>>()[..] {
            return (0, false, islands(there)[&island], free(there));
        }
        return (1, crosses, 0, free(there));
    }
    let all = |level: usize| on.iter().map(|id| domain(&nodes[id].node.spec.place, level)).collect::<BTreeSet<_>>();
    let level = (2..6).find(|level| all(*level).len() == 1).expect("the cell holds everything");
    let here = all(level);
    let left = nodes.values().filter(|there| here.contains(&domain(&there.node.spec.place, level))).map(free).sum();
    (level, crosses, 0, left)
}

fn bind(fleet: &mut Fleet, spec: JobSpec) -> Option<Vec<TaskPlacement>> {
    fleet.submit(spec);
    fleet.deliver(usize::MAX);
    match plan(&mut fleet.view, CELL, &Bounds::default(), 0).proposals.pop() {
        Some(Proposal::Bind(binding)) => Some(binding.tasks),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// A gang stands at the tightest level there is, in the tightest place of it; what finds no place has none; and a gang is whole.
    #[test]
    fn no_search_finds_a_closer_place(ground in ground(), tasks in 1..13_u32, each in 1..9_u32) {
        let mut fleet = build(&ground);
        let best = closest(&fleet, u64::from(tasks), u64::from(each), &[Lie::Inside, Lie::Anyhow]);
        let got = bind(&mut fleet, gang(tasks, each));
        prop_assert!(got.as_ref().is_none_or(|got| got.len() == tasks as usize));
        prop_assert_eq!(got.map(|got| measured(&fleet, &got, false)), best);
    }

    /// The same for segments, each of which stands on one island (one node, where the node has none so large).
    #[test]
    fn segments_stand_together_in_the_closest_place(ground in ground(), count in 1..5_u32, segment in 2..5_u32, each in 1..3_u32) {
        let mut fleet = build(&ground);
        let best = closest(&fleet, u64::from(count), u64::from(segment * each), &[Lie::Segment]);
        let topology = Topology { segment_tasks: Some(segment), ..Topology::default() };
        let got = bind(&mut fleet, JobSpec { topology, ..gang(count * segment, each) });
        if let Some(tasks) = &got {
            let nodes = fleet.view.capacity().nodes();
            let stands: Vec<&Node> = tasks.iter().map(|task| &*nodes[&task.node].node).collect();
            prop_assert_eq!(closeness::check(&topology, NumaPolicy::None, tasks, &stands), Ok(()));
        }
        prop_assert_eq!(got.map(|got| measured(&fleet, &got, true)), best);
    }

    /// Eight cards or fewer stand on one island whenever some island has them.
    #[test]
    fn small_gangs_stand_on_one_island(ground in ground(), tasks in 1..9_u32) {
        let mut fleet = build(&ground);
        let nodes = fleet.view.capacity().nodes().values();
        let exists = nodes.flat_map(|there| islands(there).into_values()).any(|free| free >= u64::from(tasks));
        let got = bind(&mut fleet, gang(tasks, 1));
        prop_assert!(!exists || got.is_some_and(|got| measured(&fleet, &got, false).0 == 0));
    }

    /// Inside its domain a gang uses as few nodes as any choice of them could.
    #[test]
    fn as_few_nodes_as_will_do(ground in ground(), tasks in 2..13_u32, each in 1..5_u32) {
        let mut fleet = build(&ground);
        let held: BTreeMap<NodeId, u64> =
            fleet.view.capacity().nodes().iter().map(|(id, there)| (*id, units(there, u64::from(each), Lie::Anyhow))).collect();
        let Some(got) = bind(&mut fleet, gang(tasks, each)) else { return Ok(()) };
        let nodes = fleet.view.capacity().nodes();
        let (level, crosses, ..) = measured(&fleet, &got, false);
        // Wider than a leaf, leaves come first: fewest leaves, not fewest nodes.
        if level == 2 && (crosses || each == 1) {
            let here = domain(&nodes[&got[0].node].node.spec.place, level);
            let inside = nodes.values().filter(|there| domain(&there.node.spec.place, level) == here);
            let mut most: Vec<u64> = inside.map(|there| held[&there.node.id]).collect();
            most.sort_unstable_by(|a, b| b.cmp(a));
            let mut left = u64::from(tasks);
            let fewest = most.iter().take_while(|held| { let more = left > 0; left = left.saturating_sub(**held); more }).count();
            let used: BTreeSet<NodeId> = got.iter().map(|task| task.node).collect();
            prop_assert_eq!(used.len(), fewest);
        }
    }

    /// A task's cards share a NUMA node where its job insists, and what finds no place has none.
    #[test]
    fn numa_policies_are_kept(ground in ground(), tasks in 1..5_u32, each in 1..5_u32, split in 1..5_u16) {
        let mut fleet = build(&ground);
        for mut node in fleet.nodes.values().cloned().collect::<Vec<_>>() {
            node.spec.gpus.iter_mut().enumerate().for_each(|(gpu, card)| card.numa = (gpu as u16 / split) as u8);
            fleet.put_node(node);
        }
        fleet.deliver(usize::MAX);
        let on_numa = |there: &NodeUse| {
            let mut free: BTreeMap<u8, u64> = BTreeMap::new();
            for (card, gpu) in there.cards.iter().zip(&there.node.spec.gpus) {
                *free.entry(gpu.numa).or_default() += u64::from(*card == capacity::CardUse::Free);
            }
            free.into_values().map(|free| free / u64::from(each)).sum::<u64>()
        };
        let room: u64 = fleet.view.capacity().nodes().values().map(on_numa).sum();
        let got = bind(&mut fleet, JobSpec { numa: NumaPolicy::SingleNumaNode, ..gang(tasks, each) });
        if let Some(tasks) = &got {
            let nodes = fleet.view.capacity().nodes();
            for task in tasks {
                let node = &nodes[&task.node].node;
                let on: BTreeSet<u8> = task.devices.iter().map(|hold| node.spec.gpus[usize::from(hold.gpu)].numa).collect();
                prop_assert_eq!(on.len(), 1);
            }
        }
        // One-card tasks lie well anywhere; larger ones may lose to the order in which islands are opened, but never stand badly.
        prop_assert!(each > 1 || got.is_some() == (room >= u64::from(tasks)));
    }
}
