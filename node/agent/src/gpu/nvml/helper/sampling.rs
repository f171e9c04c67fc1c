//! Telemetry of a card: what NVML tells of it and of its MIG instances.
//!
//! What must stay true: what the card, the driver or the mode does not have is left out, and so is a sensor that fails, but a card that is lost tells
//! nothing at all; the figures of an instance count only when the same instance stands before and after they were read; instances are listed as MIG devices
//! here, which is cheap and shows all that can be used.

use super::activity::Activity;
use super::driver::{Called, Device, call, struct_version};
use super::mig::Profile;
use super::taken::{Taken, told};
use crate::gpu::sample::{CardSample, InstanceSample};
use muster_model::mig::MigPlacement;
use muster_node_core::slices::SliceUse;
use muster_node_core::telemetry::Figure;
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_MEMORY_TEMP;
use nvml_wrapper_sys::bindings::{nvmlMemory_v2_t, nvmlUtilization_t, nvmlViolationTime_t};
use std::collections::BTreeMap;

/// NVML's numbers.
const TEMPERATURE_GPU: u32 = 0;
const CLOCK_SM: u32 = 1;
const CLOCK_MEMORY: u32 = 2;
const CORRECTED: u32 = 0;
const UNCORRECTED: u32 = 1;
const VOLATILE: u32 = 0;
const AGGREGATE: u32 = 1;
const POLICY_POWER: u32 = 0;
const POLICY_THERMAL: u32 = 1;
/// `NVML_NVLINK_MAX_LINKS`.
const LINKS_MAX: u32 = 18;
/// A card has at most seven MIG devices; more is a driver of the future.
const MIG_DEVICES_MAX: u32 = 16;

/// What is kept between two samples of a card.
#[derive(Default)]
pub(super) struct Sampler {
    activity: Activity,
    /// Places of the instances that stand, by UUID: to find them takes a hundred calls.
    places: BTreeMap<String, Option<MigPlacement>>,
    label: Option<(String, String, u32)>,
}

impl Sampler {
    pub(super) fn sample(&mut self, device: Device, profiles: &[Profile]) -> Called<CardSample> {
        let began_us = cpu_us();
        let (name, pci_bus_id, minor) = self.label(device)?;
        let is_mig = device.mig_mode()?.is_some_and(|mode| mode.current);
        let mut taken = Taken::default();
        of_card(device, &mut taken)?;
        memory(device, &mut taken)?;
        let mut instances = Vec::new();
        if is_mig {
            let before = device.mig_devices()?;
            for mig in before {
                instances.push(self.instance(device, profiles, mig, &mut taken.dropped)?);
            }
            let after = device.mig_devices()?;
            let stands = |id: u32, uuid: &str| after.iter().any(|mig| mig.id == id && mig.uuid == uuid);
            instances.retain(|instance| stands(instance.id, &instance.uuid));
            self.places.retain(|uuid, _| after.iter().any(|mig| mig.uuid == *uuid));
            self.activity.keep(|of| of.as_ref().is_some_and(|(id, uuid)| stands(*id, uuid)));
        } else {
            // MIG mode may take links down, which is no fault.
            if let Some(up) = device.links_up()? {
                taken.put(Figure::LinksUp, up.count_ones().into());
            }
            self.activity.measure(device, None, &mut taken)?;
            self.activity.keep(Option::is_none);
            self.places.clear();
        }
        let cpu_us = cpu_us().saturating_sub(began_us);
        Ok(CardSample { name, pci_bus_id, minor, figures: taken.figures, instances, dropped: taken.dropped, cpu_us })
    }

    /// Memory of the instances that stand at places of the model; of one that goes meanwhile nothing is told.
    pub(super) fn slices_memory(&mut self, device: Device, profiles: &[Profile]) -> Called<Vec<SliceUse>> {
        let mut slices = Vec::new();
        for mig in device.mig_devices()? {
            let place = self.place(device, profiles, &mig)?;
            let memory = told(mig.device.memory_used_of_mib())?;
            let slice = |(place, (used_mib, total_mib))| SliceUse { place, used_mib, total_mib };
            slices.extend(place.zip(memory).map(slice));
        }
        Ok(slices)
    }

    fn label(&mut self, device: Device) -> Called<(String, String, u32)> {
        if self.label.is_none() {
            // sysfs has four digits of the domain where NVML has eight, and small letters.
            let pci = format!("0000{}", device.pci()?.to_uppercase());
            self.label = Some((device.name()?, pci, device.minor()?));
        }
        Ok(self.label.clone().unwrap_or_default())
    }

    fn instance(
        &mut self,
        device: Device,
        profiles: &[Profile],
        mig: MigDevice,
        dropped: &mut u32,
    ) -> Called<InstanceSample> {
        let mut taken = Taken::default();
        memory(mig.device, &mut taken)?;
        self.activity.measure(device, Some((mig.id, mig.uuid.clone())), &mut taken)?;
        *dropped += taken.dropped;
        let place = self.place(device, profiles, &mig)?;
        Ok(InstanceSample { id: mig.id, uuid: mig.uuid, place, figures: taken.figures })
    }

    fn place(&mut self, device: Device, profiles: &[Profile], mig: &MigDevice) -> Called<Option<MigPlacement>> {
        if let Some(known) = self.places.get(&mig.uuid) {
            return Ok(*known);
        }
        // An instance may go while all are listed: then it is found the next time.
        let Some(all) = told(device.gpu_instances(profiles))? else { return Ok(None) };
        let place = all.iter().find(|instance| instance.id == mig.id).and_then(|instance| instance.place);
        self.places.insert(mig.uuid.clone(), place);
        Ok(place)
    }
}

/// Processor time of this thread, in µs.
fn cpu_us() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    now.map_or(0, |now| now.tv_sec() as u64 * 1_000_000 + now.tv_nsec() as u64 / 1_000)
}

/// A MIG device.
struct MigDevice {
    device: Device,
    id: u32,
    uuid: String,
}

impl Device {
    fn mig_devices(self) -> Called<Vec<MigDevice>> {
        let nvml = self.nvml;
        let mut count = 0;
        let counted = told(call!(nvml.nvmlDeviceGetMaxMigDeviceCount(self.handle, &mut count)))?;
        let mut found = Vec::new();
        for index in 0..counted.map_or(0, |()| count.min(MIG_DEVICES_MAX)) {
            let mut handle = std::ptr::null_mut();
            // There may be gaps.
            if told(call!(nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index, &mut handle)))?.is_none() {
                continue;
            }
            let (device, mut id) = (Device { nvml, handle }, 0);
            let read = told(call!(nvml.nvmlDeviceGetGpuInstanceId(device.handle, &mut id)))?;
            // Figures are of a GPU instance: the first device of several stands for it.
            let is_first = found.iter().all(|other: &MigDevice| other.id != id);
            if let (Some(()), Some(uuid), true) = (read, told(device.uuid())?, is_first) {
                found.push(MigDevice { device, id, uuid });
            }
        }
        Ok(found)
    }

    /// Rows remapped for correctable and uncorrectable errors, whether one waits, whether one failed.
    pub(super) fn remapped_rows(self) -> Called<(u32, u32, u32, u32)> {
        let nvml = self.nvml;
        let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
        call!(nvml.nvmlDeviceGetRemappedRows(
            self.handle,
            &mut corrected,
            &mut uncorrected,
            &mut pending,
            &mut failed
        ))?;
        Ok((corrected, uncorrected, pending, failed))
    }

    /// Memory errors that were not corrected, since the last reset.
    pub(super) fn double_bits(self) -> Called<u64> {
        self.ecc(UNCORRECTED, VOLATILE)
    }

    pub(super) fn ecc(self, errors: u32, period: u32) -> Called<u64> {
        let (nvml, mut count) = (self.nvml, 0);
        call!(nvml.nvmlDeviceGetTotalEccErrors(self.handle, errors, period, &mut count))?;
        Ok(count)
    }

    pub(super) fn clocks_event_reasons(self) -> Called<u64> {
        let (nvml, mut reasons) = (self.nvml, 0);
        // Drivers before 535 have the older name alone.
        call!(nvml.nvmlDeviceGetCurrentClocksEventReasons(self.handle, &mut reasons))
            .or_else(|_| call!(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle, &mut reasons)))?;
        Ok(reasons)
    }

    /// A bit for each NVLink that is up; `None` for a card without links.
    pub(super) fn links_up(self) -> Called<Option<u32>> {
        let nvml = self.nvml;
        let mut up = None;
        for number in 0..LINKS_MAX {
            let mut is_active = 0;
            let read = told(call!(nvml.nvmlDeviceGetNvLinkState(self.handle, number, &mut is_active)))?;
            if read.is_none() {
                break;
            }
            *up.get_or_insert(0) |= u32::from(is_active == 1) << number;
        }
        Ok(up)
    }
}

fn of_card(device: Device, taken: &mut Taken) -> Called<()> {
    let (nvml, handle) = (device.nvml, device.handle);
    let mut unsigned = |figure, scale: f64, called: &dyn Fn(&mut u32) -> Called<()>| {
        let mut value = 0;
        told(called(&mut value)).map(|read| read.into_iter().for_each(|()| taken.put(figure, f64::from(value) * scale)))
    };
    unsigned(Figure::SmClock, 1.0, &|to| call!(nvml.nvmlDeviceGetClockInfo(handle, CLOCK_SM, to)))?;
    unsigned(Figure::MemoryClock, 1.0, &|to| call!(nvml.nvmlDeviceGetClockInfo(handle, CLOCK_MEMORY, to)))?;
    unsigned(Figure::Temperature, 1.0, &|to| call!(nvml.nvmlDeviceGetTemperature(handle, TEMPERATURE_GPU, to)))?;
    unsigned(Figure::Power, 0.001, &|to| call!(nvml.nvmlDeviceGetPowerUsage(handle, to)))?;
    unsigned(Figure::PcieReplays, 1.0, &|to| call!(nvml.nvmlDeviceGetPcieReplayCounter(handle, to)))?;
    unsigned(Figure::EncoderUtil, 1.0, &|to| call!(nvml.nvmlDeviceGetEncoderUtilization(handle, to, &mut 0)))?;
    unsigned(Figure::DecoderUtil, 1.0, &|to| call!(nvml.nvmlDeviceGetDecoderUtilization(handle, to, &mut 0)))?;
    let mut energy = 0;
    if told(call!(nvml.nvmlDeviceGetTotalEnergyConsumption(handle, &mut energy)))?.is_some() {
        taken.put(Figure::Energy, energy as f64);
    }
    if let Some(Some(celsius)) = told(device.field(NVML_FI_DEV_MEMORY_TEMP))? {
        taken.put(Figure::MemoryTemperature, celsius as f64);
    }
    let mut use_of = nvmlUtilization_t { gpu: 0, memory: 0 };
    if told(call!(nvml.nvmlDeviceGetUtilizationRates(handle, &mut use_of)))?.is_some() {
        taken.put(Figure::GpuUtil, use_of.gpu.into());
        taken.put(Figure::MemoryUtil, use_of.memory.into());
    }
    errors(device, taken)?;
    for (policy, figure) in [(POLICY_POWER, Figure::PowerViolation), (POLICY_THERMAL, Figure::ThermalViolation)] {
        let mut time = nvmlViolationTime_t { referenceTime: 0, violationTime: 0 };
        if told(call!(nvml.nvmlDeviceGetViolationStatus(handle, policy, &mut time)))?.is_some() {
            taken.put(figure, time.violationTime as f64);
        }
    }
    if let Some(reasons) = told(device.clocks_event_reasons())? {
        taken.put(Figure::ClocksEventReasons, reasons as f64);
    }
    Ok(())
}

fn errors(device: Device, taken: &mut Taken) -> Called<()> {
    for (figure, errors, period) in [
        (Figure::SingleBitVolatile, CORRECTED, VOLATILE),
        (Figure::DoubleBitVolatile, UNCORRECTED, VOLATILE),
        (Figure::SingleBitAggregate, CORRECTED, AGGREGATE),
        (Figure::DoubleBitAggregate, UNCORRECTED, AGGREGATE),
    ] {
        if let Some(count) = told(device.ecc(errors, period))? {
            taken.put(figure, count as f64);
        }
    }
    if let Some((corrected, uncorrected, pending, failed)) = told(device.remapped_rows())? {
        taken.put(Figure::RowsCorrectable, corrected.into());
        taken.put(Figure::RowsUncorrectable, uncorrected.into());
        taken.put(Figure::RowRemapPending, pending.into());
        taken.put(Figure::RowRemapFailure, failed.into());
    }
    Ok(())
}

fn memory(device: Device, taken: &mut Taken) -> Called<()> {
    const BYTES_PER_MIB: f64 = 1_048_576.0;
    let nvml = device.nvml;
    let version = struct_version::<nvmlMemory_v2_t>(2);
    let mut memory = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
    if told(call!(nvml.nvmlDeviceGetMemoryInfo_v2(device.handle, &mut memory)))?.is_some() {
        taken.put(Figure::MemoryFree, memory.free as f64 / BYTES_PER_MIB);
        taken.put(Figure::MemoryUsed, memory.used as f64 / BYTES_PER_MIB);
        taken.put(Figure::MemoryReserved, memory.reserved as f64 / BYTES_PER_MIB);
    }
    Ok(())
}
