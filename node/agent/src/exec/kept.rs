//! Folders of tasks that are over and forgotten: kept for their output, newest first, within bounds.

use super::trash::Trash;
use crate::sandbox::own_folders;
use crate::task_folder::TaskFolder;
use muster_node_core::TaskKey;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The folders that are kept, oldest first.
#[derive(Debug)]
pub(super) struct Kept {
    root: PathBuf,
    tasks_max: usize,
    bytes_max: u64,
    folders: VecDeque<(TaskKey, u64)>,
    bytes: u64,
}

impl Kept {
    /// Those that an earlier agent has left.
    pub(super) fn open(root: PathBuf, tasks_max: usize, bytes_max: u64) -> io::Result<Self> {
        std::fs::create_dir_all(&root)?;
        let mut found: Vec<(SystemTime, TaskKey, u64)> = Vec::new();
        for entry in std::fs::read_dir(&root)?.flatten() {
            let Some(key) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let changed = entry.metadata().and_then(|what| what.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((changed, key, size(&entry.path())));
        }
        found.sort();
        let bytes = found.iter().map(|(_, _, bytes)| bytes).sum();
        let folders = found.into_iter().map(|(_, key, bytes)| (key, bytes)).collect();
        let mut kept = Kept { root, tasks_max, bytes_max, folders, bytes };
        kept.prune();
        Ok(kept)
    }

    /// Where the folder of `key` is kept, if it is.
    pub(super) fn folder(&self, key: TaskKey) -> TaskFolder {
        TaskFolder::new(&self.root.join(key.to_string()))
    }

    /// Takes the folder of a task that is over, without what the task itself could write; drops the oldest beyond the bounds.
    pub(super) fn take(&mut self, key: TaskKey, folder: &TaskFolder, trash: &Trash) -> io::Result<()> {
        own_folders::let_go(folder);
        for path in [folder.scratch(), folder.from_task(), folder.to_task()] {
            trash.take(&path)?;
        }
        let to = self.root.join(key.to_string());
        std::fs::rename(folder.path(), &to)?;
        let bytes = size(&to);
        self.folders.push_back((key, bytes));
        self.bytes += bytes;
        self.prune();
        Ok(())
    }

    fn prune(&mut self) {
        while self.folders.len() > self.tasks_max || self.bytes > self.bytes_max {
            let Some((key, bytes)) = self.folders.pop_front() else { return };
            self.bytes -= bytes;
            if let Err(error) = std::fs::remove_dir_all(self.root.join(key.to_string())) {
                tracing::warn!(task = %key, %error, "cannot remove an old task folder");
            }
        }
    }
}

/// Bytes of the files directly in `folder`, which is all there is once the scratch files are gone.
fn size(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|what| what.len()).sum()
}
