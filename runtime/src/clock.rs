//! Wall time and boot time. Monotonic time for sleeps and leases is `tokio::time`.

/// The clocks of a host.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch. It may jump; it never decides a lease.
    fn wall_ms(&self) -> u64;

    /// Nanoseconds on CLOCK_BOOTTIME: goes on while the host sleeps, never jumps.
    fn boottime_ns(&self) -> u64;
}
