//! What there is, through nvml-wrapper.

use crate::host::Host;
use muster_gpu_double::{Fleet, edge};
use muster_model::GpuModel;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::Brand;
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::error::NvmlError;

#[test]
fn a_host_is_listed() {
    let host = Host::new(&Fleet::h100(8));
    assert_eq!(host.nvml.device_count().unwrap(), 8);
    assert_eq!(host.nvml.sys_driver_version().unwrap(), "580.95.05");
    assert_eq!(host.nvml.sys_cuda_driver_version().unwrap(), 13_000);
    assert_eq!(host.nvml.sys_nvml_version().unwrap(), "13.580.95.05");
    let card = host.nvml.device_by_index(1).unwrap();
    assert_eq!(card.name().unwrap(), "NVIDIA H100 80GB HBM3");
    assert_eq!(card.architecture().unwrap(), DeviceArchitecture::Hopper);
    assert_eq!(card.brand().unwrap(), Brand::Nvidia);
    assert_eq!(card.minor_number().unwrap(), 1);
    assert_eq!(card.index().unwrap(), 1);
    let pci = card.pci_info().unwrap();
    assert_eq!((pci.bus_id.as_str(), pci.domain, pci.bus), ("00000000:2A:00.0", 0, 0x2a));
    let compute = card.cuda_compute_capability().unwrap();
    assert_eq!((compute.major, compute.minor), (9, 0));
    let memory = card.memory_info().unwrap();
    assert_eq!(memory.total, 81_920 << 20);
    assert_eq!(memory.total, memory.free + memory.used + memory.reserved);
}

#[test]
fn every_way_leads_to_the_same_card() {
    let host = Host::new(&Fleet::a100(4));
    let card = host.nvml.device_by_index(2).unwrap();
    let uuid = card.uuid().unwrap();
    assert_eq!(host.nvml.device_by_uuid(uuid.as_str()).unwrap().index().unwrap(), 2);
    for bus in ["00000000:3A:00.0", "0000:3a:00.0", "0000:3a:00", "3a:00.0"] {
        assert_eq!(host.nvml.device_by_pci_bus_id(bus).unwrap().uuid().unwrap(), uuid, "{bus}");
    }
    assert!(matches!(host.nvml.device_by_index(4), Err(NvmlError::InvalidArg)));
    assert!(matches!(host.nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
}

#[test]
fn two_hosts_of_other_seeds_have_other_cards() {
    let (one, two) = (Host::new(&Fleet::h100(1)), Host::new(&Fleet::h100(1).with_seed(2)));
    let uuid = |host: &Host| host.nvml.device_by_index(0).unwrap().uuid().unwrap();
    assert_ne!(uuid(&one), uuid(&two));
}

#[test]
fn a_folder_without_a_fleet_is_no_driver() {
    let folder = tempfile::tempdir().unwrap();
    let built = muster_gpu_double::library_beside(&std::env::current_exe().unwrap()).unwrap();
    let library = muster_gpu_double::library_into(&built, folder.path()).unwrap();
    let opened = Nvml::builder().lib_path(library.as_os_str()).init();
    assert!(matches!(opened, Err(NvmlError::DriverNotLoaded)), "{opened:?}");
}

#[test]
fn what_is_not_exported_is_a_missing_symbol() {
    let host = Host::new(&Fleet::h100(1));
    let card = host.nvml.device_by_index(0).unwrap();
    let answer = card.fan_speed(0);
    assert!(matches!(answer, Err(NvmlError::FailedToLoadSymbol(_))), "{answer:?}");
    let names = edge::names();
    assert!(names.len() >= 100, "{} functions", names.len());
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
}

#[test]
fn every_model_of_the_catalogue_is_listed() {
    for model in GpuModel::ALL {
        let host = Host::new(&Fleet::of(model, 1));
        let card = host.nvml.device_by_index(0).unwrap();
        assert!(card.name().unwrap().contains(model.facts().nvml_name.split('-').next().unwrap()), "{model}");
        card.architecture().unwrap();
        assert_eq!(card.mig_mode().is_ok(), model.facts().mig.is_some(), "{model}");
        assert_eq!(card.memory_info().unwrap().total, model.memory_mib() << 20);
    }
}

#[test]
fn numa_nodes_are_in_sysfs_and_only_coherent_parts_have_their_own() {
    let host = Host::new(&Fleet::h100(8));
    let card = host.nvml.device_by_index(4).unwrap();
    assert!(matches!(card.numa_node_id(), Err(NvmlError::NotSupported)));
    assert_eq!(host.read("sys/bus/pci/devices/0000:9a:00.0/numa_node"), "1\n");
    assert_eq!(host.read("sys/bus/pci/devices/0000:17:00.0/numa_node"), "0\n");
    let coherent = Host::new(&Fleet::of(GpuModel::GH200, 1));
    assert_eq!(coherent.nvml.device_by_index(0).unwrap().numa_node_id().unwrap(), 1);
}

#[test]
fn a_network_card_stands_beside_each_card() {
    let host = Host::new(&Fleet::h100(8));
    let place = |link: &str| std::fs::canonicalize(host.folder.path().join(link)).unwrap();
    let (card, nic) = (place("sys/bus/pci/devices/0000:2a:00.0"), place("sys/class/infiniband/mlx5_1/device"));
    assert_eq!(card.parent(), nic.parent());
    assert_ne!(card.parent(), place("sys/bus/pci/devices/0000:3a:00.0").parent());
}

#[test]
fn the_drivers_folders_are_there() {
    let host = Host::new(&Fleet::h100(2));
    let minors = host.read("proc/driver/nvidia/capabilities/mig-minors");
    assert!(minors.starts_with("config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n"), "{minors:.80}");
    assert!(minors.contains("\ngpu1/gi0/access 138\n"));
    assert!(host.read("proc/driver/nvidia/params").contains("ModifyDeviceFiles: 1"));
    assert!(host.read("proc/driver/nvidia/gpus/0000:2a:00.0/information").contains("Device Minor: \t 1"));
    for node in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"] {
        assert!(host.folder.path().join("dev").join(node).exists(), "{node}");
    }
    assert!(!host.folder.path().join("dev/nvidia2").exists());
}
