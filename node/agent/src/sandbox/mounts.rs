//! What the tasks of a sandbox see of the host's files, where the agent is root.
//!
//! What must stay true: nothing of it reaches the host's own mounts; everything is read-only but the task's own folders, `/tmp`, `/dev/shm`
//! and what the operator has named; `/dev` has only what every program expects; the agent's data is not in sight.

use super::{INSIDE, SandboxError, doing, sys};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Name, major and minor number.
const DEVICES: [(&str, u64, u64); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
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

/// Everything else. `writable` are paths of the host that tasks may write below.
pub(super) fn full(writable: &[PathBuf]) -> Result<(), SandboxError> {
    let mut opened = Vec::with_capacity(writable.len());
    for path in writable {
        opened.push((path, sys::detached_mount(path).map_err(doing(format!("opening {}", path.display())))?));
    }
    let mut of_run = Vec::new();
    for path in OF_RUN.map(Path::new).into_iter().filter(|path| path.is_dir()) {
        of_run.push((path, sys::detached_mount(path).map_err(doing(format!("opening {}", path.display())))?));
    }
    sys::make_read_only(Path::new("/")).map_err(doing("making the system read-only"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    files_in_memory("/tmp", flags, "mode=1777")?;
    // Sockets of the host's services are there.
    files_in_memory("/run", flags, "mode=755,size=1m")?;
    std::fs::create_dir(INSIDE).map_err(doing(format!("making {INSIDE}")))?;
    for (path, mount) in of_run {
        std::fs::create_dir_all(path).map_err(doing(format!("making {} inside", path.display())))?;
        sys::attach_mount(&mount, path).map_err(doing(format!("mounting {} inside", path.display())))?;
        sys::make_read_only(path).map_err(doing(format!("making {} read-only", path.display())))?;
    }
    devices()?;
    for (path, mount) in opened {
        // It may lie below /tmp, which is another one here.
        std::fs::create_dir_all(path).map_err(doing(format!("making {} inside", path.display())))?;
        sys::attach_mount(&mount, path).map_err(doing(format!("mounting {} inside", path.display())))?;
    }
    Ok(())
}

fn files_in_memory(at: &str, flags: MsFlags, options: &str) -> Result<(), SandboxError> {
    mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(options)).map_err(doing(format!("mounting {at}")))
}

fn devices() -> Result<(), SandboxError> {
    files_in_memory("/dev", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, "mode=755,size=64k")?;
    let dev = Path::new("/dev");
    for (name, major, minor) in DEVICES {
        let path = dev.join(name);
        let say = || format!("making {}", path.display());
        mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(major, minor)).map_err(doing(say()))?;
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
    files_in_memory("/dev/shm", MsFlags::MS_NOSUID | MsFlags::MS_NODEV, "mode=1777")?;
    let read_only =
        MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(None::<&str>, "/dev", None::<&str>, read_only, None::<&str>).map_err(doing("making /dev read-only"))
}
