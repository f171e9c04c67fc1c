//! A host: its name, its seams, and the tasks that die with it.

use crate::chance::Chance;
use crate::clock::Clock;
use crate::disk::{Disk, Files};
use crate::net::Net;
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use tokio::task::{AbortHandle, JoinHandle};

tokio::task_local! {
    static GROUP: TaskGroup;
}

/// The tasks of one host; a simulated crash aborts them all at once.
#[derive(Clone, Default)]
pub struct TaskGroup(Arc<Mutex<Vec<AbortHandle>>>);

impl TaskGroup {
    /// Spawns into this group; whatever the task spawns through [`spawn_here`] joins the group too.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let handle = tokio::spawn(GROUP.scope(self.clone(), future));
        let mut handles = self.0.lock();
        // Ended tasks are let go now and then, so that a long life does not grow the list.
        if handles.len() >= 64 && handles.len().is_power_of_two() {
            handles.retain(|task| !task.is_finished());
        }
        handles.push(handle.abort_handle());
        handle
    }

    /// Ends every task of the group at its next await point.
    pub fn abort_all(&self) {
        for task in self.0.lock().drain(..) {
            task.abort();
        }
    }
}

/// Spawns into the group of the task that calls, if it is in one: for libraries that spawn by themselves.
pub fn spawn_here<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match GROUP.try_with(Clone::clone) {
        Ok(group) => group.spawn(future),
        Err(_) => tokio::spawn(future),
    }
}

/// Everything a server or an agent needs from the machine it runs on.
#[derive(Clone)]
pub struct Host {
    /// For logs.
    pub name: String,
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Network.
    pub net: Arc<dyn Net>,
    /// Stores.
    pub disk: Arc<dyn Disk>,
    /// Small files.
    pub files: Arc<dyn Files>,
    /// Randomness.
    pub chance: Chance,
    /// Its tasks.
    pub tasks: TaskGroup,
}

impl Host {
    /// Spawns a task that dies with the host.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tasks.spawn(future)
    }
}
