//! Commands of this machine: how they are run, and where a library of them is found.
//!
//! What must stay true: the error of a command that fails says what the command said.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};

/// Where Debian's `libfaketime` puts its library, for any processor.
const FAKETIME_LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
];

/// The library that gives a process a clock of its own.
pub(crate) fn faketime_library() -> Option<&'static str> {
    FAKETIME_LIBRARIES.into_iter().find(|path| Path::new(path).exists())
}

/// Runs a short command to its end.
///
/// # Errors
/// When it cannot be started, or fails: then with what it said.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<()> {
    output(program, arguments).map(|_| ())
}

/// What a short command writes.
///
/// # Errors
/// As [`run`].
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}", arguments.join(" "), said.trim().lines().last().unwrap_or("failed"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
