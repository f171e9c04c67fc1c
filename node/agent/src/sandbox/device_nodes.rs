//! Device nodes of cards in the `/dev` of a sandbox, and the pipes of their MPS servers.
//!
//! What must stay true: they are made from outside, by a process that is in no control group of a task, since nobody inside may make a device; a node that is seen inside is
//! not one that may be opened: ranks of one sandbox see each other's, and the control group of each refuses what is not its own.

use super::member::Member;
use super::{SandboxError, doing, sys};
use crate::task_folder::record::DeviceNode;
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Makes those that are not there yet.
pub(super) fn make(member: &Member, devices: &[DeviceNode], folders: &[PathBuf]) -> Result<(), SandboxError> {
    let failed = doing("making the device nodes of its GPUs");
    let mounts = folders.iter().map(|path| {
        let mount = sys::detached_mount(path).map_err(doing(format!("opening {}", path.display())))?;
        Ok((path.as_path(), mount))
    });
    let mounts = mounts.collect::<Result<Vec<_>, SandboxError>>()?;
    // SAFETY: a shim makes its sandbox before it starts threads.
    match unsafe { fork() }.map_err(io::Error::from) {
        Err(error) => Err(failed(error)),
        Ok(ForkResult::Child) => {
            // The locks of the shim, above all: whoever holds them counts as a shim that lives.
            let mut kept: Vec<RawFd> = mounts.iter().map(|(_, mount)| mount.as_raw_fd()).collect();
            kept.push(member.init().as_fd().as_raw_fd());
            sys::close_all_but(&kept);
            let made = setns(member.init(), CloneFlags::CLONE_NEWNS)
                .map_err(io::Error::from)
                .and_then(|()| devices.iter().try_for_each(make_one))
                .and_then(|()| mounts.iter().try_for_each(|(path, mount)| attach(path, mount)));
            sys::exit_now(made.err().and_then(|error| error.raw_os_error()).unwrap_or_default())
        }
        Ok(ForkResult::Parent { child }) => match waitpid(child, None).map_err(io::Error::from) {
            Ok(WaitStatus::Exited(_, 0)) => Ok(()),
            Ok(WaitStatus::Exited(_, code)) => Err(failed(io::Error::from_raw_os_error(code))),
            Ok(_) => Err(failed(io::Error::other("the process that makes them was killed"))),
            Err(error) => Err(failed(error)),
        },
    }
}

/// Another rank of the sandbox may have it already.
fn attach(path: &Path, mount: &OwnedFd) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(path)?;
    sys::attach_mount(mount, path)
}

fn make_one(node: &DeviceNode) -> io::Result<()> {
    let path = Path::new("/dev").join(&node.name);
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        std::fs::create_dir_all(folder)?;
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
    }
    match mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(node.major.into(), node.minor.into())) {
        Ok(()) => std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)),
        Err(Errno::EEXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
