//! Durable storage: ordered key-value stores for control nodes, small files for agents.
//!
//! What must stay true, and is checked by one conformance suite for the real and the simulated one: a write can be read as soon
//! as it returns; it survives a crash once a later `sync` has returned; after a crash the store holds all synced writes and some
//! prefix of the unsynced ones, never a later write without an earlier one, never half a batch.

use futures::future::BoxFuture;
use std::sync::Arc;

/// A failing disk. There is no going on after one: the owner stops.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DiskError {
    /// The operating system or the store said no.
    #[error("{doing}: {why}")]
    Io {
        /// What was being done, with the path.
        doing: String,
        /// The error's own words.
        why: String,
    },
    /// What is stored is not what was written.
    #[error("{what} is corrupt: {why}")]
    Corrupt {
        /// Which store or file.
        what: String,
        /// How it shows.
        why: String,
    },
    /// A newer version of muster has written it.
    #[error("{what} is too new: {why}")]
    Newer {
        /// Which store or value.
        what: String,
        /// What is known here and what is there.
        why: String,
    },
}

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put(&'static str, Vec<u8>, Vec<u8>),
    /// Removes a key.
    Delete(&'static str, Vec<u8>),
    /// Removes all keys from the first to below the second.
    DeleteRange(&'static str, Vec<u8>, Vec<u8>),
}

/// Changes that take effect together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// In order.
    pub ops: Vec<Op>,
}

impl Op {
    fn place(&self) -> (&'static str, &[u8]) {
        match self {
            Op::Put(space, key, _) | Op::Delete(space, key) | Op::DeleteRange(space, key, _) => (space, key),
        }
    }
}

impl Batch {
    /// The changes in the order of their keys where that comes to the same, else as they were given. A store that keeps keys in order finds
    /// the place of a key at once when it is next to the one before.
    pub fn sorted(&self) -> Vec<&Op> {
        let mut ops: Vec<&Op> = self.ops.iter().collect();
        if !ops.iter().any(|op| matches!(op, Op::DeleteRange(..))) {
            // Stable: of several changes of a key the last stays the last.
            ops.sort_by_key(|op| op.place());
        }
        ops
    }

    /// Sets `key` of `space`.
    pub fn put(&mut self, space: &'static str, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.ops.push(Op::Put(space, key.into(), value.into()));
    }

    /// Removes `key` of `space`.
    pub fn delete(&mut self, space: &'static str, key: impl Into<Vec<u8>>) {
        self.ops.push(Op::Delete(space, key.into()));
    }

    /// Removes the keys of `space` from `from` to below `to`.
    pub fn delete_range(&mut self, space: &'static str, from: impl Into<Vec<u8>>, to: impl Into<Vec<u8>>) {
        self.ops.push(Op::DeleteRange(space, from.into(), to.into()));
    }
}

/// Key and value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Reads, of the store as it is or of a frozen view of it. Spaces are fixed when the store is opened; keys order by bytes.
pub trait KvRead: Send + Sync {
    /// The value of `key`.
    ///
    /// # Errors
    /// When the disk fails or the value is corrupt.
    fn get(&self, space: &'static str, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError>;

    /// At most `limit` pairs from `from` (included) to `to` (excluded; `None`: the end), ascending; descending from the end of
    /// the range when `reverse`.
    ///
    /// # Errors
    /// When the disk fails or a value is corrupt.
    fn scan(
        &self,
        space: &'static str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<Pair>, DiskError>;
}

/// An ordered key-value store with named spaces.
pub trait Kv: KvRead + 'static {
    /// Makes the changes: all can be read when this returns, none is durable before the next [`Kv::sync`].
    ///
    /// # Errors
    /// When the disk fails.
    fn write(&self, batch: &Batch) -> Result<(), DiskError>;

    /// Makes durable everything written before the call.
    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>>;

    /// A frozen view of this moment, which later writes do not change and which may be read for long.
    ///
    /// # Errors
    /// When the disk fails.
    fn checkpoint(&self) -> Result<Arc<dyn KvRead>, DiskError>;

    /// Gives the disk space of what was removed from `space` back, in the background: worth its cost after much was removed.
    fn reclaim(&self, space: &'static str);
}

/// A host's stores, by name.
pub trait Disk: Send + Sync + 'static {
    /// Opens the store or makes it.
    ///
    /// # Errors
    /// When the disk fails or what is there is corrupt.
    fn open(&self, name: &str, spaces: &[&'static str]) -> Result<Arc<dyn Kv>, DiskError>;

    /// Removes a store that is not open, durably.
    ///
    /// # Errors
    /// When the disk fails.
    fn remove(&self, name: &str) -> Result<(), DiskError>;

    /// The names of the stores that are there.
    ///
    /// # Errors
    /// When the disk fails.
    fn list(&self) -> Result<Vec<String>, DiskError>;
}

/// Small named files, each replaced whole and durably.
pub trait Files: Send + Sync + 'static {
    /// The content, if the file is there.
    ///
    /// # Errors
    /// When the disk fails.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, DiskError>;

    /// Replaces the content; durable when it returns.
    fn write(&self, name: &str, content: Vec<u8>) -> BoxFuture<'static, Result<(), DiskError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_sorted_where_that_comes_to_the_same() {
        let mut batch = Batch::default();
        batch.put("b", "key", "1");
        batch.put("a", "second", "2");
        batch.delete("a", "first");
        batch.put("b", "key", "3");
        let sorted: Vec<Op> = batch.sorted().into_iter().cloned().collect();
        let places: Vec<_> = sorted.iter().map(Op::place).collect();
        assert_eq!(places, [("a", &b"first"[..]), ("a", b"second"), ("b", b"key"), ("b", b"key")]);
        assert_eq!(sorted[3], Op::Put("b", b"key".to_vec(), b"3".to_vec()), "the last change of a key stays the last");

        // A range may hold keys that are put before it or after it.
        batch.delete_range("a", "e", "t");
        assert_eq!(batch.sorted(), batch.ops.iter().collect::<Vec<_>>());
    }
}
