//! What NVML tells by itself: Xids, recovery actions, a card that is lost.
//!
//! What must stay true: each card has an event set and a thread of its own, since one lost card makes every wait of a shared set fail and a wait may hang; an
//! event is told once; the place of an instance is looked up at once, before its id can mean another one.

use super::driver::{Called, Device, GPU_IS_LOST, TIMEOUT, call};
use super::mig::Profile;
use super::output::Output;
use super::threads::start_thread;
use crate::gpu::nvml::wire::{Event, Fault, FromHelper};
use muster_model::mig::MigPlacement;
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeGpuRecoveryAction, nvmlEventTypeXidCriticalError,
};
use std::time::Duration;

/// A wait ends so often, for nothing: long enough to cost nothing.
const WAIT_MS: u32 = 5_000;
/// After a wait that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// What NVML writes for an instance that it does not name.
const NO_ID: u32 = u32::MAX;

struct Watch {
    device: Device,
    set: nvmlEventSet_t,
    pci: String,
    profiles: Vec<Profile>,
    output: Output,
}

// SAFETY: NVML may be called from any thread with any handle (nvml.h, "thread-safe").
unsafe impl Send for Watch {}

/// Tells of a card's events from now on.
pub(super) fn watch(device: Device, pci: &str, profiles: &[Profile], output: &Output) -> Called<()> {
    let nvml = device.nvml;
    let mut set = std::ptr::null_mut();
    call!(nvml.nvmlEventSetCreate(&mut set))?;
    let kinds = |kinds: u32| call!(nvml.nvmlDeviceRegisterEvents(device.handle, kinds.into(), set));
    // An older driver does not know recovery actions, and one that refuses a kind refuses the call.
    kinds(nvmlEventTypeXidCriticalError | nvmlEventTypeGpuRecoveryAction)
        .or_else(|_| kinds(nvmlEventTypeXidCriticalError))?;
    let watch = Watch { device, set, pci: pci.to_owned(), profiles: profiles.to_vec(), output: output.clone() };
    start_thread("events", move || watch.run())
}

impl Watch {
    fn run(self) {
        loop {
            match self.wait() {
                Ok(Some(event)) => self.tell(event),
                Ok(None) => {}
                Err(Fault::Nvml { code: GPU_IS_LOST, .. }) => {
                    // Nothing comes of this card any more until the host or the driver starts anew.
                    self.tell(Event::Lost);
                    return;
                }
                Err(fault) => {
                    eprintln!("muster gpu-helper: events of {}: {fault}", self.pci);
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn tell(&self, event: Event) {
        self.output.say(&FromHelper::Event { pci: self.pci.clone(), event });
    }

    fn wait(&self) -> Called<Option<Event>> {
        let nvml = self.device.nvml;
        let mut data = nvmlEventData_t {
            device: std::ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: NO_ID,
            computeInstanceId: NO_ID,
        };
        match call!(nvml.nvmlEventSetWait_v2(self.set, &mut data, WAIT_MS)) {
            Ok(()) => {}
            Err(Fault::Nvml { code: TIMEOUT, .. }) => return Ok(None),
            Err(fault) => return Err(fault),
        }
        if data.eventType == u64::from(nvmlEventTypeXidCriticalError) {
            let instance = (data.gpuInstanceId != NO_ID)
                .then(|| (u8::try_from(data.gpuInstanceId).unwrap_or(u8::MAX), self.place(data.gpuInstanceId)));
            let compute_instance = Some(data.computeInstanceId).filter(|id| *id != NO_ID);
            let code = u16::try_from(data.eventData).unwrap_or(u16::MAX);
            return Ok(Some(Event::Xid { code, instance, compute_instance }));
        }
        let action = self.device.field(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)?;
        Ok(action.map(|action| Event::RecoveryAction(action as u32)))
    }

    fn place(&self, id: u32) -> Option<MigPlacement> {
        let instances = self.device.gpu_instances(&self.profiles).ok()?;
        instances.iter().find(|instance| instance.id == id)?.place
    }
}
