//! What a card is, and where its NVLinks lead.
//!
//! What must stay true: what a card does not have (links, a fabric) is absent and no error; what cannot be read for another reason is one.

use super::driver::{Called, Device, NOT_SUPPORTED, Nvml, address, call, no_pci, struct_version};
use crate::gpu::nvml::wire::{CardId, Facts, Fault, Link};
use nvml_wrapper_sys::bindings::{nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t};

/// `NVML_NVLINK_MAX_LINKS`.
const LINKS_MAX: u32 = 18;
/// `NVML_NVLINK_DEVICE_TYPE_SWITCH`.
const SWITCH: u32 = 2;
/// `NVML_GPU_FABRIC_STATE_COMPLETED`.
const COMPLETED: u8 = 3;

pub(super) fn read(device: Device) -> Called<Facts> {
    Ok(Facts {
        card: CardId { pci: device.pci()?, uuid: device.uuid()? },
        name: device.name()?,
        memory_mib: device.memory_mib()?,
        fabric: fabric(device),
        links: links(device)?,
    })
}

/// How near the other cards are that the driver lists; one that cannot be asked about is left out.
pub(super) fn ancestors(nvml: &'static Nvml, device: Device) -> Called<Vec<(String, u32)>> {
    let mut found = Vec::new();
    for index in 0..nvml.count()? {
        let Ok(other) = nvml.by_index(index) else { continue };
        let (Ok(pci), mut level) = (other.pci(), 0) else { continue };
        if call!(nvml.nvmlDeviceGetTopologyCommonAncestor(device.handle, other.handle, &mut level)).is_ok() {
            found.push((pci, level));
        }
    }
    Ok(found)
}

/// Cluster and clique, where a fabric manager has set them up. Drivers of before the fabric answer in several ways; none of them is a fault of the card.
fn fabric(device: Device) -> Option<([u8; 16], u32)> {
    let nvml = device.nvml;
    // SAFETY: the struct is of plain numbers, for which zeros are a value.
    let mut info: nvmlGpuFabricInfo_v2_t = unsafe { std::mem::zeroed() };
    info.version = struct_version::<nvmlGpuFabricInfo_v2_t>(2);
    // NVML reads the version first, and writes the struct of that version.
    call!(nvml.nvmlDeviceGetGpuFabricInfoV(device.handle, (&raw mut info).cast::<nvmlGpuFabricInfoV_t>())).ok()?;
    (info.state == COMPLETED && info.status == 0).then_some((info.clusterUuid, info.cliqueId))
}

fn links(device: Device) -> Called<Vec<Link>> {
    let nvml = device.nvml;
    let mut links = Vec::new();
    for number in 0..LINKS_MAX {
        let mut is_active = 0;
        match call!(nvml.nvmlDeviceGetNvLinkState(device.handle, number, &mut is_active)) {
            Ok(()) if is_active == 1 => {}
            Ok(()) => continue,
            // 2: this card has no link of that number.
            Err(Fault::Nvml { code: NOT_SUPPORTED | 2, .. }) => break,
            Err(fault) => return Err(fault),
        }
        let (mut kind, mut pci) = (0, no_pci());
        let kind_known = call!(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(device.handle, number, &mut kind)).is_ok();
        if kind_known && call!(nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(device.handle, number, &mut pci)).is_ok() {
            links.push(Link { is_switch: kind == SWITCH, pci: address(&pci) });
        }
    }
    Ok(links)
}
