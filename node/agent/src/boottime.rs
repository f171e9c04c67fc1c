//! The clock of fences and usage: CLOCK_BOOTTIME, which goes on while the host is suspended.

use muster_node_core::fence::NS_PER_S;

/// Nanoseconds since the boot of the host.
pub(crate) fn now_ns() -> Result<u64, nix::Error> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)?;
    Ok(now.tv_sec() as u64 * NS_PER_S + now.tv_nsec() as u64)
}
