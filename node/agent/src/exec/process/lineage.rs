//! Which task a process of the host belongs to.
//!
//! What must stay true: what a task says of itself (its environment, its name) counts for nothing; only the kernel's word does: the control group of the process,
//! which has the task's name, or its parents up to a shim.

use crate::proc_stat;
use muster_node_core::TaskKey;
use std::collections::BTreeMap;

/// Parents that are followed: deeper trees exist only to hide in.
const PARENTS_MAX: usize = 64;

pub(super) fn task_of(pid: u32, shims: &BTreeMap<u32, TaskKey>) -> Option<TaskKey> {
    by_control_group(pid, shims).or_else(|| by_parents(pid, shims))
}

fn by_control_group(pid: u32, shims: &BTreeMap<u32, TaskKey>) -> Option<TaskKey> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let keys = groups.lines().flat_map(|line| line.split('/')).filter_map(|name| name.parse::<TaskKey>().ok());
    keys.into_iter().find(|key| shims.values().any(|known| known == key))
}

fn by_parents(pid: u32, shims: &BTreeMap<u32, TaskKey>) -> Option<TaskKey> {
    let mut pid = pid;
    for _ in 0..PARENTS_MAX {
        if let Some(key) = shims.get(&pid) {
            return Some(*key);
        }
        // The parent is the second field behind the name.
        pid = proc_stat::fields(&proc_stat::of(pid).ok()?).nth(1)?.parse().ok().filter(|parent| *parent > 1)?;
    }
    None
}
