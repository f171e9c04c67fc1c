//! Calls that hang, are slow or fail; lost cards.

use crate::host::{GPU_IS_LOST, Host, OK};
use muster_gpu_double::{Faults, Fleet, Refusal};
use nvml_wrapper::error::NvmlError;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Runs a call in a thread of its own; what it answers, if it answers within this time, and the rest of the way to it.
fn run<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> (mpsc::Receiver<T>, std::thread::JoinHandle<()>) {
    let (send, receive) = mpsc::channel();
    (receive, std::thread::spawn(move || drop(send.send(call()))))
}

#[test]
fn a_call_hangs_until_the_fault_is_lifted_and_no_other_card_is_touched() {
    let host = Host::new(&Fleet::h100(2));
    host.nvml.device_by_index(0).unwrap();
    host.faults.hang(0).unwrap();
    let faults = Faults::open(host.folder.path()).unwrap();
    let (answer, thread) = run(move || {
        let name = host.nvml.device_by_index(0).and_then(|card| card.name());
        (name, host)
    });
    assert!(answer.recv_timeout(Duration::from_millis(200)).is_err(), "it hangs");
    let other = Host::new(&Fleet::h100(1));
    other.nvml.device_by_index(0).unwrap().name().unwrap();
    faults.lift().unwrap();
    let (name, host) = answer.recv_timeout(Duration::from_secs(10)).expect("it returns");
    assert_eq!(name.unwrap(), "NVIDIA H100 80GB HBM3");
    thread.join().unwrap();
    host.faults.hang(0).unwrap();
    assert_eq!(host.nvml.device_by_index(1).unwrap().minor_number().unwrap(), 1);
    assert_eq!(host.nvml.device_count().unwrap(), 2);
}

#[test]
fn one_function_hangs_and_all_calls_do() {
    let host = Host::new(&Fleet::h100(1));
    host.faults.hang_function("nvmlDeviceGetTemperature").unwrap();
    let card = host.nvml.device_by_index(0).unwrap();
    card.power_usage().unwrap();
    let faults = Faults::open(host.folder.path()).unwrap();
    let (answer, thread) = run(move || {
        let sensor = nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu;
        let temperature = host.nvml.device_by_index(0).and_then(|card| card.temperature(sensor));
        (temperature, host)
    });
    assert!(answer.recv_timeout(Duration::from_millis(100)).is_err());
    faults.lift().unwrap();
    let (temperature, host) = answer.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(temperature.unwrap(), 32);
    thread.join().unwrap();
    host.faults.hang_all().unwrap();
    let (answer, thread) = run(move || (host.nvml.device_count(), host));
    assert!(answer.recv_timeout(Duration::from_millis(100)).is_err());
    faults.lift().unwrap();
    assert!(answer.recv_timeout(Duration::from_secs(10)).unwrap().0.is_ok());
    thread.join().unwrap();
}

#[test]
fn a_slow_call_takes_its_time_once() {
    let host = Host::new(&Fleet::h100(2));
    let card = host.nvml.device_by_index(0).unwrap();
    host.faults.slow(Some(0), 150).unwrap();
    let began = Instant::now();
    card.uuid().unwrap();
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(150) && took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_function_fails_or_is_lacked() {
    let host = Host::new(&Fleet::h100(2));
    host.faults.fail(Some(1), "nvmlDeviceGetPowerUsage", Refusal::Unknown).unwrap();
    host.faults.unsupported("nvmlDeviceGetTotalEnergyConsumption").unwrap();
    let card = |index| host.nvml.device_by_index(index).unwrap();
    assert!(card(0).power_usage().is_ok());
    assert!(matches!(card(1).power_usage(), Err(NvmlError::Unknown)));
    assert!(matches!(card(0).total_energy_consumption(), Err(NvmlError::NotSupported)));
}

#[test]
fn a_lost_card_says_so_everywhere() {
    let host = Host::new(&Fleet::h100(3));
    let card = host.nvml.device_by_index(1).unwrap();
    host.faults.lose(1).unwrap();
    assert!(matches!(card.name(), Err(NvmlError::GpuLost)));
    assert!(matches!(card.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(card.mig_mode(), Err(NvmlError::GpuLost)));
    assert!(matches!(host.nvml.device_by_index(1), Err(NvmlError::GpuLost)));
    assert_eq!(host.nvml.device_count().unwrap(), 3);
    let (mut path, others) = (0, [host.handle(0), host.handle(2)]);
    // SAFETY: the pointer is valid.
    unsafe {
        assert_eq!(host.raw.nvmlDeviceGetTopologyCommonAncestor(others[0], others[1], &mut path), OK);
        let lost = card.handle();
        assert_eq!(host.raw.nvmlDeviceGetTopologyCommonAncestor(others[0], lost, &mut path), GPU_IS_LOST);
    }
    host.faults.find(1).unwrap();
    card.name().unwrap();
}

#[test]
fn after_a_reboot_the_cards_behind_a_lost_one_move_up() {
    let host = Host::new(&Fleet::h100(3));
    let uuid = host.nvml.device_by_index(2).unwrap().uuid().unwrap();
    host.faults.lose(1).unwrap();
    host.faults.reboot().unwrap();
    // SAFETY: no arguments.
    assert_eq!(unsafe { host.raw.nvmlInit_v2() }, OK);
    assert_eq!(host.nvml.device_count().unwrap(), 2);
    let moved = host.nvml.device_by_index(1).unwrap();
    assert_eq!((moved.uuid().unwrap(), moved.minor_number().unwrap()), (uuid, 1));
    assert!(!host.folder.path().join("dev/nvidia2").exists());
}
