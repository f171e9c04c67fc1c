//! A shim that lives, and what it is told.
//!
//! What must stay true: what was asked for while it was being started reaches it as soon as it is there.

use super::Inner;
use crate::pidfd::PidFd;
use crate::task_folder::record::StartedRecord;
use crate::task_folder::{DeadlineFile, read_json};
use muster_model::Stop;
use muster_node_core::{Phase, Stopping, TaskKey};
use nix::sys::signal::Signal;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at a shim that an earlier agent was just starting.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The shim of a task.
pub(super) struct Shim {
    pub(super) process: PidFd,
    pub(super) deadline: DeadlineFile,
}

impl Shim {
    /// Writes the limit down and has the shim look at it: a signal that it reads and that means nothing else.
    pub(super) fn limit(&self, key: TaskKey, limit_s: Option<u64>) {
        match self.deadline.set_limit(limit_s) {
            Ok(()) => self.process.send(Signal::SIGHUP),
            Err(error) => tracing::error!(task = %key, %error, "cannot change the time limit of a task"),
        }
    }
}

impl Inner {
    /// The shim is there: what was asked for meanwhile reaches it now.
    pub(super) fn connect(&self, key: TaskKey, shim: &Arc<Shim>, started_ns: Option<u64>) {
        // Before the signal: by it the next agent knows why the task has ended.
        self.write_fault(key);
        let mut tasks = self.tasks.lock();
        let Some(entry) = tasks.get_mut(&key) else { return };
        entry.shim = Some(shim.clone());
        if let Some(started_ns) = started_ns {
            entry.phase = Phase::Running { started_ns };
        }
        if let Err(error) = shim.deadline.push(entry.deadline_ns) {
            tracing::error!(task = %key, %error, "cannot extend the disconnect deadline of a task");
        }
        if shim.deadline.limit_s().is_some_and(|limit_s| limit_s != entry.time_limit_s) {
            shim.limit(key, entry.time_limit_s);
        }
        match entry.stopping {
            Stopping::No => {}
            Stopping::Gracefully => shim.process.send_stop(entry.stop.unwrap_or(Stop::term(entry.spec.grace_s))),
            Stopping::AtOnce => shim.process.send(Signal::SIGUSR1),
        }
        drop(tasks);
        self.tell_world(key);
        self.changed();
    }

    /// Rare: the agent before this one died while this shim was starting.
    pub(super) async fn wait_for_start(&self, key: TaskKey, shim: &Arc<Shim>) {
        let folder = self.folder(key);
        loop {
            if let Ok(Some(started)) = read_json::<StartedRecord>(&folder.started()) {
                return self.connect(key, shim, Some(started.started_ns));
            }
            if tokio::time::timeout(LOOK_AGAIN, shim.process.ended()).await.is_ok() {
                return;
            }
        }
    }
}
