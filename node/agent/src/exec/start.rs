//! Starting a shim, and taking over those that an earlier agent has started. Everything here blocks: run it where that is allowed.

use super::orphans;
use crate::pidfd::PidFd;
use crate::ready;
use crate::sandbox::cgroup::TaskCgroups;
use crate::sandbox::member;
use crate::shim_command::ShimCommand;
use crate::task_folder::record::{End, ExitRecord, LaunchRecord, ShimRecord, StartedRecord};
use crate::task_folder::world;
use crate::task_folder::{DeadlineFile, TaskFolder, read_json};
use muster_node_core::Secrets;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A shim that is not ready after this long is given up: starting one takes milliseconds, on a machine that swaps perhaps a second.
const READY_MAX: Duration = Duration::from_secs(20);
/// A shim that holds its lock has written its number within moments.
const NUMBER_MAX: Duration = Duration::from_secs(5);
/// Between two looks at a shim that is just starting.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A shim that lives.
#[derive(Debug)]
pub(super) struct Alive {
    pub(super) shim: PidFd,
    pub(super) deadline: DeadlineFile,
    /// When its command started; absent while it has not.
    pub(super) started_ns: Option<u64>,
}

/// What is found in a task folder.
#[derive(Debug)]
pub(super) enum Found {
    Alive(Alive),
    Over(ExitRecord),
}

/// Who has a task folder.
enum Holder {
    /// Nobody: the lock is ours, and there is no exit record.
    Nobody(File),
    /// A shim that lives.
    Shim(Alive),
    /// Nobody any more.
    Over(ExitRecord),
}

/// Makes the folder and starts a shim in it; returns when the command runs or everything is over. An error is for people: the folder
/// could not be made, so nothing can run from it.
pub(super) fn start(
    shim: &ShimCommand,
    folder: &TaskFolder,
    record: &LaunchRecord,
    deadline_ns: u64,
    now_ns: impl Fn() -> u64,
    adopts: bool,
) -> Result<Found, String> {
    let say = |what: &str, error: io::Error| format!("{what} {}: {error}", folder.path().display());
    for path in [folder.path(), &folder.from_task(), &folder.to_task()] {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| say("making", e))?;
    }
    let log = File::create(folder.shim_log()).map_err(|e| say("making shim.log in", e))?;
    let limit_s = record.spec.time_limit_s;
    let deadline = folder.create_deadline(deadline_ns, limit_s).map_err(|e| say("writing the deadline in", e))?;
    if let Some(said) = &record.spec.world {
        world::write(folder, &record.spec, said).map_err(|e| say("writing world in", e))?;
    }
    folder.write_json(&folder.task(), record).map_err(|e| say("writing task.json in", e))?;
    let owner = record.env.get(orphans::OWNER).map_or("", String::as_str);
    let secrets = memory_file(&record.spec.secrets).map_err(|error| format!("handing over its secrets: {error}"))?;
    let reason = match launch(shim, folder, secrets, log, owner) {
        Ok(shim) => {
            let started = read_json::<StartedRecord>(&folder.started()).map_err(|e| say("reading started in", e))?;
            return Ok(Found::Alive(Alive { shim, deadline, started_ns: started.map(|s| s.started_ns) }));
        }
        Err(reason) => reason,
    };
    if let Some(isolation) = &record.isolation {
        // A process of it that was on its way into the sandbox may be left.
        TaskCgroups::of(&isolation.cgroups, record.spec.key).kill_all();
    }
    match holder(folder).map_err(|e| say("looking into", e))? {
        Holder::Over(exit) => Ok(Found::Over(exit)),
        // One that an earlier agent had started came late, and was faster than this one.
        Holder::Shim(alive) => Ok(Found::Alive(alive)),
        Holder::Nobody(lock) => {
            let exit = close(folder, record, &lock, None, reason, now_ns(), adopts);
            exit.map(Found::Over).map_err(|e| say("writing exit in", e))
        }
    }
}

/// Starts a shim and waits until it says that its command runs. After an error it is gone.
fn launch(
    shim: &ShimCommand,
    folder: &TaskFolder,
    secrets: Option<File>,
    log: File,
    owner: &str,
) -> Result<PidFd, String> {
    let mut child = Command::new(&shim.program)
        .args(&shim.arguments)
        .arg(folder.path())
        .env(orphans::SHIM, folder.path())
        .env(orphans::OWNER, owner)
        .stdin(secrets.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::piped())
        .stderr(log)
        .current_dir("/")
        .spawn()
        .map_err(|error| format!("cannot run the shim {}: {error}", shim.program.display()))?;
    orphans::shim_started(child.id());
    let handle = PidFd::open(child.id());
    let ready = child.stdout.take().is_some_and(|pipe| is_ready(pipe, READY_MAX));
    if let (true, Ok(shim)) = (ready, handle) {
        return Ok(shim);
    }
    // It has ended, or it hangs: either way it must be gone before this is told.
    if !folder.has_exit() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| format!("waiting for the shim: {error}"));
    orphans::shim_reaped(child.id());
    let status = status?;
    let said = std::fs::read_to_string(folder.shim_log()).unwrap_or_default();
    Err(format!("the shim did not start ({status}): {}", said.trim()))
}

/// What the shim reads the secrets of its task from: a file in memory, which no folder leads to. `None`: it has none.
fn memory_file(secrets: &Secrets) -> io::Result<Option<File>> {
    if secrets.values.is_empty() {
        return Ok(None);
    }
    let mut file = File::from(memfd_create("secrets", MFdFlags::MFD_CLOEXEC)?);
    serde_json::to_writer(&file, &secrets.values)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(Some(file))
}

/// Whether the shim says that its command runs, before it closes its output and before the time is up.
fn is_ready(mut pipe: std::process::ChildStdout, within: Duration) -> bool {
    let ready = ready::readable(&pipe, Some(within)).is_ok_and(|ready| ready);
    ready && pipe.read(&mut [0; 1]).is_ok_and(|read| read > 0)
}

/// Looks into a folder that an earlier agent has left. `None`: nothing was ever started from it, nothing will be, and it is gone.
pub(super) fn adopt(
    folder: &TaskFolder,
    boot_id: &str,
    now_ns: u64,
    adopts: bool,
) -> io::Result<Option<(LaunchRecord, Found)>> {
    let Some(record) = read_json::<LaunchRecord>(&folder.task())? else {
        std::fs::remove_dir_all(folder.path())?;
        return Ok(None);
    };
    let found = match holder(folder)? {
        Holder::Over(exit) => Found::Over(exit),
        Holder::Shim(alive) => Found::Alive(alive),
        Holder::Nobody(lock) if record.boot_id != boot_id => {
            // Its times are of another clock.
            Found::Over(leave(folder, &lock, End::Fenced, None, now_ns)?)
        }
        Holder::Nobody(lock) if !folder.shim().exists() => {
            // The agent died before its shim had come so far; the task is started again like one that never was.
            folder.void(&lock)?;
            return Ok(None);
        }
        Holder::Nobody(lock) => Found::Over(close_killed(folder, &record, &lock, now_ns, adopts)?),
    };
    Ok(Some((record, found)))
}

/// Waits until it is clear who has the folder.
fn holder(folder: &TaskFolder) -> io::Result<Holder> {
    let until = Instant::now() + NUMBER_MAX;
    loop {
        if let Some(exit) = read_json::<ExitRecord>(&folder.exit())? {
            return Ok(Holder::Over(exit));
        }
        if let Some(lock) = folder.lock()? {
            // The shim that held it may have written its record after the look above.
            return Ok(match read_json(&folder.exit())? {
                Some(exit) => Holder::Over(exit),
                None => Holder::Nobody(lock),
            });
        }
        if let Some(number) = read_json::<ShimRecord>(&folder.shim())?
            && let Ok(shim) = PidFd::open(number.pid)
            // Still locked after the handle was made: the handle means the shim and no later process with its number.
            && folder.lock()?.is_none()
        {
            let deadline = folder.open_deadline()?;
            let started_ns = read_json::<StartedRecord>(&folder.started())?.map(|started| started.started_ns);
            return Ok(Holder::Shim(Alive { shim, deadline, started_ns }));
        }
        if Instant::now() > until {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "its lock is held by a process that is not a known shim",
            ));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// How a task ended whose shim, of this number, has ended: by its record, or without one because the shim was killed.
pub(super) fn ended(
    folder: &TaskFolder,
    record: &LaunchRecord,
    shim: u32,
    now_ns: u64,
    adopts: bool,
) -> io::Result<ExitRecord> {
    match holder(folder) {
        Ok(Holder::Over(exit)) => Ok(exit),
        Ok(Holder::Nobody(lock)) => close_killed(folder, record, &lock, now_ns, adopts),
        Ok(Holder::Shim(_)) => Err(io::Error::other("another shim uses its folder")),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.path().exists() => {
            // Somebody deleted it while the task ran: how it ended is not known, only that it has.
            end_rest(folder, record, orphans::Dead { shim: Some(shim as i32), command: None, adopts })?;
            Ok(ExitRecord { end: End::Stopped, started_ns: None, ended_ns: now_ns, dropped_bytes: 0 })
        }
        Err(error) => Err(error),
    }
}

/// Ends a task whose shim is dead and left no record.
fn close_killed(
    folder: &TaskFolder,
    record: &LaunchRecord,
    lock: &File,
    now_ns: u64,
    adopts: bool,
) -> io::Result<ExitRecord> {
    let started = read_json::<StartedRecord>(&folder.started())?;
    let reason = "its shim was killed before the command ran".to_owned();
    close(folder, record, lock, started, reason, now_ns, adopts)
}

/// Kills what may be left of a task whose shim is gone, and writes how it ended: with the shim, or before the command ran.
fn close(
    folder: &TaskFolder,
    record: &LaunchRecord,
    lock: &File,
    started: Option<StartedRecord>,
    reason: String,
    now_ns: u64,
    adopts: bool,
) -> io::Result<ExitRecord> {
    let shim = read_json::<ShimRecord>(&folder.shim())?.map(|shim| shim.pid as i32);
    end_rest(folder, record, orphans::Dead { shim, command: started.map(|started| started.pid), adopts })?;
    let end = match started {
        // The command died with the shim, by the signal that the kernel sends then.
        Some(_) => End::Signaled { signal: libc::SIGKILL },
        None => End::StartFailed { reason, by_node: true },
    };
    leave(folder, lock, end, started.map(|started| started.started_ns), now_ns)
}

fn leave(folder: &TaskFolder, _lock: &File, end: End, started_ns: Option<u64>, now_ns: u64) -> io::Result<ExitRecord> {
    let exit = ExitRecord { end, started_ns, ended_ns: now_ns, dropped_bytes: 0 };
    folder.write_json(&folder.exit(), &exit)?;
    Ok(exit)
}

/// Ends what a task whose shim is dead may have left: its control groups and its sandbox, or without those what /proc shows of it.
fn end_rest(folder: &TaskFolder, record: &LaunchRecord, dead: orphans::Dead) -> io::Result<()> {
    let Some(isolation) = &record.isolation else {
        orphans::kill_all(folder.path(), dead);
        return Ok(());
    };
    let cgroups = TaskCgroups::of(&isolation.cgroups, record.spec.key);
    cgroups.kill_all();
    let command = dead.command.map(Pid::from_raw);
    let is_own = |pid: Pid| matches!(waitpid(pid, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive));
    if let Some(command) = command.filter(|command| is_own(*command)) {
        // A child of this process, so the number is still its own. Without control groups it may have cleared its tie to the shim.
        let _ = kill(command, Signal::SIGKILL);
        let _ = waitpid(command, None);
    }
    // Where other tasks of the allocation live on, the sandbox does; it ends with the last of them.
    let reap = || orphans::reap_adopted(dead.adopts);
    reap();
    member::end_abandoned(&isolation.folder, reap).map_err(io::Error::other)?;
    cgroups.remove();
    Ok(())
}
