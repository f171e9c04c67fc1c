//! Reservations: what a gang is given, what may pass it meanwhile, and that a gang starts in time.

use super::fleet::*;
use crate::{Proposal, explain};
use muster_model::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const MIN_MS: u64 = 60_000;
const HOUR_S: u64 = 3_600;

fn limited(spec: JobSpec, limit_s: u64) -> JobSpec {
    JobSpec { time_limit_s: Some(limit_s), grace_s: 0, ..spec }
}

/// Four nodes of eight cards: two run for an hour at most, one for two, one is free.
fn four_nodes() -> (Fleet, Vec<JobId>) {
    let mut fleet = Fleet::new(["a", "b", "c", "d"].map(|name| Host::new(name, GpuModel::H100, 8)));
    fleet.tenant("other", |_| {});
    fleet.now_ms = 1_000_000;
    let running = [HOUR_S, HOUR_S, 2 * HOUR_S].map(|limit_s| {
        let job = fleet.submit(limited(gang(1, 8), limit_s));
        fleet.settle();
        job
    });
    (fleet, running.to_vec())
}

fn reserved(fleet: &Fleet, job: JobId) -> Option<(u64, Vec<u32>)> {
    let kept = fleet.jobs[&job].reserved.as_ref()?;
    Some(((kept.start_ms - fleet.now_ms) / MIN_MS, kept.nodes.iter().map(|node| node.0).collect()))
}

fn of_other(spec: JobSpec) -> JobSpec {
    JobSpec { tenant: "other".into(), ..spec }
}

fn codes(fleet: &Fleet, job: JobId) -> Vec<&'static str> {
    explain(&fleet.view, job, fleet.now_ms).expect("live").reasons.iter().map(crate::Reason::code).collect()
}

#[test]
fn a_gang_reserves_from_the_end_of_what_runs_where_it_will_stand() {
    let (mut fleet, running) = four_nodes();
    let two = fleet.submit(gang(2, 8));
    fleet.settle();
    assert_eq!(reserved(&fleet, two), Some((61, vec![1, 2])), "the nodes that are free last; node 4 stays for others");
    let four = fleet.submit(gang(4, 8));
    fleet.settle();
    assert_eq!(reserved(&fleet, four), None, "nothing says when the first gang ends");
    assert_eq!(codes(&fleet, two), ["no_free_gpus", "reserved"]);

    // It starts as soon as it fits, which is earlier than reserved.
    fleet.now_ms += 10 * MIN_MS;
    fleet.end(running[0], false);
    fleet.settle();
    assert!(fleet.runs(two), "on a node that was kept and one that was free");
}

#[test]
fn what_is_over_in_time_passes_and_the_rest_waits() {
    let (mut fleet, running) = four_nodes();
    let big = fleet.submit(gang(4, 8));
    fleet.settle();
    assert_eq!(reserved(&fleet, big), Some((121, vec![1, 2, 3, 4])));
    let [endless, long, short] = [None, Some(3 * HOUR_S), Some(HOUR_S)].map(|time_limit_s| {
        let spec = JobSpec { tenant: "other".into(), time_limit_s, grace_s: 0, ..gang(1, 8) };
        fleet.submit(spec)
    });
    fleet.settle();
    assert_eq!([endless, long, short].map(|job| fleet.runs(job)), [false, false, true]);
    fleet.end(short, false);
    fleet.settle();
    assert_eq!(codes(&fleet, long), ["reserved_for_gang"]);
    let said = explain(&fleet.view, long, fleet.now_ms).expect("live").reasons.remove(0);
    assert_eq!(
        said.text(),
        format!("h100 are free in cell cell-1, but reserved for job {big}, which starts there within 2 h 1 min")
    );
    assert_eq!(said.fix(), "set a time limit of at most 2 h");

    for job in running {
        fleet.end(job, false);
    }
    fleet.settle();
    assert!(fleet.runs(big) && !fleet.runs(endless) && !fleet.runs(long));
    assert_eq!(fleet.jobs[&big].reserved, None);
}

/// A gang that is over in time stands on reserved and free nodes at once.
#[test]
fn a_short_gang_stands_on_reserved_and_free_nodes_together() {
    let mut fleet = Fleet::new(["a", "b", "c", "d"].map(|name| Host::new(name, GpuModel::H100, 8)));
    fleet.now_ms = 1_000_000;
    let first = fleet.submit(limited(gang(2, 8), HOUR_S / 3));
    fleet.settle();
    let big = fleet.submit(limited(gang(3, 8), HOUR_S));
    fleet.settle();
    assert_eq!(reserved(&fleet, big), Some((21, vec![1, 2, 3])), "two that run and one that is free");
    let long = fleet.submit(limited(gang(2, 8), HOUR_S));
    let short = fleet.submit(limited(gang(2, 8), 300));
    fleet.settle();
    assert!(
        fleet.runs(first) && fleet.runs(short),
        "it stands on node 3, which is reserved, and on node 4, which is free"
    );
    assert!(!fleet.runs(long), "one that would outlast the reservation does not");
    assert_eq!(reserved(&fleet, big), Some((21, vec![1, 2, 3])));
    fleet.end(first, false);
    fleet.end(short, false);
    fleet.settle();
    assert!(fleet.runs(big));
}

/// Two gangs that differ in their time limit alone, the longer one first: when a node becomes free that nothing is reserved on, the shorter one
/// stands on it and on a reserved node, and the longer one cannot.
#[test]
fn a_short_gang_behind_a_long_one_starts_on_what_became_free_and_what_is_reserved() {
    let mut fleet = Fleet::new(["a", "b", "c", "d"].map(|name| Host::new(name, GpuModel::H100, 8)));
    fleet.now_ms = 1_000_000;
    fleet.submit(limited(gang(2, 8), HOUR_S / 3));
    fleet.settle();
    let single = fleet.submit(gang(1, 8));
    fleet.settle();
    let big = fleet.submit(limited(gang(3, 8), HOUR_S));
    fleet.settle();
    let (_, kept) = reserved(&fleet, big).expect("two end in time and one is free");
    let stands = fleet.allocation_of(single).expect("it runs").tasks[0].node;
    assert!(!kept.contains(&stands.0), "{kept:?}");

    let long = fleet.submit(limited(gang(2, 8), HOUR_S));
    let short = fleet.submit(limited(gang(2, 8), 300));
    fleet.settle();
    assert!(!fleet.runs(long) && !fleet.runs(short));
    fleet.end(single, false);
    fleet.settle();
    assert!(fleet.runs(short) && !fleet.runs(long), "{:?}", codes(&fleet, short));
}

/// Two of one kind wait: the first has a reservation, the second came later and goes before it. Half of what is reserved and a node beside it become
/// free: only the first may stand on both.
#[test]
fn a_gang_with_a_reservation_starts_wherever_it_fits_though_another_of_its_kind_goes_before_it() {
    let (mut fleet, running) = four_nodes();
    let endless = fleet.submit(gang(1, 8));
    fleet.settle();
    let first = fleet.submit(gang(2, 8));
    fleet.settle();
    assert_eq!(reserved(&fleet, first), Some((61, vec![1, 2])));
    let before = fleet.submit(JobSpec { priority: 1, ..gang(2, 8) });
    fleet.end(running[0], false);
    fleet.settle();
    assert!(!fleet.runs(first) && !fleet.runs(before));
    fleet.end(endless, false);
    fleet.settle();
    assert!(fleet.runs(first) && !fleet.runs(before), "{:?}", codes(&fleet, first));
}

/// The same where its nodes are free and its tenant's max is what it waits for.
#[test]
fn a_gang_with_a_reservation_starts_when_its_max_is_raised_though_another_of_its_kind_goes_before_it() {
    let mut fleet = Fleet::new(["a", "b"].map(|name| Host::new(name, GpuModel::H100, 8)));
    let max = |cards| Limits { gpu: [(GpuModel::H100, GpuUnits::cards(cards))].into(), ..Limits::default() };
    let running = fleet.submit(limited(gang(2, 8), HOUR_S));
    fleet.settle();
    let first = fleet.submit(gang(2, 8));
    fleet.settle();
    assert_eq!(reserved(&fleet, first), Some((61, vec![1, 2])));
    let before = fleet.submit(JobSpec { priority: 1, ..gang(2, 8) });
    fleet.tenant("org", |tenant| tenant.max = max(8));
    fleet.end(running, false);
    fleet.settle();
    assert!(!fleet.runs(first) && !fleet.runs(before));
    fleet.tenant("org", |tenant| tenant.max = max(16));
    fleet.settle();
    assert!(fleet.runs(first) && !fleet.runs(before), "{:?}", codes(&fleet, first));
}

/// Free cards were held back from it for another gang; since it has a reservation they are not, and it takes what becomes free of them.
#[test]
fn a_gang_that_was_held_back_passes_the_starvation_guard_once_it_has_a_reservation() {
    let a100 = Host::new("b", GpuModel::A100_80, 8);
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8), a100]);
    fleet.tenant("other", |_| {});
    fleet.submit(gang(1, 5));
    let small = fleet.submit(gang(1, 2));
    let any = |count, models| job(1, DeviceRequest::Whole { count, models });
    fleet.submit(limited(any(8, vec![GpuModel::A100_80]), HOUR_S));
    fleet.settle();
    let bypassed = fleet.submit(gang(1, 8));
    fleet.put_job(Job { bypassed_cards: 1_000, ..fleet.jobs[&bypassed].clone() });
    fleet.settle();
    fleet.now_ms += MIN_MS;
    let first = fleet.submit(of_other(any(2, Vec::new())));
    fleet.settle();
    assert_eq!(reserved(&fleet, first), Some((60, vec![2])), "nothing says when the cards of node 1 are free");
    fleet.end(small, false);
    fleet.settle();
    assert!(fleet.runs(first) && !fleet.runs(bypassed), "{:?}", codes(&fleet, first));
}

#[test]
fn a_lost_node_breaks_a_reservation_and_another_is_made() {
    let (mut fleet, _) = four_nodes();
    let three = fleet.submit(gang(3, 8));
    fleet.settle();
    assert_eq!(reserved(&fleet, three), Some((61, vec![1, 2, 4])));
    let lost = Node { health: NodeHealth::Down, ..fleet.nodes[&NodeId(4)].clone() };
    fleet.put_node(lost.clone());
    fleet.settle();
    assert_eq!(reserved(&fleet, three), Some((121, vec![1, 2, 3])));
    // A better one is made once there is one, a minute later at the earliest.
    fleet.put_node(Node { health: NodeHealth::Ready, ..lost });
    fleet.now_ms += 5 * MIN_MS;
    fleet.settle();
    assert_eq!(reserved(&fleet, three), Some((56, vec![1, 2, 4])));
}

#[test]
fn another_shard_keeps_reservations() {
    let (mut fleet, _) = four_nodes();
    let big = fleet.submit(gang(4, 8));
    fleet.settle();
    fleet.deliver(usize::MAX);
    fleet.view = fleet.snapshot();
    let endless = fleet.submit(gang(1, 8));
    fleet.settle();
    assert!(!fleet.runs(endless), "what is kept is kept by whoever plans the cell");
    assert_eq!(reserved(&fleet, big), Some((121, vec![1, 2, 3, 4])));
}

#[test]
fn two_gangs_that_lose_their_nodes_are_both_given_others() {
    let (mut fleet, gangs) = four_running_and_two_gangs();
    fleet.bounds.reserved_part = 1;
    fleet.settle();
    assert_eq!(gangs.map(|job| reserved(&fleet, job)), [Some((61, vec![1])), Some((61, vec![2]))]);
    for node in [NodeId(1), NodeId(2)] {
        fleet.put_node(Node { health: NodeHealth::Down, ..fleet.nodes[&node].clone() });
    }
    fleet.settle();
    assert_eq!(gangs.map(|job| reserved(&fleet, job)), [Some((121, vec![3])), Some((181, vec![4]))]);
}

/// Tests run what fleets run: an eighth of four nodes is none, so after the first gang no more nodes are kept.
#[test]
fn a_small_cell_keeps_nodes_for_its_first_gang_alone() {
    let (mut fleet, gangs) = four_running_and_two_gangs();
    fleet.settle();
    assert_eq!(gangs.map(|job| reserved(&fleet, job)), [Some((61, vec![1])), None]);
}

/// Four nodes that run for one, one, two and three hours, and two gangs of one node that wait.
fn four_running_and_two_gangs() -> (Fleet, [JobId; 2]) {
    let mut fleet = Fleet::new(["a", "b", "c", "d"].map(|name| Host::new(name, GpuModel::H100, 8)));
    fleet.now_ms = 1_000_000;
    for limit_s in [HOUR_S, HOUR_S, 2 * HOUR_S, 3 * HOUR_S] {
        fleet.submit(limited(gang(1, 8), limit_s));
        fleet.settle();
    }
    let gangs = [1, 2].map(|tasks| fleet.submit(gang(8 / tasks, tasks)));
    (fleet, gangs)
}
#[test]
fn what_outlasts_its_limit_is_not_counted_as_gone() {
    let (mut fleet, running) = four_nodes();
    let two = fleet.submit(gang(2, 8));
    fleet.submit(gang(1, 8));
    fleet.settle();
    assert_eq!(reserved(&fleet, two), Some((61, vec![1, 2])));
    // Both nodes are late by four minutes, and are given as long again.
    fleet.now_ms += 65 * MIN_MS;
    fleet.settle();
    assert_eq!(reserved(&fleet, two), Some((4, vec![1, 2])));
    fleet.end(running[0], false);
    fleet.end(running[1], false);
    fleet.settle();
    assert!(fleet.runs(two));
}

#[test]
fn a_refused_binding_of_a_gang_with_a_reservation_is_not_repeated_at_once() {
    let (mut fleet, running) = four_nodes();
    let big = fleet.submit(gang(4, 8));
    fleet.settle();
    running.into_iter().for_each(|job| fleet.end(job, false));
    fleet.deliver(usize::MAX);
    let binds = |proposals: &[Proposal]| proposals.iter().filter(|one| matches!(one, Proposal::Bind(_))).count();
    assert_eq!(binds(&fleet.pass()), 1);
    fleet.view.refused(big, fleet.now_ms);
    assert_eq!(binds(&fleet.pass()), 0, "it rests");
    let endless = fleet.submit(of_other(gang(1, 8)));
    fleet.settle();
    assert!(!fleet.runs(endless), "and its nodes are kept meanwhile");
    fleet.now_ms += MIN_MS;
    fleet.settle();
    assert!(fleet.runs(big));
}

#[test]
fn nodes_are_not_kept_for_a_gang_whose_tenant_has_reached_its_max() {
    let (mut fleet, _) = four_nodes();
    fleet.tenant("capped", |tenant| {
        tenant.max.gpu.insert(GpuModel::H100, GpuUnits::cards(32));
    });
    let capped = |spec: JobSpec| JobSpec { tenant: "capped".into(), ..spec };
    let big = fleet.submit(capped(gang(4, 8)));
    fleet.settle();
    assert!(reserved(&fleet, big).is_some());
    // A short one of the same tenant passes: now the gang would be over the max.
    let short = fleet.submit(capped(limited(gang(1, 1), HOUR_S)));
    fleet.settle();
    assert!(fleet.runs(short));
    fleet.now_ms += 6 * MIN_MS;
    fleet.settle();
    assert_eq!(reserved(&fleet, big), None);
}

/// What happens in the world of [`reserved_gangs_start_in_time`].
#[derive(Clone, Debug)]
enum Event {
    Submit(usize, Option<u64>),
    /// Of what runs the job at this place, counted around, ends.
    EndEarly(usize),
    Later(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let limits = prop::option::weighted(0.9, prop::sample::select(vec![60, 300, 900, 1_800, 3_600, 7_200]));
    prop_oneof![
        5 => (0..9_usize, limits).prop_map(|(kind, limit_s)| Event::Submit(kind, limit_s)),
        2 => (0..32_usize).prop_map(Event::EndEarly),
        3 => (1..1_200_u64).prop_map(Event::Later),
    ]
}

fn spec(kind: usize) -> JobSpec {
    let mut spec = match kind {
        0 | 1 => gang(1, 1),
        2 => gang(3, 2),
        3 => gang(5, 2),
        4 => gang(6, 1),
        5 => gang(3, 1),
        6 => gang(4, 2),
        7 => mig("3g.40gb"),
        _ => gang(8, 1),
    };
    match kind {
        2 => spec.topology.required = Some(TopologyLevel::Leaf),
        4 => spec.topology.segment_tasks = Some(2),
        5 => spec.topology.spread = Some(Spread { level: TopologyLevel::Node, tasks_max: 1, required: true }),
        6 => spec.topology.required = Some(TopologyLevel::Block),
        8 => spec.request.cpu_milli = 20_000,
        _ => {}
    }
    spec
}

fn world() -> Fleet {
    let host = |name, block, leaf| Host { per_island: 2, ..Host::new(name, GpuModel::H100, 4).at(block, leaf) };
    let rack = |name, block, leaf| Host { nvlink: "nvl", ..host(name, block, leaf) };
    Fleet::new([
        host("a", "b1", "l1"),
        host("b", "b1", "l1"),
        host("c", "b1", "l2"),
        rack("d", "b2", "l3"),
        rack("e", "b2", "l3"),
    ])
}

/// Ends what has reached its limit, as agents would, at the end of the time that a start may take.
fn end_what_is_due(fleet: &mut Fleet) {
    let due = |held: &&Allocation| {
        let limit_s = fleet.jobs[&held.job].spec.time_limit_s;
        limit_s.is_some_and(|limit_s| held.bound_ms + MIN_MS + 1_000 * (limit_s + 1) <= fleet.now_ms)
    };
    let due: Vec<JobId> = fleet.allocations.values().filter(due).map(|held| held.job).collect();
    due.into_iter().for_each(|job| fleet.end(job, false));
}

/// The first reservation of each job, and when it started if it did.
type Reservations = BTreeMap<JobId, (u64, Option<u64>)>;

fn note(fleet: &Fleet, reservations: &mut Reservations) {
    for (job, kept) in fleet.jobs.values().filter_map(|job| Some((job.id, job.reserved.as_ref()?))) {
        reservations.entry(job).or_insert((kept.start_ms, None));
    }
    for held in fleet.allocations.values() {
        if let Some((_, started)) = reservations.get_mut(&held.job) {
            started.get_or_insert(held.bound_ms);
        }
    }
}

fn play(events: Vec<Event>, reserved_part: usize) -> Result<Reservations, TestCaseError> {
    let mut fleet = world();
    fleet.bounds.reserved_part = reserved_part;
    fleet.now_ms = 1_000_000;
    let mut reservations = Reservations::new();
    // In the end everything that has a limit comes to it.
    let rest = (0..200).map(|_| Event::Later(600));
    for event in events.into_iter().chain(rest) {
        match event {
            Event::Submit(kind, time_limit_s) => {
                fleet.submit(JobSpec { time_limit_s, ..spec(kind) });
            }
            Event::EndEarly(place) => {
                let ended = fleet.allocations.values().cycle().nth(place).map(|held| held.job);
                ended.into_iter().for_each(|job| fleet.end(job, false));
            }
            Event::Later(seconds) => {
                for _ in 0..seconds.div_ceil(30) {
                    fleet.now_ms += 30_000;
                    end_what_is_due(&mut fleet);
                    fleet.settle();
                    note(&fleet, &mut reservations);
                }
            }
        }
        fleet.settle();
        note(&fleet, &mut reservations);
        fleet.check().map_err(|broken| TestCaseError::fail(broken.to_string()))?;
    }
    Ok(reservations)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// A gang that had a reservation starts by then, whatever was submitted and bound since, whoever ended early.
    #[test]
    fn reserved_gangs_start_in_time(events in prop::collection::vec(event(), 1..60), part in prop::sample::select(vec![1, crate::RESERVED_PART])) {
        for (job, (reserved_ms, started_ms)) in play(events, part)? {
            let Some(started_ms) = started_ms else {
                return Err(TestCaseError::fail(format!("job {job} had a reservation at {reserved_ms} and never started")));
            };
            // The world looks twice a minute.
            prop_assert!(started_ms <= reserved_ms + 30_000, "job {} started at {} of {}", job, started_ms, reserved_ms);
        }
    }
}
