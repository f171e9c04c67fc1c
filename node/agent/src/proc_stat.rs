//! What `/proc/<pid>/stat` says of a process.

use std::io;

/// The fields behind the name, which is in brackets and may itself hold anything: the state is the first.
pub(crate) fn fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(") ").map(|(_, fields)| fields).unwrap_or_default().split(' ')
}

/// The line of a process; there is none when it has gone.
pub(crate) fn of(pid: impl std::fmt::Display) -> io::Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
}
