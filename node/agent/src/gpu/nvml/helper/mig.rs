//! GPU instances and compute instances of a card, as NVML lists them.
//!
//! What must stay true: instances are listed by profile and never by MIG devices, which do not show a GPU instance without a compute instance; a place of
//! the model is a profile's slices, its media engines and the start, never its name or memory.

use super::driver::{Called, Device, NOT_SUPPORTED, call, struct_version, text};
use crate::gpu::nvml::wire::{Fault, SeenInstance};
use muster_model::mig::{MigPlacement, MigShape};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT, NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX, NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1,
    NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1, NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlComputeInstance_t,
    nvmlComputeInstanceInfo_t, nvmlComputeInstanceProfileInfo_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t,
};
use std::mem;

/// `nvml.h`: wrong arguments, which is also what some drivers say of a profile that they do not know.
const INVALID_ARGUMENT: u32 = 2;
/// Room for a list of instances: NVML writes as many as there are.
const INSTANCES_MAX: usize = 32;

/// A GPU instance profile of a card.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) id: u32,
    /// Compute slices.
    slices: u32,
    /// Memory slices.
    pub(super) size: u32,
    /// Absent for what the model does not have: graphics profiles, and those without any media engine.
    pub(super) shape: Option<MigShape>,
}

/// A GPU instance that stands.
pub(super) struct GpuInstance {
    pub(super) handle: nvmlGpuInstance_t,
    pub(super) id: u32,
    pub(super) profile_id: u32,
    pub(super) place: Option<MigPlacement>,
    /// Memory slices, by first and number.
    pub(super) at: (u32, u32),
    slices: u32,
    pub(super) compute: Vec<ComputeInstance>,
}

/// A compute instance.
pub(super) struct ComputeInstance {
    pub(super) handle: nvmlComputeInstance_t,
    slices: u32,
    pub(super) uuid: String,
}

impl GpuInstance {
    /// A GPU instance without compute instance has no user, and cannot get one.
    pub(super) fn is_half_made(&self) -> bool {
        self.compute.is_empty()
    }

    /// Whether equal compute instances fill it.
    pub(super) fn is_whole(&self) -> bool {
        let count = self.compute.len() as u32;
        count > 0 && self.compute.iter().all(|one| one.slices * count == self.slices)
    }

    pub(super) fn seen(&self) -> SeenInstance {
        SeenInstance {
            id: self.id,
            place: self.place,
            uuids: self.compute.iter().filter(|_| self.is_whole()).map(|one| one.uuid.clone()).collect(),
            compute_instances: self.compute.len() as u32,
        }
    }
}

/// `None` for what this card, driver or mode does not have.
fn if_any<T>(called: Called<T>) -> Called<Option<T>> {
    match called {
        Ok(value) => Ok(Some(value)),
        Err(Fault::Nvml { code: NOT_SUPPORTED | INVALID_ARGUMENT, .. }) => Ok(None),
        Err(fault) => Err(fault),
    }
}

impl Device {
    /// The profiles of a card, whether MIG is on or not.
    pub(super) fn profiles(self) -> Called<Vec<Profile>> {
        let nvml = self.nvml;
        let mut profiles = Vec::new();
        for number in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
            // SAFETY: the struct is of plain numbers, for which zeros are a value.
            let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { mem::zeroed() };
            info.version = struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
            if if_any(call!(nvml.nvmlDeviceGetGpuInstanceProfileInfoV(self.handle, number, &mut info)))?.is_none() {
                continue;
            }
            let Some(size) = self.placement_size(info.id)? else { continue };
            let shape = shape(number, info.sliceCount, size, &text(&info.name));
            profiles.push(Profile { id: info.id, slices: info.sliceCount, size, shape });
        }
        Ok(profiles)
    }

    /// Memory slices of an instance of this profile.
    fn placement_size(self, profile: u32) -> Called<Option<u32>> {
        let nvml = self.nvml;
        let mut places = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; INSTANCES_MAX];
        let mut count = places.len() as u32;
        let called = call!(nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
            self.handle,
            profile,
            places.as_mut_ptr(),
            &mut count
        ));
        Ok(if_any(called)?.and(places.first()).filter(|_| count > 0).map(|place| place.size))
    }

    /// All GPU instances of a card in MIG mode, in order of their starts.
    pub(super) fn gpu_instances(self, profiles: &[Profile]) -> Called<Vec<GpuInstance>> {
        let nvml = self.nvml;
        let mut found = Vec::new();
        for profile in profiles {
            let mut handles = [std::ptr::null_mut(); INSTANCES_MAX];
            let mut count = 0;
            let called =
                call!(nvml.nvmlDeviceGetGpuInstances(self.handle, profile.id, handles.as_mut_ptr(), &mut count));
            if if_any(called)?.is_none() {
                // A driver may tell of a profile that this card, as it is set, cannot have.
                continue;
            }
            for handle in handles.into_iter().take(count as usize) {
                found.push(self.gpu_instance(handle, profile)?);
            }
        }
        found.sort_by_key(|instance| instance.at);
        Ok(found)
    }

    fn gpu_instance(self, handle: nvmlGpuInstance_t, profile: &Profile) -> Called<GpuInstance> {
        let nvml = self.nvml;
        // SAFETY: the struct is of numbers and pointers, for which zeros are a value.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { mem::zeroed() };
        call!(nvml.nvmlGpuInstanceGetInfo(handle, &mut info))?;
        let start = u8::try_from(info.placement.start).ok();
        let place = profile.shape.zip(start).map(|(shape, start)| MigPlacement { shape, start });
        let mut compute = Vec::new();
        for of in self.compute_profiles(handle)? {
            let mut handles = [std::ptr::null_mut(); INSTANCES_MAX];
            let mut count = 0;
            let called =
                call!(nvml.nvmlGpuInstanceGetComputeInstances(handle, of.id, handles.as_mut_ptr(), &mut count));
            if if_any(called)?.is_none() {
                continue;
            }
            for handle in handles.into_iter().take(count as usize) {
                compute.push(ComputeInstance { handle, slices: of.sliceCount, uuid: self.mig_uuid(handle)? });
            }
        }
        let at = (info.placement.start, info.placement.size);
        Ok(GpuInstance { handle, id: info.id, profile_id: info.profileId, place, at, slices: profile.slices, compute })
    }

    fn compute_profiles(self, gpu: nvmlGpuInstance_t) -> Called<Vec<nvmlComputeInstanceProfileInfo_t>> {
        let nvml = self.nvml;
        let mut profiles: Vec<nvmlComputeInstanceProfileInfo_t> = Vec::new();
        for number in 0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
            // SAFETY: the struct is of plain numbers, for which zeros are a value.
            let mut info: nvmlComputeInstanceProfileInfo_t = unsafe { mem::zeroed() };
            let called = call!(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu, number, 0, &mut info));
            // A driver may give one profile two numbers.
            if if_any(called)?.is_some() && profiles.iter().all(|other| other.id != info.id) {
                profiles.push(info);
            }
        }
        Ok(profiles)
    }

    /// The UUID of the MIG device that a compute instance is.
    fn mig_uuid(self, compute: nvmlComputeInstance_t) -> Called<String> {
        let nvml = self.nvml;
        // SAFETY: the struct is of numbers and pointers, for which zeros are a value.
        let mut info: nvmlComputeInstanceInfo_t = unsafe { mem::zeroed() };
        call!(nvml.nvmlComputeInstanceGetInfo_v2(compute, &mut info))?;
        Device { nvml, handle: info.device }.uuid()
    }

    /// Makes a GPU instance at exactly this start.
    pub(super) fn make_gpu_instance(self, profile: &Profile, start: u8) -> Called<GpuInstance> {
        let nvml = self.nvml;
        let at = nvmlGpuInstancePlacement_t { start: start.into(), size: profile.size };
        let mut handle = std::ptr::null_mut();
        call!(nvml.nvmlDeviceCreateGpuInstanceWithPlacement(self.handle, profile.id, &at, &mut handle))?;
        self.gpu_instance(handle, profile)
    }

    /// Makes the equal compute instances that fill an empty GPU instance.
    pub(super) fn fill(self, gpu: &GpuInstance, count: u32) -> Called<()> {
        let nvml = self.nvml;
        let profiles = self.compute_profiles(gpu.handle)?;
        let wanted = profiles.iter().find(|profile| profile.sliceCount * count == gpu.slices);
        let wanted = wanted.ok_or_else(|| {
            Fault::Refused(format!("the driver cannot cut {} compute slices into {count} instances", gpu.slices))
        })?;
        let mut made = Vec::new();
        for _ in 0..count {
            let mut handle = std::ptr::null_mut();
            if let Err(fault) = call!(nvml.nvmlGpuInstanceCreateComputeInstance(gpu.handle, wanted.id, &mut handle)) {
                for handle in made {
                    // Else the next step finds it half made.
                    let _: Called<()> = call!(nvml.nvmlComputeInstanceDestroy(handle));
                }
                return Err(fault);
            }
            made.push(handle);
        }
        Ok(())
    }

    pub(super) fn destroy_compute(self, compute: &ComputeInstance) -> Called<()> {
        let nvml = self.nvml;
        call!(nvml.nvmlComputeInstanceDestroy(compute.handle))
    }

    pub(super) fn destroy_gpu_instance(self, gpu: &GpuInstance) -> Called<()> {
        let nvml = self.nvml;
        call!(nvml.nvmlGpuInstanceDestroy(gpu.handle))
    }
}

/// What the model calls a profile. Its number says which variant it is; the name says so too where the driver gives one.
fn shape(number: u32, compute: u32, memory: u32, name: &str) -> Option<MigShape> {
    if number >= NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX {
        return None;
    }
    let by_number = matches!(number, NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1 | NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1);
    let has_media = if name.is_empty() { by_number } else { name.ends_with("+me") };
    MigShape::ALL.into_iter().find(|shape| {
        u32::from(shape.compute_slices()) == compute
            && u32::from(shape.memory_slices()) == memory
            && shape.has_media() == has_media
    })
}

#[cfg(test)]
mod tests {
    use super::{MigShape, shape};

    #[test]
    fn profiles_are_shapes_by_slices_and_media() {
        assert_eq!(shape(0, 1, 1, "MIG 1g.10gb"), Some(MigShape::G1));
        assert_eq!(shape(7, 1, 1, "MIG 1g.10gb+me"), Some(MigShape::G1Media));
        assert_eq!(shape(7, 1, 1, ""), Some(MigShape::G1Media));
        assert_eq!(shape(9, 1, 2, "MIG 1g.20gb"), Some(MigShape::G1Double));
        assert_eq!(shape(8, 2, 2, "MIG 2g.12gb+me"), Some(MigShape::G2Media));
        assert_eq!(shape(4, 7, 8, "MIG 7g.80gb"), Some(MigShape::G7));
        assert_eq!(shape(10, 1, 1, "MIG 1g.10gb+gfx"), None);
        assert_eq!(shape(6, 6, 8, "MIG 6g.60gb"), None);
    }
}
