//! Plans of moves and conversions: by example, and their laws on random fleets.

use super::fleet::*;
use crate::Proposal;
use crate::planner::{Move, MovePlan, NoPlan, Settings, plan_moves};
use muster_model::movable::Movable;
use muster_model::request::SharingMode;
use muster_model::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Every job has run for an hour.
pub(super) const NOW_MS: u64 = 3_600_000;

pub(super) fn movable(spec: JobSpec, checkpoint_every_s: u64, restart_s: u64) -> JobSpec {
    JobSpec { movable: Some(Movable { checkpoint_every_s: Some(checkpoint_every_s), restart_s }), ..spec }
}

fn within(spec: JobSpec, level: TopologyLevel) -> JobSpec {
    JobSpec { topology: Topology { required: Some(level), ..Topology::default() }, ..spec }
}

/// Runs a job exactly there; `modes` as many holds for each task.
fn runs_at(fleet: &mut Fleet, spec: JobSpec, tasks: &[(u32, &[u16])]) -> JobId {
    let charge = spec.request.devices.clone();
    let hold = |gpu: &u16| DeviceHold {
        gpu: *gpu,
        mode: match &charge {
            DeviceRequest::Mps { percent, memory_mib, .. } => {
                HoldMode::Mps { percent: *percent, memory_mib: *memory_mib }
            }
            _ => HoldMode::Whole,
        },
    };
    let tasks: Vec<TaskPlacement> = tasks
        .iter()
        .map(|(node, gpus)| TaskPlacement { node: NodeId(*node), devices: gpus.iter().map(hold).collect() })
        .collect();
    let job = fleet.submit(spec);
    let binding = Binding { job, attempt: Attempt(1), model: Some(GpuModel::H100), tasks };
    assert_eq!(fleet.decide(Proposal::Bind(binding)), Some(job), "the test's own placement fits");
    fleet.deliver(usize::MAX);
    job
}

fn waits(fleet: &mut Fleet, spec: JobSpec) -> JobId {
    let job = fleet.submit(spec);
    fleet.deliver(usize::MAX);
    job
}

pub(super) fn plan(fleet: &Fleet, share_percent: u8) -> MovePlan {
    let mut view = fleet.view.clone();
    let plan = plan_moves(&mut view, CELL, &Settings { share_percent, ..Settings::at(NOW_MS) });
    assert_eq!(super::laws::said(&view), super::laws::said(&fleet.view), "a plan changes nothing");
    plan
}

fn nodes_of(tasks: &[TaskPlacement]) -> Vec<u32> {
    tasks.iter().map(|task| task.node.0).collect()
}

/// Two nodes of eight with half of each held: `a` by four jobs that lose little, `b` by one that loses much; and room on `c`.
fn halves() -> (Fleet, Vec<JobId>) {
    let host = |name| Host::new(name, GpuModel::H100, 8);
    let mut fleet = Fleet::new([host("a"), host("b"), Host { gpus: 4, ..host("c") }]);
    let mut jobs: Vec<JobId> =
        (0..4_u16).map(|gpu| runs_at(&mut fleet, movable(gang(1, 1), 600, 60), &[(1, &[gpu])])).collect();
    jobs.push(runs_at(&mut fleet, movable(gang(1, 4), 3_000, 300), &[(2, &[0, 1, 2, 3])]));
    (fleet, jobs)
}

#[test]
fn the_cheapest_work_moves_and_its_loss_is_told() {
    let (mut fleet, jobs) = halves();
    let gang = waits(&mut fleet, within(gang(1, 8), TopologyLevel::Island));
    let plan = plan(&fleet, 100);
    let [opening] = &plan.openings[..] else { panic!("one opening: {plan:?}") };
    assert_eq!((opening.job, opening.cards, opening.islands, opening.cheapest), (gang, 8, 1, true));
    assert_eq!(nodes_of(&opening.tasks), [1]);
    assert_eq!(opening.moves.iter().map(|made| made.job).collect::<BTreeSet<_>>(), jobs[..4].iter().copied().collect());
    for made in &opening.moves {
        assert_eq!(made.loss.card_seconds(), 660, "ten minutes since the last checkpoint and one to start");
        assert_ne!(nodes_of(&made.to), [1]);
    }
    assert_eq!((plan.movable_jobs, plan.movable, plan.moved), (5, GpuUnits::cards(8), GpuUnits::cards(4)));
    assert!(plan.complete && plan.unhelped.is_empty());
}

/// What the plan says of the first job that it does not help.
#[track_caller]
fn check_unhelped(fleet: &mut Fleet, spec: JobSpec, share_percent: u8, expected: NoPlan) {
    let job = waits(fleet, spec);
    let plan = plan(fleet, share_percent);
    assert_eq!((plan.openings.len(), plan.moved), (0, GpuUnits(0)));
    let why: Vec<NoPlan> = plan.unhelped.iter().filter(|one| one.job == job).map(|one| one.why).collect();
    assert_eq!(why, [expected]);
}

#[test]
fn what_is_not_helped_is_told_why() {
    let eight = || within(gang(1, 8), TopologyLevel::Node);
    check_unhelped(&mut halves().0, eight(), 49, NoPlan::BeyondShare { percent: 50 });
    check_unhelped(
        &mut halves().0,
        within(gang(16, 1), TopologyLevel::Leaf),
        100,
        NoPlan::TooFewFree { free: 12, needed: 16 },
    );
    // Four free on each of two nodes, all else unmovable.
    let host = |name| Host::new(name, GpuModel::H100, 8);
    let mut fixed = Fleet::new([host("a"), host("b")]);
    runs_at(&mut fixed, gang(1, 4), &[(1, &[0, 1, 2, 3])]);
    runs_at(&mut fixed, gang(1, 4), &[(2, &[0, 1, 2, 3])]);
    check_unhelped(&mut fixed, eight(), 100, NoPlan::TooLittleMovable);
    // It may move, but eight free cards lie two by two and it needs four on one island.
    let mut tight = Fleet::new([host("a"), Host { gpus: 4, ..host("b") }, Host { gpus: 4, ..host("c") }]);
    runs_at(&mut tight, movable(gang(1, 4), 60, 60), &[(1, &[0, 1, 2, 3])]);
    runs_at(&mut tight, gang(1, 2), &[(2, &[0, 1])]);
    runs_at(&mut tight, gang(1, 2), &[(3, &[0, 1])]);
    check_unhelped(&mut tight, eight(), 100, NoPlan::NoPlaceForMoved);
}

#[test]
fn a_leaf_is_opened_for_a_gang_of_nodes() {
    let host = |name, leaf| Host::new(name, GpuModel::H100, 4).at("b1", leaf);
    let mut fleet = Fleet::new([host("a", "l1"), host("b", "l1"), host("c", "l2"), host("d", "l2")]);
    // One card of each node of l1 is held by work that may move; c has two that may not; d is free but for two.
    let small = [1, 2].map(|node| runs_at(&mut fleet, movable(gang(1, 1), 60, 60), &[(node, &[0])]));
    runs_at(&mut fleet, gang(1, 2), &[(3, &[0, 1])]);
    let two = waits(&mut fleet, within(gang(2, 4), TopologyLevel::Leaf));
    let plan = plan(&fleet, 100);
    let [opening] = &plan.openings[..] else { panic!("one opening: {plan:?}") };
    assert_eq!((opening.job, nodes_of(&opening.tasks)), (two, vec![1, 2]));
    assert_eq!(opening.moves.iter().map(|made| made.job).collect::<Vec<_>>(), small);
    assert!(!opening.cheapest, "nothing is claimed over several nodes");
}

#[test]
fn sharers_are_packed_and_a_card_is_free() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2), Host::new("b", GpuModel::H100, 2)]);
    let lonely = runs_at(&mut fleet, movable(mps(20, 8_000), 60, 60), &[(1, &[0])]);
    runs_at(&mut fleet, mps(20, 8_000), &[(2, &[0])]);
    let plan = plan(&fleet, 100);
    let [packing] = &plan.packings[..] else { panic!("one packing: {plan:?}") };
    assert_eq!(packing.cards, [(NodeId(1), 0)]);
    assert_eq!((packing.moves[0].job, nodes_of(&packing.moves[0].to)), (lonely, vec![2]));
}

#[test]
fn empty_cards_are_converted_where_a_rule_keeps_slices_out() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2)]);
    let rules = Pool { modes: [SharingMode::Whole].into(), ..Pool::standard() };
    fleet.put_pool(rules);
    fleet.deliver(usize::MAX);
    let jobs: Vec<JobId> = (0..8).map(|_| waits(&mut fleet, mig("1g.10gb"))).collect();
    let plan = plan(&fleet, 2);
    let [conversion] = &plan.conversions[..] else { panic!("one conversion: {plan:?}") };
    assert!(conversion.needs_rule && conversion.to == SharingMode::Mig);
    assert_eq!(conversion.jobs, jobs);
    let layouts: Vec<&str> = conversion.cards.iter().map(|(_, _, layout)| layout.as_str()).collect();
    assert_eq!(layouts, ["7 x 1g.10gb", "1 x 1g.10gb"]);
    assert_eq!(conversion.card_seconds, 10);
}

#[test]
fn a_pinned_layout_that_nothing_matches_gives_way_to_one_that_does() {
    let pinned = |slices: &str| {
        let layout = mig::PinnedLayout::new(GpuModel::H100, &[(slices.to_owned(), 2)].into(), None).expect("legal");
        Pool { pinned: [(GpuModel::H100, layout)].into(), ..Pool::standard() }
    };
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2)]);
    fleet.put_pool(pinned("3g.40gb"));
    let large = [(); 2].map(|()| fleet.submit(super::fleet::mig("3g.40gb")));
    fleet.settle();
    assert!(large.iter().all(|job| fleet.runs(*job)), "one card is full");
    let jobs: Vec<JobId> = (0..3).map(|_| waits(&mut fleet, super::fleet::mig("1g.10gb"))).collect();
    let made = plan(&fleet, 2);
    let [conversion] = &made.conversions[..] else { panic!("one conversion: {made:?}") };
    assert_eq!((&conversion.jobs, conversion.cards.len()), (&jobs, 1));
    assert_eq!(conversion.cards[0].2, "3 x 1g.10gb");
    assert_eq!(conversion.pinned.as_deref(), Some("3g.40gb x2"));
    let open: Vec<(Option<&str>, u64, u64)> =
        made.unmatched.iter().map(|one| (one.profile.as_deref(), one.count, one.running)).collect();
    assert_eq!(open, [(Some("3g.40gb"), 1, 2)], "the slot beside them");
}

#[test]
fn slices_that_nothing_matches_are_named() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 1)]);
    fleet.submit(mig("3g.40gb"));
    fleet.settle();
    let plan = plan(&fleet, 2);
    let told: Vec<(Option<&str>, u64, u64)> =
        plan.unmatched.iter().map(|one| (one.profile.as_deref(), one.count, one.running)).collect();
    let free: u64 = told.iter().filter(|(profile, ..)| profile.is_some()).map(|(_, count, _)| count).sum();
    assert!(free >= 1 && told.iter().all(|(_, _, running)| *running <= 1), "{told:?}");
}

/// A small fleet: nodes, and jobs on them.
#[derive(Clone, Debug)]
struct SmallFleet {
    /// Cards of each node, cards of an island, leaf.
    nodes: Vec<(u16, u16, usize)>,
    /// Where each job stands, its cards, whether it has a second task on the next node, and, if it may move, what it saves and needs to
    /// start.
    jobs: Vec<Stands>,
}

type Stands = (prop::sample::Index, u16, bool, Option<(u64, u64)>);

fn ground(islands: Vec<u16>, jobs_min: usize, pairs: f64) -> impl Strategy<Value = SmallFleet> {
    let node = (prop::sample::select(vec![4_u16, 8]), prop::sample::select(islands), 0..2_usize);
    let how = prop::option::weighted(0.7, (1..2_000_u64, 0..100_u64));
    let job =
        (any::<prop::sample::Index>(), prop::sample::select(vec![1_u16, 1, 2, 3, 4]), prop::bool::weighted(pairs), how);
    (prop::collection::vec(node, 2..6), prop::collection::vec(job, jobs_min..jobs_min + 13))
        .prop_map(|(nodes, jobs)| SmallFleet { nodes, jobs })
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const LEAVES: [&str; 2] = ["l1", "l2"];

fn build(ground: &SmallFleet) -> Fleet {
    let host = |(at, (gpus, per_island, leaf)): (usize, &(u16, u16, usize))| Host {
        per_island: *per_island,
        ..Host::new(NAMES[at], GpuModel::H100, *gpus).at("b1", LEAVES[*leaf])
    };
    let mut fleet = Fleet::new(ground.nodes.iter().enumerate().map(host));
    for (pick, cards, pair, how) in &ground.jobs {
        let first = pick.index(ground.nodes.len());
        let nodes = if *pair { vec![first, (first + 1) % ground.nodes.len()] } else { vec![first] };
        let taken: Vec<(u32, Vec<u16>)> =
            nodes.into_iter().map(|at| (at as u32 + 1, some(&fleet, at, *cards))).collect();
        if taken.iter().any(|(_, gpus)| gpus.len() < usize::from(*cards)) {
            continue;
        }
        let spec = gang(taken.len() as u32, u32::from(*cards));
        let spec = how.map_or(spec.clone(), |(every, restart)| movable(spec, every, restart));
        let tasks: Vec<(u32, &[u16])> = taken.iter().map(|(node, gpus)| (*node, &gpus[..])).collect();
        runs_at(&mut fleet, spec, &tasks);
    }
    fleet
}

/// Up to `count` free cards of a node; every other job takes them from the end, so that what is free lies anyhow.
fn some(fleet: &Fleet, at: usize, count: u16) -> Vec<u16> {
    let there = &fleet.ledger.nodes()[&NodeId(at as u32 + 1)];
    let is_free = |gpu: &u16| there.cards[usize::from(*gpu)] == capacity::CardUse::Free;
    let mut free: Vec<u16> = (0..there.cards.len() as u16).filter(is_free).collect();
    if count.is_multiple_of(2) {
        free.reverse();
    }
    free.truncate(usize::from(count));
    free
}

/// Islands, nodes and leaves that tasks lie on: more of the widest is further apart.
fn apart(fleet: &Fleet, tasks: &[TaskPlacement]) -> (bool, bool, bool) {
    let node = |task: &TaskPlacement| &fleet.nodes[&task.node];
    let leaves: BTreeSet<&str> = tasks.iter().map(|task| node(task).spec.place.leaf.as_str()).collect();
    let nodes: BTreeSet<NodeId> = tasks.iter().map(|task| task.node).collect();
    let cards = tasks.iter().flat_map(|task| task.devices.iter().map(move |hold| (task, hold.gpu)));
    let islands: BTreeSet<(NodeId, u8)> =
        cards.map(|(task, gpu)| (task.node, node(task).spec.gpus[usize::from(gpu)].island)).collect();
    (leaves.len() > 1, nodes.len() > 1, islands.len() > 1)
}

/// Makes one move in the control plane's books, checking the laws before and after.
fn make(fleet: &mut Fleet, made: &Move) -> Result<(), TestCaseError> {
    let old = fleet.allocations[&made.allocation].clone();
    prop_assert!(fleet.jobs[&old.job].spec.movable.is_some(), "job {} may not be moved", old.job);
    prop_assert_eq!(&old.tasks, &made.from);
    prop_assert_eq!(made.to.len(), old.tasks.len());
    prop_assert_ne!(&made.to, &made.from);
    prop_assert!(apart(fleet, &made.to) <= apart(fleet, &made.from), "a move tears its job apart");
    fleet.ledger.release(&old);
    let proved = fleet.ledger.prove(old.tenant, &made.to, old.cpu_milli, old.memory_mib, &old.charge);
    prop_assert!(proved.is_ok(), "a move does not fit at its queue_key: {proved:?}");
    let new = Allocation { tasks: made.to.clone(), ..old };
    fleet.ledger.charge(&new);
    fleet.allocations.insert(new.id, new);
    fleet.check().map_err(|broken| TestCaseError::fail(broken.to_string()))
}

/// What must be true of every plan; answers the fleet after it.
pub(super) fn lawful(mut fleet: Fleet, plan: &MovePlan) -> Result<Fleet, TestCaseError> {
    let moves: Vec<&Move> = plan
        .openings
        .iter()
        .flat_map(|one| &one.moves)
        .chain(plan.packings.iter().flat_map(|one| &one.moves))
        .collect();
    let moved: u64 = moves.iter().map(|made| fleet.allocations[&made.allocation].charge.gpu_total().0).sum();
    let held = |held: &&Allocation| fleet.jobs[&held.job].spec.movable.is_some();
    let all: u64 = fleet.allocations.values().filter(held).map(|held| held.charge.gpu_total().0).sum();
    prop_assert_eq!((plan.moved.0, plan.movable.0), (moved, all));
    prop_assert!(moved * 100 <= all * u64::from(plan.share_percent), "{moved} of {all} units are moved");
    let each: BTreeSet<AllocationId> = moves.iter().map(|made| made.allocation).collect();
    prop_assert_eq!(each.len(), moves.len(), "a job is moved once");
    for opening in &plan.openings {
        for made in &opening.moves {
            make(&mut fleet, made)?;
        }
        let binding = Binding {
            job: opening.job,
            attempt: fleet.jobs[&opening.job].attempt.next(),
            model: Some(opening.model),
            tasks: opening.tasks.clone(),
        };
        let spec = fleet.jobs[&opening.job].spec.clone();
        let ground: Vec<&Node> = opening.tasks.iter().map(|task| &fleet.nodes[&task.node]).collect();
        prop_assert_eq!(closeness::check(&spec.topology, spec.numa, &opening.tasks, &ground), Ok(()));
        prop_assert_eq!(fleet.decide(Proposal::Bind(binding)), Some(opening.job), "the gang fits after its moves");
        fleet.check().map_err(|broken| TestCaseError::fail(broken.to_string()))?;
    }
    for packing in &plan.packings {
        let free = |fleet: &Fleet| fleet.ledger.nodes().values().map(capacity::NodeUse::free_cards).sum::<usize>();
        let before = free(&fleet);
        for made in &packing.moves {
            make(&mut fleet, made)?;
        }
        prop_assert_eq!(free(&fleet), before + packing.cards.len());
    }
    Ok(fleet)
}

/// Unit-seconds that a job loses, reckoned by hand.
fn lost(fleet: &Fleet, held: &Allocation) -> u64 {
    let how = fleet.jobs[&held.job].spec.movable.expect("it may move");
    let ran_s = NOW_MS / 1_000;
    held.charge.gpu_total().0 * (how.checkpoint_every_s.unwrap_or(ran_s).min(ran_s) + how.restart_s)
}

/// Whether jobs of these sizes can be packed into this room, whatever the order.
fn packs(sizes: &[u64], room: &mut [u64]) -> bool {
    let Some((first, rest)) = sizes.split_first() else { return true };
    (0..room.len()).any(|at| {
        if room[at] < *first {
            return false;
        }
        room[at] -= first;
        let fits = packs(rest, room);
        room[at] += first;
        fits
    })
}

/// The least that opening any one node for `needed` cards can lose: every node, every set of its movable jobs, every way to pack them.
fn cheapest(fleet: &Fleet, needed: u64) -> Option<u64> {
    let free: BTreeMap<NodeId, u64> =
        fleet.ledger.nodes().iter().map(|(id, there)| (*id, there.free_cards() as u64)).collect();
    let mut best = None;
    for node in fleet.nodes.keys() {
        let here: Vec<&Allocation> = fleet
            .allocations
            .values()
            .filter(|held| held.tasks[0].node == *node && fleet.jobs[&held.job].spec.movable.is_some())
            .collect();
        for set in 1..1_u32 << here.len() {
            let moved: Vec<&&Allocation> =
                here.iter().enumerate().filter(|(bit, _)| set & (1 << bit) != 0).map(|(_, held)| held).collect();
            let sizes: Vec<u64> = moved.iter().map(|held| held.tasks[0].devices.len() as u64).collect();
            let opened = free[node] + sizes.iter().sum::<u64>();
            if opened < needed {
                continue;
            }
            let room = free.iter().map(|(id, free)| if id == node { opened - needed } else { *free });
            if packs(&sizes, &mut room.collect::<Vec<_>>()) {
                let cost = moved.iter().map(|held| lost(fleet, held)).sum::<u64>();
                best = Some(best.map_or(cost, |best: u64| best.min(cost)));
            }
        }
    }
    best
}

proptest! {
    // One in twelve of these fleets has something to open.
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    /// Laws 1 and 2, the share, and the proof, for gangs of every level on random fleets.
    #[test]
    fn a_plan_keeps_every_law_and_its_word(
        ground in ground(vec![2, 4, 8], 3, 0.2),
        gangs in prop::collection::vec((1..4_u32, 2..8_u32, prop::option::weighted(0.6, 0..4_usize)), 1..4),
        share in prop::sample::select(vec![2_u8, 20, 50, 100, 100, 100]),
    ) {
        let mut fleet = build(&ground);
        for (tasks, each, level) in gangs {
            let spec = gang(tasks, each);
            let spec = level.map_or(spec.clone(), |level| within(spec, TopologyLevel::ALL[level]));
            if spec.clone().validate().is_ok() {
                fleet.submit(spec);
            }
        }
        fleet.deliver(usize::MAX);
        let before = fleet.view.capacity().nodes().values().map(capacity::NodeUse::free_cards).sum::<usize>();
        let plan = plan(&fleet, share);
        prop_assert_eq!(&plan, &super::planner::plan(&fleet, share), "the same view gives the same plan");
        let after = fleet.view.capacity().nodes().values().map(capacity::NodeUse::free_cards).sum::<usize>();
        prop_assert_eq!(before, after, "the view itself is not touched");
        lawful(fleet, &plan)?;
    }

    /// No search over sets of one node's jobs opens a node for less than the plan says, and where there is such a set there is a plan.
    #[test]
    fn no_search_opens_a_node_for_less(ground in ground(vec![8], 4, 0.0), needed in 2..9_u32) {
        let mut fleet = build(&ground);
        let free = |there: &capacity::NodeUse| there.free_cards() as u64;
        let largest = fleet.ledger.nodes().values().map(free).max().unwrap_or(0);
        // One more than any node has free, at least: otherwise it just starts.
        let needed = needed.max(largest as u32 + 1);
        waits(&mut fleet, within(gang(1, needed), TopologyLevel::Node));
        let least = cheapest(&fleet, u64::from(needed));
        let plan = plan(&fleet, 100);
        let told = plan.openings.first().map(|one| {
            (one.moves.iter().map(|made| made.loss.unit_seconds).sum::<u64>(), one.cheapest)
        });
        prop_assert_eq!(told, least.map(|least| (least, true)));
    }

    /// Sharers: what is packed keeps the laws and frees what it says.
    #[test]
    fn packing_frees_whole_cards(
        shares in prop::collection::vec((0..3_u32, 0..4_u16, 5..60_u8, any::<bool>()), 1..16),
        share in prop::sample::select(vec![10_u8, 50, 100]),
    ) {
        let mut fleet = Fleet::new(["a", "b", "c"].map(|name| Host::new(name, GpuModel::H100, 4)));
        for (node, gpu, percent, moves) in shares {
            let spec = mps(percent, 8_000);
            let spec = if moves { movable(spec, 60, u64::from(percent)) } else { spec };
            let hold = TaskPlacement {
                node: NodeId(node + 1),
                devices: vec![DeviceHold { gpu, mode: HoldMode::Mps { percent, memory_mib: 8_000 } }],
            };
            let charge = spec.charge_on(GpuModel::H100);
            if fleet.ledger.prove(TenantId(1), &[hold], 100, 10, &charge).is_ok() {
                runs_at(&mut fleet, spec, &[(node + 1, &[gpu])]);
            }
        }
        let plan = plan(&fleet, share);
        lawful(fleet, &plan)?;
    }
}
