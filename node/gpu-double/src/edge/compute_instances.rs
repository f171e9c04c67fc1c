//! Compute instances: profiles, placements, making, destroying, listing.
//!
//! What must stay true: a compute instance is reached through its GPU instance only, and its info gives the handle of the MIG device.

use super::handle::{Kind, Target};
use super::macros::export;
use super::out::{array, put, put_all_and_count, put_list, struct_version};
use super::session::{Call, View};
use crate::state::compute::ComputeProfile;
use crate::state::instance::GpuInstance;
use crate::state::profiles::Profile;
use crate::state::refusal::{Answer, Refusal};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t,
    nvmlComputeInstanceProfileInfo_v2_t, nvmlGpuInstance_t,
};
use std::ffi::c_uint;

fn view_of(call: Call, gpu: nvmlGpuInstance_t) -> Answer<View> {
    call.target(Target::of(Kind::GpuInstance, gpu))
}

fn found(view: &View) -> Answer<(&GpuInstance, &'static Profile)> {
    let card = view.card()?;
    let (gpu, _) = view.target.find(card)?;
    Ok((gpu, card.profile_by_id(gpu.profile_id)?))
}

fn profile_info(gpu: &Profile, profile: ComputeProfile) -> nvmlComputeInstanceProfileInfo_t {
    nvmlComputeInstanceProfileInfo_t {
        id: profile.id,
        sliceCount: profile.slices,
        instanceCount: profile.instances_max,
        multiprocessorCount: profile.multiprocessors,
        sharedCopyEngineCount: gpu.copy_engines,
        sharedDecoderCount: gpu.decoders,
        sharedEncoderCount: 0,
        sharedJpegCount: gpu.jpeg_engines,
        sharedOfaCount: gpu.ofa_engines,
    }
}

fn by_number(gpu: &Profile, number: u32, engines: u32) -> Answer<ComputeProfile> {
    if engines == 0 { ComputeProfile::of(gpu, number) } else { Err(Refusal::InvalidArgument) }
}

unsafe fn make(
    call: Call,
    view: &View,
    profile_id: c_uint,
    at: Option<(u32, u32)>,
    to: *mut nvmlComputeInstance_t,
) -> Answer<()> {
    if to.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    let slot = view.target.slot;
    let (gpu, _) = view.target.part.ok_or(Refusal::InvalidArgument)?;
    let made = call.change(view, |fleet| {
        let serial = fleet.next_serial();
        let uuid = fleet.mig_uuid(serial);
        let card = fleet.card_mut(slot)?;
        let id = card.make_compute(gpu, profile_id, at, serial, uuid)?.id;
        let gpu = card.instance(gpu)?;
        Ok(Target::compute_instance(slot, gpu, gpu.compute_instance(id)?))
    })?;
    put(to, made.handle(Kind::ComputeInstance))
}

unsafe fn put_info(call: Call, compute: nvmlComputeInstance_t, to: *mut nvmlComputeInstanceInfo_t) -> Answer<()> {
    let view = call.target(Target::of(Kind::ComputeInstance, compute))?;
    let (gpu, compute) = view.target.find(view.card()?)?;
    let compute = compute.ok_or(Refusal::InvalidArgument)?;
    let slot = view.target.slot;
    let info = nvmlComputeInstanceInfo_t {
        device: Target::compute_instance(slot, gpu, compute).handle(Kind::Device),
        gpuInstance: Target::gpu_instance(slot, gpu).handle(Kind::GpuInstance),
        id: compute.id,
        profileId: compute.profile_id,
        placement: nvmlComputeInstancePlacement_t { start: compute.start, size: compute.size },
    };
    put(to, info)
}

export! {
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        call,
        gpu: nvmlGpuInstance_t,
        profile: c_uint,
        engines: c_uint,
        to: *mut nvmlComputeInstanceProfileInfo_t
    ) {
        let view = view_of(call, gpu)?;
        let (_, of_gpu) = found(&view)?;
        put(to, profile_info(of_gpu, by_number(of_gpu, profile, engines)?))
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        call,
        gpu: nvmlGpuInstance_t,
        profile: c_uint,
        engines: c_uint,
        to: *mut nvmlComputeInstanceProfileInfo_v2_t
    ) {
        let view = view_of(call, gpu)?;
        let (_, of_gpu) = found(&view)?;
        let profile = by_number(of_gpu, profile, engines)?;
        let info = profile_info(of_gpu, profile);
        if to.is_null() {
            return Err(Refusal::InvalidArgument);
        }
        let version = struct_version::<nvmlComputeInstanceProfileInfo_v2_t>(2);
        if (*to).version != version {
            return Err(Refusal::ArgumentVersionMismatch);
        }
        put(to, nvmlComputeInstanceProfileInfo_v2_t {
            version,
            id: info.id,
            sliceCount: info.sliceCount,
            instanceCount: info.instanceCount,
            multiprocessorCount: info.multiprocessorCount,
            sharedCopyEngineCount: info.sharedCopyEngineCount,
            sharedDecoderCount: info.sharedDecoderCount,
            sharedEncoderCount: info.sharedEncoderCount,
            sharedJpegCount: info.sharedJpegCount,
            sharedOfaCount: info.sharedOfaCount,
            name: array(&format!("MIG {}", profile.name(of_gpu))),
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        call,
        gpu: nvmlGpuInstance_t,
        profile_id: c_uint,
        count: *mut c_uint
    ) {
        let view = view_of(call, gpu)?;
        let (gpu, of_gpu) = found(&view)?;
        call.privileged(&view)?;
        put(count, gpu.remaining(ComputeProfile::of(of_gpu, profile_id)?) as c_uint)
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        call,
        gpu: nvmlGpuInstance_t,
        profile_id: c_uint,
        to: *mut nvmlComputeInstancePlacement_t,
        count: *mut c_uint
    ) {
        let view = view_of(call, gpu)?;
        let (_, of_gpu) = found(&view)?;
        let profile = ComputeProfile::of(of_gpu, profile_id)?;
        let place = |start| nvmlComputeInstancePlacement_t { start, size: profile.slices };
        let placements: Vec<_> = profile.starts().map(place).collect();
        if to.is_null() { put(count, placements.len() as c_uint) } else { put_list(to, count, &placements) }
    }

    fn nvmlGpuInstanceCreateComputeInstance(
        call,
        gpu: nvmlGpuInstance_t,
        profile_id: c_uint,
        to: *mut nvmlComputeInstance_t
    ) {
        make(call, &view_of(call, gpu)?, profile_id, None, to)
    }

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        call,
        gpu: nvmlGpuInstance_t,
        profile_id: c_uint,
        at: *const nvmlComputeInstancePlacement_t,
        to: *mut nvmlComputeInstance_t
    ) {
        if at.is_null() {
            return Err(Refusal::InvalidArgument);
        }
        make(call, &view_of(call, gpu)?, profile_id, Some(((*at).start, (*at).size)), to)
    }

    fn nvmlComputeInstanceDestroy(call, compute: nvmlComputeInstance_t) {
        let view = call.target(Target::of(Kind::ComputeInstance, compute))?;
        let (gpu, id) = view.target.part.ok_or(Refusal::InvalidArgument)?;
        let (slot, id) = (view.target.slot, id.ok_or(Refusal::InvalidArgument)?);
        call.change(&view, |fleet| fleet.card_mut(slot)?.destroy_compute(gpu, id))
    }

    fn nvmlGpuInstanceGetComputeInstances(
        call,
        gpu: nvmlGpuInstance_t,
        profile_id: c_uint,
        to: *mut nvmlComputeInstance_t,
        count: *mut c_uint
    ) {
        let view = view_of(call, gpu)?;
        let (gpu, of_gpu) = found(&view)?;
        call.privileged(&view)?;
        ComputeProfile::of(of_gpu, profile_id)?;
        let slot = view.target.slot;
        let instances = gpu.compute.iter().filter(|compute| compute.profile_id == profile_id);
        let handles: Vec<nvmlComputeInstance_t> = instances
            .map(|compute| Target::compute_instance(slot, gpu, compute).handle(Kind::ComputeInstance))
            .collect();
        put_all_and_count(to, count, &handles)
    }

    fn nvmlGpuInstanceGetComputeInstanceById(call, gpu: nvmlGpuInstance_t, id: c_uint, to: *mut nvmlComputeInstance_t) {
        let view = view_of(call, gpu)?;
        let (gpu, _) = found(&view)?;
        call.privileged(&view)?;
        let compute = gpu.compute_instance(id)?;
        put(to, Target::compute_instance(view.target.slot, gpu, compute).handle(Kind::ComputeInstance))
    }

    fn nvmlComputeInstanceGetInfo(call, compute: nvmlComputeInstance_t, to: *mut nvmlComputeInstanceInfo_t) {
        put_info(call, compute, to)
    }

    fn nvmlComputeInstanceGetInfo_v2(call, compute: nvmlComputeInstance_t, to: *mut nvmlComputeInstanceInfo_t) {
        put_info(call, compute, to)
    }
}
