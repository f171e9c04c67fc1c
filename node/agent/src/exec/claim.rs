//! Claiming a host: one agent at a time runs the tasks of a node on it, and from one data folder.
//!
//! Three locks, each for what the others do not see: the data folder's (two agents with one folder), the host's (two folders for one
//! node of one cluster; a name in the kernel, which a deleted folder does not free), and those of other data folders that
//! processes of the node are found to run from. What must stay true: all are held for as long as the agent lives and go with it,
//! however it dies; a claim is made before anything is started; when it is made, nothing of the node runs on this host that
//! the agent has no record of.

use super::{ExecError, Owner, orphans};
use fnv::FnvHasher;
use muster_node_core::TaskKey;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::hash::Hasher as _;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An agent that is just ending lets its folder go within this.
const FOLDER_WITHIN: Duration = Duration::from_secs(5);
/// What runs without a record is asked to stop, and has so long for it: the usual grace of a task.
const STOP_WITHIN: Duration = Duration::from_secs(30);
/// Then its shim is told to kill all of it, and has so long for that.
const KILL_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The lock of a data folder.
const LOCK: &str = "agent.lock";

/// Locks a data folder, which is made if it is not there. Blocks.
pub(super) fn lock_folder(data: &Path) -> Result<File, ExecError> {
    let failed = |source| ExecError::Io { doing: format!("locking the data folder {}", data.display()), source };
    std::fs::create_dir_all(data).map_err(failed)?;
    let until = Instant::now() + FOLDER_WITHIN;
    loop {
        match try_lock(data).map_err(failed)? {
            Some(mut lock) => {
                let _ = lock.set_len(0);
                // For people; whoever holds the lock counts.
                let _ = write!(lock, "{}", std::process::id());
                return Ok(lock);
            }
            None if Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
            None => {
                let pid = std::fs::read_to_string(data.join(LOCK)).unwrap_or_default();
                return Err(ExecError::FolderInUse { folder: data.to_owned(), pid });
            }
        }
    }
}

/// The lock, or none when somebody holds it.
fn try_lock(data: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(data.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whose tasks processes are, as they carry it. The boot belongs to it, because nothing of an earlier one is left.
pub(super) fn mark(owner: &Owner, boot_id: &str) -> String {
    format!("{owner}, boot {boot_id}")
}

/// Takes the host for `owner`: a name that the kernel gives to one process at a time, and to nobody when that is gone.
pub(super) fn lock_host(owner: &Owner, boot_id: &str) -> Result<UnixListener, ExecError> {
    let name = format!("muster/agent/{:016x}/{:016x}", owner.cluster, hash(&mark(owner, boot_id)));
    let failed = |source| ExecError::Io { doing: format!("reserving this machine for node {}", owner.node), source };
    let address = SocketAddr::from_abstract_name(&name).map_err(failed)?;
    match UnixListener::bind_addr(&address) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let pid = UnixStream::connect_addr(&address).ok().and_then(|stream| peer_of(&stream));
            Err(ExecError::HostInUse { owner: owner.clone(), pid, folder: None })
        }
        Err(error) => Err(failed(error)),
    }
}

/// The process at the other end.
fn peer_of(stream: &UnixStream) -> Option<i32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let into = (&raw mut peer).cast();
    // SAFETY: the descriptor is open, and the pointers are to live structures of that size.
    let got = unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut size) };
    (got == 0).then_some(peer.pid)
}

/// FNV-1a: a name of a socket has at most 107 bytes, a node's name 128.
fn hash(text: &str) -> u64 {
    let mut hash = FnvHasher::default();
    hash.write(text.as_bytes());
    hash.finish()
}

/// Ends every task of `owner` on this host that is not in `known`, folders of tasks in `data` that live. Gives their names. Blocks.
pub(super) fn end_strays(
    owner: &Owner,
    boot_id: &str,
    data: &Path,
    known: &BTreeSet<PathBuf>,
    adopts: bool,
) -> Result<BTreeSet<TaskKey>, ExecError> {
    let (mark, live) = (mark(owner, boot_id), data.join("tasks"));
    let look = || orphans::strays(&mark, &live, |folder| known.contains(folder));
    let found = look();
    for folder in &found {
        not_in_use(owner, data, folder)?;
        tracing::warn!(
            node = owner.node,
            folder = %folder.display(),
            "a running task has no record (its folder may have been deleted): it is killed"
        );
    }
    for (signal, within) in [(Signal::SIGTERM, STOP_WITHIN), (Signal::SIGUSR1, KILL_WITHIN)] {
        for shim in found.iter().flat_map(|folder| orphans::shims_of(folder)) {
            let _ = kill(Pid::from_raw(shim), signal);
        }
        let until = Instant::now() + within;
        while Instant::now() < until && found.iter().any(|folder| !orphans::shims_of(folder).is_empty()) {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    for folder in &found {
        for shim in orphans::shims_of(folder) {
            let _ = kill(Pid::from_raw(shim), Signal::SIGKILL);
        }
        orphans::kill_all(folder, orphans::Dead { adopts, ..orphans::Dead::default() });
    }
    Ok(found.iter().filter_map(|folder| folder.file_name()?.to_str()?.parse().ok()).collect())
}

/// An agent that is alive may have its tasks in another data folder: they are none of ours to stop.
fn not_in_use(owner: &Owner, data: &Path, folder: &Path) -> Result<(), ExecError> {
    let Some(other) = folder.parent().and_then(Path::parent).filter(|other| *other != data && other.exists()) else {
        return Ok(());
    };
    match try_lock(other) {
        Ok(None) => {
            let pid = std::fs::read_to_string(other.join(LOCK)).ok().and_then(|pid| pid.trim().parse().ok());
            Err(ExecError::HostInUse { owner: owner.clone(), pid, folder: Some(other.to_owned()) })
        }
        Ok(Some(_)) => Ok(()),
        Err(error) => {
            tracing::warn!(folder = %other.display(), %error, "cannot find out whether an agent uses this data folder");
            Ok(())
        }
    }
}
