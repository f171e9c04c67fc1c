//! Notes about tasks that have nearly filled the memory of their MIG slice.
//!
//! What must stay true: a note is in the task's folder with the time at which it was true, so that an agent that has gone cannot explain what happens later; the
//! lock on the tasks is not held across the disk.

use super::Inner;
use crate::task_folder::record::{MEMORY_NOTE_MAX_NS, MemoryNote};
use muster_node_core::{Phase, TaskKey};

/// A note that says what it said is written again after this: well before it is too old to count.
const AGAIN_NS: u64 = MEMORY_NOTE_MAX_NS / 3;

impl Inner {
    /// Puts a note into the folder of a running task, or takes it away.
    pub(super) fn note_memory(&self, key: TaskKey, note: Option<String>) {
        let at_ns = self.now_ns();
        let note = {
            let mut tasks = self.tasks.lock();
            let Some(entry) = tasks.get_mut(&key).filter(|entry| matches!(entry.phase, Phase::Running { .. })) else {
                return;
            };
            let is_told = match (&entry.memory_note, &note) {
                (None, None) => true,
                (Some(told), Some(note)) => told.note == *note && at_ns.saturating_sub(told.at_ns) < AGAIN_NS,
                _ => false,
            };
            if is_told {
                return;
            }
            entry.memory_note = note.map(|note| MemoryNote { at_ns, note });
            entry.memory_note.clone()
        };
        let folder = self.folder(key);
        let kept = match &note {
            Some(note) => folder.write_json(&folder.memory_note(), note),
            None => std::fs::remove_file(folder.memory_note()),
        };
        if let Err(error) = kept {
            tracing::debug!(task = %key, %error, "cannot note how full the GPU memory of a task is");
        }
    }
}
