//! One look at devices: processes, open device nodes, memory in use, erasing.
//!
//! What must stay true: a process counts against a device unless a live task that holds the device has it, or the driver runs it itself; every question to the
//! driver has a deadline.

use super::{Cleaner, open_files};
use crate::process_info;
use muster_model::mig::MigPlacement;
use muster_model::request::SharingMode;
use muster_model::task::{DeviceHold, HoldMode};
use muster_node_core::clean::{Left, MEMORY_TOLERANCE_MIB};
use std::time::Duration;

/// A question that takes longer is asked again at the next look.
pub(super) const ASK_MAX: Duration = Duration::from_secs(5);
/// What a MIG instance has in use with nobody in it, in MiB: it is made for a task, so nobody sees it idle.
const SLICE_IDLE_MIB: u64 = 64;
/// What a card has in use, in MiB, that was never seen idle: no driver keeps more in it.
const CARD_IDLE_MIB: u64 = 1_024;

/// A card, or a MIG instance of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Device {
    pub(super) gpu: u16,
    pub(super) place: Option<MigPlacement>,
}

impl Device {
    /// Whether one of these holds uses it.
    pub(super) fn is_held_by(self, holds: &[DeviceHold]) -> bool {
        holds.iter().any(|hold| hold.gpu == self.gpu && (self.place.is_none() || of(hold) == self))
    }
}

fn of(hold: &DeviceHold) -> Device {
    let place = match hold.mode {
        HoldMode::Mig(place) => Some(place),
        HoldMode::Whole | HoldMode::Mps { .. } | HoldMode::TimeSlice { .. } => None,
    };
    Device { gpu: hold.gpu, place }
}

/// What is held, each once.
pub(super) fn devices(holds: &[DeviceHold]) -> Vec<Device> {
    let mut devices: Vec<Device> = holds.iter().map(of).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

impl Cleaner {
    /// What is left on these devices.
    pub(super) async fn look(&self, devices: &[Device]) -> Vec<Left> {
        let mut left = Vec::new();
        if !self.parts.backend.erases_memory() {
            left.push(Left::NotErased);
        }
        for device in devices {
            let processes = self.processes_left(*device).await;
            let is_free = processes.is_empty();
            left.extend(processes);
            left.extend(self.open_files_left(*device).await);
            // Whoever is named above has the memory.
            if is_free && !self.is_held(*device) {
                left.extend(self.memory_left(*device).await);
            }
        }
        left
    }

    pub(super) async fn processes_left(&self, device: Device) -> Vec<Left> {
        let gpu = device.gpu;
        let listed = match tokio::time::timeout(ASK_MAX, self.parts.backend.processes(gpu)).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(error)) => return vec![Left::Unread { gpu, why: error.to_string() }],
            Err(_) => return vec![unanswered(gpu)],
        };
        let concerns = |place: Option<MigPlacement>| device.place.is_none() || place.is_none() || place == device.place;
        let strangers =
            listed.into_iter().filter(|process| concerns(process.place) && !self.may_use(process.pid, device));
        strangers
            .map(|process| Left::Process { gpu, pid: process.pid, who: process_info::user_and_command(process.pid) })
            .collect()
    }

    /// Whether a live task that holds the device has the process, or the driver's own MPS.
    fn may_use(&self, pid: u32, device: Device) -> bool {
        let is_mps = || self.parts.cards.mode(device.gpu) == Some(SharingMode::Mps) && process_info::is_mps_server(pid);
        let holds = |key| {
            let tasks = self.parts.executor.observe();
            tasks.get(&key).is_some_and(|task| task.is_live() && device.is_held_by(&task.spec.devices))
        };
        self.parts.executor.task_of(pid).is_some_and(holds) || is_mps()
    }

    async fn open_files_left(&self, device: Device) -> Vec<Left> {
        let instance = device.place.and_then(|place| self.parts.cards.instance_at(device.gpu, place));
        let nodes = match self.parts.backend.device_nodes(device.gpu, instance) {
            Ok(nodes) => nodes,
            // An instance that is gone has no node that could be open.
            Err(_) if device.place.is_some() && instance.is_none() => return Vec::new(),
            Err(error) => return vec![Left::Unread { gpu: device.gpu, why: error.to_string() }],
        };
        // The nodes of the driver as a whole are everybody's, and so is that of a card between its instances.
        let own = |name: &str| match device.place {
            Some(_) => name.starts_with("nvidia-caps/"),
            None => name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok()),
        };
        let nodes: Vec<_> = nodes.into_iter().filter(|node| own(&node.name)).collect();
        if nodes.is_empty() {
            return Vec::new();
        }
        let looked = tokio::task::spawn_blocking(move || open_files::of(&nodes)).await;
        let found = match looked {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return vec![Left::Unread { gpu: device.gpu, why: format!("/proc: {error}") }],
            Err(_) => return vec![Left::Unread { gpu: device.gpu, why: "the agent is stopping".to_owned() }],
        };
        // The host's own programs watch cards without using them: those of root, and of the agent's user.
        let counts = |pid: u32| {
            let is_task = self.parts.executor.task_of(pid).is_some();
            !self.may_use(pid, device) && (is_task || !open_files::is_of_the_host(pid))
        };
        let found = found.into_iter().filter(|open| counts(open.pid));
        found
            .map(|open| Left::OpenFile {
                path: open.path,
                pid: open.pid,
                who: process_info::user_and_command(open.pid),
            })
            .collect()
    }

    /// Compares with what was in use when nobody used it.
    pub(super) async fn memory_left(&self, device: Device) -> Option<Left> {
        let gpu = device.gpu;
        let used_mib = match tokio::time::timeout(ASK_MAX, self.parts.backend.memory_used(gpu, device.place)).await {
            Ok(Ok(used_mib)) => used_mib?,
            Ok(Err(error)) => return Some(Left::Unread { gpu, why: error.to_string() }),
            Err(_) => return Some(unanswered(gpu)),
        };
        let idle_mib = match device.place {
            Some(_) => SLICE_IDLE_MIB,
            None => {
                let uuid = self.parts.cards.uuids().nth(usize::from(gpu)).unwrap_or_default();
                self.idle_mib.lock().get(&uuid).copied().unwrap_or(CARD_IDLE_MIB)
            }
        };
        let is_more = used_mib > idle_mib.saturating_add(MEMORY_TOLERANCE_MIB);
        is_more.then_some(Left::Memory { gpu, used_mib, idle_mib })
    }
}

fn unanswered(gpu: u16) -> Left {
    Left::Unread { gpu, why: format!("the driver has not answered for {} seconds", ASK_MAX.as_secs()) }
}
