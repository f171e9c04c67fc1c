//! `nvidia-cuda-mps-control`: `-d` starts the daemon of a pipe folder, `-f` is the daemon, and without either the commands of the standard
//! input go to it.
//!
//! What must stay true: one daemon for each pipe folder; it is reached through the socket `control` in it, and through nothing else.

use super::mps_daemon;
use super::mps_folders::Folders;
use std::io::{BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["-d"] => start(exe, &folders),
        ["-f"] => mps_daemon::run(exe, &folders).map(|()| 0),
        [] => forward(&folders),
        _ => {
            eprintln!("usage: nvidia-cuda-mps-control [-d | -f]");
            Ok(1)
        }
    }
}

fn start(exe: &Path, folders: &Folders) -> std::io::Result<u8> {
    if UnixStream::connect(folders.socket()).is_ok() {
        println!("An instance of this daemon is already running");
        return Ok(1);
    }
    let mut command = Command::new(exe);
    command.arg("-f").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
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
