//! Killing everything below this process, however deep and however it tries to leave.
//!
//! The shim is a sub-reaper: a descendant whose parent dies becomes its child, so no double fork, new session or new group
//! leads out. Killing is repeated until there is no child left, because a fork may happen between looking and killing.

use crate::proc_stat;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::time::Duration;

/// From one round to the next: killed processes need a moment to go, and a round reads all of /proc.
const ROUND_MIN: Duration = Duration::from_millis(1);
const ROUND_MAX: Duration = Duration::from_millis(50);

/// Returns when no descendant is left.
pub(super) fn kill_all() {
    let mut pause = ROUND_MIN;
    while any_child_left() {
        for pid in descendants(nix::unistd::getpid()) {
            // Gone already is as good.
            let _ = kill(pid, Signal::SIGKILL);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(ROUND_MAX);
    }
}

/// Reaps every child that has ended.
pub(super) fn reap() {
    any_child_left();
}

/// Reaps what has ended; says whether any child, dead or alive, is left after that.
fn any_child_left() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(nix::Error::ECHILD) => return false,
            Ok(nix::sys::wait::WaitStatus::StillAlive) => return true,
            Ok(_) | Err(_) => {}
        }
    }
}

/// Every process below `root`, from one reading of /proc.
fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let stat = proc_stat::of(pid).unwrap_or_default();
        if let Some(parent) = parent_of(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![root.as_raw()];
    while let Some(pid) = open.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.push(Pid::from_raw(child));
            open.push(child);
        }
    }
    found
}

/// The parent's number in a line of /proc/<pid>/stat.
fn parent_of(stat: &str) -> Option<i32> {
    proc_stat::fields(stat).nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parent_of;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent_of("7 (sh) S 3 7 7 0 -1"), Some(3));
        assert_eq!(parent_of("7 (a) S 9 (b) R 4 7 7"), Some(4));
        assert_eq!(parent_of(""), None);
    }
}
