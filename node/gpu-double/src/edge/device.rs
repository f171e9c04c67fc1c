//! What a card is.
//!
//! What must stay true: a MIG device has a name, a UUID and a parent, and otherwise only what `nvml.h` grants it.

use super::macros::export;
use super::out::{array, put, put_text};
use super::session::View;
use crate::state::card::{Architecture, PciAddress};
use crate::state::profiles;
use crate::state::refusal::{Answer, Refusal};
use muster_model::GpuModel;
use nvml_wrapper_sys::bindings::{
    nvmlBrandType_enum_NVML_BRAND_NVIDIA, nvmlBrandType_enum_NVML_BRAND_TESLA, nvmlBrandType_t, nvmlDevice_t,
    nvmlDeviceArchitecture_t, nvmlPciInfo_t,
};
use std::ffi::{c_char, c_int, c_uint};

/// A PCI address as NVML gives it.
pub(super) fn pci_info(address: PciAddress, device_id: u32) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: array(&address.to_string()),
        domain: address.domain,
        bus: address.bus,
        device: address.device,
        pciDeviceId: device_id,
        pciSubSystemId: if device_id == 0 { 0 } else { 0x16c1_10de },
        busId: array(&address.nvml()),
    }
}

fn uuid(view: &View) -> Answer<String> {
    let card = view.card()?;
    Ok(match view.target.part {
        None => card.uuid.clone(),
        Some(_) => view.target.find(card)?.1.ok_or(Refusal::InvalidArgument)?.uuid.clone(),
    })
}

fn name(view: &View) -> Answer<String> {
    let card = view.card()?;
    if view.target.part.is_none() {
        return Ok(card.name.clone());
    }
    let (gpu, _) = view.target.find(card)?;
    let profile = profiles::by_id(card.model, gpu.profile_id).ok_or(Refusal::Unknown)?;
    Ok(format!("{} MIG {}", card.name, profile.name))
}

/// Its place among the cards that are there, or among the MIG devices of its card.
fn index(view: &View) -> Answer<usize> {
    let card = view.card()?;
    let place = match view.target.part {
        None => view.fleet().present().position(|(slot, _)| slot == view.target.slot),
        Some((gpu, compute)) => card.mig_devices().position(|(g, c)| g.id == gpu && Some(c.id) == compute),
    };
    place.ok_or(Refusal::NotFound)
}

const fn compute_capability(model: GpuModel, architecture: Architecture) -> (c_int, c_int) {
    match (architecture, model) {
        (Architecture::Pascal, _) => (6, 0),
        (Architecture::Volta, _) => (7, 0),
        (Architecture::Turing, _) => (7, 5),
        (Architecture::Ampere, GpuModel::A10) => (8, 6),
        (Architecture::Ampere, _) => (8, 0),
        (Architecture::Ada, _) => (8, 9),
        (Architecture::Hopper, _) => (9, 0),
        (Architecture::Blackwell, _) => (10, 0),
    }
}

export! {
    fn nvmlDeviceGetName(call, device: nvmlDevice_t, to: *mut c_char, length: c_uint) {
        put_text(to, length, &name(&call.device(device)?)?)
    }

    fn nvmlDeviceGetUUID(call, device: nvmlDevice_t, to: *mut c_char, length: c_uint) {
        put_text(to, length, &uuid(&call.device(device)?)?)
    }

    fn nvmlDeviceGetIndex(call, device: nvmlDevice_t, to: *mut c_uint) {
        put(to, index(&call.device(device)?)? as c_uint)
    }

    fn nvmlDeviceGetSerial(call, device: nvmlDevice_t, to: *mut c_char, length: c_uint) {
        put_text(to, length, &call.whole(device)?.card()?.serial)
    }

    fn nvmlDeviceGetMinorNumber(call, device: nvmlDevice_t, to: *mut c_uint) {
        put(to, call.whole(device)?.card()?.minor)
    }

    fn nvmlDeviceGetBrand(call, device: nvmlDevice_t, to: *mut nvmlBrandType_t) {
        let view = call.whole(device)?;
        let is_old = view.card()?.name.starts_with("Tesla");
        put(to, if is_old { nvmlBrandType_enum_NVML_BRAND_TESLA } else { nvmlBrandType_enum_NVML_BRAND_NVIDIA })
    }

    fn nvmlDeviceGetArchitecture(call, device: nvmlDevice_t, to: *mut nvmlDeviceArchitecture_t) {
        put(to, call.device(device)?.card()?.architecture as nvmlDeviceArchitecture_t)
    }

    fn nvmlDeviceGetCudaComputeCapability(call, device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int) {
        let view = call.device(device)?;
        let card = view.card()?;
        let (of_major, of_minor) = compute_capability(card.model, card.architecture);
        put(major, of_major)?;
        put(minor, of_minor)
    }

    fn nvmlDeviceGetPciInfo(call, device: nvmlDevice_t, to: *mut nvmlPciInfo_t) {
        let view = call.whole(device)?;
        put(to, pci_info(view.card()?.pci, view.card()?.pci_device_id))
    }

    fn nvmlDeviceGetPciInfo_v2(call, device: nvmlDevice_t, to: *mut nvmlPciInfo_t) {
        let view = call.whole(device)?;
        put(to, pci_info(view.card()?.pci, view.card()?.pci_device_id))
    }

    fn nvmlDeviceGetPciInfo_v3(call, device: nvmlDevice_t, to: *mut nvmlPciInfo_t) {
        let view = call.whole(device)?;
        put(to, pci_info(view.card()?.pci, view.card()?.pci_device_id))
    }

    fn nvmlDeviceGetNumaNodeId(call, device: nvmlDevice_t, to: *mut c_uint) {
        // Only of GPUs whose memory is a NUMA node of its own; the node of the bus is in sysfs.
        let view = call.whole(device)?;
        let card = view.card()?;
        if card.model != GpuModel::GH200 {
            return Err(Refusal::NotSupported);
        }
        put(to, (card.numa + 1) as c_uint)
    }

    fn nvmlDeviceGetVbiosVersion(call, device: nvmlDevice_t, to: *mut c_char, length: c_uint) {
        call.whole(device)?;
        put_text(to, length, "96.00.89.00.01")
    }
}
