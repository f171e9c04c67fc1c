//! The shim: one small process per task, between the agent and the task's command.
//!
//! It starts the command, keeps its output, and makes sure that the whole of it is dead when it has to be, with an agent or
//! without one. What must stay true:
//! - it is synchronous and starts before any runtime or logging; it knows only its task folder ([`crate::task_folder`]);
//! - it lives in its own session and holds the folder's lock for as long as it lives, so whoever finds the lock free knows that
//!   nothing will be started from the folder any more;
//! - it looks at its fence before it starts the command, and starts nothing when that has passed;
//! - when the command ends, is stopped, runs out of time or passes its fence, every process of the task is killed before the exit record is
//!   written ([`task`]). An isolated task cannot see its shim, and what a killed shim leaves ends with the sandbox ([`crate::sandbox`]). Without isolation
//!   the shim is the sub-reaper of all that is below it; a task that kills its own shim may then leave descendants, and the agent looks
//!   for them ([`crate::exec`]);
//! - the thread that guards the fence never writes to a disk while the task lives, so a stalled disk cannot keep a task alive.

mod child;
mod guard;
mod pump;
mod task;
mod tree;

use self::child::NoStart;
use self::task::Task;
use crate::boottime;
use crate::sandbox::init::init_main;
use crate::sandbox::member::{INIT_ARGUMENT, PROBE_ARGUMENT};
use crate::sandbox::probe::probe_main;
use crate::task_folder::record::{End, ExitRecord, LaunchRecord, MemoryNote, ShimRecord, StartedRecord};
use crate::task_folder::{TaskFolder, read_json};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io::{PipeWriter, Read, Write};
use std::path::Path;
use std::time::Duration;

/// How often the exit record is tried on a disk that refuses it, a second apart: long enough for an operator to free space.
const RECORD_TRIES: u32 = 600;

/// Why a shim could not do its work at all. It says so on its stderr, which the agent keeps in the task folder.
#[derive(Debug, thiserror::Error)]
enum ShimError {
    #[error("{doing}: {source}")]
    Io { doing: String, source: std::io::Error },
    #[error("{doing}: {source}")]
    Os { doing: &'static str, source: nix::Error },
    #[error("{what} cannot be read: {source}")]
    Record { what: &'static str, source: serde_json::Error },
    #[error("another shim uses this folder")]
    Taken,
}

fn os(doing: &'static str) -> impl FnOnce(nix::Error) -> ShimError {
    move |source| ShimError::Os { doing, source }
}

fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> ShimError {
    let doing = doing.into();
    move |source| ShimError::Io { doing, source }
}

/// Does what the arguments behind `shim` say and leaves the process: runs the task of a folder to its end, or is the init of a sandbox. `None`
/// where they say neither. Call it before anything else has been started.
pub fn main_of(mut arguments: impl Iterator<Item = OsString>) -> Option<Infallible> {
    match (arguments.next(), arguments.next(), arguments.next()) {
        (Some(folder), None, _) => shim_main(folder.as_ref()),
        (Some(what), Some(folder), None) if what == INIT_ARGUMENT => init_main(folder.as_ref()),
        (Some(what), Some(folder), None) if what == PROBE_ARGUMENT => probe_main(folder.as_ref()),
        _ => None,
    }
}

fn shim_main(folder: &Path) -> ! {
    match run(&TaskFolder::new(folder)) {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("muster shim: {error}");
            std::process::exit(1)
        }
    }
}

fn run(folder: &TaskFolder) -> Result<(), ShimError> {
    let secrets = secrets()?;
    // Fails only for the leader of a session, which has what it wants already.
    let _ = nix::unistd::setsid();
    prctl::set_child_subreaper(true).map_err(os("becoming a sub-reaper"))?;
    let signals = blocked_signals();
    signals.thread_block().map_err(os("blocking signals"))?;

    let lock = folder.lock().map_err(io("taking the folder's lock"))?.ok_or(ShimError::Taken)?;
    if folder.has_exit() {
        // The agent came back while this shim was starting, and has closed the folder.
        return Ok(());
    }
    let bytes = std::fs::read(folder.task()).map_err(io("reading task.json"))?;
    let mut task: LaunchRecord =
        serde_json::from_slice(&bytes).map_err(|source| ShimError::Record { what: "task.json", source })?;
    task.env.extend(secrets);
    write_json(folder, folder.shim(), &ShimRecord { pid: std::process::id() })?;

    let exit = run_task(folder, &task, &signals)?;
    leave_record(folder, &exit)?;
    drop(lock);
    Ok(())
}

/// The secrets of the task, which the agent has put where our input is; nothing where it has none. Whoever looks at our input afterwards finds nothing.
fn secrets() -> Result<BTreeMap<String, String>, ShimError> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(io("reading the secrets"))?;
    let nothing = File::open("/dev/null").map_err(io("opening /dev/null"))?;
    nix::unistd::dup2_stdin(&nothing).map_err(os("letting go of the secrets"))?;
    match bytes.is_empty() {
        true => Ok(BTreeMap::new()),
        false => serde_json::from_slice(&bytes).map_err(|source| ShimError::Record { what: "its input", source }),
    }
}

/// Starts the command and waits until all of it is over. Whatever happens, no process of it is left afterwards.
fn run_task(folder: &TaskFolder, record: &LaunchRecord, signals: &SigSet) -> Result<ExitRecord, ShimError> {
    let clock = || boottime::now_ns().map_err(os("reading the clock"));
    let never_ran = |end: End| -> Result<_, ShimError> {
        Ok(ExitRecord { end, started_ns: None, ended_ns: clock()?, dropped_bytes: 0 })
    };
    let failed = |reason: String| never_ran(End::StartFailed { reason, by_node: true });
    // Opened before anything runs: a task without a fence must not start.
    let deadline = match folder.open_deadline() {
        Ok(deadline) => deadline,
        Err(error) => return failed(format!("its deadline cannot be read: {error}")),
    };
    // The host may have been suspended, or too busy to start this process, until the control plane had given the devices away.
    if deadline.get() <= clock()? {
        return never_ran(End::Fenced);
    }
    let (task, output) = match Task::start(folder, record) {
        Ok(started) => started,
        Err(NoStart { reason, by_node }) => return never_ran(End::StartFailed { reason, by_node }),
    };
    let started_ns = task.started_ns();
    let started = StartedRecord { pid: task.command().as_raw(), started_ns };
    if let Err(error) = write_json(folder, folder.started(), &started) {
        task.end();
        return failed(error.to_string());
    }
    let pump = pump::start(folder, record.log_bytes_max, output.stdout, output.stderr);
    say_ready();
    let end = guard::guard(&deadline, &record.spec, task.command(), started_ns, signals);
    let (kills, stderr) = task.end();
    let (end, ended_ns) = (kills.explain(end?), clock()?);
    hint(folder, &end, ended_ns, stderr);
    Ok(ExitRecord { end, started_ns: Some(started_ns), ended_ns, dropped_bytes: pump.finish() })
}

/// Tells the user of a task that failed what the agent has noted of its GPU memory. The output ends with this.
fn hint(folder: &TaskFolder, end: &End, ended_ns: u64, mut stderr: PipeWriter) {
    let note = read_json::<MemoryNote>(&folder.memory_note()).ok().flatten();
    if let Some(words) = note.and_then(|note| note.about(end, ended_ns)) {
        // Less than a pipe takes at once; a reader that has gone misses it.
        let _ = stderr.write_all(words.as_bytes());
    }
}

/// The signals that are read and never delivered: a stop, a kill, a child's end, and a terminal's that are none of ours.
fn blocked_signals() -> SigSet {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGCHLD, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set
}

/// Tells the agent that the command runs: it reads our stdout until the end.
fn say_ready() {
    let mut out = std::io::stdout();
    // The agent may be gone already; the task runs all the same.
    let _ = out.write_all(b"ready\n");
    let _ = out.flush();
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&null);
    }
}

fn write_json<T: serde::Serialize>(folder: &TaskFolder, path: std::path::PathBuf, value: &T) -> Result<(), ShimError> {
    folder.write_json(&path, value).map_err(io(format!("writing {}", path.display())))
}

/// The task is dead whatever happens here; but until the record is there nobody knows, so a full disk is waited for. A folder that was
/// deleted does not come back.
fn leave_record(folder: &TaskFolder, exit: &ExitRecord) -> Result<(), ShimError> {
    let mut tries = 0;
    loop {
        match write_json(folder, folder.exit(), exit) {
            Ok(()) => return Ok(()),
            Err(error) if tries >= RECORD_TRIES || !folder.path().exists() => return Err(error),
            Err(_) => {
                tries += 1;
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}
