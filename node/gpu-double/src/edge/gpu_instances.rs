//! GPU instances: profiles, placements, making, destroying, listing.
//!
//! What must stay true: profiles and placements are told whether MIG is on or not; lists of instances and changes need MIG and root.

use super::handle::{Kind, Target};
use super::macros::export;
use super::out::{array, put, put_all_and_count, put_list, struct_version};
use super::session::{Call, View};
use crate::state::profiles::Profile;
use crate::state::refusal::{Answer, Refusal};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};
use std::ffi::c_uint;

fn profile_info(profile: &Profile) -> nvmlGpuInstanceProfileInfo_t {
    nvmlGpuInstanceProfileInfo_t {
        id: profile.id,
        isP2pSupported: 0,
        sliceCount: profile.compute_slices,
        instanceCount: profile.instances_max,
        multiprocessorCount: profile.multiprocessors,
        copyEngineCount: profile.copy_engines,
        decoderCount: profile.decoders,
        encoderCount: 0,
        jpegCount: profile.jpeg_engines,
        ofaCount: profile.ofa_engines,
        memorySizeMB: profile.memory_mib(),
    }
}

/// Writes the version of the struct that the caller's first field names.
unsafe fn put_profile(to: *mut nvmlGpuInstanceProfileInfo_v2_t, profile: &Profile) -> Answer<()> {
    if to.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    let version = std::ptr::addr_of!((*to).version).read();
    let info = profile_info(profile);
    let name = array(&format!("MIG {}", profile.name));
    if version == struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2) {
        put(
            to,
            nvmlGpuInstanceProfileInfo_v2_t {
                version,
                id: info.id,
                isP2pSupported: info.isP2pSupported,
                sliceCount: info.sliceCount,
                instanceCount: info.instanceCount,
                multiprocessorCount: info.multiprocessorCount,
                copyEngineCount: info.copyEngineCount,
                decoderCount: info.decoderCount,
                encoderCount: info.encoderCount,
                jpegCount: info.jpegCount,
                ofaCount: info.ofaCount,
                memorySizeMB: info.memorySizeMB,
                name,
            },
        )
    } else if version == struct_version::<nvmlGpuInstanceProfileInfo_v3_t>(3) {
        put(
            to.cast(),
            nvmlGpuInstanceProfileInfo_v3_t {
                version,
                id: info.id,
                sliceCount: info.sliceCount,
                instanceCount: info.instanceCount,
                multiprocessorCount: info.multiprocessorCount,
                copyEngineCount: info.copyEngineCount,
                decoderCount: info.decoderCount,
                encoderCount: info.encoderCount,
                jpegCount: info.jpegCount,
                ofaCount: info.ofaCount,
                memorySizeMB: info.memorySizeMB,
                name,
                capabilities: 0,
            },
        )
    } else {
        Err(Refusal::ArgumentVersionMismatch)
    }
}

/// All placements of a profile, free or not.
unsafe fn put_placements(
    call: Call,
    device: nvmlDevice_t,
    profile_id: c_uint,
    to: *mut nvmlGpuInstancePlacement_t,
    count: *mut c_uint,
) -> Answer<()> {
    let view = call.whole(device)?;
    let profile = view.card()?.profile_by_id(profile_id)?;
    let size = profile.memory_slices;
    let placements: Vec<_> = profile.starts.iter().map(|&start| nvmlGpuInstancePlacement_t { start, size }).collect();
    if to.is_null() { put(count, placements.len() as c_uint) } else { put_list(to, count, &placements) }
}

unsafe fn make(
    call: Call,
    view: &View,
    profile_id: c_uint,
    at: Option<(u32, u32)>,
    to: *mut nvmlGpuInstance_t,
) -> Answer<()> {
    if to.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    let slot = view.target.slot;
    let made = call.change(view, |fleet| {
        let serial = fleet.next_serial();
        let gpu = fleet.card_mut(slot)?.make_instance(profile_id, at, serial)?;
        Ok(Target::gpu_instance(slot, gpu))
    })?;
    put(to, made.handle(Kind::GpuInstance))
}

export! {
    fn nvmlDeviceGetGpuInstanceProfileInfo(
        call,
        device: nvmlDevice_t,
        profile: c_uint,
        to: *mut nvmlGpuInstanceProfileInfo_t
    ) {
        put(to, profile_info(call.whole(device)?.card()?.profile_by_number(profile)?))
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        call,
        device: nvmlDevice_t,
        profile: c_uint,
        to: *mut nvmlGpuInstanceProfileInfo_v2_t
    ) {
        put_profile(to, call.whole(device)?.card()?.profile_by_number(profile)?)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        call,
        device: nvmlDevice_t,
        profile_id: c_uint,
        to: *mut nvmlGpuInstanceProfileInfo_v2_t
    ) {
        put_profile(to, call.whole(device)?.card()?.profile_by_id(profile_id)?)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        call,
        device: nvmlDevice_t,
        profile_id: c_uint,
        to: *mut nvmlGpuInstancePlacement_t,
        count: *mut c_uint
    ) {
        put_placements(call, device, profile_id, to, count)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        call,
        device: nvmlDevice_t,
        profile_id: c_uint,
        to: *mut nvmlGpuInstancePlacement_t,
        count: *mut c_uint
    ) {
        put_placements(call, device, profile_id, to, count)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(call, device: nvmlDevice_t, profile_id: c_uint, count: *mut c_uint) {
        let view = call.whole(device)?;
        let card = view.card()?;
        card.in_mig_mode()?;
        call.privileged(&view)?;
        put(count, card.remaining(card.profile_by_id(profile_id)?))
    }

    fn nvmlDeviceCreateGpuInstance(call, device: nvmlDevice_t, profile_id: c_uint, to: *mut nvmlGpuInstance_t) {
        make(call, &call.whole(device)?, profile_id, None, to)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        call,
        device: nvmlDevice_t,
        profile_id: c_uint,
        at: *const nvmlGpuInstancePlacement_t,
        to: *mut nvmlGpuInstance_t
    ) {
        if at.is_null() {
            return Err(Refusal::InvalidArgument);
        }
        make(call, &call.whole(device)?, profile_id, Some(((*at).start, (*at).size)), to)
    }

    fn nvmlGpuInstanceDestroy(call, gpu: nvmlGpuInstance_t) {
        let view = call.target(Target::of(Kind::GpuInstance, gpu))?;
        let (slot, (id, _)) = (view.target.slot, view.target.part.ok_or(Refusal::InvalidArgument)?);
        call.change(&view, |fleet| fleet.card_mut(slot)?.destroy_instance(id))
    }

    fn nvmlDeviceGetGpuInstances(
        call,
        device: nvmlDevice_t,
        profile_id: c_uint,
        to: *mut nvmlGpuInstance_t,
        count: *mut c_uint
    ) {
        let view = call.whole(device)?;
        let card = view.card()?;
        card.in_mig_mode()?;
        call.privileged(&view)?;
        card.profile_by_id(profile_id)?;
        let instances = card.mig.instances.iter().filter(|gpu| gpu.profile_id == profile_id);
        let slot = view.target.slot;
        let handles: Vec<nvmlGpuInstance_t> =
            instances.map(|gpu| Target::gpu_instance(slot, gpu).handle(Kind::GpuInstance)).collect();
        put_all_and_count(to, count, &handles)
    }

    fn nvmlDeviceGetGpuInstanceById(call, device: nvmlDevice_t, id: c_uint, to: *mut nvmlGpuInstance_t) {
        let view = call.whole(device)?;
        let card = view.card()?;
        card.in_mig_mode()?;
        call.privileged(&view)?;
        put(to, Target::gpu_instance(view.target.slot, card.instance(id)?).handle(Kind::GpuInstance))
    }

    fn nvmlGpuInstanceGetInfo(call, gpu: nvmlGpuInstance_t, to: *mut nvmlGpuInstanceInfo_t) {
        let view = call.target(Target::of(Kind::GpuInstance, gpu))?;
        let (gpu, _) = view.target.find(view.card()?)?;
        put(to, nvmlGpuInstanceInfo_t {
            device: Target::card(view.target.slot).handle(Kind::Device),
            id: gpu.id,
            profileId: gpu.profile_id,
            placement: nvmlGpuInstancePlacement_t { start: gpu.start, size: gpu.size },
        })
    }
}
