//! The changes of a card: its MIG mode, its instances.
//!
//! What must stay true:
//! - every step may be taken again, from whatever an earlier one has left behind when its process was killed;
//! - a GPU instance without compute instance is nobody's: it is completed where it is wanted, and destroyed by the next step where not;
//! - what a process uses, or another program has made, is never taken down: the step is refused and names it;
//! - the MIG mode is changed only where that needs no reset, and a change that did not become active is taken back, unless a reset follows.

use super::driver::{Called, Device, IN_USE};
use super::holders;
use super::mig::{GpuInstance, Profile};
use crate::gpu::nvml::wire::Fault;
use muster_model::mig::MigPlacement;
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED;

/// What an operator is told where only a reset helps.
const NEEDS_RESET: &str = "a change of the MIG mode needs a reset of the GPU; drain the node: the agent resets the GPU when nobody uses the node";

fn refused<T>(why: impl Into<String>) -> Called<T> {
    Err(Fault::Refused(why.into()))
}

/// Enters or leaves the MIG mode.
pub(super) fn set_mig(device: Device, profiles: &[Profile], on: bool) -> Called<()> {
    let Some(mode) = device.mig_mode()? else { return refused("this GPU has no MIG") };
    if mode.current == on && mode.pending == on {
        return Ok(());
    }
    if mode.current != on {
        if !is_resetless(device)? {
            return refused(NEEDS_RESET);
        }
        if mode.current {
            empty(device, profiles)?;
        }
        let users = holders::of_card(device, None)?;
        if !users.is_empty() {
            return refused(format!("the MIG mode changes only while nobody uses the GPU: {users}"));
        }
    }
    let activation = match device.set_mig_mode(on) {
        // Drivers differ in whether they say so of the call or of the activation.
        Err(Fault::Nvml { code: IN_USE, .. }) => IN_USE,
        other => other?,
    };
    if activation == 0 && device.mig_mode()?.is_some_and(|mode| mode.current == on && mode.pending == on) {
        return Ok(());
    }
    // Otherwise the next reset or reboot would change the mode when nobody expects it.
    if device.set_mig_mode(mode.current).is_err() {
        eprintln!("muster gpu-helper: a pending change of the MIG mode could not be taken back");
    }
    match activation {
        IN_USE => refused(format!(
            "the driver does not change the MIG mode while the GPU is open elsewhere: {}",
            holders::in_words(device)?
        )),
        0 => refused("the driver has noted the MIG mode and not changed it"),
        _ => refused(NEEDS_RESET),
    }
}

/// Whether the MIG mode changes without a reset.
pub(super) fn is_resetless(device: Device) -> Called<bool> {
    Ok(device.field(NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED)? == Some(1))
}

/// Notes the MIG mode that the next reset brings. A driver that changes it at once has done what was wanted.
pub(super) fn note_mig(device: Device, profiles: &[Profile], on: bool) -> Called<()> {
    let Some(mode) = device.mig_mode()? else { return refused("this GPU has no MIG") };
    if mode.pending == on {
        return Ok(());
    }
    if mode.current {
        empty(device, profiles)?;
    }
    let users = holders::of_card(device, None)?;
    if !users.is_empty() {
        return refused(format!("the MIG mode changes only while nobody uses the GPU: {users}"));
    }
    let noted = device.set_mig_mode(on);
    if device.mig_mode()?.is_some_and(|mode| mode.pending == on) {
        return Ok(());
    }
    noted.and_then(|activation| {
        refused(format!("the driver has not noted the MIG mode (activation status {activation})"))
    })
}

/// Destroys what is half made; refuses where anything else stands.
fn empty(device: Device, profiles: &[Profile]) -> Called<()> {
    let instances = device.gpu_instances(profiles)?;
    if let Some(stands) = instances.iter().find(|instance| !instance.is_half_made()) {
        return refused(format!("{} stands; destroy it first", in_words(stands)));
    }
    instances.iter().try_for_each(|half| device.destroy_gpu_instance(half))
}

/// Makes an instance at its place with so many equal compute instances, unless it stands.
pub(super) fn create(device: Device, profiles: &[Profile], place: MigPlacement, count: u32) -> Called<()> {
    in_mig_mode(device)?;
    let wanted = profiles.iter().find(|profile| profile.shape == Some(place.shape));
    let Some(profile) = wanted else { return refused(format!("the driver offers no {:?} on this GPU", place.shape)) };
    let instances = device.gpu_instances(profiles)?;
    sweep(device, &instances, Some(place));
    if let Some(there) = instances.iter().find(|instance| instance.place == Some(place)) {
        return match there {
            there if there.is_whole() && there.compute.len() == count as usize => Ok(()),
            there if there.is_half_made() => device.fill(there, count),
            there if there.is_whole() => refused(format!("{} stands; destroy it first", in_words(there))),
            there => {
                refused(format!("{} has compute instances that Muster did not make; destroy them", in_words(there)))
            }
        };
    }
    let (start, size) = (u32::from(place.start), profile.size);
    let overlaps = |other: &&GpuInstance| other.at.0 < start + size && start < other.at.0 + other.at.1;
    if let Some(other) = instances.iter().filter(|other| !other.is_half_made()).find(overlaps) {
        return refused(format!("{place} conflicts with {}", in_words(other)));
    }
    let made = device.make_gpu_instance(profile, place.start)?;
    let filled = if made.at == (start, size) {
        device.fill(&made, count)
    } else {
        refused(format!("the driver has put {place} at slices {:?}", made.at))
    };
    if filled.is_err() && device.destroy_gpu_instance(&made).is_err() {
        eprintln!("muster gpu-helper: {place} is half made; the next step on this GPU removes it");
    }
    filled
}

/// Destroys an instance, if it stands.
pub(super) fn destroy(device: Device, profiles: &[Profile], place: MigPlacement) -> Called<()> {
    if device.mig_mode()?.is_none_or(|mode| !mode.current) {
        return Ok(());
    }
    let instances = device.gpu_instances(profiles)?;
    sweep(device, &instances, Some(place));
    let Some(there) = instances.iter().find(|instance| instance.place == Some(place)) else { return Ok(()) };
    let named = |called: Called<()>| match called {
        Err(Fault::Nvml { code: IN_USE, .. }) => {
            let users = holders::of_card(device, Some(there.id))?;
            refused(format!("{} is in use by {users}", in_words(there)))
        }
        other => other,
    };
    there.compute.iter().try_for_each(|compute| named(device.destroy_compute(compute)))?;
    named(device.destroy_gpu_instance(there))
}

/// Destroys what is half made, but for what is wanted. What cannot be destroyed matters only if it is in the way, and is refused then.
fn sweep(device: Device, instances: &[GpuInstance], wanted: Option<MigPlacement>) {
    for half in instances.iter().filter(|one| one.is_half_made() && one.place != wanted) {
        match device.destroy_gpu_instance(half) {
            Ok(()) => eprintln!("muster gpu-helper: {} was left half made and is destroyed", in_words(half)),
            Err(fault) => eprintln!("muster gpu-helper: {} was left half made: {fault}", in_words(half)),
        }
    }
}

fn in_mig_mode(device: Device) -> Called<()> {
    match device.mig_mode()? {
        None => refused("this GPU has no MIG"),
        Some(mode) if !mode.current => refused("it is not in MIG mode"),
        Some(_) => Ok(()),
    }
}

fn in_words(instance: &GpuInstance) -> String {
    let place = instance.place.map_or_else(|| format!("at slices {:?}", instance.at), |place| place.to_string());
    format!("MIG instance {place} (GPU instance {}, {} compute instances)", instance.id, instance.compute.len())
}
