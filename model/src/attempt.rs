//! How attempts ended, compactly: what is kept of each with its job, also when the job is over.
//!
//! What must stay true: the size of a record is bounded whatever the size of the gang (a gang may have 32,768 ranks): ways of ending
//! are counted, only the first failures are kept with their reasons, and neighbouring ranks of one node or with one end are one entry.

use crate::allocation::Allocation;
use crate::ids::{AllocationId, Attempt, JobId, NodeId, Rank, TenantId};
use crate::preemption::PreemptReason;
use crate::quota_class::{CLASS_SEGMENTS_PER_JOB_MAX, ClassRecord};
use crate::task::{RankFailure, TaskEnd};
use crate::topology::RequiredTopology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Attempts of one job of which records are kept, the newest ones.
pub const ATTEMPTS_MAX: usize = 16;
/// Ways of ending that are counted apart: exit codes and signals of one gang rarely differ more.
pub const WAYS_MAX: usize = 16;
/// Failed ranks that are kept one by one: enough to see the first and those that it took along.
pub const FAILURES_MAX: usize = 8;
/// Entries of nodes in all records of one job: about 50 KiB. The oldest attempts lose theirs first, and with them the way to their logs.
pub const NODE_RUNS_MAX: usize = 8_192;
/// Entries of ranks that ended alike in one record: a gang in which one rank fails has three.
pub const END_RUNS_MAX: usize = 256;
/// Bytes of a failed rank's reason.
pub const FAILURE_REASON_BYTES_MAX: usize = 256;

/// So many ranks ended in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndCount {
    /// How.
    pub end: TaskEnd,
    /// How many.
    pub ranks: u32,
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
    /// Who took its devices, if it was preempted.
    #[serde(default)]
    pub preempted: Option<PreemptedBy>,
    /// How long its devices were cleaned after its tasks had ended, in ms.
    #[serde(default)]
    pub cleaned_ms: u64,
    /// Who paid for it since when. Of attempts long ago only for how long.
    #[serde(default)]
    pub classes: ClassRecord,
    /// How close together the job required it to stand.
    #[serde(default)]
    pub topology: RequiredTopology,
    /// How the ranks ended, from rank 0 on, neighbours that ended alike in one entry; at most [`END_RUNS_MAX`], and the ranks after those are not in it.
    #[serde(default)]
    pub end_runs: Vec<EndCount>,
}

/// Who took the devices of an attempt, by which rule, and what that cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreemptedBy {
    /// The job that got them; none: nobody in particular.
    pub job: Option<JobId>,
    /// Its tenant.
    pub tenant: Option<TenantId>,
    /// The tenant whose floor pays for it; none: no floor does.
    pub account: Option<TenantId>,
    /// By which rule.
    pub reason: PreemptReason,
    /// GPU units times milliseconds since the last checkpoint, or since the binding.
    pub lost_gpu_unit_ms: u64,
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
        let mut end_runs: Vec<EndCount> = Vec::new();
        // Of a gang that is over every rank has ended.
        for end in held.task_states.iter().map_while(TaskEnd::of) {
            let count = end_runs.len();
            match end_runs.last_mut() {
                Some(last) if last.end == end => last.ranks += 1,
                _ if count == END_RUNS_MAX => break,
                _ => end_runs.push(EndCount { end, ranks: 1 }),
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
            preempted: None,
            cleaned_ms: held.cleaned_ms,
            classes: held.classes.clone(),
            topology: held.topology,
            end_runs,
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
    let (mut left, mut segments_left) = (NODE_RUNS_MAX, CLASS_SEGMENTS_PER_JOB_MAX);
    for record in records.iter_mut().rev() {
        match segments_left.checked_sub(record.classes.segments.len()) {
            Some(after) => segments_left = after,
            None => {
                segments_left = 0;
                record.classes.fold(record.ended_ms);
            }
        }
        match left.checked_sub(record.nodes.len()) {
            Some(after) => left = after,
            None => {
                left = 0;
                record.nodes.clear();
            }
        }
    }
}
