//! Who takes more of a shared card than its share: memory, or processes.
//!
//! An MPS server limits each process and not a task with several, and time-slicing limits nothing, so the driver's list of processes is read once a
//! second and held against the holds. What must stay true:
//! - a task is named only for what its own processes have: never for a neighbour, and never for what is not known;
//! - it may have its share and one context beside it ([`muster_model::capacity::shares`]), which is what the ledger has taken for it; so while no task is
//!   over, no task can be short of memory by another's doing;
//! - more than that in [`READINGS`] readings in a row ends it; a single reading may fall between a new allocation and the free of an old one.

use crate::task::TaskKey;
use muster_model::GpuModel;
use muster_model::capacity::shares::usable_mib;
use muster_model::request::SharingMode;
use muster_model::sharing::CardSharing;
use muster_model::task::HoldMode;
use std::collections::{BTreeMap, BTreeSet};

/// Readings in a row that must show a task over its share.
pub const READINGS: u8 = 2;

/// A process of a task on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenProcess {
    /// Whose.
    pub task: TaskKey,
    /// As the host numbers it.
    pub pid: u32,
    /// Memory of the card that it has, in MiB; none where the driver does not tell.
    pub used_mib: Option<u64>,
}

/// A card that is shared, as it was read.
#[derive(Clone, Debug)]
pub struct SharedCard<'a> {
    /// Its index.
    pub card: u16,
    /// Its model.
    pub model: GpuModel,
    /// The live tasks that hold a share of it.
    pub holds: &'a [(TaskKey, HoldMode)],
    /// Their processes on it.
    pub processes: &'a [SeenProcess],
}

/// A task that is to be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverShare {
    /// Which.
    pub task: TaskKey,
    /// Its processes on the card.
    pub pids: Vec<u32>,
    /// Of what it took how much, for people.
    pub reason: String,
}

/// What a task took too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Memory,
    Processes,
}

/// How often in a row tasks were seen over their shares.
#[derive(Clone, Debug, Default)]
pub struct ShareWatch {
    over: BTreeMap<(u16, TaskKey, What), u8>,
}

impl ShareWatch {
    /// Takes a reading of a card; gives the tasks that are to be ended, each once.
    pub fn read(&mut self, seen: &SharedCard<'_>, sharing: &CardSharing) -> Vec<OverShare> {
        let mut found = Vec::new();
        let mut over: BTreeMap<(u16, TaskKey, What), u8> = BTreeMap::new();
        for (task, mode) in seen.holds {
            let own = seen.processes.iter().filter(|process| process.task == *task);
            let pids: BTreeSet<u32> = own.clone().map(|process| process.pid).collect();
            let used_mib = own.filter_map(|process| process.used_mib).fold(0, u64::saturating_add);
            let faults = [
                (What::Memory, too_much_memory(seen, *mode, used_mib)),
                (What::Processes, too_many(seen, *mode, pids.len(), sharing)),
            ];
            for (what, reason) in faults {
                let Some(reason) = reason else { continue };
                let at = (seen.card, *task, what);
                let readings = self.over.get(&at).map_or(1, |before| before.saturating_add(1));
                over.insert(at, readings);
                if readings == READINGS {
                    found.push(OverShare { task: *task, pids: pids.iter().copied().collect(), reason });
                }
            }
        }
        // Whoever is not over now begins anew.
        self.over.retain(|(card, ..), _| *card != seen.card);
        self.over.extend(over);
        found
    }

    /// A card could not be read, or is not shared any more: what was seen of it does not count.
    pub fn forget(&mut self, card: u16) {
        self.over.retain(|(of, ..), _| *of != card);
    }
}

fn too_much_memory(seen: &SharedCard<'_>, mode: HoldMode, used_mib: u64) -> Option<String> {
    let (HoldMode::Mps { memory_mib, .. } | HoldMode::TimeSlice { memory_mib }) = mode else { return None };
    let is_over = used_mib > usable_mib(seen.model, mode.mode(), memory_mib);
    is_over.then(|| format!("used {} of GPU {}, its share is {}", gib(used_mib), seen.card, gib(memory_mib)))
}

fn too_many(seen: &SharedCard<'_>, mode: HoldMode, processes: usize, sharing: &CardSharing) -> Option<String> {
    let most = sharing.processes_max(mode.mode())?;
    let of = match mode.mode() {
        SharingMode::Mps => "a client of its MPS server",
        _ => "a time-sliced task there",
    };
    (processes > usize::from(most))
        .then(|| format!("had {processes} processes on GPU {}, {of} may have {most}", seen.card))
}

/// `21 GiB`, `16.5 GiB`, `512 MiB`.
fn gib(mib: u64) -> String {
    match mib {
        0..1_024 => format!("{mib} MiB"),
        _ if mib.is_multiple_of(1_024) => format!("{} GiB", mib / 1_024),
        _ => format!("{}.{} GiB", mib / 1_024, mib % 1_024 * 10 / 1_024),
    }
}
