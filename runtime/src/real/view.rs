//! Scans, and frozen views of a store.
//!
//! A frozen view is a RocksDB snapshot, not a copy on disk: taking it costs nothing, and while it lives RocksDB keeps one older
//! value of each key that was changed since, which is bounded by the state's own size.

use super::database::Database;
use crate::disk::{DiskError, KvRead, Pair};
use rocksdb::{DB, Direction, IteratorMode, ReadOptions, Snapshot};
use std::sync::Arc;

/// What a scan covers.
pub(super) struct Range<'a> {
    pub(super) from: &'a [u8],
    pub(super) to: Option<&'a [u8]>,
    pub(super) limit: usize,
    pub(super) reverse: bool,
}

/// The pairs of a range.
pub(super) fn scan(
    database: &Database,
    mut options: ReadOptions,
    space: &'static str,
    range: Range<'_>,
) -> Result<Vec<Pair>, DiskError> {
    let family = database.space(space)?;
    if range.to.is_some_and(|to| to <= range.from) {
        return Ok(Vec::new());
    }
    options.set_iterate_lower_bound(range.from);
    if let Some(to) = range.to {
        options.set_iterate_upper_bound(to);
    }
    let mode = match range.reverse {
        true => IteratorMode::End,
        false => IteratorMode::From(range.from, Direction::Forward),
    };
    let mut pairs = Vec::new();
    for pair in database.db.iterator_cf_opt(family, options, mode).take(range.limit) {
        let (key, value) = pair.map_err(|error| database.failed("reading", &error))?;
        pairs.push((key.into_vec(), value.into_vec()));
    }
    Ok(pairs)
}

/// A store as it was at one moment.
pub(super) struct Frozen {
    /// Before `database`: fields are dropped in order, and the snapshot points into the database.
    snapshot: Snapshot<'static>,
    database: Arc<Database>,
}

impl Frozen {
    pub(super) fn new(database: Arc<Database>) -> Self {
        let snapshot: Snapshot<'_> = database.db.snapshot();
        // SAFETY: the snapshot borrows `database.db`, which lives on the heap behind the `Arc` that is kept beside it, never moves
        // while the `Arc` lives, and is dropped after the snapshot (field order). The longer lifetime never leaves this struct.
        let snapshot = unsafe { std::mem::transmute::<Snapshot<'_>, Snapshot<'static>>(snapshot) };
        Frozen { snapshot, database }
    }

    fn options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_snapshot(&self.snapshot);
        options
    }
}

impl KvRead for Frozen {
    fn get(&self, space: &'static str, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError> {
        let (db, family): (&DB, _) = (&self.database.db, self.database.space(space)?);
        db.get_cf_opt(family, key, &self.options()).map_err(|error| self.database.failed("reading", &error))
    }

    fn scan(
        &self,
        space: &'static str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<Pair>, DiskError> {
        scan(&self.database, self.options(), space, Range { from, to, limit, reverse })
    }
}
