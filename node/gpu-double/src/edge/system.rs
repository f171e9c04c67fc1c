//! Library, driver, and the way to handles.
//!
//! What must stay true: indexes count the cards that are there, in the order of PCI addresses.

use super::handle::{Kind, Target};
use super::macros::export;
use super::out::{put, put_text, text};
use super::session::View;
use crate::files::name_of;
use crate::state::fleet::Fleet;
use crate::state::refusal::{Refusal, words};
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlReturn_t};
use std::ffi::{c_char, c_int, c_uint};

/// `nvmlErrorString` of `nvml.h`.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    words(result).as_ptr()
}

const _: fn(&mut NvmlLib) = |library| library.nvmlErrorString = Ok(nvmlErrorString);

fn by_index(fleet: &Fleet, index: u32) -> Option<Target> {
    fleet.present().nth(index as usize).map(|(slot, _)| Target::card(slot))
}

fn by_uuid(fleet: &Fleet, uuid: &str) -> Option<Target> {
    fleet.present().find_map(|(slot, card)| {
        let part = card.mig_devices().find(|(_, compute)| compute.uuid == uuid);
        let part = part.map(|(gpu, compute)| Target::compute_instance(slot, gpu, compute));
        if card.uuid == uuid { Some(Target::card(slot)) } else { part }
    })
}

fn by_serial(fleet: &Fleet, serial: &str) -> Option<Target> {
    fleet.present().find(|(_, card)| card.serial == serial).map(|(slot, _)| Target::card(slot))
}

/// In any of the forms in use: with a domain of four or eight digits or none, with a function or none.
fn by_bus(fleet: &Fleet, bus: &str) -> Option<Target> {
    let wanted = bus.to_ascii_lowercase();
    let wanted = wanted.trim_end_matches(".0");
    let wanted = if wanted.matches(':').count() == 1 { format!("0:{wanted}") } else { wanted.to_owned() };
    let numbers =
        |text: &str| -> Option<Vec<u32>> { text.split(':').map(|n| u32::from_str_radix(n, 16).ok()).collect() };
    let wanted = numbers(&wanted)?;
    let of = |card: &crate::state::card::Card| vec![card.pci.domain, card.pci.bus, card.pci.device];
    fleet.present().find(|(_, card)| of(card) == wanted).map(|(slot, _)| Target::card(slot))
}

fn handle(view: &View) -> nvmlDevice_t {
    view.target.handle(Kind::Device)
}

export! {
    fn nvmlInit(call) { call.init() }

    fn nvmlInit_v2(call) { call.init() }

    fn nvmlInitWithFlags(call, _flags: c_uint) { call.init() }

    fn nvmlShutdown(call) { call.shutdown() }

    fn nvmlSystemGetDriverVersion(call, version: *mut c_char, length: c_uint) {
        put_text(version, length, &call.system()?.fleet().driver_version)
    }

    fn nvmlSystemGetNVMLVersion(call, version: *mut c_char, length: c_uint) {
        let view = call.system()?;
        let fleet = view.fleet();
        put_text(version, length, &format!("{}.{}", fleet.cuda_version / 1_000, fleet.driver_version))
    }

    fn nvmlSystemGetCudaDriverVersion(call, version: *mut c_int) {
        put(version, call.system()?.fleet().cuda_version)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(call, version: *mut c_int) {
        put(version, call.system()?.fleet().cuda_version)
    }

    fn nvmlSystemGetProcessName(call, pid: c_uint, name: *mut c_char, length: c_uint) {
        let view = call.system()?;
        let mut listed = view.fleet().cards.iter().flat_map(|card| &card.processes);
        let listed = listed.find(|process| process.pid == pid).map(|process| process.name.clone());
        put_text(name, length, &listed.or_else(|| name_of(pid)).ok_or(Refusal::NotFound)?)
    }

    fn nvmlDeviceGetCount(call, count: *mut c_uint) {
        put(count, call.system()?.fleet().present().count() as c_uint)
    }

    fn nvmlDeviceGetCount_v2(call, count: *mut c_uint) {
        put(count, call.system()?.fleet().present().count() as c_uint)
    }

    fn nvmlDeviceGetHandleByIndex(call, index: c_uint, device: *mut nvmlDevice_t) {
        let view = call.find(|fleet| by_index(fleet, index)).map_err(no_such_index)?;
        put(device, handle(&view))
    }

    fn nvmlDeviceGetHandleByIndex_v2(call, index: c_uint, device: *mut nvmlDevice_t) {
        let view = call.find(|fleet| by_index(fleet, index)).map_err(no_such_index)?;
        put(device, handle(&view))
    }

    fn nvmlDeviceGetHandleByUUID(call, uuid: *const c_char, device: *mut nvmlDevice_t) {
        let uuid = text(uuid)?;
        put(device, handle(&call.find(|fleet| by_uuid(fleet, &uuid))?))
    }

    fn nvmlDeviceGetHandleBySerial(call, serial: *const c_char, device: *mut nvmlDevice_t) {
        let serial = text(serial)?;
        put(device, handle(&call.find(|fleet| by_serial(fleet, &serial))?))
    }

    fn nvmlDeviceGetHandleByPciBusId(call, bus: *const c_char, device: *mut nvmlDevice_t) {
        let bus = text(bus)?;
        put(device, handle(&call.find(|fleet| by_bus(fleet, &bus))?))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(call, bus: *const c_char, device: *mut nvmlDevice_t) {
        let bus = text(bus)?;
        put(device, handle(&call.find(|fleet| by_bus(fleet, &bus))?))
    }
}

/// An index that is too large is a wrong argument.
const fn no_such_index(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::NotFound => Refusal::InvalidArgument,
        other => other,
    }
}
