//! A host for one test: its folder, its own library, NVML open on it.

use muster_gpu_double::{Faults, Fleet, library_beside, library_into};
use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlReturn_t,
};
use std::mem;
use std::path::PathBuf;

pub(crate) const OK: nvmlReturn_t = 0;
pub(crate) const INVALID_ARGUMENT: nvmlReturn_t = 2;
pub(crate) const NOT_SUPPORTED: nvmlReturn_t = 3;
pub(crate) const NO_PERMISSION: nvmlReturn_t = 4;
pub(crate) const NOT_FOUND: nvmlReturn_t = 6;
pub(crate) const INSUFFICIENT_SIZE: nvmlReturn_t = 7;
pub(crate) const TIMEOUT: nvmlReturn_t = 10;
pub(crate) const GPU_IS_LOST: nvmlReturn_t = 15;
pub(crate) const RESET_REQUIRED: nvmlReturn_t = 16;
pub(crate) const IN_USE: nvmlReturn_t = 19;
pub(crate) const INSUFFICIENT_RESOURCES: nvmlReturn_t = 23;

/// Profile ids of the eight-slice family.
pub(crate) const G1: u32 = 19;
pub(crate) const G3: u32 = 9;
pub(crate) const G7: u32 = 0;

pub(crate) struct Host {
    pub(crate) nvml: Nvml,
    pub(crate) raw: NvmlLib,
    pub(crate) faults: Faults,
    pub(crate) library: PathBuf,
    pub(crate) folder: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new(fleet: &Fleet) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fleet.write(folder.path()).expect("the fleet is written");
        let built = library_beside(&std::env::current_exe().expect("this test")).expect("the library is built");
        let library = library_into(&built, folder.path()).expect("the library is copied");
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init().expect("NVML opens");
        // SAFETY: loading the double runs nothing.
        let raw = unsafe { NvmlLib::new(&library) }.expect("the library loads");
        let faults = Faults::open(folder.path()).expect("the faults open");
        Host { nvml, raw, faults, library, folder }
    }

    /// The handle of a card by index.
    pub(crate) fn handle(&self, index: u32) -> nvmlDevice_t {
        let mut device = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        assert_eq!(unsafe { self.raw.nvmlDeviceGetHandleByIndex_v2(index, &mut device) }, OK);
        device
    }

    /// Asks for a mode; the activation status of the call that has succeeded.
    pub(crate) fn set_mig(&self, index: u32, on: bool) -> nvmlReturn_t {
        let mut activation = 999;
        // SAFETY: the pointer is valid.
        let code = unsafe { self.raw.nvmlDeviceSetMigMode(self.handle(index), on.into(), &mut activation) };
        assert_eq!(code, OK, "the call itself succeeds");
        activation
    }

    /// Makes a GPU instance at a placement.
    pub(crate) fn make_at(&self, index: u32, profile: u32, start: u32, size: u32) -> Result<nvmlGpuInstance_t, u32> {
        let mut gpu = std::ptr::null_mut();
        let at = nvmlGpuInstancePlacement_t { start, size };
        let device = self.handle(index);
        // SAFETY: the pointers are valid.
        let code = unsafe { self.raw.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, &at, &mut gpu) };
        if code == OK { Ok(gpu) } else { Err(code) }
    }

    /// Makes a compute instance that fills its GPU instance of this profile number.
    pub(crate) fn make_compute(&self, gpu: nvmlGpuInstance_t, number: u32) -> Result<nvmlComputeInstance_t, u32> {
        let mut compute = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        let code = unsafe { self.raw.nvmlGpuInstanceCreateComputeInstance(gpu, number, &mut compute) };
        if code == OK { Ok(compute) } else { Err(code) }
    }

    pub(crate) fn destroy(&self, gpu: nvmlGpuInstance_t) -> nvmlReturn_t {
        // SAFETY: handles are numbers.
        unsafe { self.raw.nvmlGpuInstanceDestroy(gpu) }
    }

    pub(crate) fn destroy_compute(&self, compute: nvmlComputeInstance_t) -> nvmlReturn_t {
        // SAFETY: handles are numbers.
        unsafe { self.raw.nvmlComputeInstanceDestroy(compute) }
    }

    pub(crate) fn info(&self, gpu: nvmlGpuInstance_t) -> nvmlGpuInstanceInfo_t {
        // SAFETY: the struct is of plain numbers, and the pointer to it is valid.
        unsafe {
            let mut info = mem::zeroed();
            assert_eq!(self.raw.nvmlGpuInstanceGetInfo(gpu, &mut info), OK);
            info
        }
    }

    pub(crate) fn compute_info(&self, compute: nvmlComputeInstance_t) -> nvmlComputeInstanceInfo_t {
        // SAFETY: the struct is of plain numbers, and the pointer to it is valid.
        unsafe {
            let mut info = mem::zeroed();
            assert_eq!(self.raw.nvmlComputeInstanceGetInfo_v2(compute, &mut info), OK);
            info
        }
    }

    pub(crate) fn uuid(&self, device: nvmlDevice_t) -> String {
        let mut text = [0; 96];
        // SAFETY: the buffer is of the length given, and ends with a zero after success.
        unsafe {
            assert_eq!(self.raw.nvmlDeviceGetUUID(device, text.as_mut_ptr(), 96), OK);
            std::ffi::CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
        }
    }

    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(file)).expect(file)
    }
}
