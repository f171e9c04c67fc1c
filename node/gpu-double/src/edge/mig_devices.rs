//! The MIG mode, and the MIG devices as CUDA sees them.
//!
//! What must stay true: `nvmlDeviceSetMigMode` succeeds when the mode is noted, and says besides whether it is active.

use super::handle::{Kind, Target};
use super::macros::export;
use super::out::put;
use crate::state::profiles;
use crate::state::refusal::Refusal;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAttributes_t, nvmlReturn_t};
use std::ffi::c_uint;

/// Most MIG devices of a card: one for each compute slice.
fn mig_devices_max(card: &crate::state::card::Card) -> u32 {
    profiles::of(card.model).iter().map(|profile| profile.instances_max).max().unwrap_or_default()
}

export! {
    fn nvmlDeviceSetMigMode(call, device: nvmlDevice_t, mode: c_uint, activation: *mut nvmlReturn_t) {
        let view = call.whole(device)?;
        if activation.is_null() || mode > 1 {
            return Err(Refusal::InvalidArgument);
        }
        let slot = view.target.slot;
        let active = call.change(&view, |fleet| fleet.set_mig_mode(slot, mode == 1, std::process::id()))?;
        put(activation, active.err().map_or(0, Refusal::code))
    }

    fn nvmlDeviceGetMigMode(call, device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let view = call.whole(device)?;
        let card = view.card()?;
        if !card.has_mig() {
            return Err(Refusal::NotSupported);
        }
        put(current, card.mig.is_on.into())?;
        put(pending, card.mig.is_on_pending.into())
    }

    fn nvmlDeviceGetMaxMigDeviceCount(call, device: nvmlDevice_t, count: *mut c_uint) {
        let view = call.whole(device)?;
        let card = view.card()?;
        put(count, if card.mig.is_on { mig_devices_max(card) } else { 0 })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(call, device: nvmlDevice_t, index: c_uint, mig: *mut nvmlDevice_t) {
        let view = call.whole(device)?;
        let card = view.card()?;
        card.in_mig_mode()?;
        if index >= mig_devices_max(card) {
            return Err(Refusal::InvalidArgument);
        }
        let (gpu, compute) = card.mig_devices().nth(index as usize).ok_or(Refusal::NotFound)?;
        put(mig, Target::compute_instance(view.target.slot, gpu, compute).handle(Kind::Device))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(call, mig: nvmlDevice_t, device: *mut nvmlDevice_t) {
        let view = call.device(mig)?;
        if view.target.part.is_none() {
            return Err(Refusal::InvalidArgument);
        }
        put(device, Target::card(view.target.slot).handle(Kind::Device))
    }

    fn nvmlDeviceIsMigDeviceHandle(call, device: nvmlDevice_t, is_mig: *mut c_uint) {
        put(is_mig, call.device(device)?.target.part.is_some().into())
    }

    fn nvmlDeviceGetGpuInstanceId(call, device: nvmlDevice_t, id: *mut c_uint) {
        let (gpu, _) = call.device(device)?.target.part.ok_or(Refusal::NotSupported)?;
        put(id, gpu)
    }

    fn nvmlDeviceGetComputeInstanceId(call, device: nvmlDevice_t, id: *mut c_uint) {
        let part = call.device(device)?.target.part;
        put(id, part.and_then(|(_, compute)| compute).ok_or(Refusal::NotSupported)?)
    }

    fn nvmlDeviceGetAttributes(call, device: nvmlDevice_t, to: *mut nvmlDeviceAttributes_t) {
        put(to, attributes(&call.device(device)?)?)
    }

    fn nvmlDeviceGetAttributes_v2(call, device: nvmlDevice_t, to: *mut nvmlDeviceAttributes_t) {
        put(to, attributes(&call.device(device)?)?)
    }
}

fn attributes(view: &super::session::View) -> crate::state::refusal::Answer<nvmlDeviceAttributes_t> {
    let card = view.card()?;
    if view.target.part.is_none() {
        return Err(Refusal::NotSupported);
    }
    let (gpu, compute) = view.target.find(card)?;
    let compute = compute.ok_or(Refusal::InvalidArgument)?;
    let profile = profiles::by_id(card.model, gpu.profile_id).ok_or(Refusal::Unknown)?;
    let inner = crate::state::compute::ComputeProfile::of(profile, compute.profile_id)?;
    Ok(nvmlDeviceAttributes_t {
        multiprocessorCount: inner.multiprocessors,
        sharedCopyEngineCount: profile.copy_engines,
        sharedDecoderCount: profile.decoders,
        sharedEncoderCount: 0,
        sharedJpegCount: profile.jpeg_engines,
        sharedOfaCount: profile.ofa_engines,
        gpuInstanceSliceCount: profile.compute_slices,
        computeInstanceSliceCount: compute.size,
        memorySizeMB: profile.memory_mib(),
    })
}
