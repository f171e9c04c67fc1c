//! Error counters: ECC, remapped rows, retired pages.
//!
//! What must stay true: a card either remaps rows (Ampere and later) or retires pages, and says "not supported" of the other.

use super::macros::export;
use super::out::{put, put_list};
use super::session::View;
use crate::state::card::Architecture;
use crate::state::refusal::{Answer, Refusal};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEccCounterType_t, nvmlEccErrorCounts_t, nvmlEnableState_t, nvmlMemoryErrorType_t,
    nvmlMemoryLocation_t, nvmlPageRetirementCause_t, nvmlRowRemapperHistogramValues_t,
};
use std::ffi::{c_uint, c_ulonglong};

/// The counter of an error type (0 corrected, 1 uncorrected) and period (0 volatile, 1 aggregate).
fn count(view: &View, errors: u32, period: u32) -> Answer<u64> {
    let health = &view.card()?.health;
    let counts = match period {
        0 => health.ecc_volatile,
        1 => health.ecc_aggregate,
        _ => return Err(Refusal::InvalidArgument),
    };
    match errors {
        0 => Ok(counts.corrected),
        1 => Ok(counts.uncorrected),
        _ => Err(Refusal::InvalidArgument),
    }
}

/// Addresses and times of the pages retired after a double bit error (1) or several single bit ones (0).
fn retired(view: &View, cause: u32) -> Answer<Vec<(u64, u64)>> {
    let card = view.card()?;
    if card.architecture >= Architecture::Ampere {
        return Err(Refusal::NotSupported);
    }
    let pages = card.health.retired_pages.iter().filter(|page| page.is_double_bit == (cause == 1));
    Ok(pages.map(|page| (page.address, page.timestamp)).collect())
}

export! {
    fn nvmlDeviceGetEccMode(
        call,
        device: nvmlDevice_t,
        current: *mut nvmlEnableState_t,
        pending: *mut nvmlEnableState_t
    ) {
        call.whole(device)?;
        put(current, 1)?;
        put(pending, 1)
    }

    fn nvmlDeviceGetTotalEccErrors(
        call,
        device: nvmlDevice_t,
        errors: nvmlMemoryErrorType_t,
        period: nvmlEccCounterType_t,
        to: *mut c_ulonglong
    ) {
        put(to, count(&call.whole(device)?, errors, period)?)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        call,
        device: nvmlDevice_t,
        errors: nvmlMemoryErrorType_t,
        period: nvmlEccCounterType_t,
        location: nvmlMemoryLocation_t,
        to: *mut c_ulonglong
    ) {
        // 2 is the device memory, the only place where the double has errors.
        let all = count(&call.whole(device)?, errors, period)?;
        put(to, if location == 2 { all } else { 0 })
    }

    fn nvmlDeviceGetDetailedEccErrors(
        call,
        device: nvmlDevice_t,
        errors: nvmlMemoryErrorType_t,
        period: nvmlEccCounterType_t,
        to: *mut nvmlEccErrorCounts_t
    ) {
        let all = count(&call.whole(device)?, errors, period)?;
        put(to, nvmlEccErrorCounts_t { l1Cache: 0, l2Cache: 0, deviceMemory: all, registerFile: 0 })
    }

    fn nvmlDeviceGetRemappedRows(
        call,
        device: nvmlDevice_t,
        corrected: *mut c_uint,
        uncorrected: *mut c_uint,
        pending: *mut c_uint,
        failed: *mut c_uint
    ) {
        let view = call.whole(device)?;
        let card = view.card()?;
        card.has_remapped_rows()?;
        let rows = card.health.rows;
        put(corrected, rows.corrected)?;
        put(uncorrected, rows.uncorrected)?;
        put(pending, rows.is_pending.into())?;
        put(failed, rows.has_failed.into())
    }

    fn nvmlDeviceGetRowRemapperHistogram(call, device: nvmlDevice_t, to: *mut nvmlRowRemapperHistogramValues_t) {
        let view = call.whole(device)?;
        let card = view.card()?;
        card.has_remapped_rows()?;
        let used = card.health.rows.corrected + card.health.rows.uncorrected;
        put(to, nvmlRowRemapperHistogramValues_t { max: 640 - used.min(640), high: used, partial: 0, low: 0, none: 0 })
    }

    fn nvmlDeviceGetRetiredPages(
        call,
        device: nvmlDevice_t,
        cause: nvmlPageRetirementCause_t,
        count: *mut c_uint,
        addresses: *mut c_ulonglong
    ) {
        let pages = retired(&call.whole(device)?, cause)?;
        let list: Vec<c_ulonglong> = pages.iter().map(|(address, _)| *address).collect();
        put_list(addresses, count, &list)
    }

    fn nvmlDeviceGetRetiredPages_v2(
        call,
        device: nvmlDevice_t,
        cause: nvmlPageRetirementCause_t,
        count: *mut c_uint,
        addresses: *mut c_ulonglong,
        times: *mut c_ulonglong
    ) {
        let (list, when): (Vec<_>, Vec<_>) = retired(&call.whole(device)?, cause)?.into_iter().unzip();
        put_list(addresses, count, &list)?;
        put_list(times, count, &when)
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(call, device: nvmlDevice_t, pending: *mut nvmlEnableState_t) {
        retired(&call.whole(device)?, 0)?;
        put(pending, 0)
    }
}
