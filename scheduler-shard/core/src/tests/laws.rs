//! Laws 1, 2 and 8 over random histories, with a view that lags and a control plane that refuses; and the index against its rebuild.

use super::fleet::*;
use crate::fleet::Transaction;
use crate::fleet::index::Index;
use crate::fleet::index::bucket::{ALL, Domain, TOP};
use crate::queue::order::Order;
use crate::queue::{CellQueue, QueueKey};
use crate::view::in_turn;
use crate::{Proposal, View};
use muster_model::*;
use proptest::prelude::*;
use proptest::sample::Index as Pick;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    Submit(usize, usize),
    Pass,
    /// The control plane decides the next so many of the proposals under way.
    Decide(usize),
    /// A proposal is lost on the way: nobody knows what became of it.
    Lose,
    Deliver(usize),
    End(Pick, bool),
    /// So many seconds go by.
    Later(u64),
    Health(Pick, NodeHealth),
    /// A card is withheld, or no longer.
    Withhold(Pick, Pick),
    /// The pool pins the first so many cards of each node to one of some layouts, or none.
    Pin(Option<Pick>, u16),
    Resnapshot,
    /// Admins change what two tenants may not share.
    Apart(Option<AntiAffinityLevel>),
    /// Admins set the half-life of past use.
    HalfLife(u64),
}

/// A layout of an H100.
fn layout(slices: &[(&str, u32)], cards: Option<u16>) -> mig::PinnedLayout {
    let slices = slices.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    mig::PinnedLayout::new(GpuModel::H100, &slices, cards).expect("legal")
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..18_usize, 0..3_usize).prop_map(|(kind, tenant)| Event::Submit(kind, tenant)),
        4 => Just(Event::Pass),
        4 => (1..6_usize).prop_map(Event::Decide),
        1 => Just(Event::Lose),
        5 => (1..8_usize).prop_map(Event::Deliver),
        3 => (any::<Pick>(), any::<bool>()).prop_map(|(pick, requeue)| Event::End(pick, requeue)),
        2 => (1..1_000_u64).prop_map(Event::Later),
        1 => (any::<Pick>(), prop::sample::select(vec![NodeHealth::Ready, NodeHealth::Silent, NodeHealth::Down]))
            .prop_map(|(pick, health)| Event::Health(pick, health)),
        1 => (any::<Pick>(), any::<Pick>()).prop_map(|(node, gpu)| Event::Withhold(node, gpu)),
        1 => (prop::option::of(any::<Pick>()), 0..4_u16).prop_map(|(pick, cards)| Event::Pin(pick, cards)),
        1 => Just(Event::Resnapshot),
        1 => prop::sample::select(vec![None, Some(AntiAffinityLevel::Card), Some(AntiAffinityLevel::Node), Some(AntiAffinityLevel::Island)])
            .prop_map(Event::Apart),
        1 => prop::sample::select(vec![0, 10, 600, 86_400]).prop_map(Event::HalfLife),
    ]
}

fn spec(kind: usize, tenant: usize) -> JobSpec {
    let mut spec = match kind {
        0 => gang(1, 1),
        1 => gang(3, 4),
        2 => gang(5, 2),
        3 => mig("1g.10gb"),
        4 => mig("3g.40gb"),
        5 => mps(30, 20_000),
        6 => slice(15_000),
        7 => job(2, DeviceRequest::Mps { percent: 40, memory_mib: 9_000, models: vec![GpuModel::H100] }),
        8 => job(2, DeviceRequest::None),
        9 | 11 => gang(6, 1),
        12 | 13 => gang(3, 1),
        14 => job(3, DeviceRequest::TimeSlice { memory_mib: 9_000, models: vec![GpuModel::H100] }),
        15 => gang(2, 3),
        16 => gang(1, 1),
        17 => job(1, DeviceRequest::None),
        _ => gang(2, 2),
    };
    // Some say how long they run: gangs get reservations, and others pass them.
    spec.time_limit_s = [None, Some(60), None, Some(600), Some(3_600)][kind % 5];
    spec.tenant = ["org/a", "org/b", "other"][tenant].into();
    match kind {
        2 => spec.topology.required = Some(TopologyLevel::Leaf),
        9 => spec.topology.segment_tasks = Some(2),
        10 => spec.numa = NumaPolicy::SingleNumaNode,
        11 => spec.topology.required = Some(TopologyLevel::Island),
        12 => spec.topology.spread = Some(Spread { level: TopologyLevel::Node, tasks_max: 1, required: true }),
        13 => spec.topology.spread = Some(Spread { level: TopologyLevel::Leaf, tasks_max: 1, required: false }),
        14 => spec.topology.spread = Some(Spread { level: TopologyLevel::Leaf, tasks_max: 2, required: true }),
        15 => spec.class = WorkloadClass::Inference,
        // So much CPU that single tasks are placed by what is scarce.
        16 | 17 => spec.request.cpu_milli = 30_000,
        _ => {}
    }
    spec
}

fn small_fleet() -> Fleet {
    let host = |name, block, leaf| Host { per_island: 2, ..Host::new(name, GpuModel::H100, 4).at(block, leaf) };
    let rack = |name, block, leaf| Host { nvlink: "nvl", ..host(name, block, leaf) };
    let mut fleet = Fleet::new([
        host("a", "b1", "l1"),
        host("b", "b1", "l1"),
        host("c", "b1", "l2"),
        host("d", "b2", "l3"),
        rack("e", "b2", "l3"),
        rack("f", "b2", "l3"),
    ]);
    let cards = |count| Limits { gpu: [(GpuModel::H100, GpuUnits::cards(count))].into(), ..Limits::default() };
    fleet.tenant("org/a", |tenant| tenant.max = cards(9));
    fleet.tenant("org/b", |tenant| tenant.guarantee = ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(4)));
    fleet.tenant("other", |tenant| tenant.weight = 3);
    declare_anti_affinity(&mut fleet, Some(AntiAffinityLevel::Node));
    fleet
}

/// `org/a` and `other` may not share this; none: they may share all.
fn declare_anti_affinity(fleet: &mut Fleet, level: Option<AntiAffinityLevel>) {
    let limit = Limits { gpu: [(GpuModel::H100, GpuUnits::cards(9))].into(), ..Limits::default() };
    fleet.tenant("org/a", |tenant| {
        tenant.max = limit.clone();
        tenant.anti_affinity = level.map(|level| AntiAffinity { tenant: "other".into(), level }).into_iter().collect();
    });
}

/// What the index would be if it were built from the capacity ledger at once.
fn rebuilt(view: &View) -> Index {
    let mut index = view.fleet.index.emptied();
    for (id, there) in view.capacity().nodes() {
        index.refresh(*id, Some(there));
    }
    index
}

/// Everything an index says, with domains by name: their numbers depend on who came first.
fn picture(index: &Index) -> Vec<String> {
    let places = index.places();
    let name = |level: usize, id: &u32| match level {
        TOP if *id == ALL => "all".to_owned(),
        _ => format!("{:?}", places[id]),
    };
    let mut lines = Vec::new();
    for (cell, model, pool, bucket) in index.all_buckets() {
        lines.push(format!("{cell} {model:?} {pool:?} {:?} {:?} {:?}", bucket.states, bucket.shared, bucket.sole));
        for (at, level) in bucket.levels.iter().chain([&bucket.islands]).enumerate() {
            let below = |id: &u32| name(at.saturating_sub(1), id);
            for (id, domain) in &level.domains {
                let Domain { free, free_states, kinds, inside, nodes } = domain;
                let inside: BTreeSet<String> = inside.iter().map(below).collect();
                lines.push(format!("{} {free} {free_states:?} {kinds:?} {inside:?} {nodes:?}", name(at, id)));
            }
            let by_free: BTreeSet<_> = level.by_free.iter().map(|(free, id)| (*free, name(at, id))).collect();
            lines.push(format!("{at} {by_free:?} {:?}", level.alike));
        }
    }
    lines.sort();
    lines
}

/// Who is next by the tournament that is kept, once it has taken in what changed.
pub(super) fn next_kept(view: &View) -> Option<QueueKey> {
    let mut queue = view.queues.get(&CELL)?.clone();
    let mut order = queue.order.clone();
    while let Some(tenant) = queue.take_changed() {
        order.update(view.ledger(), [(tenant, queue.head(tenant))]);
    }
    order.next().map(|head| head.queue_key)
}

/// The same by a tournament that is played from the start.
pub(super) fn next_anew(view: &View) -> Option<QueueKey> {
    let queue = view.queues.get(&CELL)?;
    let heads = queue.tenants.keys().filter_map(|tenant| queue.head(*tenant));
    Order::of(view.ledger(), heads).next().map(|head| head.queue_key)
}

/// The first `most` of those who wait, in turn.
fn first_in_turn(view: &mut View, most: usize) -> Vec<JobId> {
    let mut found = Vec::new();
    in_turn(view, CELL, |_, id| {
        found.push(id);
        if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

/// Plays a history and checks after each event.
fn play(events: Vec<Event>) -> Result<Fleet, TestCaseError> {
    let mut fleet = small_fleet();
    // With the production's part a cell of six nodes keeps some for one gang alone.
    fleet.bounds.reserved_part = if events.len().is_multiple_of(2) { 1 } else { crate::RESERVED_PART };
    let mut under_way: Vec<Proposal> = Vec::new();
    for event in events {
        fleet.now_ms += 50;
        match event {
            Event::Submit(kind, tenant) => {
                fleet.submit(spec(kind, tenant));
            }
            Event::Pass => under_way.extend(fleet.pass()),
            Event::Decide(count) => {
                for proposal in under_way.drain(..count.min(under_way.len())).collect::<Vec<_>>() {
                    fleet.decide(proposal);
                }
            }
            Event::Lose => {
                if let Some(lost) = under_way.pop() {
                    let now_ms = fleet.now_ms;
                    match lost {
                        Proposal::Reserve { job, .. } => fleet.view.not_reserved(job, now_ms),
                        lost => fleet.view.refused(lost.job(), now_ms),
                    }
                }
            }
            Event::Deliver(count) => fleet.deliver(count),
            Event::End(pick, requeue) => {
                let running: Vec<JobId> = fleet.allocations.values().map(|allocation| allocation.job).collect();
                if !running.is_empty() {
                    fleet.end(*pick.get(&running), requeue);
                }
            }
            Event::Later(seconds) => fleet.now_ms += 1_000 * seconds,
            Event::Health(pick, health) => {
                let nodes: Vec<Node> = fleet.nodes.values().cloned().collect();
                fleet.put_node(Node { health, ..pick.get(&nodes).clone() });
            }
            Event::Withhold(pick, gpu) => {
                let nodes: Vec<Node> = fleet.nodes.values().cloned().collect();
                let mut node = pick.get(&nodes).clone();
                let at = gpu.index(node.spec.gpus.len());
                let card = &mut node.spec.gpus[at];
                card.withheld = if card.withheld.is_none() { Some("fault".into()) } else { None };
                fleet.put_node(node);
            }
            Event::Apart(level) => declare_anti_affinity(&mut fleet, level),
            Event::HalfLife(seconds) => fleet.set_half_life(seconds),
            Event::Pin(pick, cards) => {
                let choices: [&[(&str, u32)]; 3] =
                    [&[("1g.10gb", 7)], &[("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)], &[("3g.40gb", 2)]];
                let pin = pick.map(|pick| layout(choices[pick.index(choices.len())], (cards > 0).then_some(cards)));
                let pinned = pin.into_iter().map(|pin| (GpuModel::H100, pin)).collect();
                fleet.put_pool(Pool { pinned, ..Pool::standard() });
            }
            Event::Resnapshot => {
                fleet.deliver(usize::MAX);
                let fresh = fleet.snapshot();
                fleet.view.replace(fresh);
            }
        }
        fleet.note_use();
        fleet.check().map_err(|broken| TestCaseError::fail(broken.to_string()))?;
        prop_assert_eq!(picture(&fleet.view.fleet.index), picture(&rebuilt(&fleet.view)));
        prop_assert_eq!(next_kept(&fleet.view), next_anew(&fleet.view));
        let mut anew = fleet.view.clone();
        anew.queues.values_mut().for_each(CellQueue::forget_order);
        for most in [2, usize::MAX] {
            prop_assert_eq!(first_in_turn(&mut fleet.view, most), first_in_turn(&mut anew, most));
        }
        prop_assert!(fleet.anti_affinity_conflict().is_none(), "{:?}", fleet.anti_affinity_conflict());
        prop_assert_eq!(fleet.view.reserved_nodes(), fleet.view.nodes_that_should_be_reserved());
        prop_assert!(fleet.view.fleet.kept_wrongly().values().all(|wrong| *wrong == 0));
        let mut anew = fleet.view.clone();
        anew.fleet.index = rebuilt(&fleet.view);
        for mode in [request::SharingMode::Mps, request::SharingMode::TimeSlice] {
            let outlook = |view: &View| view.fleet.outlook(CELL, GpuModel::H100, mode);
            prop_assert_eq!(outlook(&fleet.view), outlook(&anew));
        }
    }
    for proposal in under_way {
        fleet.decide(proposal);
    }
    fleet.deliver(usize::MAX);
    fleet.check().map_err(|broken| TestCaseError::fail(broken.to_string()))?;
    Ok(fleet)
}

fn cards_of(view: &View) -> Vec<String> {
    // Shares of one card stand in the order in which they came; what is held is the same in any order.
    let card = |card: &capacity::CardUse| match card.clone() {
        capacity::CardUse::Mps { domain, mut shares } => {
            shares.sort_by_key(|share| share.allocation);
            capacity::CardUse::Mps { domain, shares }
        }
        capacity::CardUse::TimeSlice { domain, mut shares } => {
            shares.sort_by_key(|share| share.allocation);
            capacity::CardUse::TimeSlice { domain, shares }
        }
        other => other,
    };
    let nodes = view.capacity().nodes().values();
    nodes
        .map(|there| {
            format!(
                "{:?} {} {}",
                there.cards.iter().map(card).collect::<Vec<_>>(),
                there.cpu_free_milli,
                there.memory_free_mib
            )
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Laws 1, 2 and 8, whatever lags, is refused or lost; the index is what a rebuild gives; and once everything has been seen
    /// and decided, the view is what a fresh snapshot gives.
    #[test]
    fn laws_1_2_and_8_hold_over_any_history(events in prop::collection::vec(event(), 1..120)) {
        let fleet = play(events)?;
        let fresh = fleet.snapshot();
        prop_assert_eq!(fleet.view.pending(), 0);
        prop_assert_eq!(cards_of(&fleet.view), cards_of(&fresh));
        let used = |view: &View| view.capacity().tenants().values().map(|at| at.used).collect::<Vec<_>>();
        prop_assert_eq!(used(&fleet.view), used(&fresh));
        prop_assert_eq!(fleet.view.fleet.totals, fresh.fleet.totals);
    }

    /// The same history gives the same plan.
    #[test]
    fn the_same_view_gives_the_same_plan(events in prop::collection::vec(event(), 1..60)) {
        let (mut one, mut two) = (play(events.clone())?, play(events)?);
        prop_assert_eq!(one.pass(), two.pass());
    }

    /// What was left alone would not have fitted: trying everything again finds nothing.
    #[test]
    fn nothing_that_fits_is_left_waiting(events in prop::collection::vec(event(), 1..120)) {
        let mut fleet = play(events)?;
        fleet.now_ms += 1_000_000;
        fleet.settle();
        // The stand-in control plane sees what the view sees now, so nothing may be refused for good.
        fleet.now_ms += 1_000_000;
        fleet.settle();
        let mut fresh = fleet.snapshot();
        let again = crate::plan(&mut fresh, CELL, &fleet.bounds, fleet.now_ms);
        let kept = crate::plan(&mut fleet.view, CELL, &fleet.bounds, fleet.now_ms);
        let bindings = |plan: &crate::Plan| plan.proposals.iter().filter(|p| matches!(p, Proposal::Bind(_))).count();
        prop_assert_eq!(bindings(&kept), 0);
        prop_assert!(bindings(&again) == 0, "{:?}", again.proposals);
    }
}

/// Everything that a fleet says of what is free.
pub(super) fn said(view: &View) -> (Vec<String>, Vec<String>, String) {
    let used: Vec<_> = view.capacity().tenants().values().map(|at| at.used).collect();
    let pools = view.capacity().pools();
    (picture(&view.fleet.index), cards_of(view), format!("{used:?} {pools:?} {:?}", view.fleet.totals))
}

/// The same tasks on the next cards of their nodes.
fn on_next_cards(held: &Allocation, capacity: &capacity::Capacity) -> Allocation {
    let mut moved = held.clone();
    for task in &mut moved.tasks {
        let cards = capacity.nodes().get(&task.node).map_or(1, |there| there.cards.len() as u16);
        task.devices.iter_mut().for_each(|hold| hold.gpu = (hold.gpu + 1) % cards);
    }
    moved
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever is released, charged elsewhere and pinned in a transaction, its end undoes.
    #[test]
    fn a_transaction_leaves_nothing_behind(
        events in prop::collection::vec(event(), 1..100),
        picks in prop::collection::vec((any::<Pick>(), any::<bool>()), 1..12),
        pinned in any::<bool>(),
    ) {
        let mut fleet = play(events)?;
        let before = said(&fleet.view);
        let mut held: Vec<Arc<Allocation>> = fleet.view.held().cloned().collect();
        let mut trial = Transaction::begin(&mut fleet.view.fleet);
        for (pick, moves) in picks {
            if held.is_empty() {
                break;
            }
            let savepoint = trial.savepoint();
            let one = held.swap_remove(pick.index(held.len()));
            trial.release(one.clone());
            let to = on_next_cards(&one, &trial.capacity);
            let fits = trial.capacity.prove(to.tenant, &to.tasks, to.cpu_milli, to.memory_mib, &to.charge).is_ok();
            match (fits, moves) {
                (true, true) => trial.charge(Arc::new(to)),
                (_, false) => trial.roll_back_to(savepoint),
                _ => {}
            }
        }
        if pinned {
            let pin = layout(&[("1g.10gb", 7)], Some(1));
            trial.set_pool("default", Some(Pool { pinned: [(GpuModel::H100, pin)].into(), ..Pool::standard() }));
        }
        drop(trial);
        prop_assert_eq!(said(&fleet.view), before);
        prop_assert_eq!(picture(&fleet.view.fleet.index), picture(&rebuilt(&fleet.view)));
        prop_assert!(fleet.view.fleet.kept_wrongly().values().all(|wrong| *wrong == 0));
    }
}

/// The checker itself: two allocations on one card are found, and so is a card shared across organisations.
#[test]
fn a_planted_double_booking_is_caught() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2)]);
    fleet.tenant("other", |_| {});
    let first = fleet.submit(gang(1, 1));
    fleet.settle();
    fleet.check().expect("as it should be");
    let mut twin = fleet.allocation_of(first).expect("runs").clone();
    twin.id = AllocationId(999);
    fleet.allocations.insert(twin.id, twin.clone());
    let broken = fleet.check().expect_err("held twice");
    assert_eq!(broken.law, laws::Law(1), "{broken}");

    let share = |allocation: &mut Allocation| {
        allocation.tasks[0].devices[0].mode = HoldMode::TimeSlice { memory_mib: 10 };
    };
    fleet.allocations.values_mut().for_each(share);
    fleet.check().expect("two shares of one organisation");
    fleet.allocations.get_mut(&twin.id).expect("planted").tenant = TenantId(2);
    assert_eq!(fleet.check().expect_err("two organisations").law, laws::Law(8));
    fleet.allocations.get_mut(&twin.id).expect("planted").tasks.clear();
    assert_eq!(fleet.check().expect_err("half a gang").law, laws::Law(2));
}

/// The comparison itself: a change that the index was not told of is seen.
#[test]
fn a_planted_stale_index_is_caught() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2)]);
    let job = fleet.submit(gang(1, 1));
    fleet.settle();
    fleet.deliver(usize::MAX);
    assert_eq!(picture(&fleet.view.fleet.index), picture(&rebuilt(&fleet.view)));
    let held = fleet.allocation_of(job).expect("runs").clone();
    fleet.view.fleet.capacity.release(&held);
    assert_ne!(picture(&fleet.view.fleet.index), picture(&rebuilt(&fleet.view)));
}

/// The same of what is kept where CPU is scarce.
#[test]
fn a_planted_stale_node_is_caught() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2)]);
    let mut spec = gang(1, 1);
    spec.request.cpu_milli = 30_000;
    let job = fleet.submit(spec);
    fleet.settle();
    fleet.deliver(usize::MAX);
    assert_eq!(fleet.view.fleet.kept_wrongly(), [(CELL, 0)].into());
    let held = fleet.allocation_of(job).expect("runs").clone();
    fleet.view.fleet.settle_balance(CELL);
    fleet.view.fleet.capacity.release(&held);
    assert_eq!(fleet.view.fleet.kept_wrongly(), [(CELL, 1)].into());
}

/// A view that wrongly believes a card free proposes it, and the same arithmetic on the other side refuses it.
#[test]
fn a_shard_with_wrong_books_cannot_book_twice() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 1)]);
    let first = fleet.submit(gang(1, 1));
    fleet.settle();
    let second = fleet.submit(gang(1, 1));
    fleet.deliver(usize::MAX);
    let held = fleet.allocation_of(first).expect("runs").id;
    fleet.view.apply(&Change::Delete(Key::Allocation(held)));
    let proposals = fleet.pass();
    assert_eq!(proposals.len(), 1, "the planted error makes it propose");
    for proposal in proposals {
        assert_eq!(fleet.decide(proposal), None);
    }
    assert_eq!(fleet.refused, 1);
    assert!(!fleet.runs(second));
    fleet.check().expect("nothing was bound twice");
}
