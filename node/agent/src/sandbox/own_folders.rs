//! The folders that a task has of its own: its scratch folder, and those in which it and the agent leave things for each other.
//!
//! What must stay true: they belong to the task's user and nobody else may enter; the agent's own files are in none of them; where the operator bounds them,
//! both that the task writes are memory of that size, so that no task fills the disk of the node.

use super::{INSIDE, SandboxError, doing, sys};
use crate::task_folder::TaskFolder;
use crate::task_folder::record::Isolation;
use muster_node_core::TaskKey;
use nix::mount::{MntFlags, umount2};
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// For what a task tells the agent: a note of a kibibyte, replaced by another.
const TOLD_KIB: u64 = 256;
const TOLD_FILES: u64 = 64;

/// Makes them, and gives mounts of them with where they go.
pub(super) fn make(
    isolation: &Isolation,
    folder: &TaskFolder,
    key: TaskKey,
) -> Result<Vec<(OwnedFd, PathBuf)>, SandboxError> {
    let mut mounts = Vec::new();
    let (scratch, told) = (folder.scratch(), folder.from_task());
    for (path, is_its_own) in [(&scratch, true), (&told, true), (&folder.to_task(), false)] {
        let say = || format!("making {}", path.display());
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(doing(say()))?;
        let Some(user) = isolation.user else { continue };
        let mode = if is_its_own { 0o700 } else { 0o755 };
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).map_err(doing(say()))?;
        if is_its_own {
            chown(path, Some(user), Some(user)).map_err(doing(say()))?;
        }
        let mount = match isolation.files.scratch_mib {
            0 => sys::detached_mount(path),
            mib if *path == scratch => of_memory(user, mib << 10, None),
            // The agent reads it, so it is mounted where the agent sees it.
            _ if *path == told => of_memory(user, TOLD_KIB, Some(TOLD_FILES))
                .and_then(|mount| sys::attach_mount(&mount, path))
                .and_then(|()| sys::detached_mount(path)),
            _ => sys::detached_mount(path),
        };
        let mount = mount.map_err(doing(format!("opening {}", path.display())))?;
        mounts.push((mount, isolation.seen_as(key, folder.path(), path)));
    }
    debug_assert!(mounts.iter().all(|(_, to)| to.starts_with(INSIDE)));
    Ok(mounts)
}

/// A folder of the user in memory.
fn of_memory(user: u32, kib: u64, files_max: Option<u64>) -> io::Result<OwnedFd> {
    let text = |text: String| CString::new(text).map_err(io::Error::from);
    let (size, user) = (text(format!("{kib}k"))?, text(user.to_string())?);
    let mut options = vec![(c"size", size.as_c_str()), (c"mode", c"700"), (c"uid", user.as_c_str())];
    options.push((c"gid", user.as_c_str()));
    let files = files_max.map(|files| text(files.to_string())).transpose()?;
    options.extend(files.as_deref().map(|files| (c"nr_inodes", files)));
    sys::files_in_memory(&options)
}

/// Lets go of what is mounted where the agent sees it. Nothing is, where the operator bounds nothing.
pub(crate) fn let_go(folder: &TaskFolder) {
    let told: &Path = &folder.from_task();
    // By a shim that failed half-way it may be mounted twice.
    for _ in 0..4 {
        if umount2(told, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).is_err() {
            return;
        }
    }
}
