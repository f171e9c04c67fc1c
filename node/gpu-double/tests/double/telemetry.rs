//! Sensors, counters, fields, GPM, settings.

use crate::host::{G1, Host, NOT_SUPPORTED, OK};
use muster_gpu_double::{Fleet, Load, Refusal};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{ComputeMode, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::nvmlFieldValue_t;
use std::mem;
use std::time::Duration;

/// The value of a field, or its own code.
fn field(host: &Host, id: u32, scope: u32) -> Result<u64, u32> {
    // SAFETY: the struct is of plain numbers, and the pointer to it is valid.
    unsafe {
        let mut value: nvmlFieldValue_t = mem::zeroed();
        (value.fieldId, value.scopeId) = (id, scope);
        assert_eq!(host.raw.nvmlDeviceGetFieldValues(host.handle(0), 1, &mut value), OK);
        if value.nvmlReturn == OK { Ok(value.value.ullVal) } else { Err(value.nvmlReturn) }
    }
}

#[test]
fn sensors_tell_what_the_file_says() {
    let host = Host::new(&Fleet::h100(1));
    let change = |card: &mut muster_gpu_double::Card| {
        card.gauges.temperature_c = 71;
        card.gauges.clocks_event_reasons = 64;
        card.gauges.load = Load { memory_percent: 40.0, ..Load::of_kernels(93.0) };
        card.gauges.set_power_mw(512_000, 0);
        card.health.ecc_volatile.uncorrected = 2;
    };
    host.faults.change_card(0, change).unwrap();
    let card = host.nvml.device_by_index(0).unwrap();
    assert_eq!(card.temperature(TemperatureSensor::Gpu).unwrap(), 71);
    assert_eq!(card.power_usage().unwrap(), 512_000);
    assert_eq!(card.enforced_power_limit().unwrap(), 700_000);
    assert_eq!(card.current_throttle_reasons().unwrap(), ThrottleReasons::HW_THERMAL_SLOWDOWN);
    let load = card.utilization_rates().unwrap();
    assert_eq!((load.gpu, load.memory), (93, 40));
    assert_eq!(card.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).unwrap(), 2);
    assert_eq!(card.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile).unwrap(), 0);
}

#[test]
fn energy_grows() {
    let host = Host::new(&Fleet::h100(1));
    let card = host.nvml.device_by_index(0).unwrap();
    let before = card.total_energy_consumption().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(card.total_energy_consumption().unwrap() > before);
}

#[test]
fn under_mig_some_of_it_is_not_supported() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let card = host.nvml.device_by_index(0).unwrap();
    assert!(matches!(card.utilization_rates(), Err(NvmlError::NotSupported)));
    assert!(matches!(card.is_accounting_enabled(), Err(NvmlError::NotSupported)));
    let rows = || {
        let (mut a, mut b, mut c, mut d) = (0, 0, 0, 0);
        // SAFETY: the pointers are valid.
        unsafe { host.raw.nvmlDeviceGetRemappedRows(host.handle(0), &mut a, &mut b, &mut c, &mut d) }
    };
    assert_eq!(rows(), OK, "no instances yet");
    let gpu = host.make_at(0, G1, 0, 1).unwrap();
    host.make_compute(gpu, 0).unwrap();
    assert_eq!(rows(), NOT_SUPPORTED);
    assert_eq!(field(&host, 144, 0), Err(NOT_SUPPORTED));
    let slice = card.mig_device_by_index(0).unwrap();
    assert!(matches!(slice.power_usage(), Err(NvmlError::NotSupported)));
}

#[test]
fn fields_are_told_by_id() {
    let host = Host::new(&Fleet::h100(1));
    assert_eq!(field(&host, 184, 0), Ok(1), "Hopper is resetless");
    assert_eq!(field(&host, 230, 0), Ok(0));
    host.faults.change_card(0, |card| card.health.recovery_action = 2).unwrap();
    assert_eq!(field(&host, 230, 0), Ok(2));
    host.faults.change_card(0, |card| card.health.rows.is_pending = true).unwrap();
    assert_eq!(field(&host, 144, 0), Ok(1));
    assert_eq!(field(&host, 91, 0), Ok(18));
    assert_eq!(field(&host, 165, 17), Ok(1));
    assert_eq!(field(&host, 272, 0), Err(NOT_SUPPORTED));
    assert_eq!(field(&Host::new(&Fleet::a100(1)), 184, 0), Ok(0));
    let card = host.nvml.device_by_index(0).unwrap();
    let values = card.field_values_for(&[FieldId(230), FieldId(999)]).unwrap();
    assert!(values[0].as_ref().unwrap().value.is_ok() && values[1].as_ref().unwrap().value.is_err());
}

#[test]
fn a_reset_ends_volatile_counters_and_does_the_remap() {
    let fleet = Fleet::h100(1).with_card(0, |card| {
        card.health.ecc_volatile.uncorrected = 1;
        card.health.ecc_aggregate.uncorrected = 1;
        card.health.rows.is_pending = true;
        card.health.recovery_action = 1;
    });
    let host = Host::new(&fleet);
    host.faults.reset(0).unwrap();
    let health = host.faults.fleet().unwrap().cards.remove(0).health;
    assert_eq!((health.ecc_volatile.uncorrected, health.ecc_aggregate.uncorrected), (0, 1));
    assert_eq!((health.rows.is_pending, health.rows.uncorrected, health.recovery_action), (false, 1, 0));
}

#[test]
fn gpm_gives_the_mean_between_two_samples() {
    let host = Host::new(&Fleet::h100(1));
    let card = host.nvml.device_by_index(0).unwrap();
    assert!(card.gpm_support().unwrap());
    let first = card.gpm_sample().unwrap();
    host.faults.change_card(0, |card| card.gauges.load = Load::of_kernels(80.0)).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let second = card.gpm_sample().unwrap();
    let metrics = [GpmMetricId::SmUtil, GpmMetricId::GraphicsUtil];
    let values = nvml_wrapper::gpm::gpm_metrics_get(&host.nvml, &first, &second, &metrics).unwrap();
    assert_eq!(values.into_iter().map(|value| value.unwrap().value).collect::<Vec<_>>(), [40.0, 40.0]);
    let backwards = nvml_wrapper::gpm::gpm_metrics_get(&host.nvml, &second, &first, &metrics);
    assert!(matches!(backwards, Err(NvmlError::InvalidArg)));
}

#[test]
fn gpm_of_an_instance_is_its_own_and_ampere_has_none() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpu = host.make_at(0, G1, 0, 1).unwrap();
    let id = host.info(gpu).id;
    host.faults.change_card(0, |card| card.instance_mut(id).unwrap().load = Load::of_kernels(60.0)).unwrap();
    let card = host.nvml.device_by_index(0).unwrap();
    let first = card.gpm_mig_sample(id).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let second = card.gpm_mig_sample(id).unwrap();
    let values = nvml_wrapper::gpm::gpm_metrics_get(&host.nvml, &first, &second, &[GpmMetricId::SmUtil]).unwrap();
    assert_eq!(values[0].as_ref().unwrap().value, 60.0);
    assert!(matches!(card.gpm_mig_sample(14), Err(NvmlError::NotFound)));
    let ampere = Host::new(&Fleet::a100(1));
    let card = ampere.nvml.device_by_index(0).unwrap();
    assert!(!card.gpm_support().unwrap());
    assert!(matches!(card.gpm_sample(), Err(NvmlError::NotSupported)));
}

#[test]
fn settings_are_roots() {
    let host = Host::new(&Fleet::h100(1));
    let mut card = host.nvml.device_by_index(0).unwrap();
    card.set_compute_mode(ComputeMode::ExclusiveProcess).unwrap();
    card.set_persistent(true).unwrap();
    card.set_accounting(true).unwrap();
    assert_eq!(card.compute_mode().unwrap(), ComputeMode::ExclusiveProcess);
    assert!(card.is_in_persistent_mode().unwrap() && card.is_accounting_enabled().unwrap());
    host.faults.no_permission(true).unwrap();
    assert!(matches!(card.set_compute_mode(ComputeMode::Default), Err(NvmlError::NoPermission)));
    assert!(matches!(card.set_persistent(false), Err(NvmlError::NoPermission)));
    assert_eq!(card.compute_mode().unwrap(), ComputeMode::ExclusiveProcess);
}

#[test]
fn codes_have_the_drivers_words() {
    let host = Host::new(&Fleet::h100(1));
    let words = |code| {
        // SAFETY: the text is the library's own and ends with a zero.
        unsafe { std::ffi::CStr::from_ptr(host.raw.nvmlErrorString(code)).to_str().unwrap() }
    };
    assert_eq!(words(Refusal::GpuIsLost.code()), "GPU is lost");
    assert_eq!(words(Refusal::InUse.code()), "In use by another client");
    assert_eq!(words(12_345), "Unknown Error");
}
