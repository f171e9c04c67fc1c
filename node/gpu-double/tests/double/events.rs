//! Event sets.

use crate::host::{GPU_IS_LOST, Host, NOT_SUPPORTED, OK, TIMEOUT};
use muster_gpu_double::{Fleet, Process, state::fault::EVENTS_MAX};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeXidCriticalError};
use std::mem;
use std::time::{Duration, Instant};

const XID: u64 = nvmlEventTypeXidCriticalError as u64;

fn set(host: &Host, cards: &[u32], kinds: u64) -> nvmlEventSet_t {
    let mut set = std::ptr::null_mut();
    // SAFETY: the pointer is valid.
    unsafe {
        assert_eq!(host.raw.nvmlEventSetCreate(&mut set), OK);
        for card in cards {
            assert_eq!(host.raw.nvmlDeviceRegisterEvents(host.handle(*card), kinds, set), OK);
        }
    }
    set
}

fn wait(host: &Host, set: nvmlEventSet_t, ms: u32) -> Result<nvmlEventData_t, u32> {
    // SAFETY: the struct is of plain numbers, and the pointer to it is valid.
    unsafe {
        let mut data = mem::zeroed();
        match host.raw.nvmlEventSetWait_v2(set, &mut data, ms) {
            OK => Ok(data),
            code => Err(code),
        }
    }
}

#[test]
fn an_xid_is_told_once_to_each_set_with_its_instances() {
    let host = Host::new(&Fleet::h100(2));
    host.faults.xid(0, None, None, 13).unwrap();
    let sets = [set(&host, &[0, 1], XID), set(&host, &[0], XID), set(&host, &[1], XID)];
    assert_eq!(wait(&host, sets[0], 0).unwrap_err(), TIMEOUT, "what came before is lost");
    host.faults.xid(0, Some(5), Some(0), 94).unwrap();
    assert_eq!(host.faults.fleet().unwrap().cards[0].health.recovery_action, 4, "the driver asks for a reset");
    for set in &sets[..2] {
        let data = wait(&host, *set, 1_000).unwrap();
        assert_eq!((data.eventType, data.eventData), (XID, 94));
        assert_eq!((data.gpuInstanceId, data.computeInstanceId), (5, 0));
        assert_eq!(data.device, host.handle(0));
        assert_eq!(wait(&host, *set, 0).unwrap_err(), TIMEOUT);
    }
    assert_eq!(wait(&host, sets[2], 0).unwrap_err(), TIMEOUT, "another card's");
    host.faults.xid(1, None, None, 31).unwrap();
    assert_eq!(wait(&host, sets[2], 1_000).unwrap().gpuInstanceId, u32::MAX);
}

#[test]
fn a_wait_ends_when_an_event_comes() {
    let host = Host::new(&Fleet::h100(1));
    let sleeps = set(&host, &[0], XID);
    let faults = muster_gpu_double::Faults::open(host.folder.path()).unwrap();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        faults.xid(0, None, None, 48).unwrap();
    });
    let began = Instant::now();
    assert_eq!(wait(&host, sleeps, 10_000).unwrap().eventData, 48);
    assert!(began.elapsed() < Duration::from_secs(5));
    other.join().unwrap();
}

#[test]
fn kinds_that_the_wrapper_lacks_are_told_too() {
    let host = Host::new(&Fleet::h100(1));
    let card = host.nvml.device_by_index(0).unwrap();
    assert!(card.supported_event_types().is_ok());
    let all = set(&host, &[0], 0x8000 | XID);
    host.faults.event(0, 0x8000, 2).unwrap();
    assert_eq!(wait(&host, all, 100).unwrap().eventType, 0x8000);
    // SAFETY: handles are numbers.
    let code = unsafe { host.raw.nvmlDeviceRegisterEvents(host.handle(0), 1 << 40, all) };
    assert_eq!(code, NOT_SUPPORTED);
}

#[test]
fn a_lost_card_ends_every_wait() {
    let host = Host::new(&Fleet::h100(2));
    let both = set(&host, &[0, 1], XID);
    host.faults.lose(1).unwrap();
    assert_eq!(wait(&host, both, 10_000).unwrap_err(), GPU_IS_LOST);
    assert_eq!(wait(&host, set(&host, &[0], XID), 0).unwrap_err(), TIMEOUT);
}

#[test]
fn of_too_many_events_the_oldest_are_lost() {
    let host = Host::new(&Fleet::h100(1));
    let slow = set(&host, &[0], XID);
    (0..EVENTS_MAX as u32 + 3).for_each(|code| host.faults.xid(0, None, None, code).unwrap());
    assert_eq!(wait(&host, slow, 0).unwrap().eventData, 3);
}

#[test]
fn the_wrapper_gets_an_xid() {
    let host = Host::new(&Fleet::h100(1));
    let set = host.nvml.create_event_set().unwrap();
    let set = host.nvml.device_by_index(0).unwrap().register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    host.faults.xid(0, None, None, 79).unwrap();
    let event = set.wait(1_000).unwrap();
    assert!(format!("{event:?}").contains("79"), "{event:?}");
}

#[test]
fn the_kernel_log_has_the_drivers_lines() {
    let host = Host::new(&Fleet::h100(2));
    let process = Process { pid: 123, name: "python".to_owned(), ..Process::default() };
    host.faults.add_process(0, process.clone()).unwrap();
    host.faults.add_process(1, Process { gpu_instance: Some(5), ..process }).unwrap();
    host.faults.xid(0, None, None, 94).unwrap();
    host.faults.xid(1, Some(5), Some(0), 94).unwrap();
    host.faults.lose(0).unwrap();
    let log = host.read("kmsg");
    let lines: Vec<&str> = log.lines().map(|line| line.split_once(';').unwrap().1).collect();
    assert_eq!(
        lines[0],
        "NVRM: Xid (PCI:0000:17:00): 94, pid=123, name=python, Contained: SM (0x1). RST: No, D-RST: No"
    );
    assert!(lines[1].starts_with("NVRM: Xid (PCI:0000:2a:00 GPU-I:05): 94, pid=123, name=python, "), "{}", lines[1]);
    assert!(lines[2].contains("): 79, ") && lines[2].ends_with("GPU has fallen off the bus."), "{}", lines[2]);
    assert!(log.lines().enumerate().all(|(at, line)| line.starts_with(&format!("3,{at},"))), "{log}");
}
