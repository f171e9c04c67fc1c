//! A shim that lives, and what it is told.

use crate::pidfd::PidFd;
use crate::task_folder::DeadlineFile;
use muster_node_core::TaskKey;
use nix::sys::signal::Signal;

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
