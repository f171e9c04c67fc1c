//! What the processes of one agent use: itself, its helper that talks with the driver, the shims and inits of its tasks.
//!
//! What must stay true: a process counts for this agent only if it descends from it; other clusters of the machine may run beside it.

use crate::process::{Used, own_share_kib};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// What was used over some seconds, and is in memory at their end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) agent_cores: f64,
    pub(super) agent_kib: u64,
    pub(super) helper_cores: f64,
    pub(super) helper_kib: u64,
    /// Processes that are shims or inits of sandboxes, and their memory: what they share counts by its share.
    pub(super) shims: usize,
    pub(super) shims_kib: u64,
}

/// Measures for so many seconds.
pub(super) async fn over(agent: i32, seconds: u32) -> Result<Seen> {
    let helper = helper_of(agent).context("the agent has no helper that talks with the driver")?;
    let (before, helper_before) = (Used::of(agent)?, Used::of(helper)?);
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let (after, helper_after) = (Used::of(agent)?, Used::of(helper)?);
    let shims: Vec<i32> = descendants(agent).into_iter().filter(|pid| is_subcommand(*pid, "shim")).collect();
    Ok(Seen {
        agent_cores: after.cores_since(&before),
        agent_kib: after.rss_kib,
        helper_cores: helper_after.cores_since(&helper_before),
        helper_kib: helper_after.rss_kib,
        shims: shims.len(),
        shims_kib: shims.into_iter().filter_map(|pid| own_share_kib(pid).ok()).sum(),
    })
}

fn helper_of(agent: i32) -> Option<i32> {
    descendants(agent).into_iter().find(|pid| is_subcommand(*pid, "gpu-helper"))
}

fn is_subcommand(pid: i32, word: &str) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(word.as_bytes())
}

/// All processes below this one.
fn descendants(root: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // Behind the name, which is in brackets and may hold anything: the state, and then the parent.
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        children.entry(parent.unwrap_or_default()).or_default().push(pid);
    }
    let (mut all, mut next) = (Vec::new(), vec![root]);
    while let Some(pid) = next.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        all.extend(&below);
        next.extend(below);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_a_child_is_below_this_process() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().expect("a shell");
        let own = std::process::id().cast_signed();
        let (mut below, shell) = (Vec::new(), child.id().cast_signed());
        for _ in 0..500 {
            below = descendants(shell);
            if !below.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(below.len(), 1, "the sleep");
        let all = descendants(own);
        assert!(all.contains(&shell) && all.contains(&below[0]), "{all:?}");
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(below[0]), nix::sys::signal::Signal::SIGKILL);
        child.wait().expect("it ends with its child");
    }
}
