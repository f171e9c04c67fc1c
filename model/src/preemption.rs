//! How a job wants to be stopped when its devices are needed elsewhere, what that costs it, and why it was stopped.
//!
//! What must stay true: the default is what a job got before it could say anything (SIGTERM and the job's own grace), and it is written
//! as zeros, so that older forms hold it; a preempted job is never lost, it goes back to the queue ([`EndCause::Preempted`]).
//!
//! [`EndCause::Preempted`]: crate::allocation::EndCause::Preempted

use crate::words::{UnknownWord, words};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Seconds that a preempted job may take to stop: who waits for its devices waits no longer than this.
pub const PREEMPT_GRACE_S_MAX: u64 = 3_600;
/// Seconds of the gang that a restart may be said to cost: half a day, as the start of a movable job.
pub const RESTART_COST_S_MAX: u64 = 43_200;
/// Bytes of a checkpoint: 1 PiB, a hundred times the largest that is known.
pub const CHECKPOINT_BYTES_MAX: u64 = 1 << 50;
/// Bytes per second at which one task writes its part of a checkpoint to shared storage. An assumption for warnings only: about what one
/// node reaches on a parallel file system over one 25 Gbit/s link.
pub const CHECKPOINT_BYTES_PER_S: u64 = 2_000_000_000;
/// From the end of a grace to the release of the devices at most, on a node that is reachable: SIGKILL and its effect, the agent's report and its
/// repetition after a failover, and the log entry. A node that is silent is fenced first, which takes its jobs' own time.
pub const STOP_MS_MAX: u64 = 10_000;
/// How long a shard leaves a job alone at most for which it found nobody to preempt.
pub const RECLAIM_AGAIN_MS_MAX: u64 = 60_000;
/// From the end of a cool-down that alone protected a job until a shard tries again, at most: it wakes for it, and in one pass it tries some of
/// those that are due, the others at most a second later.
pub const RECLAIM_COOLED_MS_MAX: u64 = 5_000;
/// The longest time before the time limit at which a signal may be asked for: Slurm's 65,535 s.
pub const SIGNAL_BEFORE_S_MAX: u64 = 65_535;

/// A signal that a job may ask for. SIGKILL and SIGSTOP cannot be handled, so they are not here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StopSignal {
    /// SIGTERM: please end.
    #[default]
    Term,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGINT.
    Int,
    /// SIGHUP.
    Hup,
    /// SIGCONT.
    Cont,
    /// SIGQUIT.
    Quit,
    /// SIGALRM.
    Alrm,
    /// SIGWINCH.
    Winch,
    /// SIGURG.
    Urg,
}

impl StopSignal {
    /// All of them.
    pub const ALL: [StopSignal; 10] = [
        StopSignal::Term,
        StopSignal::Usr1,
        StopSignal::Usr2,
        StopSignal::Int,
        StopSignal::Hup,
        StopSignal::Cont,
        StopSignal::Quit,
        StopSignal::Alrm,
        StopSignal::Winch,
        StopSignal::Urg,
    ];
    const WORDS: [&str; 10] = ["TERM", "USR1", "USR2", "INT", "HUP", "CONT", "QUIT", "ALRM", "WINCH", "URG"];

    /// Its number on Linux.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            StopSignal::Hup => 1,
            StopSignal::Int => 2,
            StopSignal::Quit => 3,
            StopSignal::Usr1 => 10,
            StopSignal::Usr2 => 12,
            StopSignal::Alrm => 14,
            StopSignal::Term => 15,
            StopSignal::Cont => 18,
            StopSignal::Urg => 23,
            StopSignal::Winch => 28,
        }
    }

    /// The signal of this number on Linux, if a job may ask for it.
    #[must_use]
    pub fn of_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.number() == number)
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::WORDS[*self as usize])
    }
}

impl FromStr for StopSignal {
    type Err = UnknownWord;

    /// `USR1`, `SIGUSR1` or `10`, in any case of letters.
    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        let word = text.trim().to_ascii_uppercase();
        let name = word.strip_prefix("SIG").unwrap_or(&word);
        let named = Self::ALL.into_iter().find(|signal| Self::WORDS[*signal as usize] == name);
        let found = named.or_else(|| word.parse().ok().and_then(Self::of_number));
        found.ok_or_else(|| UnknownWord { what: "signal", got: text.trim().to_owned(), known: &Self::WORDS })
    }
}

/// How tasks are stopped: a signal to all their processes, and SIGKILL when the grace has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stop {
    /// The first signal.
    pub signal: StopSignal,
    /// From that signal to SIGKILL, in seconds.
    pub grace_s: u64,
}

impl Stop {
    /// SIGTERM, as for a job that is cancelled.
    #[must_use]
    pub const fn term(grace_s: u64) -> Self {
        Stop { signal: StopSignal::Term, grace_s }
    }
}

/// How a job is stopped when its devices are needed elsewhere, and what a restart costs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Preemption {
    /// What its tasks are sent first.
    pub signal: StopSignal,
    /// From that signal to SIGKILL, in seconds; none: the job's own grace, up to [`PREEMPT_GRACE_S_MAX`].
    pub grace_s: Option<u64>,
    /// Size of a checkpoint of the whole gang; 0: not said.
    pub checkpoint_bytes: u64,
    /// What a restart costs beside the work since the last checkpoint, in seconds of the whole gang.
    pub restart_cost_s: u64,
}

impl Preemption {
    /// From the signal to SIGKILL for a job whose own grace is `job_grace_s`.
    #[must_use]
    pub fn grace_s(&self, job_grace_s: u64) -> u64 {
        self.grace_s.unwrap_or(job_grace_s).min(PREEMPT_GRACE_S_MAX)
    }

    /// How the tasks of a job whose own grace is `job_grace_s` are stopped, to be started again later.
    #[must_use]
    pub fn stop(&self, job_grace_s: u64) -> Stop {
        Stop { signal: self.signal, grace_s: self.grace_s(job_grace_s) }
    }

    /// How long a gang of so many tasks writes a checkpoint, as far as its size is known; rounded up.
    #[must_use]
    pub fn checkpoint_s(&self, tasks: u32) -> Option<u64> {
        let each_s = CHECKPOINT_BYTES_PER_S.saturating_mul(u64::from(tasks.max(1)));
        (self.checkpoint_bytes > 0).then(|| self.checkpoint_bytes.div_ceil(each_s))
    }
}

/// A signal that a job's tasks are sent before their time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LimitSignal {
    /// Which.
    pub signal: StopSignal,
    /// So many seconds before the time limit.
    pub before_s: u64,
}

/// Why a job was preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PreemptReason {
    /// A tenant takes back what it is guaranteed.
    Reclaim,
    /// A job of higher priority in the same tenant.
    Priority,
    /// A job of a class that goes before this one's.
    Class,
    /// It is started again elsewhere, to make room.
    Move,
    /// Its nodes have maintenance.
    Maintenance,
    /// Its nodes are reserved for others.
    Reservation,
    /// Its nodes are drained.
    Drain,
}

words!(PreemptReason, "reason of a preemption",
    PreemptReason::Reclaim => "reclaim",
    PreemptReason::Priority => "priority",
    PreemptReason::Class => "class",
    PreemptReason::Move => "move",
    PreemptReason::Maintenance => "maintenance",
    PreemptReason::Reservation => "reservation",
    PreemptReason::Drain => "drain",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_has_one_name_and_one_number() {
        for signal in StopSignal::ALL {
            let name = signal.to_string();
            for text in [name.clone(), format!("SIG{name}"), name.to_lowercase(), signal.number().to_string()] {
                assert_eq!(text.parse(), Ok(signal), "{text}");
            }
        }
        for text in ["KILL", "9", "STOP", "19", "", "SIG", "SIG10", "-10"] {
            assert!(text.parse::<StopSignal>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_grace_is_the_jobs_own_unless_it_says_otherwise_and_has_a_bound() {
        let said = |grace_s| Preemption { grace_s, ..Preemption::default() };
        assert_eq!(said(None).grace_s(30), 30);
        assert_eq!(said(Some(0)).grace_s(30), 0);
        assert_eq!(said(Some(120)).grace_s(30), 120);
        assert_eq!(said(None).grace_s(43_200), PREEMPT_GRACE_S_MAX);
    }

    #[test]
    fn a_checkpoint_is_written_by_all_tasks_at_once() {
        let size = |checkpoint_bytes| Preemption { checkpoint_bytes, ..Preemption::default() };
        assert_eq!(size(0).checkpoint_s(8), None);
        assert_eq!(size(1).checkpoint_s(8), Some(1));
        assert_eq!(size(80_000_000_000).checkpoint_s(1), Some(40));
        assert_eq!(size(80_000_000_000).checkpoint_s(8), Some(5));
    }
}
