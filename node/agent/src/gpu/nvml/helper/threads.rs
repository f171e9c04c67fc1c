//! The threads of the helper.
//!
//! What must stay true: nobody waits for one, since it may hang in the driver for ever.

use super::driver::Called;
use crate::gpu::nvml::wire::Fault;

/// Of a thread; NVML needs little.
const STACK_BYTES: usize = 1 << 20;

/// Starts a thread that is never waited for.
pub(super) fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Called<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(run);
    started.map(drop).map_err(|error| Fault::Refused(format!("the helper cannot start a thread: {error}")))
}
