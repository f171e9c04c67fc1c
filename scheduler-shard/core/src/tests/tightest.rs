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
struct SmallFleet {
    /// Per node: block, leaf, cards, cards per island, NVLink domain (0: none; then its NVLink ends at the host).
    nodes: Vec<(usize, usize, u16, u16, usize)>,
    /// Cards held by one-card jobs, as picks into all cards.
    held: Vec<(prop::sample::Index, prop::sample::Index)>,
}

fn ground() -> impl Strategy<Value = SmallFleet> {
    let cards = prop::sample::select(vec![2_u16, 4, 8]);
    let node = (0..2_usize, 0..3_usize, cards, prop::sample::select(vec![1_u16, 2, 4, 8]), 0..4_usize);
    let held = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    (prop::collection::vec(node, 1..9), prop::collection::vec(held, 0..30))
        .prop_map(|(nodes, held)| SmallFleet { nodes, held })
}

const BLOCKS: [&str; 2] = ["b1", "b2"];
const LEAVES: [&str; 3] = ["l1", "l2", "l3"];
/// Half of the nodes lie in no domain.
const DOMAINS: [&str; 4] = ["", "", "x", "y"];
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// A tenant beside the one that asks.
const OTHER: TenantId = TenantId(2);

/// Builds the fleet and holds the cards without asking the engine.
fn build(ground: &SmallFleet) -> Fleet {
    build_for(ground, |_| TenantId(1))
}

/// The same with the cards held by whom it says.
fn build_for(ground: &SmallFleet, holder_of: impl Fn(usize) -> TenantId) -> Fleet {
    let host = |(name, (block, leaf, gpus, per_island, nvlink)): (usize, &(usize, usize, u16, u16, usize))| Host {
        per_island: *per_island,
        nvlink: DOMAINS[*nvlink],
        ..Host::new(NAMES[name], GpuModel::H100, *gpus).at(BLOCKS[*block], LEAVES[*leaf])
    };
    let mut fleet = Fleet::new(ground.nodes.iter().enumerate().map(host));
    assert_eq!(fleet.tenant("other", |_| {}), OTHER);
    let mut taken = BTreeSet::new();
    for (number, (node, gpu)) in ground.held.iter().enumerate() {
        let at = node.index(ground.nodes.len());
        let gpu = gpu.index(usize::from(ground.nodes[at].2)) as u16;
        if !taken.insert((at, gpu)) {
            continue;
        }
        let holder = AllocationId(10_000 + number as u64);
        let devices = vec![DeviceHold { gpu, mode: HoldMode::Whole }];
        let task = TaskPlacement { node: NodeId(at as u32 + 1), devices };
        fleet.view.apply(&Change::put(Object::Allocation(Allocation {
            model: Some(GpuModel::H100),
            cpu_milli: 0,
            memory_mib: 0,
            charge: ResourceVec::of_gpu(GpuModel::H100, GpuUnits::CARD),
            ..Allocation::usual(holder, JobId(holder.0), holder_of(number), vec![task])
        })));
    }
    fleet
}

/// How close a gang stands: the level (one island of a node, an NVLink domain of several nodes, node, leaf, block, region, cell), whether a
/// task crosses islands, then what is left free of the island and of what it stands in.
type Closeness = (Level, bool, u64, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    NodeIsland,
    Island,
    Node,
    Leaf,
    Block,
    Region,
    Cell,
}

impl Level {
    const WIDE: [Level; 4] = [Level::Leaf, Level::Block, Level::Region, Level::Cell];
}

/// What a gang asks for, in units: tasks, or segments.
#[derive(Clone, Copy, Debug)]
struct Gang {
    count: u64,
    /// Tasks in each unit.
    tasks: u64,
    /// Cards of each task.
    cards: u64,
    topology: Topology,
}

impl Gang {
    fn of(spec: &JobSpec) -> Self {
        let tasks = spec.topology.segment_tasks.unwrap_or(1);
        Gang {
            count: u64::from(spec.tasks / tasks),
            tasks: u64::from(tasks),
            cards: u64::from(spec.request.devices.cards()),
            topology: spec.topology,
        }
    }

    fn each(&self) -> u64 {
        self.tasks * self.cards
    }

    fn needed(&self) -> u64 {
        self.count * self.each()
    }

    fn segmented(&self) -> bool {
        self.topology.segment_tasks.is_some()
    }
}

fn islands(there: &NodeUse) -> BTreeMap<u8, u64> {
    let mut free: BTreeMap<u8, u64> = BTreeMap::new();
    for (card, gpu) in there.cards.iter().zip(&there.node.spec.gpus) {
        *free.entry(gpu.island).or_default() += u64::from(*card == capacity::CardUse::Free);
    }
    free
}

fn free(there: &NodeUse) -> u64 {
    islands(there).values().sum()
}

fn spans(there: &NodeUse) -> bool {
    !there.node.spec.place.nvlink_domain.is_empty()
}

fn sizes(there: &NodeUse) -> u64 {
    let mut sizes: BTreeMap<u8, u64> = BTreeMap::new();
    there.node.spec.gpus.iter().for_each(|gpu| *sizes.entry(gpu.island).or_default() += 1);
    sizes.into_values().max().unwrap_or(0)
}

/// Units of `each` cards that a node holds by itself, inside islands; or anyhow, where tasks may cross or no island could hold a segment.
fn units(there: &NodeUse, each: u64, anyhow: bool) -> u64 {
    if anyhow { free(there) / each } else { islands(there).values().map(|free| free / each).sum() }
}

fn domain(place: &Place, level: Level) -> String {
    let place_of = |level| place.domain(level);
    match level {
        Level::Leaf => place_of(TopologyLevel::Leaf),
        Level::Block => place_of(TopologyLevel::Block),
        Level::Region => place_of(TopologyLevel::Region),
        _ => String::new(),
    }
}

/// Nodes by their domain of a level.
fn by<'a>(nodes: &[&'a NodeUse], key: impl Fn(&NodeUse) -> String) -> BTreeMap<String, Vec<&'a NodeUse>> {
    let mut groups: BTreeMap<String, Vec<&NodeUse>> = BTreeMap::new();
    nodes.iter().for_each(|there| groups.entry(key(there)).or_default().push(there));
    groups
}

/// What holds units for itself: an NVLink domain, or a node outside of any.
fn holder(there: &NodeUse) -> String {
    there.node.spec.place.spanning_island().unwrap_or_else(|| there.node.id.to_string())
}

/// Units that these nodes hold together, when each domain that they are spread over has at most so many.
fn held(nodes: &[&NodeUse], gang: &Gang, crossing: bool, cap: Option<(TopologyLevel, u64)>) -> u64 {
    let one = |there: &NodeUse| {
        let too_large = gang.segmented() && sizes(there) < gang.each();
        units(there, gang.each(), crossing || too_large)
    };
    let Some((level, most)) = cap else {
        // A segment may stand on several nodes of one NVLink domain, a task on one node.
        let together = |(_, nodes): (String, Vec<&NodeUse>)| match nodes[..] {
            [first, ..] if gang.segmented() && spans(first) => {
                nodes.iter().map(|there| free(there) / gang.cards).sum::<u64>() / gang.tasks
            }
            _ => nodes.iter().map(|there| one(there)).sum(),
        };
        return by(nodes, holder).into_iter().map(together).sum();
    };
    let groups = by(nodes, |there| closeness::spread_domain(&there.node, level));
    groups.into_values().map(|nodes| nodes.iter().map(|there| one(there)).sum::<u64>().min(most)).sum()
}

/// The closest that any placement of the gang stands, looking at every island, node and domain. With `cap`, no domain of the level has
/// more tasks.
fn closest(fleet: &Fleet, gang: &Gang, cap: Option<(TopologyLevel, u64)>) -> Option<Closeness> {
    let nodes: Vec<&NodeUse> = fleet.view.capacity().nodes().values().collect();
    let needed = gang.needed();
    let mut found: Vec<Closeness> = Vec::new();
    let spread_out = |level: TopologyLevel| cap.is_some_and(|(over, most)| over >= level && gang.count > most);
    for there in &nodes {
        if spread_out(TopologyLevel::Node) {
            break;
        }
        for island in islands(there).into_values().filter(|free| *free >= needed) {
            let near = nodes.iter().filter(|other| spans(there) && other.node.spec.place == there.node.spec.place);
            let island = if spans(there) { near.map(|other| free(other)).sum() } else { island };
            found.push((Level::NodeIsland, false, island - needed, free(there) - needed));
        }
        for crosses in [false, true] {
            let alone = [*there];
            let enough = if gang.segmented() && spans(there) {
                free(there) / gang.each() >= gang.count
            } else {
                held(&alone, gang, crosses, None) >= gang.count
            };
            if enough && !(crosses && gang.segmented()) {
                found.push((Level::Node, crosses, 0, free(there) - needed));
            }
        }
    }
    let spanning: Vec<&NodeUse> = nodes.iter().copied().filter(|there| spans(there)).collect();
    for nodes in by(&spanning, holder).into_values() {
        let cap = cap.filter(|(level, _)| *level == TopologyLevel::Node);
        let left = nodes.iter().map(|there| free(there)).sum::<u64>();
        if !(spread_out(TopologyLevel::Leaf)) && held(&nodes, gang, false, cap) >= gang.count {
            found.push((Level::Island, false, left - needed, left - needed));
        }
    }
    for level in Level::WIDE {
        for nodes in by(&nodes, |there| domain(&there.node.spec.place, level)).into_values() {
            for crosses in [false, true].into_iter().filter(|crosses| !(*crosses && gang.segmented())) {
                if held(&nodes, gang, crosses, cap) >= gang.count {
                    found.push((level, crosses, 0, nodes.iter().map(|there| free(there)).sum::<u64>() - needed));
                }
            }
        }
    }
    let allowed = |level: Level| {
        let near = [Level::NodeIsland, Level::Island, Level::Node];
        match gang.topology.required {
            None => true,
            Some(TopologyLevel::Island) => level <= Level::Island,
            Some(TopologyLevel::Node) => level != Level::Island && level <= Level::Node,
            Some(TopologyLevel::Leaf) => level <= Level::Leaf,
            Some(TopologyLevel::Block) => level <= Level::Block,
            Some(TopologyLevel::Region) => near.contains(&level) || level <= Level::Region,
        }
    };
    found.into_iter().filter(|(level, ..)| allowed(*level)).min_by_key(|found| rank(gang, *found))
}

/// A gang that prefers one node takes it before an island of several nodes.
fn rank(gang: &Gang, found: Closeness) -> (usize, Closeness) {
    let prefers_node = gang.topology.preferred == Some(TopologyLevel::Node);
    let swapped = match found.0 {
        Level::Node if prefers_node => 1,
        Level::Island if prefers_node => 2,
        level => level as usize,
    };
    (swapped, found)
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
    let place = |id: &NodeId| nodes[id].node.spec.place.clone();
    let places: BTreeSet<Place> = on.iter().map(place).collect();
    let near = |place: &Place| {
        let here = nodes.values().filter(|there| there.node.spec.place == *place);
        here.map(free).sum::<u64>()
    };
    // The view has charged the proposal already: what is free is what is left.
    if let [node] = on.iter().copied().collect::<Vec<_>>()[..] {
        let there = &nodes[&node];
        let gpus = tasks.iter().flat_map(|task| &task.devices).map(|hold| &there.node.spec.gpus[usize::from(hold.gpu)]);
        let used: BTreeSet<u8> = gpus.map(|gpu| gpu.island).collect();
        if let [island] = used.iter().copied().collect::<Vec<_>>()[..] {
            let left = if spans(there) { near(&there.node.spec.place) } else { islands(there)[&island] };
            return (Level::NodeIsland, false, left, free(there));
        }
        return (Level::Node, crosses, 0, free(there));
    }
    if let [place] = &places.iter().collect::<Vec<_>>()[..]
        && !place.nvlink_domain.is_empty()
    {
        return (Level::Island, false, near(place), near(place));
    }
    let all = |level: Level| on.iter().map(|id| domain(&nodes[id].node.spec.place, level)).collect::<BTreeSet<_>>();
    let level = Level::WIDE.into_iter().find(|level| all(*level).len() == 1).expect("the cell holds everything");
    let here = all(level);
    let left = nodes.values().filter(|there| here.contains(&domain(&there.node.spec.place, level))).map(free).sum();
    (level, crosses, 0, left)
}

/// The level that a gang requires, and one inside it that it prefers.
fn levels() -> impl Strategy<Value = Topology> {
    let level = || prop::option::of(prop::sample::select(TopologyLevel::ALL.to_vec()));
    (level(), level()).prop_map(|(one, other)| {
        let (required, preferred) = match (one, other) {
            (Some(one), Some(other)) => (Some(one.max(other)), Some(one.min(other))),
            either => either,
        };
        Topology { required, preferred, ..Topology::default() }
    })
}

/// Whether the control plane would find the placement as it was asked for.
fn proved(fleet: &Fleet, topology: &Topology, tasks: &[TaskPlacement]) -> Result<(), closeness::TooFar> {
    let nodes = fleet.view.capacity().nodes();
    let stands: Vec<&Node> = tasks.iter().map(|task| &*nodes[&task.node].node).collect();
    closeness::check(topology, NumaPolicy::None, tasks, &stands)
}

/// The nodes on which another tenant holds something.
fn taken_by_others(fleet: &Fleet) -> BTreeSet<NodeId> {
    let others = fleet.view.allocations.values().filter(|held| held.tenant == OTHER);
    others.flat_map(|held| held.tasks.iter().map(|task| task.node)).collect()
}

/// The most tasks that the placement has in one domain of `level`.
fn crowd(fleet: &Fleet, tasks: &[TaskPlacement], level: TopologyLevel) -> u64 {
    let nodes = fleet.view.capacity().nodes();
    let mut crowds: BTreeMap<String, u64> = BTreeMap::new();
    for task in tasks {
        *crowds.entry(closeness::spread_domain(&nodes[&task.node].node, level)).or_default() += 1;
    }
    crowds.into_values().max().unwrap_or(0)
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

    /// A gang stands at the tightest level there is and that it allows, in the tightest place of it; what finds no place has none; and a
    /// gang is whole.
    #[test]
    fn no_search_finds_a_closer_place(ground in ground(), tasks in 1..13_u32, each in 1..9_u32, topology in levels()) {
        let mut fleet = build(&ground);
        // More than a node or an island can have is refused at the door.
        prop_assume!(tasks * each <= 72);
        let spec = JobSpec { topology, ..gang(tasks, each) };
        let best = closest(&fleet, &Gang::of(&spec), None);
        let got = bind(&mut fleet, spec);
        prop_assert!(got.as_ref().is_none_or(|got| got.len() == tasks as usize));
        if let Some(got) = &got {
            prop_assert_eq!(proved(&fleet, &topology, got), Ok(()));
        }
        prop_assert_eq!(got.map(|got| measured(&fleet, &got, false)), best);
    }

    /// The same for segments, each of which stands on one island, of one node or several (on one node, where the node has none so large).
    #[test]
    fn segments_stand_together_in_the_closest_place(
        ground in ground(), count in 1..5_u32, segment in 2..7_u32, each in 1..3_u32, levels in levels(),
    ) {
        let mut fleet = build(&ground);
        let topology = Topology { segment_tasks: Some(segment), ..levels };
        let spec = JobSpec { topology, ..gang(count * segment, each) };
        let best = closest(&fleet, &Gang::of(&spec), None);
        let got = bind(&mut fleet, spec);
        if let Some(got) = &got {
            prop_assert_eq!(proved(&fleet, &topology, got), Ok(()));
        }
        prop_assert_eq!(got.map(|got| measured(&fleet, &got, true)), best);
    }

    /// Tasks that must stand apart do, and as close together as that lets them.
    #[test]
    fn what_is_spread_stands_in_the_closest_place(
        ground in ground(), tasks in 1..9_u32, each in 1..5_u32, over in 1..5_usize, tasks_max in 1..4_u32, wide in levels(),
    ) {
        let mut fleet = build(&ground);
        let level = TopologyLevel::ALL[over];
        // What is required is wider than what is spread over.
        let required = wide.required.filter(|required| *required > level || (*required, level) == (TopologyLevel::Island, TopologyLevel::Node));
        let spread = Some(Spread { level, tasks_max, required: true });
        let topology = Topology { required, preferred: wide.preferred.filter(|_| required == wide.required), segment_tasks: None, spread };
        let spec = JobSpec { topology, ..gang(tasks, each) };
        let best = closest(&fleet, &Gang::of(&spec), Some((level, u64::from(tasks_max))));
        let got = bind(&mut fleet, spec);
        if let Some(got) = &got {
            prop_assert_eq!(proved(&fleet, &topology, got), Ok(()));
        }
        prop_assert_eq!(got.map(|got| measured(&fleet, &got, false)), best);
    }

    /// A preferred spread leaves as few tasks in one domain as any placement does, and never keeps a gang waiting.
    #[test]
    fn a_preferred_spread_is_as_wide_as_there_is_room(
        ground in ground(), tasks in 1..9_u32, each in 1..5_u32, over in 1..5_usize, tasks_max in 1..4_u32,
    ) {
        let mut fleet = build(&ground);
        let level = TopologyLevel::ALL[over];
        let spread = Some(Spread { level, tasks_max, required: false });
        let spec = JobSpec { topology: Topology { spread, ..Topology::default() }, ..gang(tasks, each) };
        let gang = Gang::of(&spec);
        let nodes: Vec<&NodeUse> = fleet.view.capacity().nodes().values().collect();
        let fits = |most: &u64| held(&nodes, &gang, true, Some((level, *most))) >= gang.count;
        let fewest = (u64::from(tasks_max)..=u64::from(tasks.max(tasks_max))).find(fits);
        let got = bind(&mut fleet, spec);
        prop_assert_eq!(got.is_some(), fewest.is_some());
        if let (Some(got), Some(fewest)) = (got, fewest) {
            prop_assert!(crowd(&fleet, &got, level) <= fewest, "{} in one, {fewest} would do", crowd(&fleet, &got, level));
        }
    }

    /// Work that suffers from neighbours stands where no other tenant is, if such a node holds it on one island.
    #[test]
    fn latency_critical_work_stands_alone_where_it_can(ground in ground(), own in any::<u32>(), tasks in 1..5_u32) {
        let mut fleet = build_for(&ground, |number| if own & 1 << (number % 32) == 0 { OTHER } else { TenantId(1) });
        let taken = taken_by_others(&fleet);
        let others = |there: &NodeUse| taken.contains(&there.node.id);
        let nodes = fleet.view.capacity().nodes().values();
        let quiet: Vec<u64> = nodes.filter(|there| !others(there)).flat_map(|there| {
            let near = fleet.view.capacity().near(&there.node).map(|id| free(&fleet.view.capacity().nodes()[&id])).sum::<u64>();
            let holding = islands(there).into_values().filter(|free| *free >= u64::from(tasks));
            holding.map(move |free| if near > 0 { near } else { free }).collect::<Vec<_>>()
        }).collect();
        let got = bind(&mut fleet, JobSpec { class: WorkloadClass::Inference, ..gang(tasks, 1) });
        let alone = got.as_ref().is_some_and(|got| {
            let there = &fleet.view.capacity().nodes()[&got[0].node];
            !others(there) && got.iter().all(|task| task.node == got[0].node)
        });
        // And of those in the smallest island that holds it.
        if let Some(smallest) = quiet.into_iter().min() {
            prop_assert!(alone);
            let left = got.map(|got| measured(&fleet, &got, false).2);
            prop_assert_eq!(left, Some(smallest - u64::from(tasks)));
        }
    }

    /// Tenants that are kept apart share nothing that they may not, and the one waits only when there is no other place.
    #[test]
    fn who_is_kept_apart_shares_nothing(
        ground in ground(), theirs in any::<u32>(), tasks in 1..9_u32,
        level in prop::sample::select(vec![AntiAffinityLevel::Card, AntiAffinityLevel::Node, AntiAffinityLevel::Island]), said_by_us in any::<bool>(),
    ) {
        let mut fleet = build_for(&ground, |number| if theirs & 1 << (number % 32) == 0 { TenantId(1) } else { OTHER });
        let (who, whom) = if said_by_us { ("org", "other") } else { ("other", "org") };
        fleet.tenant(who, |tenant| tenant.anti_affinity = vec![AntiAffinity { tenant: whom.into(), level }]);
        let ledger = fleet.view.capacity();
        let taken = taken_by_others(&fleet);
        let there = |there: &NodeUse| taken.contains(&there.node.id);
        let barred = |at: &NodeUse| match level {
            AntiAffinityLevel::Card => false,
            AntiAffinityLevel::Node => there(at),
            AntiAffinityLevel::Island => there(at) || ledger.near(&at.node).any(|id| there(&ledger.nodes()[&id])),
        };
        let barred: BTreeSet<NodeId> = ledger.nodes().values().filter(|at| barred(at)).map(|at| at.node.id).collect();
        let room: u64 = ledger.nodes().values().filter(|at| !barred.contains(&at.node.id)).map(free).sum();
        let got = bind(&mut fleet, gang(tasks, 1));
        prop_assert_eq!(got.is_some(), room >= u64::from(tasks));
        prop_assert!(got.is_none_or(|got| got.iter().all(|task| !barred.contains(&task.node))));
    }

    /// Eight cards or fewer stand on one island whenever some island has them.
    #[test]
    fn small_gangs_stand_on_one_island(ground in ground(), tasks in 1..9_u32) {
        let mut fleet = build(&ground);
        let nodes = fleet.view.capacity().nodes().values();
        let exists = nodes.flat_map(|there| islands(there).into_values()).any(|free| free >= u64::from(tasks));
        let got = bind(&mut fleet, gang(tasks, 1));
        prop_assert!(!exists || got.is_some_and(|got| measured(&fleet, &got, false).0 == Level::NodeIsland));
    }

    /// Inside its domain a gang uses as few nodes as any choice of them could.
    #[test]
    fn as_few_nodes_as_will_do(ground in ground(), tasks in 2..13_u32, each in 1..5_u32) {
        let mut fleet = build(&ground);
        let held: BTreeMap<NodeId, u64> =
            fleet.view.capacity().nodes().iter().map(|(id, there)| (*id, units(there, u64::from(each), true))).collect();
        let Some(got) = bind(&mut fleet, gang(tasks, each)) else { return Ok(()) };
        let nodes = fleet.view.capacity().nodes();
        let (level, crosses, ..) = measured(&fleet, &got, false);
        // Wider than a leaf, leaves come first: fewest leaves, not fewest nodes. So do NVLink domains inside a leaf.
        let here = domain(&nodes[&got[0].node].node.spec.place, level);
        let island = &nodes[&got[0].node].node.spec.place;
        let near = |there: &&NodeUse| match level {
            Level::Island => there.node.spec.place == *island,
            _ => domain(&there.node.spec.place, level) == here,
        };
        let plain = nodes.values().filter(near).all(|there| !spans(there));
        if level == Level::Island || level == Level::Leaf && plain && (crosses || each == 1) {
            let inside = nodes.values().filter(near);
            let mut most: Vec<u64> = inside.map(|there| held[&there.node.id]).collect();
            most.sort_unstable_by(|a, b| b.cmp(a));
            let mut left = u64::from(tasks);
            let fewest = most.iter().take_while(|held| { let more = left > 0; left = left.saturating_sub(**held); more }).count();
            let used: BTreeSet<NodeId> = got.iter().map(|task| task.node).collect();
            prop_assert_eq!(used.len(), fewest);
        }
    }

    /// A task's cards share a NUMA node where its job insists, and what finds no place has none, however islands and NUMA nodes cross.
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
        prop_assert_eq!(got.is_some(), room >= u64::from(tasks));
    }
}
