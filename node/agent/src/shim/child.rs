//! Starting the command: its own process group, its output on pipes, dead when the shim dies.

use crate::task_folder::TaskFolder;
use crate::task_folder::record::LaunchRecord;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;
use std::io::{PipeReader, PipeWriter};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) struct Child {
    pub(super) pid: Pid,
    pub(super) output: Output,
    /// Another writing end of its error output.
    pub(super) stderr: PipeWriter,
}

/// Where the command's output is read.
pub(super) struct Output {
    pub(super) stdout: PipeReader,
    pub(super) stderr: PipeReader,
}

impl Output {
    /// Two pipes: their reading ends, and their writing ends.
    pub(super) fn pipes() -> Result<(Self, [PipeWriter; 2]), NoStart> {
        let pipe = || std::io::pipe().map_err(|error| NoStart::by_node(format!("making a pipe: {error}")));
        let ((stdout, stdout_in), (stderr, stderr_in)) = (pipe()?, pipe()?);
        Ok((Output { stdout, stderr }, [stdout_in, stderr_in]))
    }
}

/// Why a command does not run, for people, and whether the node is to blame.
pub(super) struct NoStart {
    pub(super) reason: String,
    pub(super) by_node: bool,
}

/// What of executing a program depends on what was asked for: anything else is the node's doing.
const OF_THE_JOB: [i32; 9] = [
    libc::ENOENT,
    libc::EACCES,
    libc::EPERM,
    libc::ENOEXEC,
    libc::ENOTDIR,
    libc::EISDIR,
    libc::ELOOP,
    libc::ENAMETOOLONG,
    libc::E2BIG,
];

impl NoStart {
    pub(super) fn by_job(reason: impl Into<String>) -> Self {
        NoStart { reason: reason.into(), by_node: false }
    }

    pub(super) fn by_node(reason: String) -> Self {
        NoStart { reason, by_node: true }
    }

    /// The program could not be executed.
    pub(super) fn executing(program: &str, error: &std::io::Error) -> Self {
        let by_node = !error.raw_os_error().is_some_and(|code| OF_THE_JOB.contains(&code));
        NoStart { reason: format!("cannot run {program:?}: {error}"), by_node }
    }
}

/// Where the shim tells the user of a task what the task cannot know.
pub(super) fn for_notes(stderr: &PipeWriter) -> Result<PipeWriter, NoStart> {
    stderr.try_clone().map_err(|error| NoStart::by_node(error.to_string()))
}

/// Starts the command, or says why it cannot be started.
pub(super) fn start(folder: &TaskFolder, task: &LaunchRecord) -> Result<Child, NoStart> {
    let command_line = task.spec.command.split_first();
    let (program, arguments) = command_line.ok_or_else(|| NoStart::by_job("the command is empty"))?;
    let workdir = workdir(folder, task.spec.workdir.as_deref())?;
    let (output, [stdout_in, stderr_in]) = Output::pipes()?;
    let stderr = for_notes(&stderr_in)?;
    let shim = nix::unistd::getpid();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&task.env)
        .current_dir(&workdir)
        .stdin(Stdio::null())
        .stdout(stdout_in)
        .stderr(stderr_in)
        .process_group(0);
    let die_with_shim = move || {
        // The shim blocks what it reads; the command must not inherit that.
        SigSet::empty().thread_set_mask()?;
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // A shim that died before the line above would not be noticed.
        if nix::unistd::getppid() == shim { Ok(()) } else { Err(std::io::Error::from(nix::Error::ESRCH)) }
    };
    // SAFETY: between fork and exec only system calls are made; nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(die_with_shim) };
    let child = command.spawn().map_err(|error| NoStart::executing(program, &error))?;
    // The handle is let go without waiting: the guard reaps every child by itself.
    Ok(Child { pid: Pid::from_raw(child.id() as i32), output, stderr })
}

fn workdir(folder: &TaskFolder, named: Option<&str>) -> Result<PathBuf, NoStart> {
    match named {
        None => {
            let scratch = folder.scratch();
            std::fs::create_dir_all(&scratch)
                .map_err(|error| NoStart::by_node(format!("scratch folder {}: {error}", scratch.display())))?;
            Ok(scratch)
        }
        Some(path) => match std::fs::metadata(path) {
            Ok(what) if what.is_dir() => Ok(Path::new(path).to_owned()),
            Ok(_) => Err(NoStart::by_job(format!("working directory {path:?} is not a folder on this node"))),
            Err(error) => Err(NoStart::by_job(format!("working directory {path:?}: {error}"))),
        },
    }
}
