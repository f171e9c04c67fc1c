//! How attempts ended, compactly: what is kept of each with its job, also when the job is over.
//!
//! What must stay true: the size of a record is bounded whatever the size of the gang (a gang may have 32,768 ranks): ways of ending
//! are counted, only the first failures are kept rank by rank, and neighbouring ranks of one node are one entry.

use crate::allocation::{Allocation, TaskState};
use crate::ids::{AllocationId, Attempt, NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Attempts of one job of which records are kept, the newest ones.
pub const ATTEMPTS_MAX: usize = 16;
/// Ways of ending that are counted apart: exit codes and signals of one gang rarely differ more.
pub const WAYS_MAX: usize = 16;
/// Failed ranks that are kept one by one: enough to see the first and those that it took along.
pub const FAILURES_MAX: usize = 8;
/// Entries of nodes in all records of one job: about 50 KiB. The oldest attempts lose theirs first, and with them the way to their logs.
pub const NODE_RUNS_MAX: usize = 8_192;
/// Bytes of a failed rank's reason.
pub const FAILURE_REASON_BYTES_MAX: usize = 256;

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TaskEnd {
    /// By itself.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// By a signal that Muster did not send.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// Stopped because the attempt ended.
    Stopped,
    /// By its time limit.
    TimedOut,
    /// It could not be started.
    StartFailed {
        /// By the node's fault.
        by_node: bool,
    },
    /// Its node was lost.
    Fenced,
}

impl TaskEnd {
    /// How a task in this state ended; `None` while it has not.
    #[must_use]
    pub const fn of(state: &TaskState) -> Option<TaskEnd> {
        Some(match state {
            TaskState::Pending | TaskState::Running => return None,
            TaskState::Exited { code } => TaskEnd::Exited { code: *code },
            TaskState::Signaled { signal } => TaskEnd::Signaled { signal: *signal },
            TaskState::Stopped => TaskEnd::Stopped,
            TaskState::TimedOut => TaskEnd::TimedOut,
            TaskState::StartFailed { by_node, .. } => TaskEnd::StartFailed { by_node: *by_node },
            TaskState::Fenced => TaskEnd::Fenced,
        })
    }

    /// Whether the rank itself failed: not one that was stopped or lost for another's sake.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        !matches!(self, TaskEnd::Exited { code: 0 } | TaskEnd::Stopped | TaskEnd::TimedOut | TaskEnd::Fenced)
    }
}

impl fmt::Display for TaskEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskEnd::Exited { code } => write!(f, "exit code {code}"),
            TaskEnd::Signaled { signal } => match signal_name(*signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
            TaskEnd::Stopped => f.write_str("stopped"),
            TaskEnd::TimedOut => f.write_str("time limit"),
            TaskEnd::StartFailed { .. } => f.write_str("could not start"),
            TaskEnd::Fenced => f.write_str("node lost"),
        }
    }
}

/// The name of a signal on Linux.
#[must_use]
pub const fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// So many ranks ended in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndCount {
    /// How.
    pub end: TaskEnd,
    /// How many.
    pub ranks: u32,
}

/// A rank that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFailure {
    /// Which.
    pub rank: Rank,
    /// Where.
    pub node: NodeId,
    /// How.
    pub end: TaskEnd,
    /// What the node says of it; empty for an exit code or a signal.
    pub reason: String,
    /// When it was over by its node's clock, or when the control plane heard of it.
    pub at_ms: u64,
}

/// So many consecutive ranks ran on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRun {
    /// The node.
    pub node: NodeId,
    /// How many.
    pub ranks: u32,
}

/// What is kept of an attempt that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Which.
    pub attempt: Attempt,
    /// The hold that it was.
    pub allocation: AllocationId,
    /// When it was bound.
    pub bound_ms: u64,
    /// When every task had been seen running, if that came to pass.
    pub started_ms: Option<u64>,
    /// When the last task was gone.
    pub ended_ms: u64,
    /// Why it ended, for people; empty when every task exited with 0.
    pub reason: String,
    /// How its ranks ended, most of them first; at most [`WAYS_MAX`] ways.
    pub ends: Vec<EndCount>,
    /// Ranks that ended in still other ways.
    pub others: u32,
    /// The first failures, in the order of their times; at most [`FAILURES_MAX`].
    pub failures: Vec<RankFailure>,
    /// Where the ranks ran, from rank 0 on; empty when that is not kept any more.
    pub nodes: Vec<NodeRun>,
}

impl AttemptRecord {
    /// Of an attempt whose tasks are all over.
    #[must_use]
    pub fn of(held: &Allocation, started_ms: Option<u64>, ended_ms: u64, reason: String) -> Self {
        let mut counts: BTreeMap<TaskEnd, u32> = BTreeMap::new();
        for end in held.task_states.iter().filter_map(TaskEnd::of) {
            *counts.entry(end).or_default() += 1;
        }
        let mut ends: Vec<EndCount> = counts.into_iter().map(|(end, ranks)| EndCount { end, ranks }).collect();
        ends.sort_by_key(|count| (std::cmp::Reverse(count.ranks), count.end));
        let others = ends.drain(ends.len().min(WAYS_MAX)..).map(|count| count.ranks).sum();
        let mut nodes: Vec<NodeRun> = Vec::new();
        for task in &held.tasks {
            match nodes.last_mut() {
                Some(last) if last.node == task.node => last.ranks += 1,
                _ => nodes.push(NodeRun { node: task.node, ranks: 1 }),
            }
        }
        AttemptRecord {
            attempt: held.attempt,
            allocation: held.id,
            bound_ms: held.bound_ms,
            started_ms,
            ended_ms,
            reason,
            ends,
            others,
            failures: held.failures.clone(),
            nodes,
        }
    }

    /// Where a rank ran, as far as that is kept.
    #[must_use]
    pub fn node_of(&self, rank: Rank) -> Option<NodeId> {
        let mut end = 0_u32;
        self.nodes.iter().find_map(|run| {
            end = end.saturating_add(run.ranks);
            (rank.0 < end).then_some(run.node)
        })
    }
}

/// Adds a failure to the first ones of an attempt, in the order of their times.
pub fn note_failure(failures: &mut Vec<RankFailure>, failure: RankFailure) {
    let place = failures.partition_point(|known| (known.at_ms, known.rank) <= (failure.at_ms, failure.rank));
    if place < FAILURES_MAX {
        failures.insert(place, failure);
        failures.truncate(FAILURES_MAX);
    }
}

/// Adds a record to those of a job and drops what is beyond the bounds, the oldest first.
pub fn note_attempt(records: &mut Vec<AttemptRecord>, record: AttemptRecord) {
    records.push(record);
    let excess = records.len().saturating_sub(ATTEMPTS_MAX);
    records.drain(..excess);
    let mut left = NODE_RUNS_MAX;
    for record in records.iter_mut().rev() {
        match left.checked_sub(record.nodes.len()) {
            Some(after) => left = after,
            None => {
                left = 0;
                record.nodes.clear();
            }
        }
    }
}
