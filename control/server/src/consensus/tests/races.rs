//! Two tasks of one node at the same moment: what one store does while another task is in the middle of something.

use super::{entry, log_id, open_stores};
use crate::consensus::log::{Identity, Log};
use crate::consensus::stop::Stop;
use futures::future::BoxFuture;
use muster_runtime::disk::{KvRead, Op, Pair};
use muster_runtime::{Batch, Disk, DiskError, Kv};
use openraft::RaftLogReader;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use parking_lot::Mutex;
use std::sync::Arc;

/// What happens in the middle of a write that removes entries.
type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A disk whose stores run the hook just before they remove entries.
struct HookedDisk {
    disk: Arc<dyn Disk>,
    hook: Hook,
}

struct HookedKv {
    kv: Arc<dyn Kv>,
    hook: Hook,
}

impl Disk for HookedDisk {
    fn open(&self, name: &str, spaces: &[&'static str]) -> Result<Arc<dyn Kv>, DiskError> {
        Ok(Arc::new(HookedKv { kv: self.disk.open(name, spaces)?, hook: self.hook.clone() }))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.disk.list()
    }
}

impl KvRead for HookedKv {
    fn get(&self, space: &'static str, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError> {
        self.kv.get(space, key)
    }

    fn scan(
        &self,
        space: &'static str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<Pair>, DiskError> {
        self.kv.scan(space, from, to, limit, reverse)
    }
}

impl Kv for HookedKv {
    fn write(&self, batch: &Batch) -> Result<(), DiskError> {
        let removes = batch.ops.iter().any(|op| matches!(op, Op::DeleteRange(..)));
        if removes && let Some(hook) = self.hook.lock().take() {
            hook();
        }
        self.kv.write(batch)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        self.kv.sync()
    }

    fn checkpoint(&self) -> Result<Arc<dyn KvRead>, DiskError> {
        self.kv.checkpoint()
    }

    fn reclaim(&self, space: &'static str) {
        self.kv.reclaim(space);
    }
}

/// A whole sync of the log, from a thread of its own, awaited here.
fn sync_meanwhile(log: &Log) {
    let (log, runtime) = (log.clone(), tokio::runtime::Handle::current());
    let synced =
        std::thread::spawn(move || runtime.block_on(log.save_identity(&Identity { id: 1, disk: 7, cluster: None })));
    synced.join().expect("the thread ends").expect("syncs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_in_the_middle_of_a_truncation_does_not_vouch_for_what_goes() {
    let folder = tempfile::tempdir().expect("folder");
    let (hook, stop) = (Hook::default(), Stop::new());
    {
        let mut host = muster_runtime::real::host("before", folder.path());
        host.disk = Arc::new(HookedDisk { disk: host.disk.clone(), hook: hook.clone() });
        let (mut log, _replica) = open_stores(&host, &stop).await.expect("opens");
        log.save_identity(&Identity { id: 1, disk: 7, cluster: None }).await.expect("saves");
        log.blocking_append((0..10).map(|index| entry(1, index, None))).await.expect("appends");
        let syncing = log.clone();
        *hook.lock() = Some(Box::new(move || sync_meanwhile(&syncing)));
        log.truncate(log_id(1, 5)).await.expect("truncates");
        assert!(hook.lock().is_none(), "the sync came in the middle");
        log.blocking_append([entry(2, 5, None)]).await.expect("appends");
        stop.because("the test goes on");
    }
    let host = muster_runtime::real::host("after", folder.path());
    let (mut log, _replica) = open_stores(&host, &Stop::new()).await.expect("what was synced is there");
    let terms: Vec<u64> =
        log.try_get_log_entries(0..10).await.expect("reads").iter().map(|entry| entry.log_id.leader_id.term).collect();
    assert_eq!(terms, [1, 1, 1, 1, 1, 2]);
}
