//! A task's folder: what the agent and the shim leave for each other.
//!
//! | file | written by | what |
//! | --- | --- | --- |
//! | `task.json` | agent | what to run; whole before the shim starts |
//! | `deadline` | agent | the fence, nanoseconds of CLOCK_BOOTTIME, and the time limit in seconds; 8 bytes each, little endian, rewritten in place |
//! | `lock` | shim | locked while the shim lives |
//! | `shim`, `started`, `exit` | shim | its process; when the command ran; how all ended |
//! | `fault` | agent | the fault of a device that ends the task |
//! | `memory-note` | agent | that the memory of its MIG slice is nearly full; absent otherwise |
//! | `stdout`, `stderr` | shim | the beginning of the output; its end in segments beside them ([`output`]) |
//! | `from-task/checkpoint` | task | when it has saved its progress, and its note about that ([`checkpoint`]) |
//! | `to-task/world` | agent | of an elastic gang: its size and the task's place in it ([`world`]) |
//! | `work` | shim | the scratch folder in which a command without a working directory runs |
//!
//! What must stay true: records are replaced whole; the fence only moves forward; whoever holds the lock and finds no `exit`
//! may close the folder by writing one, or void it where no `shim` is in it either, and a shim that comes later starts nothing
//! from it. Nothing here is synced: tasks do not outlive the host, so their records need not.

pub(crate) mod checkpoint;
pub(crate) mod output;
pub mod record;
pub(crate) mod world;

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// One of a task's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The paths of one task's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFolder(PathBuf);

impl TaskFolder {
    /// The folder at `path`, which need not be there yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        TaskFolder(path.to_owned())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What to run.
    #[must_use]
    pub fn task(&self) -> PathBuf {
        self.0.join("task.json")
    }

    /// The shim's process.
    #[must_use]
    pub fn shim(&self) -> PathBuf {
        self.0.join("shim")
    }

    /// When the command ran.
    #[must_use]
    pub fn started(&self) -> PathBuf {
        self.0.join("started")
    }

    /// How all ended.
    #[must_use]
    pub fn exit(&self) -> PathBuf {
        self.0.join("exit")
    }

    /// The fault of a device that ends the task.
    #[must_use]
    pub fn fault(&self) -> PathBuf {
        self.0.join("fault")
    }

    /// That the memory of its MIG slice is nearly full.
    #[must_use]
    pub fn memory_note(&self) -> PathBuf {
        self.0.join("memory-note")
    }

    /// What the shim itself had to say.
    #[must_use]
    pub fn shim_log(&self) -> PathBuf {
        self.0.join("shim.log")
    }

    /// The command's working directory when it names none.
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        self.0.join("work")
    }

    /// The folder in which the task writes what the agent reads. The agent writes nothing there, since the task may put links in its way.
    #[must_use]
    pub fn from_task(&self) -> PathBuf {
        self.0.join("from-task")
    }

    /// The folder in which the agent writes what the task reads. The task cannot write there.
    #[must_use]
    pub fn to_task(&self) -> PathBuf {
        self.0.join("to-task")
    }

    /// What the task replaces after each checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> PathBuf {
        self.in_folder(self.from_task(), "checkpoint")
    }

    /// What a worker of an elastic gang reads to know the gang's size.
    #[must_use]
    pub fn world(&self) -> PathBuf {
        self.in_folder(self.to_task(), "world")
    }

    /// An agent of an earlier version has started its tasks without these folders.
    fn in_folder(&self, folder: PathBuf, name: &str) -> PathBuf {
        if folder.exists() { folder.join(name) } else { self.0.join(name) }
    }

    /// The file of one output.
    #[must_use]
    pub fn log(&self, stream: Stream) -> PathBuf {
        self.0.join(match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        })
    }

    /// The file of a segment of that output, which begins at `place`.
    #[must_use]
    pub fn segment(&self, stream: Stream, place: u64) -> PathBuf {
        self.log(stream).with_extension(place.to_string())
    }

    /// Where a segment of that output begins, if the file is one.
    #[must_use]
    pub fn place_of(&self, stream: Stream, path: &Path) -> Option<u64> {
        let place = path.extension()?.to_str()?.parse().ok()?;
        (path == self.segment(stream, place)).then_some(place)
    }

    /// Whether the task is over.
    #[must_use]
    pub fn has_exit(&self) -> bool {
        self.exit().exists()
    }

    /// Takes the lock; `None` when a shim holds it. It is free again when the file is closed.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn lock(&self) -> std::io::Result<Option<File>> {
        let path = self.0.join("lock");
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path)? => return Ok(Some(file)),
                // Opened before the folder was voided: that lock says nothing about what is at this path now.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Takes the folder away at one stroke, from under the caller's lock: a shim that is just coming finds nothing to run, or what
    /// was put here anew.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn void(&self, _lock: &File) -> std::io::Result<()> {
        let aside = PathBuf::from(format!("{}.{VOID}", self.0.display()));
        remove_all(&aside)?;
        std::fs::rename(&self.0, &aside)?;
        remove_all(&aside)
    }

    /// Writes a record whole: readers see the old one or the new one.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write_json<T: Serialize>(&self, path: &Path, value: &T) -> std::io::Result<()> {
        write_json(path, value)
    }

    /// Makes the fence file with its first deadline and the time limit.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn create_deadline(&self, deadline_ns: u64, limit_s: Option<u64>) -> std::io::Result<DeadlineFile> {
        let bytes = [deadline_ns.to_le_bytes(), limit_s.unwrap_or(NO_LIMIT).to_le_bytes()].concat();
        std::fs::write(self.0.join("deadline"), bytes)?;
        self.open_deadline()
    }

    /// The fence file as it is.
    ///
    /// # Errors
    /// When it is not there or too short.
    pub fn open_deadline(&self) -> std::io::Result<DeadlineFile> {
        let file = File::options().read(true).write(true).open(self.0.join("deadline"))?;
        let deadline = DeadlineFile { file };
        deadline.read()?;
        Ok(deadline)
    }
}

/// Where the time limit stands in the fence file.
const LIMIT_AT: u64 = 8;
/// A time limit that is none.
const NO_LIMIT: u64 = u64::MAX;

/// Writes a record whole, as [`TaskFolder::write_json`].
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> std::io::Result<()> {
    let bytes = serde_json::to_vec(value)?;
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes)?;
    std::fs::rename(&beside, path)
}

/// Reads a record; `None` where there is none yet.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> std::io::Result<Option<T>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a voided folder is called before it is gone, behind its name.
pub(crate) const VOID: &str = "void";

/// Whether the open file is still the one at `path`.
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(there) => {
            let here = file.metadata()?;
            Ok((here.dev(), here.ino()) == (there.dev(), there.ino()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove_all(folder: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The open fence file. Eight bytes are read and written in one call each, so neither side sees half of one.
#[derive(Debug)]
pub struct DeadlineFile {
    file: File,
}

impl DeadlineFile {
    fn read(&self) -> std::io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The fence. One that cannot be read has passed: better a task too few than one too many.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.read().unwrap_or(0)
    }

    /// The time limit in seconds, which may be none; `None` where an agent of an earlier version has written none here.
    #[must_use]
    pub fn limit_s(&self) -> Option<Option<u64>> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, LIMIT_AT).ok()?;
        let limit_s = u64::from_le_bytes(bytes);
        Some((limit_s != NO_LIMIT).then_some(limit_s))
    }

    /// Changes the time limit.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn set_limit(&self, limit_s: Option<u64>) -> std::io::Result<()> {
        self.file.write_all_at(&limit_s.unwrap_or(NO_LIMIT).to_le_bytes(), LIMIT_AT)
    }

    /// Moves the fence forward; a lower one changes nothing.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn push(&self, deadline_ns: u64) -> std::io::Result<()> {
        if deadline_ns > self.read()? {
            self.file.write_all_at(&deadline_ns.to_le_bytes(), 0)?;
        }
        Ok(())
    }
}
