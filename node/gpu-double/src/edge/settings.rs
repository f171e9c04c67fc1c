//! What root may set: compute mode, persistence, accounting.
//!
//! What must stay true: everybody may read them; under MIG there is no accounting.

use super::macros::export;
use super::out::put;
use crate::state::refusal::Refusal;
use nvml_wrapper_sys::bindings::{nvmlComputeMode_t, nvmlDevice_t, nvmlEnableState_t};

const fn switch(state: nvmlEnableState_t) -> Result<bool, Refusal> {
    match state {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Refusal::InvalidArgument),
    }
}

export! {
    fn nvmlDeviceGetComputeMode(call, device: nvmlDevice_t, to: *mut nvmlComputeMode_t) {
        put(to, call.whole(device)?.card()?.compute_mode)
    }

    fn nvmlDeviceSetComputeMode(call, device: nvmlDevice_t, mode: nvmlComputeMode_t) {
        let view = call.whole(device)?;
        // 1, exclusive by thread, is gone from the driver.
        if !matches!(mode, 0 | 2 | 3) {
            return Err(if mode == 1 { Refusal::NotSupported } else { Refusal::InvalidArgument });
        }
        // Under MIG the mode is the default one and stays so.
        if view.card()?.mig.is_on && mode != 0 {
            return Err(Refusal::NotSupported);
        }
        let slot = view.target.slot;
        call.change(&view, |fleet| {
            fleet.card_mut(slot)?.compute_mode = mode;
            Ok(())
        })
    }

    fn nvmlDeviceGetPersistenceMode(call, device: nvmlDevice_t, to: *mut nvmlEnableState_t) {
        put(to, call.whole(device)?.card()?.is_persistent.into())
    }

    fn nvmlDeviceSetPersistenceMode(call, device: nvmlDevice_t, mode: nvmlEnableState_t) {
        let view = call.whole(device)?;
        let (slot, mode) = (view.target.slot, switch(mode)?);
        call.change(&view, |fleet| {
            fleet.card_mut(slot)?.is_persistent = mode;
            Ok(())
        })
    }

    fn nvmlDeviceGetAccountingMode(call, device: nvmlDevice_t, to: *mut nvmlEnableState_t) {
        let view = call.whole(device)?;
        view.card()?.has_accounting()?;
        put(to, view.card()?.is_accounting.into())
    }

    fn nvmlDeviceSetAccountingMode(call, device: nvmlDevice_t, mode: nvmlEnableState_t) {
        let view = call.whole(device)?;
        view.card()?.has_accounting()?;
        let (slot, mode) = (view.target.slot, switch(mode)?);
        call.change(&view, |fleet| {
            fleet.card_mut(slot)?.is_accounting = mode;
            Ok(())
        })
    }
}
