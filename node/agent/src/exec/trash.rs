//! Removing what tasks have left: trees of any depth and size, without holding anybody up.
//!
//! A folder goes aside at one stroke, and a task of its own empties it in bounded steps: the folders in a folder are moved up beside it before it is removed, so no step goes deeper
//! than one level, whatever a task has nested. What must stay true: nothing outside is touched, since no link is followed and the trash is closed to others; a new agent goes
//! on with what an earlier one has not removed.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// Entries that one step looks at: some milliseconds of a disk.
const STEP_ENTRIES: usize = 4_096;
/// After what cannot be removed.
const AGAIN: Duration = Duration::from_secs(60);

/// The folder for it.
#[derive(Debug)]
pub(super) struct Trash {
    root: PathBuf,
    /// Names are numbers; those of an earlier agent are passed over.
    next: AtomicU64,
    filled: Arc<Notify>,
}

impl Trash {
    pub(super) fn new(data: &Path) -> Self {
        let root = data.join("trash");
        let names = std::fs::read_dir(&root).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let numbers = names.filter_map(|name| name.to_str()?.parse::<u64>().ok());
        let next = AtomicU64::new(numbers.max().map_or(0, |last| last + 1));
        Trash { root, next, filled: Arc::default() }
    }

    fn next(&self) -> PathBuf {
        self.root.join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Takes a folder or file away; it is removed later. One that is not there is no error.
    pub(super) fn take(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
        match std::fs::rename(path, self.next()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => self.filled.notify_one(),
        }
        Ok(())
    }

    /// Removes what is there and comes, as long as there is somebody who fills it.
    pub(super) async fn empty(trash: Weak<Self>) {
        loop {
            let Some(trash) = trash.upgrade() else { return };
            let filled = trash.filled.clone();
            match tokio::task::spawn_blocking(move || trash.step()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => filled.notified().await,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "cannot remove what tasks have left in the folder trash; trying again");
                    tokio::time::sleep(AGAIN).await;
                }
                Err(_) => return,
            }
        }
    }

    /// Does a bounded part of it. Says whether something may be left.
    fn step(&self) -> io::Result<bool> {
        let mut left = STEP_ENTRIES;
        loop {
            let entries = match std::fs::read_dir(&self.root) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                other => other?,
            };
            let (mut failed, mut any) = (None, false);
            for entry in entries {
                if left == 0 {
                    return Ok(true);
                }
                left -= 1;
                match self.shrink(&entry?.path(), &mut left) {
                    Ok(()) => any = true,
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            // What was moved up may have come behind the place that was read.
            match failed {
                _ if any => {}
                Some(error) => return Err(error),
                None => return Ok(false),
            }
        }
    }

    /// Removes a file, or a part of a folder: its folders move up, its files go.
    fn shrink(&self, path: &Path, left: &mut usize) -> io::Result<()> {
        if !std::fs::symlink_metadata(path)?.is_dir() {
            return std::fs::remove_file(path);
        }
        // Its owner may have closed it, which only counts where the agent is not root.
        if let Err(error) = std::fs::read_dir(path)
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
        }
        let mut is_empty = true;
        for entry in std::fs::read_dir(path)? {
            if *left == 0 {
                is_empty = false;
                break;
            }
            *left -= 1;
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                self.move_up(&entry.path(), path)?;
            } else {
                remove_in(&entry.path(), path)?;
            }
        }
        if is_empty { std::fs::remove_dir(path) } else { Ok(()) }
    }

    fn move_up(&self, folder: &Path, of: &Path) -> io::Result<()> {
        match std::fs::rename(folder, self.next()) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                open_up(of)?;
                // A folder that is moved has its parent's entry rewritten.
                open_up(folder)?;
                std::fs::rename(folder, self.next())
            }
            other => other,
        }
    }
}

fn remove_in(file: &Path, of: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(of)?;
            std::fs::remove_file(file)
        }
        other => other,
    }
}

fn open_up(folder: &Path) -> io::Result<()> {
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emptied(trash: &Trash) -> u32 {
        let mut steps = 1;
        while trash.step().expect("it can be removed") {
            steps += 1;
        }
        assert_eq!(std::fs::read_dir(&trash.root).expect("it is there").count(), 0);
        steps
    }

    /// As a task would: relative to where it stands, deeper than any path may be long.
    fn nest(at: &Path, depth: usize) {
        use std::os::fd::OwnedFd;
        let mut folder: OwnedFd = std::fs::File::open(at).expect("it is there").into();
        let mode = nix::sys::stat::Mode::S_IRWXU;
        let flags = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_DIRECTORY;
        for _ in 0..depth {
            nix::sys::stat::mkdirat(&folder, "d", mode).expect("made");
            folder = nix::fcntl::openat(&folder, "d", flags, mode).expect("opened");
        }
    }

    #[test]
    fn folders_of_any_depth_are_removed_in_bounded_steps() {
        // In memory, where there is such a place: a disk takes milliseconds for each.
        let memory = Some(Path::new("/dev/shm")).filter(|path| path.is_dir()).map(Path::to_owned);
        let data = tempfile::tempdir_in(memory.unwrap_or_else(std::env::temp_dir)).expect("a folder");
        let trash = Trash::new(data.path());
        let task = data.path().join("task");
        std::fs::create_dir(&task).expect("made");
        nest(&task, 30_000);
        trash.take(&task).expect("moved");
        assert!(!task.exists());
        assert!(emptied(&trash) > 1, "no step does all of it");
    }

    #[test]
    fn many_files_go_in_bounded_steps_and_nothing_outside_is_touched() {
        let data = tempfile::tempdir().expect("a folder");
        let trash = Trash::new(data.path());
        let (task, outside) = (data.path().join("task"), data.path().join("outside"));
        std::fs::create_dir_all(task.join("closed")).expect("made");
        std::fs::create_dir(&outside).expect("made");
        std::fs::write(outside.join("kept"), "kept").expect("written");
        std::os::unix::fs::symlink(&outside, task.join("link")).expect("made");
        std::os::unix::fs::symlink(&outside, task.join("closed/link")).expect("made");
        (0..2 * STEP_ENTRIES).for_each(|number| std::fs::write(task.join(number.to_string()), "").expect("written"));
        std::fs::set_permissions(task.join("closed"), Permissions::from_mode(0o000)).expect("closed");
        trash.take(&task).expect("moved");
        trash.take(&data.path().join("nothing")).expect("it is not there");
        assert!(emptied(&trash) >= 2);
        assert_eq!(std::fs::read_to_string(outside.join("kept")).expect("it is there"), "kept");
        let later = Trash::new(data.path());
        std::fs::create_dir(later.root.join("7")).expect("left by an earlier agent");
        assert_eq!(Trash::new(data.path()).next(), later.root.join("8"), "names are not given twice");
    }
}
