//! What the tasks of a sandbox see of the host's files, where the agent is root.
//!
//! What must stay true: nothing of it reaches the host's own mounts; everything is read-only but the task's own folders, `/tmp`, `/dev/shm`
//! and what the operator has named; `/dev` has only what every program expects; the agent's data is not in sight.

use super::binds::Own;
use super::device_program::NAMED;
use super::memory::files_in_memory;
use super::{INSIDE, SandboxError, binds, doing, image_root, sys};
use crate::task_folder::record::Isolation;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// What of `/run` programs need: how names of hosts are resolved, and the driver's daemon.
const OF_RUN: [&str; 4] =
    ["/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nvidia-persistenced"];

/// The host's mounts do not learn of what is mounted here from now on.
pub(super) fn detach_from_host() -> Result<(), SandboxError> {
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none)
        .map_err(doing("detaching the mounts from the host's"))
}

/// A view of processes that shows those of the sandbox alone.
pub(super) fn own_proc() -> Result<(), SandboxError> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>).map_err(doing("mounting /proc"))
}

/// Everything else.
pub(super) fn full(isolation: &Isolation) -> Result<(), SandboxError> {
    // Taken before their places are covered.
    let writable = FromHost::take(isolation.writable.iter().map(PathBuf::as_path))?;
    let binds = binds::take(&isolation.binds)?;
    let of_run = FromHost::take(OF_RUN.map(Path::new).into_iter().filter(|path| path.is_dir()))?;
    let is_own = match &isolation.root {
        Some(root) => image_root::enter(root)?,
        None => {
            sys::make_read_only(Path::new("/")).map_err(doing("making the system read-only"))?;
            false
        }
    };
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    files_in_memory("/tmp", flags, &bounded("mode=1777", isolation))?;
    // Sockets of the host's services are there.
    files_in_memory("/run", flags, "mode=755,size=1m")?;
    std::fs::create_dir(INSIDE).map_err(doing(format!("making {INSIDE}")))?;
    let own = Own::at(if is_own { &["/", "/tmp", "/run"] } else { &["/tmp", "/run"] })?;
    for kept in of_run {
        kept.put_back(&own)?;
        sys::make_read_only(kept.path).map_err(doing(format!("making {} read-only", kept.path.display())))?;
    }
    devices(isolation)?;
    writable.iter().try_for_each(|kept| kept.put_back(&own))?;
    binds::put(&binds, &own)
}

/// Memory that the tasks of the sandbox may fill with files; by the kernel's own rule half of the machine's.
fn bounded(options: &str, isolation: &Isolation) -> String {
    match isolation.files.memory_mib {
        0 => options.to_owned(),
        mib => format!("{options},size={mib}m"),
    }
}

/// A part of the host's files that has the same place inside.
struct FromHost<'a> {
    path: &'a Path,
    mount: OwnedFd,
}

impl<'a> FromHost<'a> {
    fn take(paths: impl Iterator<Item = &'a Path>) -> Result<Vec<Self>, SandboxError> {
        let take = |path: &'a Path| {
            let mount = sys::detached_mount(path).map_err(doing(format!("opening {}", path.display())))?;
            Ok(FromHost { path, mount })
        };
        paths.map(take).collect()
    }

    /// Its place may lie below a folder that is another one inside.
    fn put_back(&self, own: &Own) -> Result<(), SandboxError> {
        binds::put_one(&self.mount, self.path, true, own)
    }
}

/// Not read-only: the device nodes of cards are added when a rank enters. Only root may write there, and no task is root.
fn devices(isolation: &Isolation) -> Result<(), SandboxError> {
    files_in_memory("/dev", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, "mode=755,size=64k")?;
    let dev = Path::new("/dev");
    for (name, major, minor) in NAMED {
        let path = dev.join(name);
        let say = || format!("making {}", path.display());
        mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(major.into(), minor.into())).map_err(doing(say()))?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).map_err(doing(say()))?;
    }
    for (to, name) in LINKS {
        symlink(to, dev.join(name)).map_err(doing(format!("making /dev/{name}")))?;
    }
    for folder in ["/dev/pts", "/dev/shm"] {
        std::fs::create_dir(folder).map_err(doing(format!("making {folder}")))?;
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("devpts"), "/dev/pts", Some("devpts"), flags, Some("newinstance,ptmxmode=0666,mode=0620"))
        .map_err(doing("mounting /dev/pts"))?;
    files_in_memory("/dev/shm", MsFlags::MS_NOSUID | MsFlags::MS_NODEV, &bounded("mode=1777", isolation))
}
