//! Two tasks of one node at the same moment: what one store does while another task is in the middle of something.

use super::{entry, log_id, open_log, open_stores};
use crate::consensus::log::{Identity, Log};
use crate::consensus::stop::Stop;
use futures::FutureExt;
use futures::future::BoxFuture;
use muster_runtime::disk::{KvRead, Op, Pair};
use muster_runtime::{Batch, Disk, DiskError, Host, Kv};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{RaftLogReader, Vote};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;

/// What happens in the middle of a write that removes entries.
type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A disk whose stores run the hook just before they remove entries, and whose syncs end only while they are let.
struct HookedDisk {
    disk: Arc<dyn Disk>,
    hook: Hook,
    syncs: watch::Sender<bool>,
}

struct HookedKv {
    kv: Arc<dyn Kv>,
    hook: Hook,
    syncs: watch::Receiver<bool>,
}

/// A host with such a disk.
fn hooked(name: &str, folder: &Path, hook: &Hook, syncs: &watch::Sender<bool>) -> Host {
    let mut host = muster_runtime::real::host(name, folder);
    host.disk = Arc::new(HookedDisk { disk: host.disk.clone(), hook: hook.clone(), syncs: syncs.clone() });
    host
}

impl Disk for HookedDisk {
    fn open(&self, name: &str, spaces: &[&'static str]) -> Result<Arc<dyn Kv>, DiskError> {
        let (hook, syncs) = (self.hook.clone(), self.syncs.subscribe());
        Ok(Arc::new(HookedKv { kv: self.disk.open(name, spaces)?, hook, syncs }))
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
        let (kv, mut syncs) = (self.kv.clone(), self.syncs.clone());
        async move {
            syncs.wait_for(|let_through| *let_through).await.expect("the test goes on");
            kv.sync().await
        }
        .boxed()
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
        let host = hooked("before", folder.path(), &hook, &watch::Sender::new(true));
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

/// A leader reports its entries before they are synced, and shows nothing of them until they are.
#[tokio::test]
async fn a_leaders_own_entries_are_shown_after_its_sync() {
    let folder = tempfile::tempdir().expect("folder");
    let (stop, syncs) = (Stop::new(), watch::Sender::new(true));
    let host = hooked("leader", folder.path(), &Hook::default(), &syncs);
    let (mut log, _) = open_log(&host, 1, &stop).await.expect("opens");
    log.save_identity(&Identity { id: 1, disk: 7, cluster: None }).await.expect("saves");
    log.save_vote(&Vote::new_committed(3, 1)).await.expect("saves");
    log.blocking_append([entry(3, 0, None)]).await.expect("appends");
    log.shown(0).await.expect("synced");
    syncs.send_replace(false);
    log.blocking_append([entry(3, 1, None)]).await.expect("is reported without a sync");
    assert_eq!(log.may_show(Some(log_id(3, 1))), Some(log_id(3, 0)));
    assert!(log.shown(0).now_or_never().is_some());
    assert!(log.shown(1).now_or_never().is_none(), "it is not synced");
    syncs.send_replace(true);
    log.shown(1).await.expect("synced");
    assert_eq!(log.may_show(Some(log_id(3, 1))), Some(log_id(3, 1)));
    stop.because("the test is over");
}

/// What a deposed leader gets back from its successor comes under the successor's vote; it is reported after the sync.
#[tokio::test]
async fn entries_of_another_leader_are_reported_after_the_sync() {
    let folder = tempfile::tempdir().expect("folder");
    let (stop, syncs) = (Stop::new(), watch::Sender::new(true));
    let host = hooked("follower", folder.path(), &Hook::default(), &syncs);
    let (mut log, _) = open_log(&host, 1, &stop).await.expect("opens");
    log.save_identity(&Identity { id: 1, disk: 7, cluster: None }).await.expect("saves");
    log.save_vote(&Vote::new_committed(4, 2)).await.expect("saves");
    syncs.send_replace(false);
    let mut appended = Box::pin(log.blocking_append([entry(3, 0, None)]));
    for _ in 0..20 {
        assert!(appended.as_mut().now_or_never().is_none(), "it is not synced");
        tokio::task::yield_now().await;
    }
    syncs.send_replace(true);
    appended.await.expect("synced");
    stop.because("the test is over");
}
