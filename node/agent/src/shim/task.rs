//! The processes of one task: started in a sandbox, or without one as plain descendants of the shim.
//!
//! What must stay true: after [`Task::end`] no process of the task is left, nor anything that would keep its devices busy; a start that fails
//! leaves none either.

use super::child::{self, NoStart, Output};
use super::tree;
use crate::boottime;
use crate::sandbox::SandboxError;
use crate::sandbox::cgroup::TaskCgroups;
use crate::sandbox::enter::{self, Entered, Failed, NoEntry, Standard, Step, Then};
use crate::sandbox::member::Member;
use crate::task_folder::TaskFolder;
use crate::task_folder::record::{End, Isolation, LaunchRecord};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::fd::OwnedFd;

/// How a shell says that a command was ended by SIGKILL.
const SHELL_SIGKILL: i32 = 128 + libc::SIGKILL;

/// A task that runs.
pub(super) struct Task<'a> {
    command: Pid,
    started_ns: u64,
    /// Where people look when a task has died.
    stderr: PipeWriter,
    sandbox: Option<Inside<'a>>,
}

struct Inside<'a> {
    member: Member,
    cgroups: TaskCgroups<'a>,
    limits_mib: u64,
    /// No other task is in the sandbox.
    is_alone: bool,
}

impl<'a> Task<'a> {
    /// Starts the command of `record`.
    pub(super) fn start(folder: &TaskFolder, record: &'a LaunchRecord) -> Result<(Self, Output), NoStart> {
        match &record.isolation {
            Some(isolation) => Self::isolated(folder, record, isolation),
            None => {
                let started_ns =
                    boottime::now_ns().map_err(|error| NoStart::by_node(format!("reading the clock: {error}")))?;
                let started = child::start(folder, record).inspect_err(|_| tree::kill_all())?;
                let child::Child { pid: command, output, stderr } = started;
                Ok((Task { command, started_ns, stderr, sandbox: None }, output))
            }
        }
    }

    fn isolated(
        folder: &TaskFolder,
        record: &'a LaunchRecord,
        isolation: &'a Isolation,
    ) -> Result<(Self, Output), NoStart> {
        let spec = &record.spec;
        let (command, workdir) = (command_of(record), workdir_of(record));
        if command.is_empty() {
            return Err(NoStart::by_job("the command is empty"));
        }
        let (output, [stdout, stderr]) = Output::pipes()?;
        let by_node = |error: &dyn std::fmt::Display| NoStart::by_node(error.to_string());
        let for_notes = child::for_notes(&stderr)?;
        let stdin = File::open("/dev/null").map_err(|error| by_node(&error))?;
        let member = Member::join(isolation).map_err(no_sandbox)?;
        let cgroups = TaskCgroups::of(&isolation.cgroups, spec.key);
        let task = enter::Task {
            key: spec.key,
            folder,
            workdir,
            shares: spec.local_world_size > 1,
            then: Then::Execute(command, &record.env),
        };
        let standard = Standard { stdin, stdout: OwnedFd::from(stdout), stderr: OwnedFd::from(stderr) };
        let started = enter::start(&member, isolation, &task, standard);
        let inside = Inside { member, cgroups, limits_mib: isolation.limits.memory_mib, is_alone: !task.shares };
        match started {
            Ok(Entered { pid, executed_ns }) => {
                let task = Task { command: pid, started_ns: executed_ns, stderr: for_notes, sandbox: Some(inside) };
                Ok((task, output))
            }
            Err(error) => {
                inside.end(None);
                Err(no_start(error, record))
            }
        }
    }

    /// From when it runs, on CLOCK_BOOTTIME. Taken before the command can do anything: a record that begins too late could hide that two runs
    /// overlapped.
    pub(super) fn started_ns(&self) -> u64 {
        self.started_ns
    }

    /// Its first process, which is a child of this one.
    pub(super) fn command(&self) -> Pid {
        self.command
    }

    /// Kills every process of it, and returns when none is left, with what the kernel had killed before, and the error output for what is to be told beside that.
    pub(super) fn end(self) -> (MemoryKills, PipeWriter) {
        let mut stderr = self.stderr;
        let kills = match self.sandbox {
            // What else is below the shim, the init among it, may serve other tasks of the allocation.
            Some(inside) => inside.end(Some(self.command)),
            None => {
                tree::kill_all();
                MemoryKills::default()
            }
        };
        // Now that nothing of it runs, its output may block this.
        kills.note(&mut stderr);
        (kills, stderr)
    }
}

impl Inside<'_> {
    fn end(self, command: Option<Pid>) -> MemoryKills {
        let has_groups = self.cgroups.kill_all();
        if let Some(command) = command.filter(|_| !has_groups && !self.is_alone) {
            // Others go on in the sandbox: this ends at least what has stayed in the group that the command began with.
            let _ = killpg(command, Signal::SIGKILL);
        }
        if let Err(error) = self.member.leave(self.is_alone, tree::reap) {
            eprintln!("muster shim: {error}");
        }
        let kills = MemoryKills { processes: self.cgroups.memory_kills(), limit_mib: self.limits_mib };
        self.cgroups.remove();
        kills
    }
}

/// What the kernel did to a task because memory was used up: that of its control group, or of the host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryKills {
    /// Processes of the task that were killed.
    processes: u64,
    /// The task's limit; 0: it has none.
    limit_mib: u64,
}

impl MemoryKills {
    /// How a task ended whose command ended as `end`. Only an end by SIGKILL is explained, the command's own or that of a child whose end a
    /// shell passes on: a program that goes on without a child that was killed may end for any other reason.
    pub(super) fn explain(self, end: End) -> End {
        let is_killed = matches!(end, End::Signaled { signal: libc::SIGKILL } | End::Exited { code: SHELL_SIGKILL });
        if self.processes == 0 || !is_killed { end } else { End::OutOfMemory { reason: self.in_words() } }
    }

    fn in_words(self) -> String {
        let MemoryKills { processes, limit_mib } = self;
        match limit_mib {
            0 => format!(
                "it has no limit, and the node had no memory left; the kernel killed {processes} of its processes"
            ),
            _ => format!("the task has a limit of {limit_mib} MiB; the kernel killed {processes} of its processes"),
        }
    }

    /// Tells the user of the task.
    fn note(self, stderr: &mut PipeWriter) {
        if self.processes > 0 {
            // Less than a pipe takes at once; a reader that has gone misses it.
            let _ = stderr.write_all(format!("muster: out of memory: {}\n", self.in_words()).as_bytes());
        }
    }
}

/// The job's command takes the place of the image's, its entry point included.
fn command_of(record: &LaunchRecord) -> &[String] {
    match &record.of_image {
        Some(image) if record.spec.command.is_empty() => &image.command,
        _ => &record.spec.command,
    }
}

fn workdir_of(record: &LaunchRecord) -> Option<&str> {
    let of_image = || record.of_image.as_ref().and_then(|image| image.workdir.as_deref());
    record.spec.workdir.as_deref().or_else(of_image)
}

/// Says why a command does not run, as its user or the node's operator has to know it.
fn no_start(error: NoEntry, record: &LaunchRecord) -> NoStart {
    match error {
        NoEntry::Step(Failed { step: Step::WorkDir, error }) => {
            let workdir = workdir_of(record).unwrap_or_default();
            NoStart::by_job(format!("working directory {workdir:?}: {error}"))
        }
        NoEntry::Step(Failed { step: Step::Execute, error }) => {
            NoStart::executing(command_of(record).first().map_or("", String::as_str), &error)
        }
        NoEntry::Prepare(error) => no_sandbox(error),
        other @ NoEntry::Step(_) => NoStart::by_node(other.to_string()),
    }
}

fn no_sandbox(error: SandboxError) -> NoStart {
    match error {
        SandboxError::NotAsAsked { .. } => NoStart::by_job(error.to_string()),
        _ => NoStart::by_node(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::{End, MemoryKills};

    #[test]
    fn only_a_sigkill_beside_a_kill_for_memory_is_out_of_memory() {
        let kills = |processes, limit_mib| MemoryKills { processes, limit_mib };
        let out = |text: &str| End::OutOfMemory { reason: text.to_owned() };
        let limit = "the task has a limit of 64 MiB; the kernel killed 2 of its processes";
        assert_eq!(kills(2, 64).explain(End::Signaled { signal: 9 }), out(limit));
        assert_eq!(kills(2, 64).explain(End::Exited { code: 137 }), out(limit));
        let host = "it has no limit, and the node had no memory left; the kernel killed 1 of its processes";
        assert_eq!(kills(1, 0).explain(End::Signaled { signal: 9 }), out(host));
        let others = [
            End::Exited { code: 0 },
            End::Exited { code: 1 },
            End::Signaled { signal: 15 },
            End::Stopped,
            End::TimedOut,
            End::Fenced,
        ];
        for end in others {
            assert_eq!(kills(2, 64).explain(end.clone()), end);
        }
        // Somebody else sent it.
        assert_eq!(kills(0, 64).explain(End::Signaled { signal: 9 }), End::Signaled { signal: 9 });
    }
}
