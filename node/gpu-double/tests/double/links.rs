//! NVLinks, topology, fabric.

use crate::host::{Host, INVALID_ARGUMENT, NOT_SUPPORTED, OK};
use muster_gpu_double::Fleet;
use muster_model::GpuModel;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t};
use std::mem;

fn version<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

#[test]
fn cards_of_a_board_hang_on_switches() {
    let host = Host::new(&Fleet::h100(8));
    let card = host.nvml.device_by_index(0).unwrap();
    let link = card.link_wrapper_for(17);
    assert!(link.is_active().unwrap());
    assert_eq!(link.version().unwrap(), 4);
    assert_eq!(link.remote_pci_info().unwrap().bus, 0xc1);
    let mut kind = 0;
    // SAFETY: the pointer is valid.
    unsafe {
        assert_eq!(host.raw.nvmlDeviceGetNvLinkRemoteDeviceType(host.handle(0), 0, &mut kind), OK);
        assert_eq!(kind, 2, "a switch");
        assert_eq!(host.raw.nvmlDeviceGetNvLinkRemoteDeviceType(host.handle(0), 18, &mut kind), INVALID_ARGUMENT);
        let mut status = 9;
        assert_eq!(host.raw.nvmlDeviceGetP2PStatus(host.handle(0), host.handle(7), 2, &mut status), OK);
        assert_eq!(status, 0);
    }
    host.faults.change_card(0, |card| card.links[17].is_active = false).unwrap();
    assert!(!link.is_active().unwrap());
}

#[test]
fn bridged_cards_reach_each_other_and_no_others() {
    let host = Host::new(&Fleet::of(GpuModel::H100_94, 4).with_bridges(12, 4));
    let linked = |a, b| {
        let mut status = 9;
        // SAFETY: the pointer is valid.
        let code = unsafe { host.raw.nvmlDeviceGetP2PStatus(host.handle(a), host.handle(b), 2, &mut status) };
        assert_eq!(code, OK);
        status == 0
    };
    assert!(linked(0, 1) && linked(3, 2) && !linked(1, 2) && !linked(0, 3));
}

#[test]
fn the_nearest_common_part_is_told() {
    let host = Host::new(&Fleet::h100(8));
    let card = |index| host.nvml.device_by_index(index).unwrap();
    assert_eq!(card(0).topology_common_ancestor(card(3)).unwrap(), TopologyLevel::Node);
    assert_eq!(card(0).topology_common_ancestor(card(4)).unwrap(), TopologyLevel::System);
    let pairs = Host::new(&Fleet::a100(8));
    let card = |index| pairs.nvml.device_by_index(index).unwrap();
    assert_eq!(card(2).topology_common_ancestor(card(3)).unwrap(), TopologyLevel::Single);
    assert_eq!(card(1).topology_common_ancestor(card(2)).unwrap(), TopologyLevel::Node);
}

#[test]
fn a_card_without_links_says_so() {
    let host = Host::new(&Fleet::of(GpuModel::L40S, 1));
    assert!(matches!(
        host.nvml.device_by_index(0).unwrap().link_wrapper_for(0).is_active(),
        Err(NvmlError::NotSupported)
    ));
}

#[test]
fn the_fabric_is_told_in_both_forms() {
    let host = Host::new(&Fleet::h100(1).with_fabric([7; 16], 3));
    // SAFETY: the structs are of plain numbers, and the pointers to them are valid.
    unsafe {
        let mut info: nvmlGpuFabricInfoV_t = mem::zeroed();
        info.version = version::<nvmlGpuFabricInfoV_t>(3);
        assert_eq!(host.raw.nvmlDeviceGetGpuFabricInfoV(host.handle(0), &mut info), OK);
        assert_eq!((info.clusterUuid, info.cliqueId, info.state), ([7; 16], 3, 3));
        let mut second: nvmlGpuFabricInfo_v2_t = mem::zeroed();
        second.version = version::<nvmlGpuFabricInfo_v2_t>(2);
        let to = std::ptr::from_mut(&mut second).cast();
        assert_eq!(host.raw.nvmlDeviceGetGpuFabricInfoV(host.handle(0), to), OK);
        assert_eq!((second.cliqueId, second.status), (3, 0));
        let ampere = Host::new(&Fleet::a100(1));
        assert_eq!(ampere.raw.nvmlDeviceGetGpuFabricInfoV(ampere.handle(0), &mut info), NOT_SUPPORTED);
    }
}
