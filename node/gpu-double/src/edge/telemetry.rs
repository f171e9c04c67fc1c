//! Temperatures, power, clocks, load.
//!
//! What must stay true: nothing here moves by itself but energy.

use super::macros::export;
use super::out::put;
use crate::state::refusal::Refusal;
use nvml_wrapper_sys::bindings::{
    nvmlClockType_t, nvmlDevice_t, nvmlEnableState_t, nvmlPstates_t, nvmlTemperatureSensors_t,
    nvmlTemperatureThresholds_t, nvmlUtilization_t,
};
use std::ffi::{c_uint, c_ulonglong};

/// All reasons of `nvml.h`.
const CLOCKS_EVENT_REASONS: c_ulonglong = 0x1ff;

/// Graphics and multiprocessors (0, 1), memory (2), video (3).
fn clock(card: &crate::state::card::Card, kind: u32) -> Result<u32, Refusal> {
    match kind {
        0 | 1 => Ok(card.gauges.sm_clock_mhz),
        2 => Ok(card.gauges.memory_clock_mhz),
        3 => Ok(card.gauges.sm_clock_mhz * 3 / 4),
        _ => Err(Refusal::InvalidArgument),
    }
}

export! {
    fn nvmlDeviceGetTemperature(call, device: nvmlDevice_t, sensor: nvmlTemperatureSensors_t, to: *mut c_uint) {
        let view = call.whole(device)?;
        if sensor != 0 {
            return Err(Refusal::InvalidArgument);
        }
        put(to, view.card()?.gauges.temperature_c)
    }

    fn nvmlDeviceGetTemperatureThreshold(
        call,
        device: nvmlDevice_t,
        kind: nvmlTemperatureThresholds_t,
        to: *mut c_uint
    ) {
        call.whole(device)?;
        // Shutdown, slowdown, memory, GPU.
        put(to, *[92, 89, 95, 87].get(kind as usize).ok_or(Refusal::NotSupported)?)
    }

    fn nvmlDeviceGetPowerUsage(call, device: nvmlDevice_t, to: *mut c_uint) {
        put(to, call.whole(device)?.card()?.gauges.power_mw)
    }

    fn nvmlDeviceGetPowerManagementLimit(call, device: nvmlDevice_t, to: *mut c_uint) {
        put(to, call.whole(device)?.card()?.gauges.power_limit_mw)
    }

    fn nvmlDeviceGetPowerManagementDefaultLimit(call, device: nvmlDevice_t, to: *mut c_uint) {
        put(to, call.whole(device)?.card()?.gauges.power_limit_mw)
    }

    fn nvmlDeviceGetEnforcedPowerLimit(call, device: nvmlDevice_t, to: *mut c_uint) {
        put(to, call.whole(device)?.card()?.gauges.power_limit_mw)
    }

    fn nvmlDeviceGetPowerManagementMode(call, device: nvmlDevice_t, to: *mut nvmlEnableState_t) {
        call.whole(device)?;
        put(to, 1)
    }

    fn nvmlDeviceGetTotalEnergyConsumption(call, device: nvmlDevice_t, to: *mut c_ulonglong) {
        let view = call.whole(device)?;
        put(to, view.card()?.gauges.energy_until_mj(view.now_ms))
    }

    fn nvmlDeviceGetUtilizationRates(call, device: nvmlDevice_t, to: *mut nvmlUtilization_t) {
        let (gpu, memory) = call.whole(device)?.card()?.utilization()?;
        put(to, nvmlUtilization_t { gpu, memory })
    }

    fn nvmlDeviceGetCurrentClocksEventReasons(call, device: nvmlDevice_t, to: *mut c_ulonglong) {
        put(to, call.whole(device)?.card()?.gauges.clocks_event_reasons)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons(call, device: nvmlDevice_t, to: *mut c_ulonglong) {
        put(to, call.whole(device)?.card()?.gauges.clocks_event_reasons)
    }

    fn nvmlDeviceGetSupportedClocksEventReasons(call, device: nvmlDevice_t, to: *mut c_ulonglong) {
        call.whole(device)?;
        put(to, CLOCKS_EVENT_REASONS)
    }

    fn nvmlDeviceGetSupportedClocksThrottleReasons(call, device: nvmlDevice_t, to: *mut c_ulonglong) {
        call.whole(device)?;
        put(to, CLOCKS_EVENT_REASONS)
    }

    fn nvmlDeviceGetClockInfo(call, device: nvmlDevice_t, kind: nvmlClockType_t, to: *mut c_uint) {
        put(to, clock(call.whole(device)?.card()?, kind)?)
    }

    fn nvmlDeviceGetPerformanceState(call, device: nvmlDevice_t, to: *mut nvmlPstates_t) {
        call.whole(device)?;
        put(to, 0)
    }

    fn nvmlDeviceGetPcieReplayCounter(call, device: nvmlDevice_t, to: *mut c_uint) {
        put(to, call.whole(device)?.card()?.health.pcie_replays)
    }
}
