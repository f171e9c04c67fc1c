//! Children of the agent that are no tasks: the helper process of the driver, NVIDIA's commands, the daemons that those leave behind.
//!
//! What must stay true: each carries a mark in its environment, which what it starts inherits, so that it is not taken for the orphan of a task whose shim was
//! killed; while somebody waits for one by its handle, nobody else reaps it.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use tokio::process::{Child, Command};

/// Children of the agent's own carry this in their environment.
pub(crate) const OWN: &str = "MUSTER_AGENT_CHILD";

/// Those for whom somebody waits.
static WAITED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// A child that is waited for by its handle, until this is dropped.
pub(crate) struct Waited(Option<i32>);

impl Drop for Waited {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            WAITED.lock().remove(&pid);
        }
    }
}

/// Starts one.
pub(crate) fn spawn(command: &mut Command) -> io::Result<(Child, Waited)> {
    // Held until it is noted: one that ends at once is not to be reaped by another thread before.
    let mut waited = WAITED.lock();
    let child = command.env(OWN, "1").spawn()?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    waited.extend(pid);
    Ok((child, Waited(pid)))
}

/// Does something about a child unless somebody waits for it.
pub(crate) fn unless_waited_for(pid: i32, does: impl FnOnce()) {
    let waited = WAITED.lock();
    if !waited.contains(&pid) {
        does();
    }
}
