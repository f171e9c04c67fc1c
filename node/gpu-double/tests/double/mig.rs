//! GPU instances and compute instances.

use crate::host::{
    G1, G3, G7, Host, IN_USE, INSUFFICIENT_RESOURCES, INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, OK,
};
use muster_gpu_double::{Fleet, Process};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t};
use std::mem;

#[test]
fn an_occupied_placement_is_refused() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    host.make_at(0, G3, 4, 4).unwrap();
    assert_eq!(host.make_at(0, G3, 4, 4), Err(INSUFFICIENT_RESOURCES));
    assert_eq!(host.make_at(0, G1, 6, 1), Err(INSUFFICIENT_RESOURCES));
    assert_eq!(host.make_at(0, G3, 2, 4), Err(INVALID_ARGUMENT), "no placement of this profile");
    assert_eq!(host.make_at(0, G1, 0, 2), Err(INVALID_ARGUMENT), "not its size");
    host.make_at(0, G1, 3, 1).unwrap();
    assert_eq!(host.make_at(0, G3, 0, 4), Err(INSUFFICIENT_RESOURCES));
}

#[test]
fn a_gpu_instance_goes_only_after_its_compute_instance_and_processes() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpu = host.make_at(0, G3, 0, 4).unwrap();
    let compute = host.make_compute(gpu, 2).unwrap();
    assert_eq!(host.destroy(gpu), IN_USE);
    let id = host.info(gpu).id;
    let process = Process { pid: 77, gpu_instance: Some(id), compute_instance: Some(0), ..Process::default() };
    host.faults.add_process(0, process).unwrap();
    assert_eq!(host.destroy_compute(compute), IN_USE);
    host.faults.remove_process(0, 77).unwrap();
    assert_eq!(host.destroy_compute(compute), OK);
    assert_eq!(host.destroy(gpu), OK);
    assert_eq!(host.destroy(gpu), INVALID_ARGUMENT, "it has gone");
    assert_eq!(host.make_compute(gpu, 2), Err(INVALID_ARGUMENT), "a compute instance needs its GPU instance");
}

#[test]
fn ids_come_back_and_uuids_do_not() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let make = || {
        let gpu = host.make_at(0, G1, 2, 1).unwrap();
        let compute = host.make_compute(gpu, 0).unwrap();
        let uuid = host.uuid(host.compute_info(compute).device);
        (gpu, compute, host.info(gpu).id, uuid)
    };
    let (gpu, compute, id, uuid) = make();
    assert!(uuid.starts_with("MIG-") && !uuid.contains(&host.uuid(host.handle(0))[4..12]), "{uuid} tells nothing");
    assert!(host.nvml.device_by_uuid(uuid.as_str()).unwrap().mig_is_mig_device_handle().unwrap());
    let old_device = host.compute_info(compute).device;
    assert_eq!((host.destroy_compute(compute), host.destroy(gpu)), (OK, OK));
    let (again, _, id_again, uuid_again) = make();
    assert_eq!(id, id_again);
    assert_ne!(uuid, uuid_again);
    assert!(matches!(host.nvml.device_by_uuid(uuid), Err(NvmlError::NotFound)));
    assert_ne!(gpu, again, "an old handle is no handle to the new instance");
    let mut index = 0;
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { host.raw.nvmlDeviceGetIndex(old_device, &mut index) }, INVALID_ARGUMENT);
}

#[test]
fn instances_are_listed_by_profile_with_or_without_a_compute_instance() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let half = host.make_at(0, G1, 0, 1).unwrap();
    let whole = host.make_at(0, G1, 1, 1).unwrap();
    host.make_compute(whole, 0).unwrap();
    let mut list = [std::ptr::null_mut(); 7];
    let mut count = 0;
    // SAFETY: the list has room for the profile's most instances.
    let code = unsafe { host.raw.nvmlDeviceGetGpuInstances(host.handle(0), G1, list.as_mut_ptr(), &mut count) };
    assert_eq!((code, &list[..count as usize]), (OK, &[half, whole][..]));
    // By MIG handles the one without a compute instance is not seen.
    let card = host.nvml.device_by_index(0).unwrap();
    assert_eq!(card.mig_device_count().unwrap(), 7);
    let mig = card.mig_device_by_index(0).unwrap();
    assert_eq!(mig.mig_parent_device().unwrap().uuid().unwrap(), card.uuid().unwrap());
    assert_eq!(mig.attributes().unwrap().multiprocessor_count, 16);
    assert_eq!(mig.memory_info().unwrap().total, 9_984 << 20);
    assert!(matches!(card.mig_device_by_index(1), Err(NvmlError::NotFound)));
    let place = host.info(half).placement;
    assert_eq!((place.start, place.size), (0, 1));
}

#[test]
fn placements_and_profiles_need_no_mig() {
    let host = Host::new(&Fleet::h100(1));
    let device = host.handle(0);
    let mut places = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; 8];
    let mut count = 8;
    // SAFETY: the pointers are valid and the count is the list's length.
    unsafe {
        let code = host.raw.nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, G1, places.as_mut_ptr(), &mut count);
        assert_eq!((code, count), (OK, 7));
        assert_eq!(places[6].start, 6);
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = mem::zeroed();
        info.version = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as u32 | 2 << 24;
        assert_eq!(host.raw.nvmlDeviceGetGpuInstanceProfileInfoV(device, 0, &mut info), OK);
        assert_eq!((info.id, info.instanceCount, info.multiprocessorCount), (G1, 7, 16));
        assert_eq!(std::ffi::CStr::from_ptr(info.name.as_ptr()).to_str().unwrap(), "MIG 1g.10gb");
        info.version = 0;
        assert_eq!(host.raw.nvmlDeviceGetGpuInstanceProfileInfoV(device, 0, &mut info), 25, "version mismatch");
        let mut gpu = std::ptr::null_mut();
        assert_eq!(host.raw.nvmlDeviceCreateGpuInstance(device, G1, &mut gpu), NOT_SUPPORTED, "MIG is off");
    }
    let card = host.nvml.device_by_index(0).unwrap();
    assert_eq!(card.profile_info(4).unwrap().id, G7);
    assert!(matches!(card.profile_info(6), Err(NvmlError::NotSupported)));
    assert!(matches!(card.profile_info(17), Err(NvmlError::InvalidArg)));
    // The wrapper forgets the length of its list; the raw call above is the way.
    assert_eq!(card.possible_placements(G1).unwrap().len(), 0);
}

#[test]
fn compute_instances_share_a_gpu_instance() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpu = host.make_at(0, G3, 0, 4).unwrap();
    let first = host.make_compute(gpu, 0).unwrap();
    host.make_compute(gpu, 0).unwrap();
    assert_eq!(host.make_compute(gpu, 1), Err(INSUFFICIENT_RESOURCES), "slices 0 and 1 are taken");
    assert_eq!(host.make_compute(gpu, 3), Err(NOT_SUPPORTED), "it has three slices");
    host.make_compute(gpu, 0).unwrap();
    assert_eq!(host.make_compute(gpu, 0), Err(INSUFFICIENT_RESOURCES));
    let info = host.compute_info(first);
    assert_eq!((info.id, info.placement.start, info.gpuInstance), (0, 0, gpu));
    assert_eq!(host.nvml.device_by_index(0).unwrap().mig_device_by_index(2).unwrap().index().unwrap(), 2);
}

#[test]
fn who_is_not_root_neither_makes_nor_lists() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let gpu = host.make_at(0, G1, 0, 1).unwrap();
    host.faults.no_permission(true).unwrap();
    assert_eq!(host.make_at(0, G1, 1, 1), Err(NO_PERMISSION));
    assert_eq!(host.make_compute(gpu, 0), Err(NO_PERMISSION));
    assert_eq!(host.destroy(gpu), NO_PERMISSION);
    let (mut list, mut count) = ([std::ptr::null_mut(); 7], 0);
    // SAFETY: the list has room for the profile's most instances.
    let code = unsafe { host.raw.nvmlDeviceGetGpuInstances(host.handle(0), G1, list.as_mut_ptr(), &mut count) };
    assert_eq!(code, NO_PERMISSION);
    assert!(matches!(host.nvml.device_by_index(0).unwrap().set_mig_mode(false), Err(NvmlError::NoPermission)));
    host.nvml.device_by_index(0).unwrap().uuid().unwrap();
    let (mut by_id, id) = (std::ptr::null_mut(), 14);
    host.faults.no_permission(false).unwrap();
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { host.raw.nvmlDeviceGetGpuInstanceById(host.handle(0), id, &mut by_id) }, NOT_FOUND);
}

#[test]
fn capability_files_follow_the_instances() {
    let host = Host::new(&Fleet::h100(2).with_mig());
    let gpu = host.make_at(1, G1, 0, 1).unwrap();
    let compute = host.make_compute(gpu, 0).unwrap();
    let access = "proc/driver/nvidia/capabilities/gpu1/mig/gi7/ci0/access";
    let minors = host.read("proc/driver/nvidia/capabilities/mig-minors");
    let minor = minors.lines().find_map(|line| line.strip_prefix("gpu1/gi7/ci0/access ")).unwrap();
    assert!(host.read(access).starts_with(&format!("DeviceFileMinor: {minor}\n")));
    assert_eq!((host.destroy_compute(compute), host.destroy(gpu)), (OK, OK));
    assert!(!host.folder.path().join(access).exists());
}
