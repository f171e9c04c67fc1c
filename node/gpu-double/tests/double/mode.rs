//! The MIG mode: pending and current, what blocks it, what a reboot leaves.

use crate::host::{G1, Host, IN_USE, OK, RESET_REQUIRED};
use muster_gpu_double::{Fleet, Process};
use muster_model::GpuModel;
use nvml_wrapper::error::NvmlError;

fn mode(host: &Host, index: u32) -> (u32, u32) {
    let mode = host.nvml.device_by_index(index).unwrap().mig_mode().unwrap();
    (mode.current, mode.pending)
}

#[test]
fn hopper_changes_at_once_and_gets_another_minor() {
    let host = Host::new(&Fleet::h100(2));
    assert_eq!(mode(&host, 0), (0, 0));
    assert_eq!(host.set_mig(0, true), OK);
    assert_eq!(mode(&host, 0), (1, 1));
    assert_eq!(mode(&host, 1), (0, 0));
    let minor = host.nvml.device_by_index(0).unwrap().minor_number().unwrap();
    assert_eq!(minor, 2);
    assert!(host.folder.path().join("dev/nvidia2").exists() && !host.folder.path().join("dev/nvidia0").exists());
    assert_eq!(host.set_mig(0, true), OK, "the same again is nothing new");
    assert_eq!(host.nvml.device_by_index(0).unwrap().minor_number().unwrap(), 2);
}

#[test]
fn ampere_needs_a_reset() {
    let host = Host::new(&Fleet::a100(1));
    assert_eq!(host.set_mig(0, true), RESET_REQUIRED);
    assert_eq!(mode(&host, 0), (0, 1));
    let blocked = host.faults.reset(0);
    assert!(blocked.is_err(), "this process has NVML open on the card");
    let Host { faults, nvml, raw, folder, library } = host;
    nvml.shutdown().unwrap();
    faults.reset(0).unwrap();
    let fleet = faults.fleet().unwrap();
    assert_eq!((fleet.cards[0].mig.is_on, fleet.cards[0].minor), (true, 1));
    drop((raw, folder, library));
}

#[test]
fn a_driver_that_resets_needs_no_reset() {
    let host = Host::new(&Fleet::a100(1).with_driver_resets());
    assert_eq!(host.set_mig(0, true), OK);
    assert_eq!(mode(&host, 0), (1, 1));
}

#[test]
fn another_client_a_process_or_an_instance_blocks_it() {
    let host = Host::new(&Fleet::h100(1));
    host.faults.add_client(0, 4_242).unwrap();
    assert_eq!(host.set_mig(0, true), IN_USE);
    assert_eq!(mode(&host, 0), (0, 1));
    host.faults.remove_client(4_242).unwrap();
    host.faults.add_process(0, Process { pid: 9, ..Process::default() }).unwrap();
    assert_eq!(host.set_mig(0, true), IN_USE);
    host.faults.remove_process(0, 9).unwrap();
    assert_eq!(host.set_mig(0, true), OK);
    let gpu = host.make_at(0, G1, 0, 1).unwrap();
    assert_eq!(host.set_mig(0, false), IN_USE);
    assert_eq!(mode(&host, 0), (1, 0));
    assert_eq!(host.destroy(gpu), OK);
    assert_eq!(host.set_mig(0, false), OK);
    assert_eq!(mode(&host, 0), (0, 0));
}

#[test]
fn a_card_without_mig_says_so() {
    let host = Host::new(&Fleet::of(GpuModel::L40S, 1));
    let card = host.nvml.device_by_index(0).unwrap();
    assert!(matches!(card.set_mig_mode(true), Err(NvmlError::NotSupported)));
    assert!(matches!(card.mig_mode(), Err(NvmlError::NotSupported)));
    assert_eq!(card.mig_device_count().unwrap(), 0);
}

#[test]
fn a_reboot_takes_instances_and_leaves_the_mode_to_ampere() {
    for (fleet, keeps) in [(Fleet::h100(1), 0), (Fleet::a100(1), 1)] {
        let host = Host::new(&fleet.with_mig());
        host.make_at(0, G1, 0, 1).unwrap();
        host.faults.reboot().unwrap();
        let answer = host.nvml.device_count();
        assert!(matches!(answer, Err(NvmlError::Uninitialized)), "its library is of the old boot: {answer:?}");
        // SAFETY: no arguments.
        assert_eq!(unsafe { host.raw.nvmlInit_v2() }, OK);
        assert_eq!(mode(&host, 0), (keeps, keeps));
        assert!(host.faults.fleet().unwrap().cards[0].mig.instances.is_empty());
    }
}
