//! Where CPU or a kind of card is scarce, a single task goes where least is lost to what comes next.

use super::fleet::*;
use muster_model::*;

fn single(cpu_milli: u64, devices: DeviceRequest) -> JobSpec {
    let mut spec = job(1, devices);
    spec.request.cpu_milli = cpu_milli;
    spec
}

fn whole(cpu_milli: u64, models: &[GpuModel]) -> JobSpec {
    single(cpu_milli, DeviceRequest::Whole { count: 1, models: models.to_vec() })
}

fn run(fleet: &mut Fleet, spec: JobSpec) -> JobId {
    let job = fleet.submit(spec);
    fleet.settle();
    job
}

/// Jobs of this kind come and go, so that more of them are expected.
fn come_and_go(fleet: &mut Fleet, spec: &JobSpec, times: u32) {
    for _ in 0..times {
        let job = run(fleet, spec.clone());
        fleet.end(job, false);
        fleet.settle();
    }
}

fn node_of(fleet: &Fleet, job: JobId) -> NodeId {
    fleet.allocation_of(job).expect("runs").tasks[0].node
}

/// On `a` two cards are free, with 63 CPUs; on `b` eight, with a single one.
fn uneven() -> (Fleet, NodeId, NodeId) {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8), Host::new("b", GpuModel::H100, 8)]);
    let (a, b) = (NodeId(1), NodeId(2));
    let mut poor = fleet.nodes[&b].clone();
    poor.spec.cpu_milli = 1_000;
    fleet.put_node(poor);
    let mut first = gang(1, 6);
    first.request.cpu_milli = 1_100;
    let first = run(&mut fleet, first);
    assert_eq!(node_of(&fleet, first), a, "the only host for it");
    (fleet, a, b)
}

#[test]
fn a_light_task_takes_a_card_whose_cpu_is_gone() {
    let (mut fleet, a, b) = uneven();
    let tight = run(&mut fleet, whole(100, &[]));
    assert_eq!(node_of(&fleet, tight), a, "the fuller node, as long as nothing says that CPU is scarce");
    fleet.end(tight, false);
    come_and_go(&mut fleet, &whole(16_000, &[]), 40);
    let light = run(&mut fleet, whole(100, &[]));
    assert_eq!(node_of(&fleet, light), b, "there it takes what a heavy one could not use");
    let heavy = run(&mut fleet, whole(16_000, &[]));
    assert_eq!(node_of(&fleet, heavy), a);
}

#[test]
fn cpu_alone_goes_where_no_free_card_wants_it() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8), Host::new("b", GpuModel::H100, 8)]);
    come_and_go(&mut fleet, &whole(7_000, &[]), 40);
    let mut full = gang(1, 8);
    full.request.cpu_milli = 8_000;
    let full = run(&mut fleet, full);
    let alone = run(&mut fleet, single(40_000, DeviceRequest::None));
    assert_eq!(node_of(&fleet, alone), node_of(&fleet, full), "its cards are held, so its CPU serves nothing else");
}

#[test]
fn who_takes_any_card_leaves_those_that_others_need() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 4), Host::new("b", GpuModel::L40S, 8)]);
    let (scarce, plenty) = (NodeId(1), NodeId(2));
    come_and_go(&mut fleet, &whole(100, &[GpuModel::H100]), 30);
    come_and_go(&mut fleet, &whole(100, &[GpuModel::H100, GpuModel::L40S]), 10);
    let any = run(&mut fleet, whole(100, &[GpuModel::H100, GpuModel::L40S]));
    assert_eq!(node_of(&fleet, any), plenty, "though it was named second");
    let choosy = run(&mut fleet, whole(100, &[GpuModel::H100]));
    assert_eq!(node_of(&fleet, choosy), scarce);
}

#[test]
fn several_cards_of_one_task_stay_on_one_island() {
    let split = Host { per_island: 4, ..Host::new("a", GpuModel::H100, 8) };
    let mut fleet = Fleet::new([split, Host::new("b", GpuModel::H100, 8)]);
    come_and_go(&mut fleet, &whole(16_000, &[]), 40);
    for _ in 0..4 {
        let pair = run(&mut fleet, single(4_000, DeviceRequest::Whole { count: 3, models: Vec::new() }));
        let task = &fleet.allocation_of(pair).expect("runs").tasks[0];
        let gpus = &fleet.nodes[&task.node].spec.gpus;
        let islands: std::collections::BTreeSet<u8> =
            task.devices.iter().map(|hold| gpus[usize::from(hold.gpu)].island).collect();
        assert_eq!(islands.len(), 1);
    }
}

#[test]
fn what_was_learned_outlives_a_snapshot() {
    let (mut fleet, _, b) = uneven();
    come_and_go(&mut fleet, &whole(16_000, &[]), 40);
    let fresh = fleet.snapshot();
    fleet.view.replace(fresh);
    let light = run(&mut fleet, whole(100, &[]));
    assert_eq!(node_of(&fleet, light), b);
}

#[test]
fn who_compares_with_a_blind_policy_gets_it() {
    let (mut fleet, a, _) = uneven();
    fleet.view.choose_by(crate::PlacementPolicy::FirstFit);
    come_and_go(&mut fleet, &whole(16_000, &[]), 40);
    let light = run(&mut fleet, whole(100, &[]));
    assert_eq!(node_of(&fleet, light), a, "the first node, whatever is scarce");
}
