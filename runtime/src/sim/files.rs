//! Simulated small files: each replaced whole; one that was being replaced when the host crashed is old or new, as chance has it.

use super::disk::DiskState;
use crate::chance::Chance;
use crate::disk::{DiskError, Files};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What files a host has; they outlive its crashes.
#[derive(Default)]
pub(super) struct FilesState(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    durable: BTreeMap<String, Vec<u8>>,
    /// Being replaced, in the order in which the replacements began.
    under_way: BTreeMap<u64, (String, Vec<u8>)>,
    begun: u64,
}

impl FilesState {
    pub(super) fn crash(&self, chance: &Chance) {
        let mut inner = self.0.lock();
        for (_, (name, content)) in std::mem::take(&mut inner.under_way) {
            if chance.between(0, 2) == 0 {
                inner.durable.insert(name, content);
            }
        }
    }

    pub(super) fn wipe(&self) {
        *self.0.lock() = Inner::default();
    }
}

/// The files as one life of their host sees them.
pub(super) struct SimFiles {
    pub(super) state: Arc<FilesState>,
    pub(super) disk: Arc<DiskState>,
    pub(super) life: u64,
}

impl Files for SimFiles {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, DiskError> {
        self.disk.check_life(self.life, "reading a file")?;
        Ok(self.state.0.lock().durable.get(name).cloned())
    }

    fn write(&self, name: &str, content: Vec<u8>) -> BoxFuture<'static, Result<(), DiskError>> {
        let (state, disk, life, name) = (self.state.clone(), self.disk.clone(), self.life, name.to_owned());
        async move {
            disk.check_life(life, "writing a file")?;
            let number = {
                let mut inner = state.0.lock();
                inner.begun += 1;
                let number = inner.begun;
                inner.under_way.insert(number, (name, content));
                number
            };
            // A writer that lets go before the end leaves the replacement under way: it may yet be found after a crash.
            let synced = disk.wait_for_sync(life, "writing a file").await;
            let mut inner = state.0.lock();
            if let Some((name, content)) = inner.under_way.remove(&number) {
                synced.clone()?;
                inner.durable.insert(name, content);
            }
            synced
        }
        .boxed()
    }
}
