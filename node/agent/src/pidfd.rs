//! A handle on a process that cannot come to mean another one, and that can be waited for without polling.

use crate::ready;
use crate::stop_order::StopOrder;
use muster_model::{Stop, StopSignal};
use nix::sys::signal::Signal;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Where the union in `siginfo_t` begins on 64-bit Linux: behind three numbers, aligned for a pointer.
const QUEUED_AT: usize = 16;

/// What the union holds for a queued signal.
#[repr(C)]
struct Queued {
    pid: i32,
    uid: u32,
    value: i32,
}

/// A process, by a descriptor of the kernel.
#[derive(Debug)]
pub(crate) struct PidFd {
    fd: OwnedFd,
    pid: u32,
}

impl PidFd {
    /// The process that has `pid` now; a dead one that nobody has reaped counts.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: the call takes two numbers and gives a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(PidFd { fd: unsafe { OwnedFd::from_raw_fd(fd as i32) }, pid })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal; one that is gone already is as good.
    pub(crate) fn send(&self, signal: Signal) {
        let null = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and no signal information is passed.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.fd.as_raw_fd(), signal as i32, null, 0) };
    }

    /// Tells a shim to stop its task: SIGTERM, with the signal and the grace for the task in its value ([`StopOrder`]).
    pub(crate) fn send_stop(&self, how: Stop) {
        self.send_order(Signal::SIGTERM, StopOrder::of(how).0);
    }

    /// Tells a shim to send its task this signal: SIGUSR2, with the signal's number in its value.
    pub(crate) fn send_signal_order(&self, signal: StopSignal) {
        self.send_order(Signal::SIGUSR2, signal.number());
    }

    fn send_order(&self, signal: Signal, value: i32) {
        // SAFETY: the structure is plain numbers, for which zeros are a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        info.si_signo = signal as i32;
        info.si_code = libc::SI_QUEUE;
        let queued = Queued { pid: std::process::id() as i32, uid: nix::unistd::getuid().as_raw(), value };
        // SAFETY: behind its three numbers and the padding to eight bytes, the structure is a union, which for a queued signal begins with
        // the sender and the value (sigaction(2)); both structures are larger than what is written, and writing them needs no alignment.
        unsafe {
            let union = (&raw mut info).cast::<u8>().add(QUEUED_AT).cast::<Queued>();
            union.write_unaligned(queued);
            libc::syscall(libc::SYS_pidfd_send_signal, self.fd.as_raw_fd(), signal as i32, &raw const info, 0);
        }
    }

    /// Whether it has ended; one that nobody has reaped counts.
    pub(crate) fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO).is_ok_and(|ended| ended)
    }

    /// Blocks until it has ended, but no longer than that; says whether it has.
    pub(crate) fn ends_within(&self, within: Duration) -> io::Result<bool> {
        ready::readable(self, Some(within))
    }

    /// Ready when the process has ended.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        // SAFETY: the descriptor is borrowed from `self`, which outlives the registration.
        let watched = unsafe { AsyncFd::register_with_interest(self.fd.as_fd(), Interest::READABLE) };
        let watched = watched.map_err(|refused| refused.into_parts().1)?;
        watched.readable().await?.retain_ready();
        Ok(())
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
