//! TCP for small urgent messages: what is lost is sent again within tens of milliseconds.
//!
//! The kernel waits at least 200 ms before it sends a lost segment again, and twice as long after each further loss; on a link that
//! loses every third packet a heartbeat then comes seconds late, and an idle connection stays silent for as long after the link is
//! good again. These options exist on Linux, the last three since 6.15 and 6.16; a kernel without one keeps its own rule, which costs
//! time and nothing else. What must stay true: nothing here fails a connection.

use std::os::fd::AsRawFd;
use tokio::net::TcpStream;

/// Before a segment is sent again: above the delay of the other side's acknowledgement, below any heartbeat.
const RESEND_AFTER_MIN_US: libc::c_int = 40_000;
/// And at most, however often it was lost.
const RESEND_AFTER_MAX_MS: libc::c_int = 1_000;
/// How long an acknowledgement may wait for data to go with.
const ACKNOWLEDGE_AFTER_MAX_US: libc::c_int = 10_000;

// Not in libc yet; from linux/tcp.h.
const TCP_RTO_MAX_MS: libc::c_int = 44;
const TCP_RTO_MIN_US: libc::c_int = 45;
const TCP_DELACK_MAX_US: libc::c_int = 46;

/// Sets what the kernel has of it.
pub(super) fn tune(stream: &TcpStream) {
    // Without it small messages wait for the acknowledgement of the last one.
    let _ = stream.set_nodelay(true);
    for (option, value) in [
        // A stream with few segments under way does not wait twice as long after each loss.
        (libc::TCP_THIN_LINEAR_TIMEOUTS, 1),
        (TCP_RTO_MAX_MS, RESEND_AFTER_MAX_MS),
        (TCP_RTO_MIN_US, RESEND_AFTER_MIN_US),
        (TCP_DELACK_MAX_US, ACKNOWLEDGE_AFTER_MAX_US),
    ] {
        set(stream, option, value);
    }
}

fn set(stream: &TcpStream, option: libc::c_int, value: libc::c_int) {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as `stream` is borrowed, and the kernel reads `size` bytes of `value`.
    let set =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, option, (&raw const value).cast(), size) };
    if set != 0 {
        tracing::trace!(option, error = %std::io::Error::last_os_error(), "the kernel does not know a TCP option");
    }
}
