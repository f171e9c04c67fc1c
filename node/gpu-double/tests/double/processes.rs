//! Process lists and memory.

use crate::host::{G1, Host, INSUFFICIENT_SIZE, OK};
use muster_gpu_double::{Fleet, Process, ProcessKind};
use nvml_wrapper::enums::device::UsedGpuMemory;

fn process(pid: u32, kind: ProcessKind) -> Process {
    Process { pid, name: format!("worker-{pid}"), kind, memory_bytes: 1 << 30, ..Process::default() }
}

#[test]
fn each_kind_has_its_list() {
    let host = Host::new(&Fleet::h100(1));
    let kinds = [ProcessKind::Compute, ProcessKind::Graphics, ProcessKind::Mps];
    for (pid, kind) in (10..).zip(kinds) {
        host.faults.add_process(0, process(pid, kind)).unwrap();
    }
    let card = host.nvml.device_by_index(0).unwrap();
    let pids = |list: Vec<nvml_wrapper::struct_wrappers::device::ProcessInfo>| -> Vec<u32> {
        list.into_iter().map(|process| process.pid).collect()
    };
    let compute = card.running_compute_processes().unwrap();
    assert!(matches!(compute[0].used_gpu_memory, UsedGpuMemory::Used(bytes) if bytes == 1 << 30));
    assert_eq!(compute[0].gpu_instance_id, None);
    assert_eq!(pids(compute), [10]);
    assert_eq!(pids(card.running_graphics_processes().unwrap()), [11]);
    assert_eq!(pids(card.mps_running_compute_processes().unwrap()), [12]);
    assert_eq!(card.memory_info().unwrap().used, 3 << 30);
    assert_eq!(host.nvml.sys_process_name(11, 64).unwrap(), "worker-11");
}

#[test]
fn a_list_that_does_not_fit_says_its_length() {
    let host = Host::new(&Fleet::h100(1));
    (1..=3).for_each(|pid| host.faults.add_process(0, process(pid, ProcessKind::Compute)).unwrap());
    let mut count = 0;
    // SAFETY: with a count of zero nothing is written to the list.
    let code =
        unsafe { host.raw.nvmlDeviceGetComputeRunningProcesses_v3(host.handle(0), &mut count, std::ptr::null_mut()) };
    assert_eq!((code, count), (INSUFFICIENT_SIZE, 3));
}

#[test]
fn a_list_may_be_empty_while_the_card_is_in_use() {
    let host = Host::new(&Fleet::h100(1));
    host.faults.add_process(0, process(5, ProcessKind::Compute)).unwrap();
    host.faults.hide_processes(0, true).unwrap();
    let card = host.nvml.device_by_index(0).unwrap();
    assert!(card.running_compute_processes().unwrap().is_empty());
    assert_eq!(card.memory_info().unwrap().used, 1 << 30, "its memory is in use all the same");
    assert_eq!(host.set_mig(0, true), crate::host::IN_USE);
    host.faults.hide_processes(0, false).unwrap();
    assert_eq!(card.running_compute_processes().unwrap().len(), 1);
}

#[test]
fn a_mig_device_lists_its_own() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    for start in 0..2 {
        let gpu = host.make_at(0, G1, start, 1).unwrap();
        host.make_compute(gpu, 0).unwrap();
        let own = Process {
            gpu_instance: Some(host.info(gpu).id),
            compute_instance: Some(0),
            ..process(100 + start, ProcessKind::Compute)
        };
        host.faults.add_process(0, own).unwrap();
    }
    let card = host.nvml.device_by_index(0).unwrap();
    let all = card.running_compute_processes().unwrap();
    assert_eq!(all.iter().map(|p| (p.pid, p.gpu_instance_id)).collect::<Vec<_>>(), [(100, Some(7)), (101, Some(8))]);
    let slice = card.mig_device_by_index(1).unwrap();
    let own = slice.running_compute_processes().unwrap();
    assert_eq!(own.iter().map(|p| p.pid).collect::<Vec<_>>(), [101]);
    assert_eq!(slice.memory_info().unwrap().used, 1 << 30);
}

#[test]
fn a_real_process_is_listed_until_it_ends() {
    let host = Host::new(&Fleet::h100(1));
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    host.faults.add_real_process(0, process(child.id(), ProcessKind::Compute)).unwrap();
    let card = host.nvml.device_by_index(0).unwrap();
    assert_eq!(card.running_compute_processes().unwrap().len(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(card.running_compute_processes().unwrap().is_empty());
    assert_eq!(card.memory_info().unwrap().used, 0);
    assert!(host.faults.add_real_process(0, process(u32::MAX - 1, ProcessKind::Compute)).is_err());
}

#[test]
fn memory_that_nobody_holds_stays_in_use() {
    let host = Host::new(&Fleet::h100(1));
    host.faults.set_memory_used(0, 3 << 20).unwrap();
    let card = host.nvml.device_by_index(0).unwrap();
    assert_eq!(card.memory_info().unwrap().used, 3 << 20);
    let mut first = nvml_wrapper_sys::bindings::nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { host.raw.nvmlDeviceGetMemoryInfo(host.handle(0), &mut first) }, OK);
    assert_eq!(first.used, (3 + 628) << 20, "the first form counts what the driver keeps");
}
