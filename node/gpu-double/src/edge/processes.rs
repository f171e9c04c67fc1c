//! Who uses a card or a MIG device.
//!
//! What must stay true: a list that does not fit is refused with the length it needs; a list may be empty while somebody has the card open.

use super::macros::export;
use super::out::put_list;
use super::session::{Call, View};
use crate::state::card::{Process, ProcessKind};
use crate::state::refusal::{Answer, Refusal};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t};
use std::ffi::c_uint;

fn listed(view: &View, kind: ProcessKind) -> Answer<Vec<&Process>> {
    let is_hidden = view.plan().hides_processes.iter().any(|slot| *slot as usize == view.target.slot);
    let of = match view.target.part {
        None => None,
        Some((gpu, compute)) => Some((gpu, compute.ok_or(Refusal::InvalidArgument)?)),
    };
    Ok(if is_hidden { Vec::new() } else { view.card()?.listed(kind, of).collect() })
}

fn first_form(process: &Process) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t { pid: process.pid, usedGpuMemory: process.memory_bytes }
}

/// The second form and the third are one struct.
fn second_form(process: &Process) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: process.memory_bytes,
        gpuInstanceId: process.gpu_instance.unwrap_or(u32::MAX),
        computeInstanceId: process.compute_instance.unwrap_or(u32::MAX),
    }
}

unsafe fn put_processes<T: Copy>(
    call: Call,
    device: nvmlDevice_t,
    kind: ProcessKind,
    count: *mut c_uint,
    infos: *mut T,
    form: impl Fn(&Process) -> T,
) -> Answer<()> {
    let view = call.device(device)?;
    let list: Vec<T> = listed(&view, kind)?.into_iter().map(form).collect();
    put_list(infos, count, &list)
}

export! {
    fn nvmlDeviceGetComputeRunningProcesses(
        call,
        device: nvmlDevice_t,
        count: *mut c_uint,
        infos: *mut nvmlProcessInfo_v1_t
    ) {
        put_processes(call, device, ProcessKind::Compute, count, infos, first_form)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(
        call,
        device: nvmlDevice_t,
        count: *mut c_uint,
        infos: *mut nvmlProcessInfo_v2_t
    ) {
        put_processes(call, device, ProcessKind::Compute, count, infos, second_form)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(
        call,
        device: nvmlDevice_t,
        count: *mut c_uint,
        infos: *mut nvmlProcessInfo_t
    ) {
        put_processes(call, device, ProcessKind::Compute, count, infos, second_form)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(
        call,
        device: nvmlDevice_t,
        count: *mut c_uint,
        infos: *mut nvmlProcessInfo_v1_t
    ) {
        put_processes(call, device, ProcessKind::Graphics, count, infos, first_form)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        call,
        device: nvmlDevice_t,
        count: *mut c_uint,
        infos: *mut nvmlProcessInfo_v2_t
    ) {
        put_processes(call, device, ProcessKind::Graphics, count, infos, second_form)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        call,
        device: nvmlDevice_t,
        count: *mut c_uint,
        infos: *mut nvmlProcessInfo_t
    ) {
        put_processes(call, device, ProcessKind::Graphics, count, infos, second_form)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(
        call,
        device: nvmlDevice_t,
        count: *mut c_uint,
        infos: *mut nvmlProcessInfo_v1_t
    ) {
        put_processes(call, device, ProcessKind::Mps, count, infos, first_form)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        call,
        device: nvmlDevice_t,
        count: *mut c_uint,
        infos: *mut nvmlProcessInfo_v2_t
    ) {
        put_processes(call, device, ProcessKind::Mps, count, infos, second_form)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        call,
        device: nvmlDevice_t,
        count: *mut c_uint,
        infos: *mut nvmlProcessInfo_t
    ) {
        put_processes(call, device, ProcessKind::Mps, count, infos, second_form)
    }
}
