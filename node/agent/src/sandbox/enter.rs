//! Starting a command inside a sandbox.
//!
//! The shim forks a helper, which enters the namespaces of the sandbox's init and forks the command's process as the *shim's* child; then it is
//! gone. So the shim waits for the command as for any child, and stays outside itself. What must stay true, in the command's process, in this order:
//! control groups → namespaces → its folders → another user, for good → no capabilities, no new privileges → dies with its shim → system call
//! filter → execution. A step that fails ends it, and the shim says which.

use super::cgroup::TaskCgroups;
use super::confine::Rules;
use super::filter::Filter;
use super::member::Member;
use super::{SandboxError, device_nodes, doing, namespaces, own_folders, sys};
use crate::boottime;
use crate::pidfd::PidFd;
use crate::ready;
use crate::task_folder::TaskFolder;
use crate::task_folder::record::Isolation;
use muster_model::bounds::RUN_AS_MIN;
use muster_node_core::TaskKey;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{
    ForkResult, Gid, Pid, Uid, dup2_stderr, dup2_stdin, dup2_stdout, execve, fork, setgroups, setresgid, setresuid,
};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where programs are looked for when a job names no PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Entering takes milliseconds; on a machine that swaps perhaps a second. Less than the agent waits for a shim.
const ENTER_WITHIN: Duration = Duration::from_secs(15);
/// Where a host runs out of memory, the kernel takes tasks before the host's own services.
const OOM_SCORE: i32 = 500;

/// The steps that may fail, as they are told to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    Cgroup,
    Namespaces,
    Fork,
    Folders,
    User,
    SystemUser,
    Limits,
    Privileges,
    Shim,
    Filter,
    WorkDir,
    Execute,
}

impl Step {
    const ALL: [(Step, &'static str); 12] = [
        (Step::Cgroup, "entering its control group"),
        (Step::Namespaces, "entering the namespaces of its sandbox"),
        (Step::Fork, "starting a process in its sandbox"),
        (Step::Folders, "mounting its folders"),
        (Step::User, "becoming its user"),
        (Step::SystemUser, "becoming its user, which is one of the system (below 1000), without --allow-system-users"),
        (Step::Limits, "setting its limits"),
        (Step::Privileges, "dropping its privileges"),
        (Step::Shim, "binding its life to its shim's"),
        (Step::Filter, "filtering its system calls"),
        (Step::WorkDir, "entering its working directory"),
        (Step::Execute, "executing it"),
    ];

    pub(crate) fn text(self) -> &'static str {
        Step::ALL[self as usize].1
    }
}

/// A step of the command's process that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) step: Step,
    pub(crate) error: io::Error,
}

fn at<E: Into<io::Error>>(step: Step) -> impl FnOnce(E) -> Failed {
    move |error| Failed { step, error: error.into() }
}

/// Why a command does not run in its sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoEntry {
    /// The node could not prepare it.
    #[error(transparent)]
    Prepare(#[from] SandboxError),
    /// Its process was there and failed.
    #[error("{}: {}", .0.step.text(), .0.error)]
    Step(Failed),
}

/// A process that was started in a sandbox.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered {
    pub(crate) pid: Pid,
    /// When it was about to execute its command, on CLOCK_BOOTTIME: entering takes a while on a busy machine, and is not the job's time.
    pub(crate) executed_ns: u64,
}

/// What is started.
pub(crate) struct Task<'a> {
    pub(crate) key: TaskKey,
    pub(crate) folder: &'a TaskFolder,
    /// The scratch folder when absent.
    pub(crate) workdir: Option<&'a str>,
    /// Other tasks are in the sandbox, or will be.
    pub(crate) shares: bool,
    pub(crate) then: Then<'a>,
}

/// What the process does once it is inside.
#[derive(Clone, Copy)]
pub(crate) enum Then<'a> {
    /// Executes a command with this environment and no other.
    Execute(&'a [String], &'a BTreeMap<String, String>),
    /// Calls a function and exits with its result. To find out what a sandbox holds back.
    Call(fn() -> i32),
}

/// The standard files of the process.
pub(crate) struct Standard {
    pub(crate) stdin: File,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// Everything that is made before the fork.
struct Prepared<'a> {
    member: &'a Member,
    /// This process, before the fork.
    shim: PidFd,
    isolation: &'a Isolation,
    entrances: Vec<File>,
    /// Mounts of its folders, with where they go.
    folders: Vec<(OwnedFd, PathBuf)>,
    filter: Filter,
    standard: Standard,
    /// A second rule beside the mounts; none for a task that shares its sandbox.
    rules: Option<Rules>,
    workdir: PathBuf,
    then: Ready,
}

enum Ready {
    Execute(Program),
    Call(fn() -> i32),
}

impl Prepared<'_> {
    /// What the helper needs, the standard files beside it.
    fn descriptors(&self, say: &PipeWriter) -> Vec<RawFd> {
        let of_task =
            [self.standard.stdin.as_raw_fd(), self.standard.stdout.as_raw_fd(), self.standard.stderr.as_raw_fd()];
        let others = [self.member.init().as_fd().as_raw_fd(), self.shim.as_fd().as_raw_fd(), say.as_raw_fd()];
        let entrances = self.entrances.iter().map(AsRawFd::as_raw_fd);
        let mounts = self.folders.iter().map(|(mount, _)| mount.as_raw_fd());
        of_task.into_iter().chain(others).chain(entrances).chain(mounts).collect()
    }
}

/// A program with its arguments and environment, as the kernel takes them.
struct Program {
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

/// Starts a process in the sandbox, as a child of this one.
pub(crate) fn start(
    member: &Member,
    isolation: &Isolation,
    task: &Task<'_>,
    standard: Standard,
) -> Result<Entered, NoEntry> {
    let Task { key, folder, workdir, shares, then } = task;
    if isolation.is_full() && !(isolation.devices.is_empty() && isolation.folders.is_empty()) {
        device_nodes::make(member, &isolation.devices, &isolation.folders)?;
    }
    let entrances = TaskCgroups::of(&isolation.cgroups, *key).make(isolation)?;
    let folders = own_folders::make(isolation, folder, *key)?;
    let rules = (!*shares).then(|| rules(isolation, folder, *key));
    let filter = Filter::new().map_err(|error| doing("compiling the system call filter")(io::Error::other(error)))?;
    let scratch = || isolation.seen_as(*key, folder.path(), &folder.scratch());
    let workdir = workdir.map_or_else(scratch, PathBuf::from);
    let then = match then {
        Then::Execute(words, env) => {
            Ready::Execute(program(words, env).map_err(|error| NoEntry::Step(at(Step::Execute)(error)))?)
        }
        Then::Call(call) => Ready::Call(*call),
    };
    let shim = PidFd::open(std::process::id()).map_err(doing("opening the shim's process"))?;
    if let Some(user) = isolation.user {
        // So that the task can open its own output by name.
        for output in [&standard.stdout, &standard.stderr] {
            fchown(output, Some(user), Some(user)).map_err(doing("giving the task its output"))?;
        }
    }
    let prepared = Prepared { member, shim, isolation, entrances, folders, filter, standard, rules, workdir, then };
    let (said, say) = io::pipe().map_err(doing("making a pipe"))?;
    // SAFETY: a shim starts its command before it starts threads.
    match unsafe { fork() }.map_err(doing("starting a process"))? {
        ForkResult::Child => {
            drop(said);
            helper(&prepared, say)
        }
        ForkResult::Parent { child: helper } => {
            drop((say, prepared));
            outcome(said, helper)
        }
    }
}

/// Reads what the two processes say: the helper the command's number, the command why it cannot go on.
fn outcome(mut said: PipeReader, helper: Pid) -> Result<Entered, NoEntry> {
    let mut bytes = Vec::new();
    let read = read_within(&mut said, &mut bytes);
    if read.is_err() {
        let _ = kill(helper, Signal::SIGKILL);
    }
    let _ = waitpid(helper, None);
    let (mut pid, mut executed_ns, mut failed) = (None, None, None);
    for message in bytes.as_chunks::<MESSAGE_BYTES>().0 {
        let [kind, number @ ..] = *message;
        let number = u64::from_le_bytes(number);
        match (kind, Step::ALL.get(usize::from(kind))) {
            (STARTED, _) => pid = Some(Pid::from_raw(number as i32)),
            (EXECUTING, _) => executed_ns = Some(number),
            (_, Some((step, _))) => {
                failed = Some(Failed { step: *step, error: io::Error::from_raw_os_error(number as i32) });
            }
            (_, None) => {}
        }
    }
    if let Err(error) = read {
        if let Some(pid) = pid {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
        return Err(NoEntry::Prepare(doing("waiting for the command's process")(error)));
    }
    match (pid, executed_ns, failed) {
        (Some(pid), Some(executed_ns), None) => Ok(Entered { pid, executed_ns }),
        (pid, _, Some(failed)) => {
            if let Some(pid) = pid {
                let _ = waitpid(pid, None);
            }
            Err(NoEntry::Step(failed))
        }
        (pid, ..) => {
            if let Some(pid) = pid {
                let _ = waitpid(pid, None);
            }
            let error = io::Error::other("the process that enters the sandbox was killed");
            Err(NoEntry::Prepare(doing("starting a process")(error)))
        }
    }
}

/// Reads to the end. The processes of other tasks in the sandbox may have stopped the one that is entering it.
fn read_within(said: &mut PipeReader, bytes: &mut Vec<u8>) -> io::Result<()> {
    let until = Instant::now() + ENTER_WITHIN;
    let mut part = [0; 64];
    loop {
        if !ready::readable(said, Some(until.saturating_duration_since(Instant::now())))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match said.read(&mut part)? {
            0 => return Ok(()),
            read => bytes.extend(&part[..read]),
        }
    }
}

/// A step's number with that of an error; [`STARTED`] with a process's; [`EXECUTING`] with the time. Written in one call, so messages do not mix.
const MESSAGE_BYTES: usize = 9;
const STARTED: u8 = u8::MAX;
const EXECUTING: u8 = u8::MAX - 1;

fn tell(say: &mut PipeWriter, kind: u8, number: u64) {
    let mut message = [kind; MESSAGE_BYTES];
    message[1..].copy_from_slice(&number.to_le_bytes());
    let _ = say.write_all(&message);
}

fn give_up(mut say: PipeWriter, failed: &Failed) -> ! {
    tell(&mut say, failed.step as u8, failed.error.raw_os_error().unwrap_or(libc::EIO) as u64);
    sys::exit_now(1)
}

fn helper(prepared: &Prepared<'_>, mut say: PipeWriter) -> ! {
    // The locks of the shim, above all: whoever holds them counts as a shim that lives.
    sys::close_all_but(&prepared.descriptors(&say));
    if let Err(failed) = enter(prepared) {
        give_up(say, &failed);
    }
    // SAFETY: this process is a fork of one with one thread.
    match unsafe { sys::fork_sibling() } {
        Ok(Some(pid)) => {
            tell(&mut say, STARTED, pid.as_raw() as u64);
            sys::exit_now(0)
        }
        Ok(None) => {
            if let Err(failed) = prepare(prepared, &mut say) {
                give_up(say, &failed);
            }
            match &prepared.then {
                Ready::Call(call) => {
                    sys::close_from(3);
                    sys::exit_now(call())
                }
                Ready::Execute(program) => {
                    let error = execute(program);
                    give_up(say, &Failed { step: Step::Execute, error })
                }
            }
        }
        Err(error) => give_up(say, &at(Step::Fork)(error)),
    }
}

/// Into the control groups and the namespaces.
fn enter(prepared: &Prepared<'_>) -> Result<(), Failed> {
    for mut entrance in &prepared.entrances {
        entrance.write_all(b"0").map_err(at(Step::Cgroup))?;
    }
    // The agent may be protected from the kernel's choice of a victim; its tasks are not. Only raising is allowed to everybody.
    let score = std::fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok());
    if score.is_none_or(|score: i32| score < OOM_SCORE) {
        std::fs::write("/proc/self/oom_score_adj", OOM_SCORE.to_string()).map_err(at(Step::Privileges))?;
    }
    let mut all = namespaces(prepared.isolation) | CloneFlags::CLONE_NEWNS;
    if !prepared.isolation.is_full() {
        all |= CloneFlags::CLONE_NEWUSER;
    }
    setns(prepared.member.init(), all).map_err(at(Step::Namespaces))
}

/// Everything between the fork and the execution, in the command's own process. Says when it is done.
fn prepare(prepared: &Prepared<'_>, say: &mut PipeWriter) -> Result<(), Failed> {
    nix::unistd::setsid().map_err(at(Step::Privileges))?;
    // The shim blocks what it reads; the command must not inherit that.
    SigSet::empty().thread_set_mask().map_err(at(Step::Privileges))?;
    for (mount, to) in &prepared.folders {
        std::fs::create_dir_all(to).map_err(at(Step::Folders))?;
        sys::attach_mount(mount, to).map_err(at(Step::Folders))?;
    }
    let standard = &prepared.standard;
    dup2_stdin(&standard.stdin)
        .and_then(|()| dup2_stdout(&standard.stdout))
        .and_then(|()| dup2_stderr(&standard.stderr))
        .map_err(at(Step::Privileges))?;
    sys::close_on_exec_from(3).map_err(at(Step::Privileges))?;
    limits(prepared.isolation).map_err(at(Step::Limits))?;
    sys::drop_capability_bounds().map_err(at(Step::Privileges))?;
    if let Some(user) = prepared.isolation.user {
        if user < RUN_AS_MIN && !prepared.isolation.allows_system_users {
            return Err(at(Step::SystemUser)(nix::Error::EPERM));
        }
        become_user(user).map_err(at(Step::User))?;
    }
    prctl::set_no_new_privs().map_err(at(Step::Privileges))?;
    // Cleared by the change of the user, so it comes after that.
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(at(Step::Shim))?;
    // One that has died meanwhile would not be noticed any more.
    if prepared.shim.has_ended() {
        return Err(at(Step::Shim)(nix::Error::ESRCH));
    }
    std::env::set_current_dir(&prepared.workdir).map_err(at(Step::WorkDir))?;
    if let Some(rules) = &prepared.rules {
        // What the kernel cannot is left out; `muster node doctor` says so.
        let _ = rules.apply();
    }
    tell(say, EXECUTING, boottime::now_ns().map_err(at(Step::Execute))?);
    prepared.filter.apply().map_err(|_| at(Step::Filter)(io::Error::last_os_error()))
}

/// What a task that is alone may write: its own folders, and what its node and job have named. In an image everything is memory, but for what is mounted.
fn rules(isolation: &Isolation, folder: &TaskFolder, key: TaskKey) -> Rules {
    if !isolation.is_full() {
        return Rules::SCOPES;
    }
    let own = [folder.scratch(), folder.from_task()].map(|path| isolation.seen_as(key, folder.path(), &path));
    let binds = isolation.binds.iter().filter(|bind| !bind.read_only).map(|bind| bind.target.clone());
    let root = isolation.root.iter().map(|_| PathBuf::from("/"));
    let named = isolation.writable.iter().chain(&isolation.folders).cloned();
    Rules::writing_below(own.into_iter().chain(binds).chain(root).chain(named))
}

/// Before the user changes: root may raise them, where its own container lets it.
fn limits(isolation: &Isolation) -> nix::Result<()> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let files = isolation.files.open_max;
    if files > 0 {
        let files = files.min(getrlimit(Resource::RLIMIT_NOFILE)?.1);
        setrlimit(Resource::RLIMIT_NOFILE, files, files)?;
    }
    if isolation.pins_memory && getrlimit(Resource::RLIMIT_MEMLOCK)?.0 != RLIM_INFINITY {
        setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY)?;
    }
    Ok(())
}

/// There is no way back.
fn become_user(user: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
    setgroups(&[])?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    if !user.is_root() && nix::unistd::setuid(Uid::from_raw(0)).is_ok() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    Ok(())
}

fn execute(Program { candidates, arguments, environment }: &Program) -> io::Error {
    let mut worst = nix::Error::ENOENT;
    for program in candidates {
        let Err(error) = execve(program, arguments, environment);
        match error {
            // As a shell looks along PATH: one that may not be executed is remembered, and the next is tried.
            nix::Error::ENOENT | nix::Error::ENOTDIR => {}
            nix::Error::EACCES => worst = error,
            _ => return error.into(),
        }
    }
    worst.into()
}

fn program(words: &[String], env: &BTreeMap<String, String>) -> io::Result<Program> {
    let text = |text: &[u8]| CString::new(text).map_err(io::Error::from);
    let name = words.first().map_or("", String::as_str);
    let path = env.get("PATH").map_or(PATH, String::as_str);
    let candidates = if name.contains('/') {
        vec![text(name.as_bytes())?]
    } else {
        let beside = |folder: &str| text(Path::new(folder).join(name).as_os_str().as_bytes());
        path.split(':').filter(|folder| !folder.is_empty()).map(beside).collect::<io::Result<_>>()?
    };
    let arguments = words.iter().map(|word| text(word.as_bytes())).collect::<io::Result<_>>()?;
    let pair = |(name, value): (&String, &String)| text(format!("{name}={value}").as_bytes());
    let environment = env.iter().map(pair).collect::<io::Result<_>>()?;
    Ok(Program { candidates, arguments, environment })
}
