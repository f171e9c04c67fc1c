//! Looks after the fences of tasks that run: what keeps them from devices and ports that are not theirs.
//!
//! Programs on control groups, and lists of devices, can be taken away while a task runs: by a manager of services that is told to read its files again
//! ([nvidia-container-toolkit #48](https://github.com/NVIDIA/nvidia-container-toolkit/issues/48)), or by an operator. What must stay true: whatever is missing is put back and
//! told, within [`EVERY`]; nobody waits for it.

use super::Inner;
use crate::sandbox::Seen;
use crate::sandbox::cgroup::TaskCgroups;
use crate::task_folder::record::LaunchRecord;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// From one look to the next: a task that finds a gap has it no longer than this. A look at a hundred tasks takes about a millisecond.
const EVERY: Duration = Duration::from_secs(5);

impl Inner {
    /// How a task is isolated is known from now on.
    pub(super) fn isolated(&self, record: &Arc<LaunchRecord>) {
        if let Some(entry) = self.tasks.lock().get_mut(&record.spec.key) {
            entry.isolation = record.isolation.is_some().then(|| record.clone());
        }
    }

    /// Those that may run.
    fn fenced(&self) -> Vec<Arc<LaunchRecord>> {
        self.tasks
            .lock()
            .values()
            .filter(|entry| entry.shim.is_some())
            .filter_map(|entry| entry.isolation.clone())
            .collect()
    }
}

/// Looks again and again, as long as there is an executor.
pub(super) async fn look(inner: Weak<Inner>) {
    let mut seen = Seen::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(fenced) = inner.upgrade().map(|inner| inner.fenced()) else { return };
        if fenced.is_empty() {
            continue;
        }
        let looked = tokio::task::spawn_blocking(move || {
            fenced.iter().for_each(|record| restore(record, &mut seen));
            seen
        });
        seen = looked.await.unwrap_or_default();
    }
}

fn restore(record: &LaunchRecord, seen: &mut Seen) {
    let Some(isolation) = &record.isolation else { return };
    let (task, job) = (record.spec.key, record.spec.job);
    for lifted in TaskCgroups::of(&isolation.cgroups, task).restore(isolation, seen) {
        metrics::counter!("muster_agent_fences_lifted_total").increment(1);
        match lifted.error {
            None => {
                tracing::error!(%task, %job, what = lifted.what, "a fence of a task was gone and was put back: find out who takes it")
            }
            Some(error) => {
                tracing::error!(%task, %job, %error, "a fence of a task cannot be looked at or put back");
            }
        }
    }
}
