//! The shims of one sandbox: the first makes it, the last ends it.
//!
//! | file | what |
//! | --- | --- |
//! | `isolation` | how the sandbox is made; whole before its init starts |
//! | `lock` | held by whoever makes, joins or ends the sandbox |
//! | `members` | locked by every shim that has tasks in it, shared; whoever gets it alone knows that there is none |
//! | `alive` | a named pipe: shims hold it open for writing, the init reads it and ends when nobody does |
//! | `init` | the init's process, as the host numbers it |
//!
//! What must stay true: a shim that dies in any way lets go of all of it, so the init ends with the last one whether or not an agent is there; the
//! last one that leaves in order waits until the init is gone, and with it every process of the sandbox.

use super::{SandboxError, doing, sys};
use crate::pidfd::PidFd;
use crate::task_folder::record::Isolation;
use crate::task_folder::{VOID, read_json, write_json};
use crate::{proc_stat, ready};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Makes a shim's program try what the host gives: followed by a folder that it may use.
pub(crate) const PROBE_ARGUMENT: &str = "--probe";
/// Makes a shim's program the init of a sandbox: followed by the sandbox's folder.
pub(crate) const INIT_ARGUMENT: &str = "--sandbox";
/// An init is up within milliseconds; on a machine that swaps perhaps in a second.
const UP_WITHIN: Duration = Duration::from_secs(15);
/// The exit status of a program that could not make a sandbox because of what the job asked for, or of what its image holds.
pub(super) const NOT_AS_ASKED: i32 = 3;
/// Killed processes go within a millisecond or so.
const REAP_EVERY: Duration = Duration::from_millis(1);

/// The folder of a sandbox.
#[derive(Clone, Debug)]
pub(super) struct SandboxFolder<'a>(pub(super) &'a Path);

impl SandboxFolder<'_> {
    pub(super) fn isolation(&self) -> PathBuf {
        self.0.join("isolation")
    }

    pub(super) fn alive(&self) -> PathBuf {
        self.0.join("alive")
    }

    pub(super) fn init(&self) -> PathBuf {
        self.0.join("init")
    }

    fn open(&self, name: &str) -> Result<File, SandboxError> {
        let path = self.0.join(name);
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        file.map_err(doing(format!("opening {}", path.display())))
    }

    /// Waits for the lock. The folder is made if it is not there. Whoever holds the lock may wait for a process that only this one can reap.
    fn lock(&self, reap: &impl Fn()) -> Result<File, SandboxError> {
        let locking = || doing(format!("locking {}", self.0.display()));
        loop {
            DirBuilder::new().recursive(true).mode(0o700).create(self.0).map_err(locking())?;
            let file = match self.open("lock") {
                // Removed by the last one that left, after it was made here.
                Err(SandboxError::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            loop {
                match file.try_lock() {
                    Ok(()) => break,
                    Err(TryLockError::WouldBlock) => {
                        reap();
                        std::thread::sleep(REAP_EVERY);
                    }
                    Err(TryLockError::Error(error)) => return Err(locking()(error)),
                }
            }
            let here = file.metadata().map_err(locking())?;
            let there = std::fs::metadata(self.0.join("lock"));
            if there.is_ok_and(|there| (there.dev(), there.ino()) == (here.dev(), here.ino())) {
                return Ok(file);
            }
        }
    }
}

/// The init, as its folder names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InitRecord {
    pub(super) pid: u32,
    /// When it was started, in ticks since the boot: a later process of this number was started later.
    pub(super) started: u64,
}

impl InitRecord {
    /// Of a process that lives.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let stat = proc_stat::of(pid)?;
        let started = proc_stat::fields(&stat).nth(19).and_then(|ticks| ticks.parse().ok());
        Ok(InitRecord { pid, started: started.ok_or(io::ErrorKind::InvalidData)? })
    }

    /// A handle on it, if it lives.
    fn open(self) -> Option<PidFd> {
        let process = PidFd::open(self.pid).ok()?;
        (InitRecord::of(self.pid).is_ok_and(|now| now == self) && !process.has_ended()).then_some(process)
    }
}

/// One shim's part in a sandbox.
#[derive(Debug)]
pub(crate) struct Member {
    folder: PathBuf,
    init: PidFd,
    members: File,
    /// Held open: see the table above.
    _alive: File,
}

impl Member {
    /// Joins the sandbox of `isolation`, and makes it where there is none.
    pub(crate) fn join(isolation: &Isolation) -> Result<Self, SandboxError> {
        let folder = SandboxFolder(&isolation.folder);
        let _lock = folder.lock(&|| ())?;
        let members = folder.open("members")?;
        members.lock_shared().map_err(doing("locking the members of the sandbox"))?;
        let alive = sys::open_named_pipe(&folder.alive()).map_err(doing("opening the pipe of the sandbox"))?;
        let known = read_json::<InitRecord>(&folder.init()).map_err(doing("reading the init's process"))?;
        let init = match known.and_then(InitRecord::open) {
            // It has a writer again before the lock is let go, so it does not end.
            Some(init) => init,
            None => make(&folder, isolation)?,
        };
        Ok(Member { folder: isolation.folder.clone(), init, members, _alive: alive })
    }

    /// A handle on the init, whose namespaces are those of the sandbox.
    pub(super) fn init(&self) -> impl AsFd + '_ {
        &self.init
    }

    /// Ends the sandbox if no other shim has tasks in it. Then nothing of it is left. Says whether that is so. `reap` reaps the processes inside that are
    /// children of this one.
    ///
    /// `is_alone`: no other task is in it, or will be. Then it ends before any file is touched: a disk may have stalled.
    pub(crate) fn leave(self, is_alone: bool, reap: impl Fn()) -> Result<bool, SandboxError> {
        let Member { folder, members, _alive: alive, init } = self;
        if is_alone {
            end(&init, &reap)?;
        }
        let folder = SandboxFolder(&folder);
        let lock = folder.lock(&reap)?;
        drop((members, alive));
        end_if_empty(&folder, &lock, reap)
    }
}

/// Ends a sandbox whose shims were killed, if none is left that has tasks in it. Says whether nothing of it is left. `reap` as for
/// [`Member::leave`]: the children of a dead shim may have become this process's.
pub(crate) fn end_abandoned(folder: &Path, reap: impl Fn()) -> Result<bool, SandboxError> {
    if !folder.exists() {
        return Ok(true);
    }
    let folder = SandboxFolder(folder);
    let lock = folder.lock(&reap)?;
    end_if_empty(&folder, &lock, reap)
}

fn end_if_empty(folder: &SandboxFolder<'_>, _lock: &File, reap: impl Fn()) -> Result<bool, SandboxError> {
    match folder.open("members")?.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(doing("locking the members of the sandbox")(error)),
    }
    let known = read_json::<InitRecord>(&folder.init()).map_err(doing("reading the init's process"))?;
    if let Some(init) = known.and_then(InitRecord::open) {
        end(&init, &reap)?;
    }
    // At one stroke: whoever waits for the lock makes a new folder, and would otherwise put a file into this one while it is removed. What stays for
    // want of a disk is removed by the next agent; the sandbox is over.
    let aside = folder.0.with_extension(VOID);
    let _ = std::fs::remove_dir_all(&aside);
    if std::fs::rename(folder.0, &aside).is_ok() {
        let _ = std::fs::remove_dir_all(&aside);
    }
    Ok(true)
}

/// Kills an init and waits for its end. The kernel lets it end when every process in its namespace has ended and was reaped.
fn end(init: &PidFd, reap: &impl Fn()) -> Result<(), SandboxError> {
    init.send(Signal::SIGKILL);
    while !init.ends_within(REAP_EVERY).map_err(doing("waiting for the sandbox to end"))? {
        reap();
    }
    Ok(())
}

/// Starts an init. The caller holds the lock and the pipe.
fn make(folder: &SandboxFolder<'_>, isolation: &Isolation) -> Result<PidFd, SandboxError> {
    write_json(&folder.isolation(), isolation).map_err(doing("writing how the sandbox is made"))?;
    let own: Vec<_> = std::env::args_os().collect();
    // What comes before the last argument says that this program is to be a shim; the last is a folder.
    let arguments = own.get(1..own.len().saturating_sub(1)).unwrap_or_default();
    let arguments = arguments.iter().filter(|argument| *argument != PROBE_ARGUMENT);
    // This very program, also where another version has taken its place; lists of processes show its usual name.
    let mut starting = Command::new("/proc/self/exe")
        .arg0(own.first().map_or("muster".as_ref(), |name| name.as_os_str()))
        .args(arguments)
        .args([INIT_ARGUMENT.as_ref(), folder.0.as_os_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir("/")
        .spawn()
        .map_err(doing("starting the sandbox"))?;
    let mut said = String::new();
    let (out, err) = (starting.stdout.take(), starting.stderr.take());
    let is_up = out.as_ref().map_or(Ok(false), |out| ready::readable(out, Some(UP_WITHIN)));
    if !is_up.map_err(doing("waiting for the sandbox"))? {
        let _ = starting.kill();
    }
    for mut pipe in out.into_iter().map(|out| Box::new(out) as Box<dyn Read>).chain(err.map(|e| Box::new(e) as _)) {
        let _ = pipe.read_to_string(&mut said);
    }
    let status = starting.wait().map_err(doing("waiting for the sandbox"))?;
    let known = read_json::<InitRecord>(&folder.init()).map_err(doing("reading the init's process"))?;
    match known.and_then(InitRecord::open) {
        Some(init) if status.success() => Ok(init),
        _ if status.code() == Some(NOT_AS_ASKED) => {
            Err(SandboxError::NotAsAsked { doing: "starting the sandbox".to_owned(), why: said.trim().to_owned() })
        }
        _ => Err(SandboxError::NoInit { said: format!("{} ({status})", said.trim()) }),
    }
}

/// Tells whoever has started this process that the init is up. It reads until the end of this output.
pub(super) fn say_up() {
    let mut out = io::stdout();
    let _ = out.write_all(b"up\n");
    let _ = out.flush();
}
