//! Ending the tasks of a development cluster: they outlive their agents on purpose, so stopping for good has to find them.
//!
//! What must stay true: only shims whose task folder lies in this cluster's data are touched; each is asked to kill its task and
//! to leave its record, never killed itself, since it is the one that can kill the whole group.

use crate::failure::Failure;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Ends every task below `nodes` at once and waits for the shims to be gone; how many there were.
///
/// # Errors
/// When processes cannot be listed.
pub async fn end_all(nodes: &Path, wait_max: Duration) -> Result<usize, Failure> {
    let until = Instant::now() + wait_max;
    let first = shims(nodes)?;
    loop {
        let left = shims(nodes)?;
        if left.is_empty() || Instant::now() > until {
            return Ok(first.len());
        }
        for pid in left {
            // SIGUSR1 is a shim's order to kill its task without grace; it may have ended just now.
            let _ = kill(pid, Signal::SIGUSR1);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The shims whose folder lies below `nodes`.
fn shims(nodes: &Path) -> Result<Vec<Pid>, Failure> {
    let entries = std::fs::read_dir("/proc").map_err(|error| Failure::io("listing processes", error))?;
    let found = entries.flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0).map(OsStr::from_bytes);
        let is_shim = words.nth(1)? == "shim";
        let below = Path::new(words.next()?).starts_with(nodes);
        (is_shim && below).then(|| Pid::from_raw(pid))
    });
    Ok(found.collect())
}
