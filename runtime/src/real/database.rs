//! One open RocksDB database: its spaces, its syncs, and what its errors mean.
//!
//! What must stay true: damage is told apart from other failures, because nobody may go on after it; a sync holds up the thread that asks for
//! it only on a disk that has been quick, and where another thread runs what waits.

use crate::disk::DiskError;
use rocksdb::{ColumnFamily, DB};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// An open database; closed when the store and all its frozen views are gone.
pub(super) struct Database {
    name: String,
    pub(super) db: DB,
    /// How many syncs in a row were quick, up to now.
    quick_syncs: AtomicU32,
}

/// A sync that takes less is done where it is asked for: to hand it to a thread and back takes as long.
const QUICK_SYNC: Duration = Duration::from_millis(1);
/// After one that took longer, so many have to be quick before that is done again.
const QUICK_SYNCS: u32 = 16;

impl Database {
    pub(super) fn new(name: String, db: DB) -> Self {
        Database { name, db, quick_syncs: AtomicU32::new(0) }
    }

    pub(super) fn space(&self, space: &'static str) -> Result<&ColumnFamily, DiskError> {
        self.db.cf_handle(space).ok_or_else(|| DiskError::Io {
            doing: format!("using space {space} of {}", self.name),
            why: "the store was opened without it".to_owned(),
        })
    }

    /// Whether a sync may hold up the thread that asks for it: this disk has been quick lately, and others run what waits meanwhile.
    pub(super) fn syncs_quickly(&self) -> bool {
        self.quick_syncs.load(Ordering::Relaxed) >= QUICK_SYNCS && Handle::current().metrics().num_workers() > 1
    }

    pub(super) fn sync(&self) -> Result<(), DiskError> {
        let began = Instant::now();
        let synced = self.db.flush_wal(true).map_err(|error| self.failed("syncing", &error));
        let quick = began.elapsed() < QUICK_SYNC;
        let counted = if quick { self.quick_syncs.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.quick_syncs.store(counted, Ordering::Relaxed);
        synced
    }

    pub(super) fn failed(&self, doing: &str, error: &rocksdb::Error) -> DiskError {
        failed(&format!("{doing} {}", self.name), &self.name, error)
    }
}

/// What RocksDB said, as an error of the seam: damage is told from the rest.
pub(super) fn failed(doing: &str, what: &str, error: &rocksdb::Error) -> DiskError {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => DiskError::Corrupt { what: what.to_owned(), why: error.to_string() },
        _ => DiskError::Io { doing: doing.to_owned(), why: error.to_string() },
    }
}
