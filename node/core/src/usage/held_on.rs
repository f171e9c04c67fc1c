//! Devices after their task: for how long they were cleaned up, and for how long they were held on for the rest of its gang.
//!
//! What must stay true: a moment is counted once, as clean until the clean-up has ended and as idle after it; idle is counted only up to a moment at
//! which the control plane is known to have held the devices for the task, so what nobody knows is charged to nobody.

use crate::task::TaskKey;
use muster_model::usage::UseKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A task that is over, and whose devices are not known to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Over {
    gpu_units: u64,
    /// What comes before is counted.
    since_ns: u64,
    is_cleaned: bool,
}

/// A time in which devices of a task were held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time {
    pub(super) key: TaskKey,
    pub(super) kind: UseKind,
    pub(super) gpu_units: u64,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldOn {
    #[serde(with = "crate::usage::pairs")]
    tasks: BTreeMap<TaskKey, Over>,
}

impl HeldOn {
    /// A task with devices is over, and what comes after `since_ns` is no use of its own.
    pub(super) fn over(&mut self, key: TaskKey, gpu_units: u64, since_ns: u64) {
        self.tasks.insert(key, Over { gpu_units, since_ns, is_cleaned: false });
    }

    /// Its devices were being cleaned up until `until_ns` and are not clean yet.
    pub(super) fn cleaning(&mut self, key: TaskKey, until_ns: u64) -> Option<Time> {
        let over = self.tasks.get_mut(&key).filter(|over| !over.is_cleaned)?;
        over.count(key, UseKind::Clean, until_ns)
    }

    /// Its devices are clean; `until_ns` says since when, if there was anything to clean.
    pub(super) fn cleaned(&mut self, key: TaskKey, until_ns: Option<u64>) -> Option<Time> {
        let over = self.tasks.get_mut(&key).filter(|over| !over.is_cleaned)?;
        over.is_cleaned = true;
        over.count(key, UseKind::Clean, until_ns?)
    }

    /// The control plane holds its devices on at `until_ns`.
    pub(super) fn held(&mut self, key: TaskKey, until_ns: u64) -> Option<Time> {
        let over = self.tasks.get_mut(&key).filter(|over| over.is_cleaned)?;
        over.count(key, UseKind::Idle, until_ns)
    }

    /// Whether its devices are not known to be clean.
    pub(super) fn is_cleaning(&self, key: TaskKey) -> bool {
        self.tasks.get(&key).is_some_and(|over| !over.is_cleaned)
    }

    /// What is not clean is cleaned from `now_ns` on: nobody did so before.
    pub(super) fn clean_from(&mut self, now_ns: u64) {
        for over in self.tasks.values_mut().filter(|over| !over.is_cleaned) {
            over.since_ns = over.since_ns.max(now_ns);
        }
    }

    /// Its devices are withheld: nobody holds them.
    pub(super) fn withheld(&mut self, key: TaskKey) {
        self.tasks.remove(&key);
    }

    /// Drops tasks whose devices are clean and not held any more.
    pub(super) fn keep_held(&mut self, is_held: impl Fn(TaskKey) -> bool) {
        self.tasks.retain(|key, over| !over.is_cleaned || is_held(*key));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Drops tasks that are not clean and that `keep` does not know: without a record nobody cleans up after them.
    pub(super) fn keep(&mut self, keep: impl Fn(TaskKey) -> bool) {
        self.tasks.retain(|key, over| over.is_cleaned || keep(*key));
    }
}

impl Over {
    fn count(&mut self, key: TaskKey, kind: UseKind, until_ns: u64) -> Option<Time> {
        let from_ns = self.since_ns;
        self.since_ns = from_ns.max(until_ns);
        (until_ns > from_ns).then_some(Time { key, kind, gpu_units: self.gpu_units, from_ns, to_ns: until_ns })
    }
}
