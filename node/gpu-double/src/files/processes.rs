//! What `/proc` says of a process.
//!
//! What must stay true: a process id alone names no process, since ids come back; an id with a start time does.

use std::fs;

/// When the process started, in clock ticks since the host booted; none when there is no such process, or it has ended and nobody has
/// waited for it.
#[must_use]
pub(crate) fn started_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything: what follows the last bracket is split.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    let started = fields.nth(18)?.parse().ok()?;
    (!has_ended).then_some(started)
}

/// The process's name.
#[must_use]
pub(crate) fn name_of(pid: u32) -> Option<String> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let first = command.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())?;
    Some(String::from_utf8_lossy(first).into_owned())
}
