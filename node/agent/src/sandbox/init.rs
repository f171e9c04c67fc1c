//! The init of a sandbox: process 1 of its process namespace. It makes the namespaces and the mounts, and then only waits.
//!
//! What must stay true: it runs in a program of its own that was just started, with one thread; it is root of the host or of a user namespace, so no
//! task can signal it, and the kernel shields it from signals of its own namespace; it keeps no descriptor but the pipe that tells it that
//! the shims live; before it is up nobody enters.

use super::member::{InitRecord, NOT_AS_ASKED, SandboxFolder, say_up};
use super::{SandboxError, doing, driver_params, mounts, namespaces, sys};
use crate::ready;
use crate::task_folder::record::Isolation;
use crate::task_folder::{read_json, write_json};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, fork};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What the init says when it has made the mounts, or could not.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Up,
    NotAsAsked { doing: String, why: String },
    Failed(String),
}

/// Makes the sandbox of `folder` and leaves the process. Call it before anything else has been started.
pub(crate) fn init_main(folder: &Path) -> ! {
    match start(&SandboxFolder(folder)) {
        Ok(()) => {
            say_up();
            std::process::exit(0)
        }
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(if matches!(error, SandboxError::NotAsAsked { .. }) { NOT_AS_ASKED } else { 1 })
        }
    }
}

/// Returns when the init is up, in the process that has started it.
fn start(folder: &SandboxFolder<'_>) -> Result<(), SandboxError> {
    let isolation =
        read_json::<Isolation>(&folder.isolation()).and_then(|known| known.ok_or(io::ErrorKind::NotFound.into()));
    let isolation = isolation.map_err(doing("reading how the sandbox is made"))?;
    // Whoever started this process writes to it, so this does not wait.
    let alive = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(folder.alive());
    let alive = alive.map_err(doing("opening the pipe of the sandbox"))?;
    unshare_all(&isolation)?;
    if isolation.private_network {
        sys::bring_loopback_up().map_err(doing("bringing up the loopback"))?;
    }
    let (mut up, tell) = std::io::pipe().map_err(doing("making a pipe"))?;
    // SAFETY: this process was just started and has one thread.
    match unsafe { fork() }.map_err(doing("starting the init"))? {
        ForkResult::Parent { child: init } => {
            drop(tell);
            let mut said = Vec::new();
            let _ = up.read_to_end(&mut said);
            match serde_json::from_slice(&said) {
                Ok(Said::Up) => {}
                Ok(Said::NotAsAsked { doing, why }) => return Err(SandboxError::NotAsAsked { doing, why }),
                Ok(Said::Failed(said)) => return Err(SandboxError::NoInit { said }),
                Err(_) => return Err(SandboxError::NoInit { said: "its init ended early".to_owned() }),
            }
            let record = InitRecord::of(init.as_raw() as u32).map_err(doing("looking at the init"))?;
            write_json(&folder.init(), &record).map_err(doing("writing the init's process"))
        }
        ForkResult::Child => {
            drop(up);
            wait_for_the_end(alive, tell, &isolation)
        }
    }
}

/// New namespaces for this process, and one for the processes that it starts.
fn unshare_all(isolation: &Isolation) -> Result<(), SandboxError> {
    let namespaces = namespaces(isolation);
    // The mounts follow in the init: this process still has files of the host to write.
    if isolation.is_full() {
        return unshare(namespaces).map_err(doing("making namespaces"));
    }
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    unshare(namespaces | CloneFlags::CLONE_NEWUSER).map_err(doing("making namespaces without root"))?;
    // One's own user is all that an ordinary user may have in a user namespace.
    for (file, content) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ] {
        std::fs::write(format!("/proc/self/{file}"), content).map_err(doing(format!("writing /proc/self/{file}")))?;
    }
    Ok(())
}

/// The init itself.
fn wait_for_the_end(mut alive: File, mut tell: io::PipeWriter, isolation: &Isolation) -> ! {
    let prepared = prepare(isolation);
    let is_ready = prepared.is_ok();
    let said = match prepared {
        Ok(()) => Said::Up,
        Err(SandboxError::NotAsAsked { doing, why }) => Said::NotAsAsked { doing, why },
        Err(error) => Said::Failed(error.to_string()),
    };
    let told = serde_json::to_vec(&said).map_err(io::Error::from).and_then(|said| tell.write_all(&said));
    drop(tell);
    if !is_ready || told.is_err() {
        sys::exit_now(1);
    }
    let mut nothing = [0; 1];
    loop {
        // Shims never write; the pipe becomes ready when the last one has let go of it.
        match ready::readable(&alive, None).and_then(|_| alive.read(&mut nothing)) {
            Ok(1..) => {}
            // One has joined since.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The kernel kills all that is left in the namespace.
            Ok(0) | Err(_) => sys::exit_now(0),
        }
    }
}

fn prepare(isolation: &Isolation) -> Result<(), SandboxError> {
    nix::unistd::setsid().map_err(doing("making a session"))?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(doing("making a mount namespace"))?;
    mounts::detach_from_host()?;
    if isolation.is_full() {
        mounts::full(isolation)?;
    }
    // Last, since programs write there what concerns themselves.
    mounts::own_proc()?;
    if let Some(params) = isolation.driver_params.as_deref().filter(|_| isolation.is_full()) {
        driver_params::closed(params)?;
    }
    // SAFETY: no handler is installed. The kernel reaps what ends here and is nobody else's.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }.map_err(doing("ignoring the end of processes"))?;
    if isolation.is_full() {
        // A shim without root could not enter the namespaces of such a process.
        nix::sys::prctl::set_dumpable(false).map_err(doing("hiding the init"))?;
    }
    // It needs none any more, and nobody shall gain any through it.
    sys::drop_capability_bounds().map_err(doing("dropping capabilities"))?;
    nix::sys::prctl::set_no_new_privs().map_err(doing("giving up new privileges"))?;
    let null = File::options().read(true).write(true).open("/dev/null").map_err(doing("opening /dev/null"))?;
    dup2_stdin(&null)
        .and_then(|()| dup2_stdout(&null))
        .and_then(|()| dup2_stderr(&null))
        .map_err(doing("closing the standard files"))
}
