//! The state in files, shared by all processes that use one folder.
//!
//! What must stay true: every change is made under an exclusive lock from the state that the files hold then, and each file is replaced as
//! a whole, so a reader never sees half a change; what is remembered between two reads is used only while no file has changed.

mod kernel_log;
mod pass;
mod processes;
mod root;

pub(crate) use kernel_log::{KERNEL_LOG, KernelLog};
pub(crate) use processes::{name_of, started_ticks};
pub(crate) use root::write_root;

use crate::state::fault::FaultPlan;
use crate::state::fleet::Fleet;
use crate::state::refusal::Refusal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The fleet file.
pub(crate) const FLEET: &str = "fleet.json";
/// The fault file.
pub(crate) const FAULTS: &str = "faults.json";
/// Locked by whoever reads or writes; holds the number of changes.
const LOCK: &str = "lock";

/// Why the double cannot work.
#[derive(Debug, thiserror::Error)]
pub enum DoubleError {
    /// A file cannot be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {source}", path.display())]
    Format {
        /// Which.
        path: PathBuf,
        /// The parser's words.
        source: serde_json::Error,
    },
    /// The cards refuse it.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

/// Both files at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// The fleet file.
    pub(crate) fleet: Fleet,
    /// The fault file.
    pub(crate) plan: FaultPlan,
}

/// What tells whether a file is still the one that was read, also when somebody has edited it by hand.
type Stamp = (u64, [(u64, i64, i64, u64); 2]);

/// A folder of the double.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    last: Mutex<Option<(Stamp, Arc<Snapshot>)>>,
}

impl Folder {
    /// The folder at `path`, which [`Fleet::write`] has made.
    ///
    /// # Errors
    /// There is no fleet file.
    pub(crate) fn open(path: &Path) -> Result<Self, DoubleError> {
        let fleet = path.join(FLEET);
        fs::metadata(&fleet).map_err(|source| DoubleError::File { path: fleet, source })?;
        Ok(Folder { path: path.to_owned(), last: Mutex::new(None) })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Both files as they are now.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn read(&self) -> Result<Arc<Snapshot>, DoubleError> {
        let mut lock = self.lock_file()?;
        lock.lock_shared().map_err(|e| self.failed(LOCK, e))?;
        let stamp = self.stamp(&mut lock)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = match &*last {
            Some((of, snapshot)) if *of == stamp => Arc::clone(snapshot),
            _ => Arc::new(self.load()?),
        };
        *last = Some((stamp, Arc::clone(&snapshot)));
        drop((last, lock));
        Ok(without_ended(snapshot))
    }

    /// Changes both files under the lock; when `change` fails nothing is written.
    ///
    /// # Errors
    /// That of `change`, or the files cannot be read or written.
    pub(crate) fn change<T, E: From<DoubleError>>(
        &self,
        change: impl FnOnce(&mut Snapshot) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut lock = self.lock_file()?;
        lock.lock().map_err(|e| self.failed(LOCK, e))?;
        let before = self.load()?;
        let mut after = (*without_ended(Arc::new(before.clone()))).clone();
        let answer = change(&mut after)?;
        if after.fleet != before.fleet {
            self.replace(FLEET, &after.fleet)?;
            write_root(&self.path, &after.fleet)?;
        }
        if after.plan != before.plan {
            self.replace(FAULTS, &after.plan)?;
        }
        self.count_change(&mut lock).map_err(|e| self.failed(LOCK, e))?;
        Ok(answer)
    }

    fn lock_file(&self) -> Result<File, DoubleError> {
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.path.join(LOCK));
        open.map_err(|e| self.failed(LOCK, e))
    }

    fn stamp(&self, lock: &mut File) -> Result<Stamp, DoubleError> {
        let changes = changes(lock).map_err(|e| self.failed(LOCK, e))?;
        let of = |name: &str| fs::metadata(self.path.join(name)).map(|m| (m.ino(), m.mtime(), m.mtime_nsec(), m.len()));
        Ok((changes, [FLEET, FAULTS].map(|name| of(name).unwrap_or_default())))
    }

    fn count_change(&self, lock: &mut File) -> std::io::Result<()> {
        let count = changes(lock)? + 1;
        lock.seek(SeekFrom::Start(0))?;
        lock.write_all(&count.to_le_bytes())
    }

    fn load(&self) -> Result<Snapshot, DoubleError> {
        let fleet = self.parse::<Fleet>(FLEET)?;
        let plan = if self.path.join(FAULTS).exists() { self.parse(FAULTS)? } else { FaultPlan::default() };
        Ok(Snapshot { fleet, plan })
    }

    fn parse<T: DeserializeOwned>(&self, name: &str) -> Result<T, DoubleError> {
        let bytes = fs::read(self.path.join(name)).map_err(|e| self.failed(name, e))?;
        serde_json::from_slice(&bytes).map_err(|source| DoubleError::Format { path: self.path.join(name), source })
    }

    fn replace<T: Serialize>(&self, name: &str, value: &T) -> Result<(), DoubleError> {
        replace(&self.path, name, value)
    }

    fn failed(&self, name: &str, source: std::io::Error) -> DoubleError {
        DoubleError::File { path: self.path.join(name), source }
    }
}

/// Writes a file as a whole.
pub(crate) fn replace<T: Serialize>(folder: &Path, name: &str, value: &T) -> Result<(), DoubleError> {
    let path = folder.join(name);
    let bytes =
        serde_json::to_vec_pretty(value).map_err(|source| DoubleError::Format { path: path.clone(), source })?;
    // One name for each process: a writer holds the lock, but the first write of a folder comes before there is one.
    let new = folder.join(format!("{name}.{}", std::process::id()));
    fs::write(&new, bytes).and_then(|()| fs::rename(&new, &path)).map_err(|source| DoubleError::File { path, source })
}

fn changes(lock: &mut File) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    lock.seek(SeekFrom::Start(0))?;
    let mut filled = 0;
    while filled < bytes.len() {
        match lock.read(&mut bytes[filled..])? {
            0 => return Ok(0),
            count => filled += count,
        }
    }
    Ok(u64::from_le_bytes(bytes))
}

/// The same without the real processes that have ended since.
fn without_ended(snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
    let mut ended = snapshot.fleet.real_processes();
    ended.retain(|(pid, started)| started_ticks(*pid) != Some(*started));
    if ended.is_empty() {
        return snapshot;
    }
    let mut snapshot = Arc::unwrap_or_clone(snapshot);
    snapshot.fleet.remove_ended(&ended);
    Arc::new(snapshot)
}
