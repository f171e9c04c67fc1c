//! System calls for which the libraries have no safe function. All unsafe code of the sandbox is here and in [`bpf`].
//!
//! What must stay true: nothing here decides anything; every call gives the kernel's own error.

pub(super) mod bpf;

use nix::unistd::Pid;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// From linux/mount.h; the C library has no name for them.
const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;

/// What `mount_setattr` takes.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Forks a sibling: the new process is a child of this one's parent, in the process namespace that this one has joined. It gets `None`.
///
/// # Safety
/// The process has one thread: a lock that another thread holds would be held in the child for ever.
pub(super) unsafe fn fork_sibling() -> io::Result<Option<Pid>> {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: without a stack of its own the child continues on a copy of this one, as after fork.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    Ok((pid != 0).then(|| Pid::from_raw(pid as i32)))
}

/// A copy of the mount at `path` that is not mounted anywhere yet. It may be mounted in another namespace.
pub(super) fn detached_mount(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as libc::c_uint;
    // SAFETY: the path is a live C string.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A copy of the mount that this file or folder lies on, from there on, without devices and without programs that change the user. It is not mounted
/// anywhere yet, so nobody sees it before it is read-only.
pub(super) fn detached_mount_of(file: &OwnedFd, read_only: bool) -> io::Result<OwnedFd> {
    let flags =
        OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as libc::c_uint | libc::AT_EMPTY_PATH as libc::c_uint;
    let empty = c"";
    // SAFETY: the path is a live C string.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, file.as_raw_fd(), empty.as_ptr(), flags) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let mount = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let mut attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    if read_only {
        attr_set |= MOUNT_ATTR_RDONLY;
    }
    let attr = MountAttr { attr_set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let (flags, size) = (libc::AT_RECURSIVE | libc::AT_EMPTY_PATH, size_of::<MountAttr>());
    // SAFETY: the path is a live C string, and the structure is live and of the size that is given.
    check(unsafe {
        libc::syscall(libc::SYS_mount_setattr, mount.as_raw_fd(), empty.as_ptr(), flags, &raw const attr, size)
    })?;
    Ok(mount)
}

/// Puts a detached mount on this file or folder.
pub(super) fn attach_mount_on(mount: &OwnedFd, place: &OwnedFd) -> io::Result<()> {
    let (empty, flags) = (c"", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    let (from, to) = (mount.as_raw_fd(), place.as_raw_fd());
    // SAFETY: both paths are live C strings.
    check(unsafe { libc::syscall(libc::SYS_move_mount, from, empty.as_ptr(), to, empty.as_ptr(), flags) })?;
    Ok(())
}

/// Puts a detached mount at `path` of this mount namespace.
pub(super) fn attach_mount(mount: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let (fd, empty, flags) = (mount.as_raw_fd(), c"", MOVE_MOUNT_F_EMPTY_PATH);
    // SAFETY: both paths are live C strings.
    check(unsafe { libc::syscall(libc::SYS_move_mount, fd, empty.as_ptr(), libc::AT_FDCWD, path.as_ptr(), flags) })?;
    Ok(())
}

/// Makes the mount at `path`, and all below it, read-only, without devices and without programs that change the user.
pub(super) fn make_read_only(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let attr = MountAttr {
        attr_set: MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let (flags, size) = (libc::AT_RECURSIVE, size_of::<MountAttr>());
    // SAFETY: the path is a live C string, and the structure is live and of the size that is given.
    check(unsafe {
        libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), flags, &raw const attr, size)
    })?;
    Ok(())
}

/// Takes every capability from what this process will execute.
pub(super) fn drop_capability_bounds() -> io::Result<()> {
    for capability in 0..64 {
        // SAFETY: the call takes numbers only.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        match check(libc::c_long::from(dropped)) {
            // The kernel does not know so many.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            other => drop(other?),
        }
    }
    // SAFETY: the call takes numbers only.
    check(libc::c_long::from(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) }))?;
    Ok(())
}

/// Closes every descriptor from `first` on when a program is executed.
pub(super) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })?;
    Ok(())
}

/// Closes every descriptor from `first` on, whoever owns it: for a process that ends without dropping anything.
pub(super) fn close_from(first: u32) {
    // SAFETY: the call takes numbers only, and by the condition above nothing uses the descriptors afterwards.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
}

/// Closes every descriptor behind the standard ones but these, whoever owns them: for a process that ends, or executes a program, without dropping
/// anything.
pub(super) fn close_all_but(kept: &[RawFd]) {
    let mut kept: Vec<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept {
        if fd > first {
            // SAFETY: the call takes numbers only, and by the condition above nothing uses the descriptors afterwards.
            unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) };
        }
        first = first.max(fd + 1);
    }
    close_from(first);
}

/// Ends this process at once, without anything that the C library does at an exit.
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: the call does not return.
    unsafe { libc::_exit(code) }
}

/// Makes a pipe with a name, if it is not there, and opens it for both directions, which waits for nobody.
pub(super) fn open_named_pipe(path: &Path) -> io::Result<File> {
    match nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR) {
        Ok(()) | Err(nix::Error::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    File::options().read(true).write(true).open(path)
}

/// Brings up the loopback of the network namespace that this process is in.
pub(super) fn bring_loopback_up() -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    let socket =
        check(libc::c_long::from(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) }))?;
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket as RawFd) };
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut interface: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, letter) in interface.ifr_name.iter_mut().zip(b"lo") {
        *place = *letter as libc::c_char;
    }
    interface.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the structure is live, and of the kind that this request takes.
    check(libc::c_long::from(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const interface)
    }))?;
    Ok(())
}

/// The version of Landlock that this kernel has; 0: none.
pub(super) fn landlock_abi() -> u32 {
    const CREATE_RULESET_VERSION: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call reads no memory.
    let abi = check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, CREATE_RULESET_VERSION) });
    abi.map_or(0, |abi| abi as u32)
}

/// A file system in memory that is not mounted anywhere yet, with these options.
pub(super) fn files_in_memory(options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    const FSCONFIG_SET_STRING: libc::c_uint = 1;
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    const CLOEXEC: libc::c_uint = 1;
    // SAFETY: the name is a live C string.
    let context = check(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), CLOEXEC) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let context = unsafe { OwnedFd::from_raw_fd(context as RawFd) };
    let fd = context.as_raw_fd();
    for (key, value) in options {
        let (key, value) = (key.as_ptr(), value.as_ptr());
        // SAFETY: both are live C strings.
        check(unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_SET_STRING, key, value, 0) })?;
    }
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes neither key nor value.
    check(unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0) })?;
    let attributes = (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV) as libc::c_uint;
    // SAFETY: the call takes numbers only.
    let mount = check(unsafe { libc::syscall(libc::SYS_fsmount, fd, CLOEXEC, attributes) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(mount as RawFd) })
}
