//! The root file system of an image in the place of the host's.
//!
//! What must stay true: when this returns nothing of the host is in sight but `/sys`, read-only, and how names of hosts are resolved; what is written goes to memory,
//! within a bound, and never to the image; the image's own links lead to nothing outside of it, since everything is looked up after the host's files have
//! gone; the folders that the sandbox mounts over are its own, whatever the image has there.

use super::binds::Own;
use super::memory::files_in_memory;
use super::{SandboxError, binds, doing, doing_as_asked, sys};
use crate::task_folder::record::ImageRoot;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chdir, pivot_root};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Where the new root is put together: the host's folder is covered in this namespace only, and gone at the end.
const STAGING: &str = "/tmp";
/// What the sandbox mounts over.
const ITS_OWN: [&str; 5] = ["/proc", "/sys", "/dev", "/tmp", "/run"];
/// How names of hosts are resolved here.
const OF_ETC: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// Files that may be made in memory: as many as a few environments of Python packages have.
const UPPER_FILES_MAX: u32 = 262_144;

/// Makes it the root of this mount namespace. Says whether it may be written to, in memory.
pub(super) fn enter(root: &ImageRoot) -> Result<bool, SandboxError> {
    let say = || format!("opening image {}", root.at.path().display());
    let image = root.at.open().map_err(doing_as_asked(say()))?;
    let system = sys::detached_mount(Path::new("/sys")).map_err(doing("opening /sys"))?;
    // A host without them has none to show.
    let of_etc = OF_ETC.map(|path| (path, sys::detached_mount(Path::new(path)).ok()));

    let options = format!("mode=755,size={},nr_inodes={UPPER_FILES_MAX}", root.upper_bytes_max);
    files_in_memory(STAGING, MsFlags::MS_NOSUID | MsFlags::MS_NODEV, &options)?;
    let staging = Path::new(STAGING);
    for name in ["root", "upper", "work"] {
        std::fs::create_dir(staging.join(name)).map_err(doing(format!("making {STAGING}/{name}")))?;
    }
    let is_writable = stack(&image, &staging.join("root"))?;
    drop(image);

    chdir(&staging.join("root")).map_err(doing("entering the image"))?;
    // The old root lies over the new one for a moment, and is let go.
    pivot_root(".", ".").map_err(doing("making the image the root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(doing("letting go of the host's files"))?;
    chdir("/").map_err(doing("entering the image"))?;

    for path in ITS_OWN {
        own_place(Path::new(path), is_writable).map_err(doing_as_asked(format!("making {path} in the image")))?;
    }
    let sys_folder = Path::new("/sys");
    // What is not in memory is the image's folder on the host.
    let own = Own::at(if is_writable { &["/"] } else { &[] })?;
    binds::put_one(&system, sys_folder, true, &own)?;
    sys::make_read_only(sys_folder).map_err(doing("making /sys read-only"))?;
    for (path, file) in of_etc {
        let Some(file) = file else { continue };
        match binds::put_one(&file, Path::new(path), false, &own) {
            Ok(()) => sys::make_read_only(Path::new(path)).map_err(doing(format!("making {path} read-only")))?,
            // An image that cannot be written to and has no place for it, or whose folder for it is a link, keeps its own.
            Err(_) if !is_writable => {}
            Err(SandboxError::NotAsAsked { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(is_writable)
}

/// Mounts the image at `at`, with memory over it; read-only where the kernel cannot. Says whether it may be written to.
fn stack(image: &OwnedFd, at: &Path) -> Result<bool, SandboxError> {
    // By its descriptor: a path may have characters that have a meaning in the options, and may be another folder by now.
    let options =
        format!("lowerdir=/proc/self/fd/{},upperdir={STAGING}/upper,workdir={STAGING}/work", image.as_raw_fd());
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    if mount(Some("overlay"), at, Some("overlay"), flags, Some(options.as_str())).is_ok() {
        return Ok(true);
    }
    let image = sys::detached_mount_of(image, true).map_err(doing("mounting the image"))?;
    sys::attach_mount(&image, at).map_err(doing("mounting the image"))?;
    Ok(false)
}

/// A folder that belongs to the sandbox. A change of it takes it out of the image, so that whoever may write to the image's folder on the host cannot turn it
/// into a link afterwards.
fn own_place(path: &Path, is_writable: bool) -> io::Result<()> {
    if is_writable {
        match std::fs::symlink_metadata(path) {
            Ok(there) if there.is_dir() => {}
            Ok(_) => {
                std::fs::remove_file(path)?;
                std::fs::create_dir(path)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::fs::create_dir(path)?,
            Err(error) => return Err(error),
        }
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755))?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => Ok(()),
        Ok(_) => Err(io::Error::other(
            "it is no folder there, and this host's kernel has no overlay file system to change that",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(io::Error::other("the image has none, and this host's kernel has no overlay file system to add it"))
        }
        Err(error) => Err(error),
    }
}
