//! Faults of devices that end tasks.
//!
//! What must stay true: the first fault of a task counts; it is in the task's folder before the task is signalled, and before the folder is made it is kept here.

use super::Inner;
use crate::exec::Fault;
use crate::task_folder::read_json;
use muster_node_core::{Phase, TaskKey};

impl Inner {
    /// Notes the fault of a live task; gives its grace, in seconds.
    pub(super) fn note_fault(&self, key: TaskKey, fault: Fault) -> Option<u64> {
        let grace_s = {
            let mut tasks = self.tasks.lock();
            let entry = tasks.get_mut(&key).filter(|entry| !matches!(entry.phase, Phase::Over { .. }))?;
            entry.fault.get_or_insert(fault);
            entry.spec.grace_s
        };
        // A task that is only being started has no folder yet.
        if self.folder(key).task().exists() {
            self.write_fault(key);
        }
        Some(grace_s)
    }

    /// Puts the fault of a task into its folder, if it has one and none is there.
    pub(super) fn write_fault(&self, key: TaskKey) {
        let Some(fault) = self.tasks.lock().get(&key).and_then(|entry| entry.fault.clone()) else { return };
        let folder = self.folder(key);
        if !folder.fault().exists()
            && let Err(error) = folder.write_json(&folder.fault(), &fault)
        {
            tracing::error!(task = %key, %error, "cannot record the fault of a GPU that ends a task");
        }
    }

    /// The fault that ends a task, as its folder has it or as it is only known here.
    pub(super) fn fault_of(&self, key: TaskKey) -> Option<Fault> {
        let written = read_json::<Fault>(&self.folder(key).fault()).ok().flatten();
        written.or_else(|| self.tasks.lock().get(&key)?.fault.clone())
    }
}
