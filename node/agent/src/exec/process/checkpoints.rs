//! Looking at the checkpoint files of tasks.
//!
//! What must stay true: nothing here keeps the executor alive when its agent has gone; a file is read where blocking is allowed.

use super::{Entry, Inner};
use crate::task_folder::checkpoint;
use muster_node_core::{Phase, TaskKey};
use std::sync::Weak;
use std::time::Duration;

/// Between two looks at the checkpoint files of running tasks: one `open` each, a fifth as often as checkpoints are recorded.
const CHECKPOINT_LOOK: Duration = Duration::from_secs(2);

impl Inner {
    /// Reads what the task says of its checkpoints. Says whether that is news. Blocks.
    pub(super) fn look_at_checkpoint(&self, key: TaskKey) -> bool {
        let seen = match checkpoint::read(&self.folder(key)) {
            Ok(Some(seen)) => seen,
            Ok(None) => return false,
            Err(error) => {
                tracing::debug!(task = %key, %error, "cannot read the checkpoint file of a task");
                return false;
            }
        };
        let mut tasks = self.tasks.lock();
        let Some(entry) = tasks.get_mut(&key).filter(|entry| entry.checkpoint.as_ref() != Some(&seen)) else {
            return false;
        };
        entry.checkpoint = Some(seen);
        true
    }
}

/// Looks at the files of what runs, for as long as the executor is there.
pub(super) async fn look(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(CHECKPOINT_LOOK).await;
        let Some(here) = inner.upgrade() else { return };
        let is_running = |entry: &Entry| matches!(entry.phase, Phase::Running { .. });
        let running: Vec<TaskKey> = {
            let tasks = here.tasks.lock();
            tasks.iter().filter(|(_, entry)| is_running(entry)).map(|(key, _)| *key).collect()
        };
        if running.is_empty() {
            continue;
        }
        let reader = here.clone();
        let read = move || running.into_iter().fold(false, |any, key| reader.look_at_checkpoint(key) || any);
        match tokio::task::spawn_blocking(read).await {
            Ok(true) => here.changed(),
            Ok(false) => {}
            Err(_) => return,
        }
    }
}
