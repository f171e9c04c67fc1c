//! NVLinks, topology, fabric.
//!
//! What must stay true: a link number beyond the card's links is a wrong argument; a card without a fabric manager has no fabric info.

use super::device::pci_info;
use super::macros::export;
use super::out::{put, struct_version};
use super::session::{Call, View};
use crate::state::card::{Card, Fabric, Link, LinkRemote};
use crate::state::links::{common_ancestor, is_linked};
use crate::state::refusal::{Answer, Refusal};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEnableState_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t,
    nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t, nvmlIntNvLinkDeviceType_t,
    nvmlNvLinkCapability_t, nvmlNvLinkErrorCounter_t, nvmlPciInfo_t,
};
use std::ffi::{c_uint, c_ulonglong};

/// `NVML_NVLINK_MAX_LINKS`.
const LINKS_MAX: u32 = 18;

/// `NVML_P2P_CAPS_INDEX_NVLINK`.
const P2P_NVLINK: u32 = 2;
/// `NVML_P2P_STATUS_NOT_SUPPORTED`.
const P2P_NOT_SUPPORTED: u32 = 5;

fn link(card: &Card, number: u32) -> Answer<&Link> {
    if number >= LINKS_MAX {
        return Err(Refusal::InvalidArgument);
    }
    card.links.get(number as usize).ok_or(if card.links.is_empty() {
        Refusal::NotSupported
    } else {
        Refusal::InvalidArgument
    })
}

fn fabric(card: &Card) -> Answer<&Fabric> {
    card.fabric.as_ref().ok_or(Refusal::NotSupported)
}

/// A call about two cards; a fault of either is a fault of the call.
fn two(call: Call, one: nvmlDevice_t, other: nvmlDevice_t) -> Answer<(View, View)> {
    Ok((call.whole(one)?, call.whole(other)?))
}

export! {
    fn nvmlDeviceGetNvLinkState(call, device: nvmlDevice_t, number: c_uint, to: *mut nvmlEnableState_t) {
        put(to, link(call.whole(device)?.card()?, number)?.is_active.into())
    }

    fn nvmlDeviceGetNvLinkVersion(call, device: nvmlDevice_t, number: c_uint, to: *mut c_uint) {
        put(to, link(call.whole(device)?.card()?, number)?.version)
    }

    fn nvmlDeviceGetNvLinkCapability(
        call,
        device: nvmlDevice_t,
        number: c_uint,
        capability: nvmlNvLinkCapability_t,
        to: *mut c_uint
    ) {
        link(call.whole(device)?.card()?, number)?;
        // Everything but SLI bridges (4).
        put(to, (capability != 4).into())
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo(call, device: nvmlDevice_t, number: c_uint, to: *mut nvmlPciInfo_t) {
        put(to, pci_info(link(call.whole(device)?.card()?, number)?.remote.address(), 0))
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(call, device: nvmlDevice_t, number: c_uint, to: *mut nvmlPciInfo_t) {
        put(to, pci_info(link(call.whole(device)?.card()?, number)?.remote.address(), 0))
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(
        call,
        device: nvmlDevice_t,
        number: c_uint,
        to: *mut nvmlIntNvLinkDeviceType_t
    ) {
        let kind = match link(call.whole(device)?.card()?, number)?.remote {
            LinkRemote::Card(_) => 0,
            LinkRemote::Switch(_) => 2,
        };
        put(to, kind)
    }

    fn nvmlDeviceGetNvLinkErrorCounter(
        call,
        device: nvmlDevice_t,
        number: c_uint,
        counter: nvmlNvLinkErrorCounter_t,
        to: *mut c_ulonglong
    ) {
        let view = call.whole(device)?;
        let card = view.card()?;
        link(card, number)?;
        // All of them are CRC errors of the first link.
        put(to, if counter == 2 && number == 0 { card.health.nvlink_errors } else { 0 })
    }

    fn nvmlDeviceGetTopologyCommonAncestor(
        call,
        one: nvmlDevice_t,
        other: nvmlDevice_t,
        to: *mut nvmlGpuTopologyLevel_t
    ) {
        let (one, other) = two(call, one, other)?;
        put(to, common_ancestor(one.card()?, other.card()?))
    }

    fn nvmlDeviceGetP2PStatus(
        call,
        one: nvmlDevice_t,
        other: nvmlDevice_t,
        index: nvmlGpuP2PCapsIndex_t,
        to: *mut nvmlGpuP2PStatus_t
    ) {
        let (one, other) = two(call, one, other)?;
        let (one, other) = (one.card()?, other.card()?);
        // Under MIG there is no way from card to card.
        let is_open = !one.mig.is_on && !other.mig.is_on && (index != P2P_NVLINK || is_linked(one, other));
        put(to, if is_open { 0 } else { P2P_NOT_SUPPORTED })
    }

    fn nvmlDeviceGetGpuFabricInfo(call, device: nvmlDevice_t, to: *mut nvmlGpuFabricInfo_t) {
        let view = call.whole(device)?;
        let fabric = fabric(view.card()?)?;
        put(to, nvmlGpuFabricInfo_t {
            clusterUuid: fabric.cluster_uuid,
            status: fabric.status,
            cliqueId: fabric.clique,
            state: fabric.state,
        })
    }

    fn nvmlDeviceGetGpuFabricInfoV(call, device: nvmlDevice_t, to: *mut nvmlGpuFabricInfoV_t) {
        let view = call.whole(device)?;
        let fabric = fabric(view.card()?)?;
        if to.is_null() {
            return Err(Refusal::InvalidArgument);
        }
        let version = std::ptr::addr_of!((*to).version).read();
        let Fabric { cluster_uuid, clique, state, status, health_mask } = fabric.clone();
        if version == struct_version::<nvmlGpuFabricInfoV_t>(3) {
            // Healthy unless the mask has a fault.
            let healthSummary = if health_mask == 0 { 1 } else { 2 };
            let (clusterUuid, cliqueId, healthMask) = (cluster_uuid, clique, health_mask);
            put(to, nvmlGpuFabricInfoV_t { version, clusterUuid, status, cliqueId, state, healthMask, healthSummary })
        } else if version == struct_version::<nvmlGpuFabricInfo_v2_t>(2) {
            let (clusterUuid, cliqueId, healthMask) = (cluster_uuid, clique, health_mask);
            put(to.cast(), nvmlGpuFabricInfo_v2_t { version, clusterUuid, status, cliqueId, state, healthMask })
        } else {
            Err(Refusal::ArgumentVersionMismatch)
        }
    }
}
