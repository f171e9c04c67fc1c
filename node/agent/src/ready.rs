//! Waiting, with a bound, until a descriptor can be read.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Waits until one of them can be read or has ended; says whether that was in time. Without a bound it waits for ever.
pub(crate) fn any_readable<const N: usize>(files: [&dyn AsFd; N], within: Option<Duration>) -> io::Result<bool> {
    let until = within.map(|within| Instant::now() + within);
    let mut polled = files.map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN));
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map_or(PollTimeout::NONE, |left| PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        match poll(&mut polled, timeout) {
            Ok(ready) => return Ok(ready > 0),
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The same for one.
pub(crate) fn readable(file: &dyn AsFd, within: Option<Duration>) -> io::Result<bool> {
    any_readable([file], within)
}
