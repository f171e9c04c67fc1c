//! The guard: waits for the command's end, a stop, the time limit or the fence, whichever is first. It reads two numbers
//! from a file, which is in memory, and writes nothing.

use super::{ShimError, io, os};
use crate::boottime;
use crate::ready;
use crate::stop_order::StopOrder;
use crate::task_folder::DeadlineFile;
use crate::task_folder::record::End;
use muster_model::{Stop, StopSignal};
use muster_node_core::TaskSpec;
use muster_node_core::fence::{self, NS_PER_S};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::time::Duration;

/// A stop that is under way: its signal was sent, SIGKILL follows.
#[derive(Clone, Debug)]
struct Ending {
    why: End,
    kill_ns: u64,
}

/// What to do next, from the times alone.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    /// The fence has passed.
    Fence,
    /// The grace of a stop has passed.
    Kill,
    /// The time limit has passed.
    TimeLimit,
    /// The time before the limit has come at which the task wants to be told.
    Warn,
    /// Nothing before this time.
    At(u64),
}

/// `warn_ns`: when the signal before the limit is due, if it has not been sent for this limit.
fn due(now_ns: u64, deadline_ns: u64, limit_ns: Option<u64>, warn_ns: Option<u64>, ending: Option<&Ending>) -> Due {
    let next_ns = match ending {
        Some(ending) if ending.kill_ns <= now_ns => return Due::Kill,
        Some(ending) => ending.kill_ns,
        None => match limit_ns {
            Some(limit_ns) if limit_ns <= now_ns => return Due::TimeLimit,
            limit_ns => match warn_ns {
                Some(warn_ns) if warn_ns <= now_ns && deadline_ns > now_ns => return Due::Warn,
                _ => limit_ns.into_iter().chain(warn_ns).min().unwrap_or(u64::MAX),
            },
        },
    };
    if deadline_ns <= now_ns { Due::Fence } else { Due::At(next_ns.min(deadline_ns)) }
}

/// Waits until the command has ended by itself or has to be killed; says how it ended. The caller kills what is left.
pub(super) fn guard(
    deadline: &DeadlineFile,
    spec: &TaskSpec,
    child: Pid,
    started_ns: u64,
    signals: &SigSet,
) -> Result<End, ShimError> {
    let signal_fd = SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(os("making the signal descriptor"))?;
    let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
        .map_err(os("making the timer"))?;
    let terminate = |why: End, how: Stop, now_ns: u64| {
        send(child, how.signal);
        Ending { why, kill_ns: now_ns.saturating_add(how.grace_s.saturating_mul(NS_PER_S)) }
    };
    let usual = Stop::term(spec.grace_s);
    let mut ending: Option<Ending> = None;
    // The limit before which the task has been told.
    let mut warned_of: Option<u64> = None;
    loop {
        if let Some(end) = reap(child)? {
            return Ok(ending.map_or(end, |ending| ending.why));
        }
        let now_ns = boottime::now_ns().map_err(os("reading the clock"))?;
        let mut heard = false;
        while let Some(signal) = signal_fd.read_signal().map_err(os("reading signals"))? {
            heard = true;
            match Signal::try_from(signal.ssi_signo as i32) {
                Ok(Signal::SIGTERM) if ending.is_none() => {
                    // A person who signals the shim says nothing of how.
                    let queued = signal.ssi_code == libc::SI_QUEUE;
                    let how = if queued { StopOrder(signal.ssi_int).how() } else { None };
                    ending = Some(terminate(End::Stopped, how.unwrap_or(usual), now_ns));
                }
                Ok(Signal::SIGUSR1) => return Ok(End::Stopped),
                // The agent has something to tell the task, and says by which signal.
                Ok(Signal::SIGUSR2) if ending.is_none() && signal.ssi_code == libc::SI_QUEUE => {
                    StopSignal::of_number(signal.ssi_int).into_iter().for_each(|said| send(child, said));
                }
                _ => {}
            }
        }
        if heard {
            // A child's end may have been among them, and will not be told again.
            continue;
        }
        // It may be changed while the task runs; an agent of an earlier version has left none here.
        let limit_s = deadline.limit_s().unwrap_or(spec.time_limit_s);
        let limit_ns = fence::time_limit_ns(started_ns, limit_s);
        // Of another limit the task is told anew.
        let warn_ns = limit_ns.filter(|limit_ns| warned_of != Some(*limit_ns)).zip(spec.limit_signal);
        let warn_ns = warn_ns.map(|(limit_ns, said)| limit_ns.saturating_sub(said.before_s.saturating_mul(NS_PER_S)));
        match due(now_ns, deadline.get(), limit_ns, warn_ns, ending.as_ref()) {
            Due::Fence => return Ok(End::Fenced),
            Due::Kill => return Ok(ending.map_or(End::Stopped, |ending| ending.why)),
            Due::Warn => {
                warned_of = limit_ns;
                if let Some(said) = spec.limit_signal {
                    send(child, said.signal);
                }
            }
            Due::TimeLimit => ending = Some(terminate(End::TimedOut, usual, now_ns)),
            Due::At(next_ns) => {
                arm(&timer, next_ns)?;
                ready::any_readable([&signal_fd, &timer], None).map_err(io("waiting for events"))?;
            }
        }
    }
}

/// Signals the command's process group. It fails only when the group is gone, which the next turn sees.
fn send(child: Pid, signal: StopSignal) {
    if let Ok(signal) = Signal::try_from(signal.number()) {
        let _ = killpg(child, signal);
    }
}

/// Reaps whatever has ended; gives the command's own end if that was among it.
fn reap(child: Pid) -> Result<Option<End>, ShimError> {
    let mut end = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => end = Some(End::Exited { code }),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                end = Some(End::Signaled { signal: signal as i32 });
            }
            Ok(WaitStatus::StillAlive) | Err(nix::Error::ECHILD) => return Ok(end),
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(source) => return Err(ShimError::Os { doing: "waiting for children", source }),
        }
    }
}

fn arm(timer: &TimerFd, at_ns: u64) -> Result<(), ShimError> {
    // An absolute time of zero would disarm it. Times beyond what the kernel counts are as good as never.
    let at = Duration::from_nanos(at_ns.clamp(1, i64::MAX as u64));
    timer
        .set(Expiration::OneShot(TimeSpec::from_duration(at)), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
        .map_err(os("setting the timer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(now: u64, deadline: u64, limit: Option<u64>, kill: Option<u64>, expected: Due) {
        let ending = kill.map(|kill_ns| Ending { why: End::Stopped, kill_ns });
        assert_eq!(due(now, deadline, limit, None, ending.as_ref()), expected);
    }

    #[test]
    fn the_signal_before_the_limit_gives_way_to_every_end() {
        let ending = Ending { why: End::Stopped, kill_ns: 80 };
        assert_eq!(due(10, 100, Some(50), Some(40), None), Due::At(40));
        assert_eq!(due(40, 100, Some(50), Some(40), None), Due::Warn);
        assert_eq!(due(41, 100, Some(50), None, None), Due::At(50), "it has been told");
        assert_eq!(due(50, 100, Some(50), Some(40), None), Due::TimeLimit);
        assert_eq!(due(40, 40, Some(50), Some(40), None), Due::Fence);
        assert_eq!(due(40, 100, Some(50), Some(40), Some(&ending)), Due::At(80), "it is being stopped");
    }

    #[test]
    fn what_is_due_first_is_done_first() {
        check(10, 100, None, None, Due::At(100));
        check(10, 100, Some(50), None, Due::At(50));
        check(10, 20, Some(50), None, Due::At(20));
        check(50, 100, Some(50), None, Due::TimeLimit);
        check(60, 100, Some(50), Some(80), Due::At(80));
        check(80, 100, Some(50), Some(80), Due::Kill);
        check(60, 60, Some(50), Some(80), Due::Fence);
        check(60, 60, None, None, Due::Fence);
        check(60, 0, None, None, Due::Fence);
    }
}
