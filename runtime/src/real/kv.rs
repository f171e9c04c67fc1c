//! Key-value stores on RocksDB, one database per store and one column family per space.
//!
//! What must stay true: writes go to the write-ahead log before they return and are durable once the log is synced; on opening,
//! an incomplete record at the very end of the log is cut, and anything damaged before it is an error, never dropped in silence
//! (RocksDB's own default stops at the first damage and forgets the rest).

use super::database::{Database, failed};
use super::{folder, view};
use crate::disk::{Batch, Disk, DiskError, Kv, KvRead, Op, Pair};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rocksdb::{
    ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode, LogLevel, Options, ReadOptions, WriteBatch,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Stores below one folder.
pub(super) struct RocksDisk {
    folder: PathBuf,
    /// What is open, so that an open store is never removed under its users.
    open: Mutex<BTreeMap<String, Weak<Database>>>,
}

impl RocksDisk {
    pub(super) fn new(folder: PathBuf) -> Self {
        RocksDisk { folder, open: Mutex::default() }
    }
}

/// Memory for writes that are not in a file yet, per space: at the usual rate some minutes of them.
const WRITE_BUFFER_BYTES: usize = 32 << 20;
/// Files kept open per store; a control node's state has some dozens.
const MAX_OPEN_FILES: i32 = 256;
/// The write-ahead logs of a store are kept below this by flushing the oldest space: opening it again reads them.
const MAX_WAL_BYTES: u64 = 64 << 20;
/// RocksDB's own diagnostic files.
const DIAGNOSTIC_FILES: usize = 2;

fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_paranoid_checks(true);
    options.set_max_open_files(MAX_OPEN_FILES);
    options.set_max_total_wal_size(MAX_WAL_BYTES);
    options.set_keep_log_file_num(DIAGNOSTIC_FILES);
    options.set_log_level(LogLevel::Warn);
    options
}

fn space_options() -> Options {
    let mut options = Options::default();
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_compression_type(DBCompressionType::Lz4);
    options
}

impl Disk for RocksDisk {
    fn open(&self, name: &str, spaces: &[&'static str]) -> Result<Arc<dyn Kv>, DiskError> {
        folder::check_name(name)?;
        let path = self.folder.join(name);
        folder::make(&self.folder)?;
        let fresh = !path.exists();
        let families = spaces.iter().map(|space| ColumnFamilyDescriptor::new(*space, space_options()));
        let db = DB::open_cf_descriptors(&options(), &path, families)
            .map_err(|error| failed(&format!("opening {}", path.display()), &path.display().to_string(), &error))?;
        if fresh {
            folder::sync(&self.folder)?;
        }
        let database = Arc::new(Database::new(path.display().to_string(), db));
        self.open.lock().insert(name.to_owned(), Arc::downgrade(&database));
        Ok(Arc::new(Store { database }))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        folder::check_name(name)?;
        let mut open = self.open.lock();
        if open.get(name).is_some_and(|store| store.strong_count() > 0) {
            return Err(DiskError::Io { doing: format!("removing store {name}"), why: "it is open".to_owned() });
        }
        open.remove(name);
        let (path, aside) = (self.folder.join(name), self.folder.join(format!(".removed-{name}")));
        if !path.exists() {
            return Ok(());
        }
        // Out of sight in one step first, so that half a store is never taken for a store.
        let remove = || -> std::io::Result<()> {
            if aside.exists() {
                fs::remove_dir_all(&aside)?;
            }
            fs::rename(&path, &aside)
        };
        remove().map_err(|error| folder::io("removing", &path, &error))?;
        folder::sync(&self.folder)?;
        fs::remove_dir_all(&aside).map_err(|error| folder::io("removing", &aside, &error))
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(folder::io("listing", &self.folder, &error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| folder::io("listing", &self.folder, &error))?;
            match entry.file_name().into_string() {
                Ok(name) if !name.starts_with('.') => names.push(name),
                _ => {}
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

struct Store {
    database: Arc<Database>,
}

impl KvRead for Store {
    fn get(&self, space: &'static str, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError> {
        let family = self.database.space(space)?;
        self.database.db.get_cf(family, key).map_err(|error| self.database.failed("reading", &error))
    }

    fn scan(
        &self,
        space: &'static str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<Pair>, DiskError> {
        view::scan(&self.database, ReadOptions::default(), space, view::Range { from, to, limit, reverse })
    }
}

impl Kv for Store {
    fn write(&self, batch: &Batch) -> Result<(), DiskError> {
        let mut changes = WriteBatch::default();
        for op in batch.sorted() {
            match op {
                Op::Put(space, key, value) => changes.put_cf(self.database.space(space)?, key, value),
                Op::Delete(space, key) => changes.delete_cf(self.database.space(space)?, key),
                // RocksDB takes a range that ends before it begins for an error; it holds nothing.
                Op::DeleteRange(_, from, to) if from >= to => {}
                Op::DeleteRange(space, from, to) => changes.delete_range_cf(self.database.space(space)?, from, to),
            }
        }
        self.database.db.write(changes).map_err(|error| self.database.failed("writing", &error))
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        let database = self.database.clone();
        async move {
            if database.syncs_quickly() {
                return database.sync();
            }
            let synced = tokio::task::spawn_blocking(move || database.sync());
            synced.await.unwrap_or_else(|lost| {
                Err(DiskError::Io {
                    doing: "syncing a store".to_owned(),
                    why: format!("the syncing thread ended: {lost}"),
                })
            })
        }
        .boxed()
    }

    fn checkpoint(&self) -> Result<Arc<dyn KvRead>, DiskError> {
        Ok(Arc::new(view::Frozen::new(self.database.clone())))
    }

    fn reclaim(&self, space: &'static str) {
        let database = self.database.clone();
        drop(tokio::task::spawn_blocking(move || match database.space(space) {
            // What is read beside it is read from the old files until then.
            Ok(family) => database.db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>),
            Err(error) => tracing::warn!(%error, "cannot free disk space"),
        }));
    }
}
