//! What requests are charged, and the arithmetic of amounts.

use muster_model::request::TaskRequest;
use muster_model::resources::Resource;
use muster_model::{DeviceRequest, GpuModel, GpuUnits, Limits, ResourceVec};
use proptest::prelude::*;

fn check(devices: DeviceRequest, model: GpuModel, units: u64) {
    assert_eq!(devices.charge_on(model), GpuUnits(units), "{devices:?} on {model}");
}

fn whole(count: u32) -> DeviceRequest {
    DeviceRequest::Whole { count, models: vec![] }
}
fn mig(profile: &str) -> DeviceRequest {
    DeviceRequest::Mig { profile: profile.to_owned(), models: vec![] }
}
fn mps(percent: u8, memory_mib: u64) -> DeviceRequest {
    DeviceRequest::Mps { percent, memory_mib, models: vec![] }
}
fn time_slice(memory_mib: u64) -> DeviceRequest {
    DeviceRequest::TimeSlice { memory_mib, models: vec![] }
}

#[test]
fn charges_are_shares_of_a_card_in_sevenths_of_a_thousandth() {
    use GpuModel::{A30, A100_40, H100, T4};
    check(DeviceRequest::None, H100, 0);
    check(whole(1), H100, 7_000);
    check(whole(8), T4, 56_000);
    // The larger of compute (1/7) and memory (1/8).
    check(mig("1g.10gb"), H100, 1_000);
    // Two eighths of memory weigh more than one seventh of compute.
    check(mig("1g.20gb"), H100, 1_750);
    check(mig("1g.10gb"), A100_40, 1_750);
    check(mig("2g.20gb"), H100, 2_000);
    check(mig("3g.40gb"), H100, 3_500);
    check(mig("4g.40gb"), H100, 4_000);
    check(mig("7g.80gb"), H100, 7_000);
    check(mig("1g.6gb"), A30, 1_750);
    check(mig("2g.12gb"), A30, 3_500);
    check(mig("4g.24gb"), A30, 7_000);
    check(mig("1g.10gb"), T4, 0);
    check(mps(30, 1_000), H100, 2_100);
    check(mps(10, 40_960), H100, 3_500);
    // Memory rounds up: never less than what is held.
    check(time_slice(1), H100, 1);
    check(time_slice(8_192), T4, 3_500);
}

#[test]
fn possible_models_follow_the_request() {
    let models = |devices: &DeviceRequest| devices.possible_models().collect::<Vec<_>>();
    assert_eq!(models(&mig("1g.10gb")), [GpuModel::A100_40, GpuModel::A100_80, GpuModel::H100]);
    assert_eq!(models(&time_slice(100_000)), [GpuModel::H200, GpuModel::B200]);
    assert_eq!(models(&DeviceRequest::None), []);
    let named = DeviceRequest::Whole { count: 1, models: vec![GpuModel::H200, GpuModel::H100] };
    assert_eq!(models(&named), [GpuModel::H200, GpuModel::H100], "in the tenant's order");
}

#[test]
fn model_names_are_read_as_people_write_them() {
    for (text, model) in [
        ("h100", GpuModel::H100),
        ("H100-80GB", GpuModel::H100),
        ("a100", GpuModel::A100_80),
        ("a100_40gb", GpuModel::A100_40),
        ("A100-80", GpuModel::A100_80),
        ("l40s", GpuModel::L40S),
    ] {
        assert_eq!(text.parse::<GpuModel>().ok(), Some(model), "{text}");
    }
    for text in ["", "h1000", "gb", "a100-", "h100 sxm"] {
        assert!(text.parse::<GpuModel>().is_err(), "{text}");
    }
}

fn amounts() -> impl Strategy<Value = ResourceVec> {
    let gpus = proptest::collection::vec((0..GpuModel::COUNT, 0_u64..1_000_000), 0..4);
    (gpus, 0_u64..1_000_000, 0_u64..1_000_000).prop_map(|(gpus, cpu_milli, memory_mib)| {
        let mut amounts = ResourceVec::default();
        (amounts.cpu_milli, amounts.memory_mib) = (cpu_milli, memory_mib);
        gpus.into_iter().for_each(|(model, units)| amounts.set_gpu(GpuModel::ALL[model], GpuUnits(units)));
        amounts
    })
}

proptest! {
    #[test]
    fn what_is_added_can_be_taken_away(a in amounts(), b in amounts()) {
        let mut sum = a.plus(&b);
        prop_assert_eq!(sum.first_excess_over(&a), b.nonzero().next().map(|(resource, _)| resource));
        sum.sub(&b);
        prop_assert_eq!(sum, a);
        prop_assert_eq!(a.times(3), a.plus(&a).plus(&a));
    }

    #[test]
    fn a_limit_is_passed_by_exactly_what_is_above_it(
        a in amounts(),
        cpu in 0_u64..1_000_000,
        memory in 0_u64..1_000_000,
    ) {
        let limits = Limits { cpu_milli: Some(cpu), memory_mib: Some(memory), ..Limits::default() };
        let passed = (a.cpu_milli > cpu).then_some((Resource::Cpu, cpu));
        let passed = passed.or((a.memory_mib > memory).then_some((Resource::Memory, memory)));
        prop_assert_eq!(limits.first_passed_by(&a), passed);
    }
}

#[test]
#[should_panic(expected = "released more GPU units than were charged")]
fn taking_away_more_than_there_is_panics() {
    ResourceVec::default().sub(&ResourceVec::of_gpu(GpuModel::H100, GpuUnits(1)));
}

#[test]
fn a_task_is_charged_its_host_share_too() {
    let request = TaskRequest { devices: whole(2), cpu_milli: 16_000, memory_mib: 64_000 };
    let charge = request.charge_on(GpuModel::H100);
    assert_eq!((charge.gpu(GpuModel::H100).0, charge.cpu_milli, charge.memory_mib), (14_000, 16_000, 64_000));
}
