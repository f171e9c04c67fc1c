//! The real disk keeps the promises of every disk, also when the write-ahead log loses any part of what was not synced.

mod conformance;

use conformance::Machine;
use futures::FutureExt;
use futures::future::BoxFuture;
use muster_runtime::disk::{KvRead, Pair};
use muster_runtime::{Batch, Disk, DiskError, Files, Host, Kv};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How much of each log file has been synced.
type Synced = Arc<Mutex<BTreeMap<PathBuf, u64>>>;

/// This machine, in a folder; a crash cuts each log somewhere between its synced length and its end.
struct Folder {
    folder: tempfile::TempDir,
    host: Host,
    synced: Synced,
    rng: ChaCha8Rng,
}

fn logs(stores: &Path) -> Vec<PathBuf> {
    let Ok(stores) = fs::read_dir(stores) else { return Vec::new() };
    let mut logs = Vec::new();
    for store in stores {
        for file in fs::read_dir(store.expect("entry").path()).expect("store") {
            let path = file.expect("entry").path();
            if path.extension().is_some_and(|extension| extension == "log") {
                logs.push(path);
            }
        }
    }
    logs.sort();
    logs
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |data| data.len())
}

impl Folder {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let host = muster_runtime::real::host("test", folder.path());
        Folder { folder, host, synced: Synced::default(), rng: ChaCha8Rng::seed_from_u64(seed) }
    }
}

impl Machine for Folder {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(TrackedDisk {
            inner: self.host.disk.clone(),
            stores: self.folder.path().join("stores"),
            synced: self.synced.clone(),
        })
    }

    fn files(&self) -> Arc<dyn Files> {
        self.host.files.clone()
    }

    fn crash(&mut self) {
        let synced = self.synced.lock();
        for path in logs(&self.folder.path().join("stores")) {
            let (kept, end) = (synced.get(&path).copied().unwrap_or(0), len(&path));
            let cut = self.rng.gen_range(kept.min(end)..=end);
            OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(cut)).expect("cuts");
        }
    }
}

struct TrackedDisk {
    inner: Arc<dyn Disk>,
    stores: PathBuf,
    synced: Synced,
}

impl Disk for TrackedDisk {
    fn open(&self, name: &str, spaces: &[&'static str]) -> Result<Arc<dyn Kv>, DiskError> {
        let (inner, folder) = (self.inner.open(name, spaces)?, self.stores.join(name));
        Ok(Arc::new(Tracked { inner, folder, synced: self.synced.clone() }))
    }
    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.inner.remove(name)
    }
    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.inner.list()
    }
}

struct Tracked {
    inner: Arc<dyn Kv>,
    folder: PathBuf,
    synced: Synced,
}

impl KvRead for Tracked {
    fn get(&self, space: &'static str, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError> {
        self.inner.get(space, key)
    }
    fn scan(
        &self,
        space: &'static str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<Pair>, DiskError> {
        self.inner.scan(space, from, to, limit, reverse)
    }
}

impl Kv for Tracked {
    fn write(&self, batch: &Batch) -> Result<(), DiskError> {
        self.inner.write(batch)
    }
    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        let (inner, folder, synced) = (self.inner.sync(), self.folder.clone(), self.synced.clone());
        let lengths: Vec<_> = logs(folder.parent().expect("stores"))
            .into_iter()
            .filter(|path| path.starts_with(&folder))
            .map(|path| (path.clone(), len(&path)))
            .collect();
        async move {
            inner.await?;
            synced.lock().extend(lengths);
            Ok(())
        }
        .boxed()
    }
    fn checkpoint(&self) -> Result<Arc<dyn KvRead>, DiskError> {
        self.inner.checkpoint()
    }
    fn reclaim(&self, space: &'static str) {
        self.inner.reclaim(space);
    }
}

#[tokio::test]
async fn the_real_disk_conforms() {
    for seed in 0..4 {
        conformance::check_all(&mut Folder::new(seed), seed).await;
    }
}

#[tokio::test]
async fn damage_before_the_end_is_an_error() {
    let mut machine = Folder::new(0);
    let kv = machine.disk().open("damaged", &["a"]).expect("opens");
    for key in 0..50_u8 {
        let mut batch = Batch::default();
        batch.put("a", [key], vec![key; 100]);
        kv.write(&batch).expect("writes");
    }
    kv.sync().await.expect("syncs");
    drop(kv);
    let log = logs(&machine.folder.path().join("stores")).pop().expect("a log");
    let mut bytes = fs::read(&log).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&log, bytes).expect("writes");
    machine.crash();
    let opened = machine.disk().open("damaged", &["a"]);
    assert!(
        matches!(opened.err(), Some(DiskError::Corrupt { .. })),
        "a flipped bit before good records is never passed over"
    );
}

#[tokio::test]
async fn an_open_store_is_not_removed() {
    let machine = Folder::new(0);
    let kv = machine.disk().open("open", &["a"]).expect("opens");
    let view = kv.checkpoint().expect("freezes");
    assert!(machine.disk().remove("open").is_err());
    drop(kv);
    assert!(machine.disk().remove("open").is_err(), "a frozen view keeps it open");
    drop(view);
    machine.disk().remove("open").expect("removes");
}

#[test]
fn names_that_are_paths_are_refused() {
    let machine = Folder::new(0);
    for name in ["", "..", "../up", "a/b", ".hidden"] {
        assert!(machine.disk().open(name, &["a"]).is_err(), "{name:?}");
        assert!(machine.files().read(name).is_err(), "{name:?}");
    }
}

/// Bytes of everything in the stores.
fn bytes_of(stores: &Path) -> u64 {
    let files = fs::read_dir(stores)
        .expect("stores")
        .flat_map(|store| fs::read_dir(store.expect("entry").path()).expect("store"));
    files.map(|file| len(&file.expect("entry").path())).sum()
}

/// What was removed takes no disk space for long, also where the store is not written to any more.
#[tokio::test]
async fn the_space_of_what_was_removed_is_given_back() {
    const SPACE: &str = "a";
    const PAIRS: u64 = 40_000;
    let mut machine = Folder::new(4);
    let store = machine.host.disk.open("s", &[SPACE, "b"]).expect("opens");
    for first in (0..PAIRS).step_by(1_000) {
        let mut batch = Batch::default();
        for key in first..first + 1_000 {
            // Nothing that a compression makes smaller.
            let mut value = vec![0; 1_000];
            machine.rng.fill(value.as_mut_slice());
            batch.put(SPACE, key.to_be_bytes(), value);
        }
        store.write(&batch).expect("written");
    }
    let mut batch = Batch::default();
    (0..PAIRS / 10 * 9).for_each(|key| batch.delete(SPACE, key.to_be_bytes()));
    store.write(&batch).expect("written");
    store.sync().await.expect("synced");
    let stores = machine.folder.path().join("stores");
    let before = bytes_of(&stores);
    assert!(before > PAIRS * 1_000, "{before} bytes are still there");
    store.reclaim(SPACE);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while bytes_of(&stores) > PAIRS * 1_000 / 4 {
        assert!(std::time::Instant::now() < deadline, "{} of {before} bytes are left", bytes_of(&stores));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let left = store.scan(SPACE, &[], None, usize::MAX, false).expect("reads");
    assert_eq!(left.len() as u64, PAIRS / 10);
}
