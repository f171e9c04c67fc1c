//! `nvidia-cuda-mps-control`: `-d` starts the daemon of a pipe folder, `-f` is the daemon, and without either the commands of the standard
//! input go to it. With `-multiuser-server` its server takes clients of every user; a driver may not know that ([`MULTI_USER`]).
//!
//! What must stay true: one daemon for each pipe folder; it is reached through the socket `control` in it, and through nothing else.

use super::mps_daemon;
use super::mps_folders::Folders;
use crate::faults::Faults;
use std::io::{BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The option for servers that take clients of every user; [`Faults::unsupported`] with it makes a driver that does not know it.
pub const MULTI_USER: &str = "-multiuser-server";
/// How long `-d` waits for the daemon that it has started.
const START_MAX: Duration = Duration::from_secs(10);

/// Runs it with these arguments (without its name); the exit status.
///
/// # Errors
/// The folders, the socket or the standard streams cannot be used.
pub fn run(exe: &Path, arguments: &[String]) -> std::io::Result<u8> {
    if arguments.first().is_some_and(|first| first == mps_daemon::SERVER) {
        // A server lives until the daemon, which holds the other end, lets go of it.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(0);
    }
    let Some(folders) = Folders::of_environment(exe) else {
        eprintln!("no NVIDIA driver: {} names no folder of the double", crate::library::FOLDER_VARIABLE);
        return Ok(1);
    };
    let words: Vec<&str> = arguments.iter().map(String::as_str).filter(|word| *word != MULTI_USER).collect();
    let is_for_all = words.len() < arguments.len();
    match words.as_slice() {
        _ if is_for_all && !knows_multi_user(&folders)? => usage(),
        ["-d"] => start(exe, &folders, is_for_all),
        ["-f"] => mps_daemon::run(exe, &folders, is_for_all).map(|()| 0),
        [] if !is_for_all => forward(&folders),
        _ => usage(),
    }
}

fn usage() -> std::io::Result<u8> {
    eprintln!("usage: nvidia-cuda-mps-control [-d | -f]");
    Ok(1)
}

fn knows_multi_user(folders: &Folders) -> std::io::Result<bool> {
    let plan = Faults::open(&folders.double).and_then(|faults| faults.plan()).map_err(std::io::Error::other)?;
    Ok(!plan.unsupported.contains(MULTI_USER))
}

fn start(exe: &Path, folders: &Folders, is_for_all: bool) -> std::io::Result<u8> {
    if UnixStream::connect(folders.socket()).is_ok() {
        println!("An instance of this daemon is already running");
        return Ok(1);
    }
    let mut command = Command::new(exe);
    command
        .arg("-f")
        .args(is_for_all.then_some(MULTI_USER))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let mut daemon = command.spawn()?;
    let began = Instant::now();
    while UnixStream::connect(folders.socket()).is_err() {
        if daemon.try_wait()?.is_some() || began.elapsed() > START_MAX {
            eprintln!("Failed to start the MPS control daemon");
            return Ok(1);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(0)
}

/// Each line of the standard input is a command, and has a connection of its own.
fn forward(folders: &Folders) -> std::io::Result<u8> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let Ok(mut daemon) = UnixStream::connect(folders.socket()) else {
            println!("Cannot find MPS control daemon process");
            return Ok(1);
        };
        writeln!(daemon, "{line}")?;
        std::io::copy(&mut daemon, &mut std::io::stdout())?;
    }
    Ok(0)
}
