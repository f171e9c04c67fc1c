//! Folders of a sandbox that are memory.

use super::{SandboxError, doing};
use nix::mount::{MsFlags, mount};

/// Mounts one.
pub(super) fn files_in_memory(at: &str, flags: MsFlags, options: &str) -> Result<(), SandboxError> {
    mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(options)).map_err(doing(format!("mounting {at}")))
}
