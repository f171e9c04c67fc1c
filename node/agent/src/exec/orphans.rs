//! Processes of tasks that no shim holds any more: found in /proc and killed.
//!
//! A shim is the sub-reaper of its task, so as long as it lives nothing leaves it. When it is killed itself, the kernel kills the command
//! and nobody else. What must stay true: whoever is found here carries a mark of Muster's, belongs to the session or the group of a
//! shim that is dead, or is a child of this agent that is neither a shim nor marked as the agent's own
//! ([`crate::own_children`]); nobody else is ever touched. A process that drops its
//! environment, its session and its group escapes unless it became a child of the agent: that is why tasks are isolated ([`crate::sandbox`]). Of
//! isolated tasks only the shims are looked for here, and what a killed one leaves is reaped.

use crate::own_children;
use crate::proc_stat;
use crate::sandbox::member::INIT_ARGUMENT;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Every command carries this in its environment, with the path of its task folder, which is unique on the host.
pub(crate) const TASK: &str = "MUSTER_TASK_DIR";
/// Every shim carries this, with the same path.
pub(crate) const SHIM: &str = "MUSTER_SHIM_DIR";
/// Commands and shims carry this: whose they are, as [`super::claim::mark`] says it.
pub(crate) const OWNER: &str = "MUSTER_OWNER";

/// Between two looks: a killed process needs a moment to go. One that waits for a disk may need long.
const ROUND_MIN: Duration = Duration::from_millis(20);
const ROUND_MAX: Duration = Duration::from_secs(1);

/// What is known of a task whose shim is dead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dead {
    /// The shim: the leader of the session that everything below it began in.
    pub(super) shim: Option<i32>,
    /// The command: the leader of its group.
    pub(super) command: Option<i32>,
    /// This process is the sub-reaper of its shims, so what a dead one leaves becomes its child.
    pub(super) adopts: bool,
}

/// Kills whatever is left of the task in `folder`, until nothing is. Blocks.
pub(super) fn kill_all(folder: &Path, dead: Dead) {
    let mut round = ROUND_MIN;
    let mut killed = BTreeSet::new();
    loop {
        let found = remains(folder, dead);
        // Those that became children of this process are reaped by it; for the others there is nothing to do.
        killed.retain(|pid| {
            !matches!(waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::Signaled(..)))
        });
        if found.is_empty() {
            return;
        }
        tracing::warn!(folder = %folder.display(), processes = ?found, "killing processes of a task whose shim was killed");
        for pid in found {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            killed.insert(pid);
        }
        std::thread::sleep(round);
        round = (round * 2).min(ROUND_MAX);
    }
}

fn remains(folder: &Path, dead: Dead) -> Vec<i32> {
    let mark = format!("{TASK}={}", folder.display());
    let own = std::process::id() as i32;
    let own_command_line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let all = processes();
    // A number that is a live process's again says nothing about sessions of the dead one.
    let shim = dead.shim.filter(|shim| !all.iter().any(|process| process.pid == *shim));
    let is_adopted = |process: &Process| {
        dead.adopts
            && process.parent == own
            && process.value_of(SHIM).is_none()
            && process.value_of(own_children::OWN).is_none()
            && !process.is_init()
            // A shim that has not been executed yet still looks like this process.
            && process.command_line() != own_command_line
    };
    let is_left = |process: &&Process| {
        process.has(mark.as_bytes())
            || shim.is_some_and(|shim| process.session == shim)
            || (shim.is_some() && dead.command.is_some_and(|command| process.group == command))
            || is_adopted(process)
    };
    all.iter().filter(|process| process.pid != own).filter(is_left).map(|process| process.pid).collect()
}

/// The task folders that processes of `owner` run from, or that lie in `live`, as far as `is_known` does not know them.
pub(super) fn strays(owner: &str, live: &Path, is_known: impl Fn(&Path) -> bool) -> BTreeSet<PathBuf> {
    let mark = format!("{OWNER}={owner}");
    let of = |process: &Process| {
        let folder = process.folder().filter(|_| !process.is_init())?;
        (process.has(mark.as_bytes()) || folder.starts_with(live)).then_some(folder)
    };
    processes().iter().filter_map(of).filter(|folder| !is_known(folder)).collect()
}

/// The shims that run from `folder`.
pub(super) fn shims_of(folder: &Path) -> Vec<i32> {
    let is_shim = |process: &&Process| !process.is_init() && process.shim_folder().is_some_and(|of| of == folder);
    processes().iter().filter(is_shim).map(|process| process.pid).collect()
}

/// A process that lives, as /proc shows it.
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    environment: Vec<u8>,
}

impl Process {
    /// Nothing when it is gone or a zombie, which has nothing to kill any more.
    fn read(pid: i32) -> Option<Process> {
        let stat = proc_stat::of(pid).ok()?;
        let mut fields = proc_stat::fields(&stat);
        let state = fields.next()?;
        let mut number = || fields.next()?.parse::<i32>().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        (!matches!(state, "Z" | "X")).then_some(Process { pid, parent, group, session, environment })
    }

    fn has(&self, entry: &[u8]) -> bool {
        self.environment.split(|byte| *byte == 0).any(|held| held == entry)
    }

    fn value_of(&self, name: &str) -> Option<PathBuf> {
        let value = |entry: &[u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
        let value = self.environment.split(|byte| *byte == 0).find_map(value)?;
        Some(PathBuf::from(String::from_utf8(value).ok()?))
    }

    fn command_line(&self) -> Vec<u8> {
        std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default()
    }

    /// Whether it is the init of a sandbox, which ends by itself with the last shim that uses it. It has the environment of the first.
    fn is_init(&self) -> bool {
        self.command_line().split(|byte| *byte == 0).any(|word| word == INIT_ARGUMENT.as_bytes())
    }

    /// The task folder that this process belongs to, if it is a command or a shim.
    fn folder(&self) -> Option<PathBuf> {
        self.value_of(TASK).or_else(|| self.shim_folder())
    }

    /// The task folder of a shim. One of an agent that did not mark its shims shows it as its last argument.
    fn shim_folder(&self) -> Option<PathBuf> {
        self.value_of(SHIM).or_else(|| {
            let line = self.command_line();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
            let [program, .., folder] = words.as_slice() else { return None };
            let is_shim = words.contains(&b"shim".as_slice()) || program.ends_with(b"muster-shim");
            is_shim.then(|| PathBuf::from(String::from_utf8_lossy(folder).into_owned()))
        })
    }
}

fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    entries.flatten().filter_map(number).filter_map(Process::read).collect()
}

/// Children of this process that are shims which it has started: somebody waits for each of them by its number.
static SHIMS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// A shim was started.
pub(super) fn shim_started(pid: u32) {
    SHIMS.lock().insert(pid as i32);
}

/// A shim has ended and was reaped.
pub(super) fn shim_reaped(pid: u32) {
    SHIMS.lock().remove(&(pid as i32));
}

/// Reaps what has ended and became a child of this process because its shim was killed: the init of a sandbox waits for that. A process that is not the
/// sub-reaper of its shims gets no such children.
pub(super) fn reap_adopted(adopts: bool) {
    let threads = if adopts { std::fs::read_dir("/proc/self/task").ok() } else { None };
    let Some(threads) = threads else { return };
    for thread in threads.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()) {
            if !SHIMS.lock().contains(&pid) && is_zombie(pid) {
                own_children::unless_waited_for(pid, || {
                    let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
                });
            }
        }
    }
}

fn is_zombie(pid: i32) -> bool {
    proc_stat::of(pid).is_ok_and(|stat| proc_stat::fields(&stat).next() == Some("Z"))
}

#[cfg(test)]
mod tests {
    use super::{is_zombie, reap_adopted};
    use crate::own_children;
    use std::time::Duration;
    use tokio::process::Command;

    #[tokio::test]
    async fn a_child_that_somebody_waits_for_is_not_reaped() {
        let (mut child, _waited) = own_children::spawn(&mut Command::new("true")).expect("it starts");
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).expect("a process");
        while !is_zombie(pid) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        reap_adopted(true);
        assert!(child.wait().await.expect("its status is there").success());
    }
}
