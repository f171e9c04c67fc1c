//! Field values by id.
//!
//! What must stay true: a field that the double does not know is "not supported" by itself, while the call succeeds, as in the driver.

use super::macros::export;
use super::session::View;
use crate::state::refusal::{Answer, Refusal};
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, NVML_FI_DEV_ECC_CURRENT, NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
    NVML_FI_DEV_ECC_DBE_VOL_TOTAL, NVML_FI_DEV_ECC_SBE_AGG_TOTAL, NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED, NVML_FI_DEV_MEMORY_TEMP,
    NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, NVML_FI_DEV_NVLINK_GET_STATE, NVML_FI_DEV_NVLINK_LINK_COUNT,
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_INSTANT,
    NVML_FI_DEV_REMAPPED_COR, NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_UNC,
    NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlFieldValue_t, nvmlValue_t};
use std::ffi::c_int;

/// Fields in one call: the driver takes about as many.
const FIELDS_MAX: c_int = 1_024;

/// A value with its `nvmlValueType_t`.
enum Value {
    Unsigned(u32),
    Long(u64),
}

fn value(view: &View, field: u32, scope: u32) -> Answer<Value> {
    use Value::{Long, Unsigned};
    let card = view.card()?;
    let (health, gauges) = (&card.health, &card.gauges);
    let slowdown_ms = |bit: u64| Long(if gauges.clocks_event_reasons & bit == 0 { 0 } else { 60_000_000 });
    Ok(match field {
        NVML_FI_DEV_ECC_CURRENT => Unsigned(1),
        NVML_FI_DEV_ECC_SBE_VOL_TOTAL => Long(health.ecc_volatile.corrected),
        NVML_FI_DEV_ECC_DBE_VOL_TOTAL => Long(health.ecc_volatile.uncorrected),
        NVML_FI_DEV_ECC_SBE_AGG_TOTAL => Long(health.ecc_aggregate.corrected),
        NVML_FI_DEV_ECC_DBE_AGG_TOTAL => Long(health.ecc_aggregate.uncorrected),
        NVML_FI_DEV_REMAPPED_COR
        | NVML_FI_DEV_REMAPPED_UNC
        | NVML_FI_DEV_REMAPPED_PENDING
        | NVML_FI_DEV_REMAPPED_FAILURE => {
            card.has_remapped_rows()?;
            Unsigned(match field {
                NVML_FI_DEV_REMAPPED_COR => health.rows.corrected,
                NVML_FI_DEV_REMAPPED_UNC => health.rows.uncorrected,
                NVML_FI_DEV_REMAPPED_PENDING => health.rows.is_pending.into(),
                _ => health.rows.has_failed.into(),
            })
        }
        NVML_FI_DEV_MEMORY_TEMP => Unsigned(gauges.memory_temperature_c),
        NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION => Long(gauges.energy_until_mj(view.now_ms)),
        NVML_FI_DEV_POWER_AVERAGE | NVML_FI_DEV_POWER_INSTANT => Unsigned(gauges.power_mw),
        NVML_FI_DEV_NVLINK_LINK_COUNT => Unsigned(card.links.len() as u32),
        NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON => Unsigned(link_speed_mbps(card.links.first().map(|link| link.version))?),
        NVML_FI_DEV_NVLINK_GET_STATE => {
            let link = card.links.get(scope as usize).ok_or(Refusal::InvalidArgument)?;
            Unsigned(link.is_active.into())
        }
        NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS => Long(health.nvlink_errors),
        NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED => Unsigned(card.is_resetless().into()),
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => Unsigned(health.recovery_action),
        NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP => slowdown_ms(4),
        NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN => slowdown_ms(32),
        NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN => slowdown_ms(64),
        _ => return Err(Refusal::NotSupported),
    })
}

/// Speed of one link and direction.
fn link_speed_mbps(version: Option<u32>) -> Answer<u32> {
    match version {
        Some(2..=4) => Ok(26_562),
        Some(5) => Ok(53_125),
        Some(_) => Ok(20_000),
        None => Err(Refusal::NotSupported),
    }
}

unsafe fn fill(view: &View, field: *mut nvmlFieldValue_t) {
    let answer = value(view, (*field).fieldId, (*field).scopeId);
    (*field).timestamp = view.now_ms as i64 * 1_000;
    (*field).latencyUsec = 0;
    let (kind, code, value) = match answer {
        Ok(Value::Unsigned(value)) => (1, 0, nvmlValue_t { ullVal: value.into() }),
        Ok(Value::Long(value)) => (3, 0, nvmlValue_t { ullVal: value }),
        Err(refusal) => (1, refusal.code(), nvmlValue_t { ullVal: 0 }),
    };
    (*field).valueType = kind;
    (*field).nvmlReturn = code;
    (*field).value = value;
}

export! {
    fn nvmlDeviceGetFieldValues(call, device: nvmlDevice_t, count: c_int, values: *mut nvmlFieldValue_t) {
        let view = call.whole(device)?;
        if values.is_null() || !(1..=FIELDS_MAX).contains(&count) {
            return Err(Refusal::InvalidArgument);
        }
        (0..count as usize).for_each(|at| fill(&view, values.add(at)));
        Ok(())
    }
}
