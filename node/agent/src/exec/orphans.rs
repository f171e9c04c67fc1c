//! What a shim that was killed leaves behind: descendants of the command that the kernel did not kill with it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::time::Duration;

/// Every command carries this in its environment, with the path of its task folder, which is unique on the host.
pub(crate) const MARKER: &str = "MUSTER_TASK_DIR";

/// Between two looks: a killed process needs a moment to go.
const ROUND: Duration = Duration::from_millis(20);

/// Kills every process that carries the folder in its environment, until none is left. Blocks.
pub(super) fn kill_all(folder: &Path) {
    let marker = format!("{MARKER}={}", folder.display());
    loop {
        let found = carriers(marker.as_bytes());
        if found.is_empty() {
            return;
        }
        tracing::warn!(folder = %folder.display(), processes = found.len(), "killing what a lost shim left behind");
        for pid in found {
            let _ = kill(pid, Signal::SIGKILL);
        }
        std::thread::sleep(ROUND);
    }
}

fn carriers(marker: &[u8]) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let carries = |pid: i32| {
        // A zombie has no environment any more, so it is not found again.
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == marker)
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| carries(*pid))
        .map(Pid::from_raw)
        .collect()
}
