//! Who uses a card: for refusals that name it, and for the agent's accounts.
//!
//! What must stay true: a process is named once however many lists it is in; a process that has the card's device file open counts as a user even when NVML
//! does not list it.

use super::driver::{Called, Device};
use super::mig::Profile;
use crate::gpu::nvml::wire::SeenProcess;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

/// What NVML writes for an id or an amount that it does not know.
const NO_ID: u32 = u32::MAX;
const NO_AMOUNT: u64 = u64::MAX;
/// So many are named in a refusal.
const NAMED_MAX: usize = 8;

/// The listed processes of a card or of one GPU instance, in words; empty when there are none.
pub(super) fn of_card(device: Device, instance: Option<u32>) -> Called<String> {
    let listed = device.processes()?;
    let inside = listed.iter().filter(|process| instance.is_none_or(|id| process.gpuInstanceId == id));
    Ok(named(inside.map(|process| process.pid)))
}

/// Whoever is listed or has the device file open.
pub(super) fn in_words(device: Device) -> Called<String> {
    let mut pids: Vec<u32> = device.processes()?.iter().map(|process| process.pid).collect();
    pids.extend(with_file_open(&format!("/dev/nvidia{}", device.minor()?)));
    let named = named(pids.into_iter());
    let unknown = "a process that is not listed (nvidia-persistenced, a metrics exporter, or nvidia-smi); stop it";
    Ok(if named.is_empty() { unknown.to_owned() } else { named })
}

fn named(pids: impl Iterator<Item = u32>) -> String {
    let mut pids: Vec<u32> = pids.collect();
    pids.sort_unstable();
    pids.dedup();
    let mut words = String::new();
    for pid in pids.iter().take(NAMED_MAX) {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let comma = if words.is_empty() { "" } else { ", " };
        let _ = write!(words, "{comma}process {pid} {}", name.trim());
    }
    if pids.len() > NAMED_MAX {
        let _ = write!(words, " and {} others", pids.len() - NAMED_MAX);
    }
    words
}

/// Other processes that have a file open whose path ends so.
fn with_file_open(path: &str) -> Vec<u32> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_open = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| link.to_string_lossy().ends_with(path))
    };
    pids.filter(|pid| *pid != std::process::id()).filter(has_open).collect()
}

/// The processes of a card with their slices and memory.
pub(super) fn list(device: Device, profiles: &[Profile]) -> Called<Vec<SeenProcess>> {
    let is_mig = device.mig_mode()?.is_some_and(|mode| mode.current);
    let places: BTreeMap<u32, _> = if is_mig {
        device.gpu_instances(profiles)?.iter().map(|instance| (instance.id, instance.place)).collect()
    } else {
        BTreeMap::new()
    };
    let mut found: BTreeMap<(u32, u32), SeenProcess> = BTreeMap::new();
    for process in device.processes()? {
        let id = process.gpuInstanceId;
        let place = if id == NO_ID { None } else { places.get(&id).copied().flatten() };
        let used_mib = (process.usedGpuMemory != NO_AMOUNT).then_some(process.usedGpuMemory >> 20);
        let seen = found.entry((process.pid, id)).or_insert(SeenProcess { pid: process.pid, place, used_mib });
        seen.used_mib = seen.used_mib.max(used_mib);
    }
    Ok(found.into_values().collect())
}
