//! A handle on a process that cannot come to mean another one, and that can be waited for without polling.

use nix::sys::signal::Signal;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process, by a descriptor of the kernel.
#[derive(Debug)]
pub(super) struct PidFd {
    fd: OwnedFd,
    pid: u32,
}

impl PidFd {
    /// The process that has `pid` now; a dead one that nobody has reaped counts.
    pub(super) fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: the call takes two numbers and gives a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(PidFd { fd: unsafe { OwnedFd::from_raw_fd(fd as i32) }, pid })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal; one that is gone already is as good.
    pub(super) fn send(&self, signal: Signal) {
        let null = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and no signal information is passed.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.fd.as_raw_fd(), signal as i32, null, 0) };
    }

    /// Ready when the process has ended.
    pub(super) async fn ended(&self) -> io::Result<()> {
        // SAFETY: the descriptor is borrowed from `self`, which outlives the registration.
        let watched = unsafe { AsyncFd::register_with_interest(self.fd.as_fd(), Interest::READABLE) };
        let watched = watched.map_err(|refused| refused.into_parts().1)?;
        watched.readable().await?.retain_ready();
        Ok(())
    }
}
