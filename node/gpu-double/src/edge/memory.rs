//! Memory of cards and MIG devices.
//!
//! What must stay true: the first version counts what the driver keeps as used, the second tells it apart.

use super::macros::export;
use super::out::{put, struct_version};
use super::session::View;
use crate::state::card::Memory;
use crate::state::refusal::{Answer, Refusal};
use nvml_wrapper_sys::bindings::{nvmlBAR1Memory_t, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};

fn memory(view: &View) -> Answer<Memory> {
    let card = view.card()?;
    view.target.part.map_or_else(|| Ok(card.memory()), |(gpu, _)| card.instance_memory(gpu))
}

export! {
    fn nvmlDeviceGetMemoryInfo(call, device: nvmlDevice_t, to: *mut nvmlMemory_t) {
        let memory = memory(&call.device(device)?)?;
        put(to, nvmlMemory_t { total: memory.total, free: memory.free, used: memory.used + memory.reserved })
    }

    fn nvmlDeviceGetMemoryInfo_v2(call, device: nvmlDevice_t, to: *mut nvmlMemory_v2_t) {
        let memory = memory(&call.device(device)?)?;
        if to.is_null() {
            return Err(Refusal::InvalidArgument);
        }
        let version = struct_version::<nvmlMemory_v2_t>(2);
        if (*to).version != version {
            return Err(Refusal::ArgumentVersionMismatch);
        }
        let Memory { total, reserved, used, free } = memory;
        put(to, nvmlMemory_v2_t { version, total, reserved, free, used })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(call, device: nvmlDevice_t, to: *mut nvmlBAR1Memory_t) {
        let total = call.device(device)?.card()?.memory_mib.next_power_of_two() << 20;
        put(to, nvmlBAR1Memory_t { bar1Total: total, bar1Free: total, bar1Used: 0 })
    }
}
