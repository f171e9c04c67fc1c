//! Event sets, which are this process's own.
//!
//! What must stay true: a set is told each event once, and only those that came after it was registered; a set of a lost card says so at
//! every wait; waiting holds no lock.

use super::handle::{self, Kind, Target};
use super::macros::export;
use super::out::put;
use super::session::Call;
use crate::state::fault::Event;
use crate::state::refusal::{Answer, Refusal};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeAll};
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a wait looks for events.
const LOOK: Duration = Duration::from_millis(5);

/// Sets of one process: nobody needs more than a few, and a leak is to be found.
const SETS_MAX: usize = 1_024;

/// A wait of this many milliseconds never ends by itself.
const FOREVER: u32 = u32::MAX;

/// What a set waits for: slot, kinds, number of the first event.
#[derive(Clone, Debug, Default)]
struct EventSet {
    registered: Vec<(usize, u64, u64)>,
    /// Number of the first event that it has not been told.
    next: u64,
}

#[derive(Default)]
struct Sets {
    made: u64,
    sets: BTreeMap<u64, EventSet>,
}

static SETS: Mutex<Sets> = Mutex::new(Sets { made: 0, sets: BTreeMap::new() });

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<T>(set: nvmlEventSet_t, use_set: impl FnOnce(&mut EventSet) -> T) -> Answer<T> {
    let number = handle::number(Kind::EventSet, set)?;
    sets().sets.get_mut(&number).map(use_set).ok_or(Refusal::InvalidArgument)
}

fn data(event: &Event) -> nvmlEventData_t {
    nvmlEventData_t {
        device: Target::card(event.card as usize).handle(Kind::Device),
        eventType: event.kind,
        eventData: event.data,
        gpuInstanceId: event.gpu_instance.unwrap_or(u32::MAX),
        computeInstanceId: event.compute_instance.unwrap_or(u32::MAX),
    }
}

unsafe fn wait(call: Call, set: nvmlEventSet_t, to: *mut nvmlEventData_t, timeout_ms: c_uint) -> Answer<()> {
    let began = Instant::now();
    loop {
        let view = call.system()?;
        let EventSet { registered, next } = with(set, |set| set.clone())?;
        let is_gone = |slot| view.plan().is_lost(slot) || view.fleet().card(slot).is_ok_and(|card| card.is_absent);
        if registered.iter().any(|(slot, ..)| is_gone(*slot)) {
            return Err(Refusal::GpuIsLost);
        }
        if let Some(event) = view.plan().next_for(next, &registered) {
            // Another thread that waits on the same set may have been told of it meanwhile.
            let is_first = with(set, |set| {
                let is_first = set.next <= event.number;
                set.next = set.next.max(event.number + 1);
                is_first
            })?;
            if is_first {
                return put(to, data(event));
            }
            continue;
        }
        if timeout_ms != FOREVER && began.elapsed() >= Duration::from_millis(timeout_ms.into()) {
            return Err(Refusal::Timeout);
        }
        std::thread::sleep(LOOK);
    }
}

export! {
    fn nvmlEventSetCreate(call, to: *mut nvmlEventSet_t) {
        call.system()?;
        let mut sets = sets();
        if sets.sets.len() >= SETS_MAX {
            return Err(Refusal::Memory);
        }
        sets.made += 1;
        let number = sets.made;
        sets.sets.insert(number, EventSet::default());
        put(to, handle::of_number(Kind::EventSet, number))
    }

    fn nvmlEventSetFree(call, set: nvmlEventSet_t) {
        call.system()?;
        let number = handle::number(Kind::EventSet, set)?;
        sets().sets.remove(&number).map(|_| ()).ok_or(Refusal::InvalidArgument)
    }

    fn nvmlDeviceGetSupportedEventTypes(call, device: nvmlDevice_t, kinds: *mut c_ulonglong) {
        call.whole(device)?;
        put(kinds, nvmlEventTypeAll.into())
    }

    fn nvmlDeviceRegisterEvents(call, device: nvmlDevice_t, kinds: c_ulonglong, set: nvmlEventSet_t) {
        let view = call.whole(device)?;
        if kinds & !u64::from(nvmlEventTypeAll) != 0 {
            return Err(Refusal::NotSupported);
        }
        let (slot, first) = (view.target.slot, view.plan().next_event);
        with(set, |set| set.registered.push((slot, kinds, first)))
    }

    fn nvmlEventSetWait(call, set: nvmlEventSet_t, to: *mut nvmlEventData_t, timeout_ms: c_uint) {
        wait(call, set, to, timeout_ms)
    }

    fn nvmlEventSetWait_v2(call, set: nvmlEventSet_t, to: *mut nvmlEventData_t, timeout_ms: c_uint) {
        wait(call, set, to, timeout_ms)
    }
}
