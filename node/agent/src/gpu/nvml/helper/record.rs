//! Reads everything of the cards that a recording has, in this very process: for a command that ends right after.
//!
//! What must stay true: only calls that read are made; what a card, its driver or its mode does not have is left at its default, and what fails for another
//! reason is named.

use super::driver::{Called, Device, NOT_SUPPORTED, Nvml, address, call, no_pci, struct_version, text};
use super::mig::GpuInstance;
use crate::gpu::nvml::recording::{
    RecordedCard, RecordedCompute, RecordedErrors, RecordedInstance, RecordedLink, RecordedProfile, RecordedSensors,
    Recording,
};
use crate::gpu::nvml::wire::Fault;
use nvml_wrapper_sys::bindings::field_id::{NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_MEMORY_TEMP};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlComputeInstanceInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlMemory_v2_t,
};
use std::ffi::OsStr;

/// What says that the card, the driver or the mode does not have it.
const INVALID_ARGUMENT: u32 = 2;
const NOT_FOUND: u32 = 6;
const FUNCTION_NOT_FOUND: u32 = 13;
/// `NVML_NVLINK_MAX_LINKS`, `NVML_NVLINK_DEVICE_TYPE_SWITCH`.
const LINKS_MAX: u32 = 18;
const SWITCH: u32 = 2;
const PLACEMENTS_MAX: usize = 32;
/// Longer texts are cut by the driver.
const TEXT_BYTES: usize = 96;

/// Reads the host.
pub(in crate::gpu::nvml) fn record(library: &OsStr) -> Result<Recording, String> {
    let nvml: &'static Nvml = Box::leak(Box::new(Nvml::load(library)?));
    let words = |fault: Fault| fault.to_string();
    let versions = nvml.versions().map_err(words)?;
    let mut recording = Recording { driver: versions.driver, cuda: versions.cuda, ..Recording::default() };
    for index in 0..nvml.count().map_err(words)? {
        let mut reader = Reader { index, unread: Vec::new() };
        match nvml.by_index(index).and_then(|device| reader.card(device)) {
            Ok(card) => recording.cards.push(card),
            Err(fault) => reader.unread.push(format!("GPU {index}: {fault}; the card is left out")),
        }
        recording.unread.extend(reader.unread);
    }
    Ok(recording)
}

struct Reader {
    index: u32,
    unread: Vec<String>,
}

impl Reader {
    /// The value, or its default.
    fn take<T: Default>(&mut self, called: Called<T>) -> T {
        match called {
            Ok(value) => value,
            Err(Fault::Nvml { code: NOT_SUPPORTED | INVALID_ARGUMENT | NOT_FOUND | FUNCTION_NOT_FOUND, .. }) => {
                T::default()
            }
            Err(fault) => {
                self.unread.push(format!("GPU {}: {fault}", self.index));
                T::default()
            }
        }
    }

    fn card(&mut self, device: Device) -> Called<RecordedCard> {
        let mut card = RecordedCard { name: device.name()?, uuid: device.uuid()?, ..RecordedCard::default() };
        (card.place.pci, card.pci_device_id) = pci(device)?;
        card.minor = device.minor()?;
        let memory = memory(device)?;
        (card.memory_mib, card.reserved_mib) = (memory.total >> 20, memory.reserved >> 20);
        let of_processes =
            self.take(device.processes()).iter().map(|process| process.usedGpuMemory).collect::<Vec<_>>();
        let of_processes = of_processes.into_iter().filter(|bytes| *bytes != u64::MAX).fold(0, u64::saturating_add);
        card.used_bytes = memory.used.saturating_sub(of_processes);
        card.serial = self.take(serial(device));
        card.architecture = self.take(number(|to| {
            let nvml = device.nvml;
            call!(nvml.nvmlDeviceGetArchitecture(device.handle, to))
        }));
        card.links = self.take(links(device));
        card.fabric = fabric(device);
        if let Some(mode) = device.mig_mode()? {
            card.mig_mode = (mode.current, mode.pending);
            card.profiles = self.take(profiles(device));
            if mode.current {
                let known = device.profiles()?;
                let instances = self.take(device.gpu_instances(&known));
                card.instances = instances.iter().map(|one| self.take(instance(device, one))).collect();
                card.instances.sort_by_key(|one| one.id);
            }
        }
        self.settings(device, &mut card);
        card.sensors = self.sensors(device);
        card.errors = self.errors(device);
        Ok(card)
    }

    fn settings(&mut self, device: Device, card: &mut RecordedCard) {
        let (nvml, handle) = (device.nvml, device.handle);
        card.compute_mode = self.take(number(|to| call!(nvml.nvmlDeviceGetComputeMode(handle, to))));
        card.is_persistent = self.take(number(|to| call!(nvml.nvmlDeviceGetPersistenceMode(handle, to)))) == 1;
        card.is_accounting = self.take(number(|to| call!(nvml.nvmlDeviceGetAccountingMode(handle, to)))) == 1;
    }

    fn sensors(&mut self, device: Device) -> RecordedSensors {
        let (nvml, handle) = (device.nvml, device.handle);
        let mut energy_mj = 0;
        let energy = call!(nvml.nvmlDeviceGetTotalEnergyConsumption(handle, &mut energy_mj));
        self.take(energy);
        RecordedSensors {
            temperature_c: self.take(number(|to| call!(nvml.nvmlDeviceGetTemperature(handle, 0, to)))),
            memory_temperature_c: self.take(device.field(NVML_FI_DEV_MEMORY_TEMP)).unwrap_or_default() as u32,
            power_mw: self.take(number(|to| call!(nvml.nvmlDeviceGetPowerUsage(handle, to)))),
            power_limit_mw: self.take(number(|to| call!(nvml.nvmlDeviceGetPowerManagementLimit(handle, to)))),
            energy_mj,
            clocks_event_reasons: self.take(device.clocks_event_reasons()),
            sm_clock_mhz: self.take(number(|to| call!(nvml.nvmlDeviceGetClockInfo(handle, 1, to)))),
            memory_clock_mhz: self.take(number(|to| call!(nvml.nvmlDeviceGetClockInfo(handle, 2, to)))),
        }
    }

    fn errors(&mut self, device: Device) -> RecordedErrors {
        let (nvml, handle) = (device.nvml, device.handle);
        let mut both = |period| (self.take(device.ecc(0, period)), self.take(device.ecc(1, period)));
        let (volatile, aggregate) = (both(0), both(1));
        let (corrected, uncorrected, pending, failed) = self.take(device.remapped_rows());
        RecordedErrors {
            volatile,
            aggregate,
            rows: (corrected, uncorrected, pending != 0, failed != 0),
            recovery_action: self.take(device.field(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)).unwrap_or_default() as u32,
            pcie_replays: self.take(number(|to| call!(nvml.nvmlDeviceGetPcieReplayCounter(handle, to)))),
        }
    }
}

/// A number that a call writes.
fn number(called: impl FnOnce(&mut u32) -> Called<()>) -> Called<u32> {
    let mut value = 0;
    called(&mut value).map(|()| value)
}

fn pci(device: Device) -> Called<(String, u32)> {
    let (nvml, mut pci) = (device.nvml, no_pci());
    call!(nvml.nvmlDeviceGetPciInfo_v3(device.handle, &mut pci))?;
    Ok((address(&pci), pci.pciDeviceId))
}

fn serial(device: Device) -> Called<String> {
    let (nvml, mut serial) = (device.nvml, [0; TEXT_BYTES]);
    call!(nvml.nvmlDeviceGetSerial(device.handle, serial.as_mut_ptr(), TEXT_BYTES as u32))?;
    Ok(text(&serial))
}

fn memory(device: Device) -> Called<nvmlMemory_v2_t> {
    let nvml = device.nvml;
    let version = struct_version::<nvmlMemory_v2_t>(2);
    let mut memory = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
    call!(nvml.nvmlDeviceGetMemoryInfo_v2(device.handle, &mut memory))?;
    Ok(memory)
}

/// All NVLinks, also those that are down: their order is that of the driver.
fn links(device: Device) -> Called<Vec<RecordedLink>> {
    let (nvml, handle) = (device.nvml, device.handle);
    let mut links = Vec::new();
    for at in 0..LINKS_MAX {
        let is_active = match number(|to| call!(nvml.nvmlDeviceGetNvLinkState(handle, at, to))) {
            Ok(active) => active == 1,
            Err(Fault::Nvml { code: NOT_SUPPORTED | INVALID_ARGUMENT, .. }) => break,
            Err(fault) => return Err(fault),
        };
        // A link that is down may not say where it leads.
        let version = number(|to| call!(nvml.nvmlDeviceGetNvLinkVersion(handle, at, to))).unwrap_or_default();
        let mut kind = 0;
        let kind_known = call!(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, at, &mut kind)).is_ok();
        let mut pci = no_pci();
        let _: Called<()> = call!(nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, at, &mut pci));
        links.push(RecordedLink { is_active, version, is_switch: kind_known && kind == SWITCH, pci: address(&pci) });
    }
    Ok(links)
}

/// Cluster, clique, state, status and health mask; drivers of before the fabric answer in several ways.
fn fabric(device: Device) -> Option<([u8; 16], u32, u8, u32, u32)> {
    let nvml = device.nvml;
    // SAFETY: the struct is of plain numbers, for which zeros are a value.
    let mut info: nvmlGpuFabricInfo_v2_t = unsafe { std::mem::zeroed() };
    info.version = struct_version::<nvmlGpuFabricInfo_v2_t>(2);
    call!(nvml.nvmlDeviceGetGpuFabricInfoV(device.handle, (&raw mut info).cast::<nvmlGpuFabricInfoV_t>())).ok()?;
    Some((info.clusterUuid, info.cliqueId, info.state, info.status, info.healthMask))
}

fn profiles(device: Device) -> Called<Vec<RecordedProfile>> {
    let (nvml, handle) = (device.nvml, device.handle);
    let is_absent = |fault: &Fault| matches!(fault, Fault::Nvml { code: NOT_SUPPORTED | INVALID_ARGUMENT, .. });
    let mut profiles = Vec::new();
    for number in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
        // SAFETY: the struct is of plain numbers, for which zeros are a value.
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
        info.version = struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
        match call!(nvml.nvmlDeviceGetGpuInstanceProfileInfoV(handle, number, &mut info)) {
            Ok(()) => {}
            Err(fault) if is_absent(&fault) => continue,
            Err(fault) => return Err(fault),
        }
        let mut places = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; PLACEMENTS_MAX];
        let mut count = places.len() as u32;
        let to = places.as_mut_ptr();
        match call!(nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, info.id, to, &mut count)) {
            Ok(()) => {}
            Err(fault) if is_absent(&fault) => count = 0,
            Err(fault) => return Err(fault),
        }
        let places = &places[..(count as usize).min(PLACEMENTS_MAX)];
        let mut starts: Vec<u32> = places.iter().map(|place| place.start).collect();
        starts.sort_unstable();
        profiles.push(RecordedProfile {
            number,
            id: info.id,
            compute_slices: info.sliceCount,
            memory_slices: places.first().map_or(0, |place| place.size),
            instances_max: info.instanceCount,
            memory_mib: info.memorySizeMB,
            starts,
        });
    }
    Ok(profiles)
}

fn instance(device: Device, gpu: &GpuInstance) -> Called<RecordedInstance> {
    let nvml = device.nvml;
    let mut compute = Vec::new();
    for one in &gpu.compute {
        // SAFETY: the struct is of numbers and pointers, for which zeros are a value.
        let mut info: nvmlComputeInstanceInfo_t = unsafe { std::mem::zeroed() };
        call!(nvml.nvmlComputeInstanceGetInfo_v2(one.handle, &mut info))?;
        compute.push(RecordedCompute {
            id: info.id,
            profile_id: info.profileId,
            start: info.placement.start,
            size: info.placement.size,
            uuid: one.uuid.clone(),
        });
    }
    compute.sort_by_key(|one| one.id);
    Ok(RecordedInstance { id: gpu.id, profile_id: gpu.profile_id, start: gpu.at.0, size: gpu.at.1, compute })
}
