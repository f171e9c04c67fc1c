//! What a replay found: plain data, the same for the same input, written as JSON and drawn by [`crate::html`].
//!
//! What must stay true: no figure here depends on how fast the replay itself ran; shares are of 1, times carry their unit in
//! the field's name, GPU-hours count whole cards.

use crate::import::BadRows;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON: grows when a field changes its meaning.
pub const REPORT_VERSION: u32 = 1;

/// The whole report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// Heading.
    pub title: String,
    /// Format of the trace.
    pub format: String,
    /// Its files.
    pub sources: Vec<String>,
    /// The fleet.
    pub fleet: FleetFacts,
    /// The replayed part of the trace.
    pub window: WindowFacts,
    /// What became of the jobs.
    pub jobs: JobCounts,
    /// How the fleet was used.
    pub usage: Usage,
    /// Waits by size of the gang, smallest first.
    pub waits: Vec<WaitRow>,
    /// Waits of all of them together.
    #[serde(default)]
    pub waits_all_s: Percentiles,
    /// How close together gangs were placed, by size, smallest first.
    pub closeness: Vec<ClosenessRow>,
    /// Tenants by what they used, the largest first.
    pub tenants: Vec<TenantRow>,
    /// Over time.
    pub series: Series,
    /// How scattered the free GPUs were.
    pub fragmentation: Fragmentation,
    /// Rows of the trace that could not be used.
    pub bad_rows: BadRows,
    /// Rows that were passed over on purpose: reason and count.
    pub skipped_rows: BTreeMap<String, u64>,
    /// Refused submissions: reason and count.
    pub refused: BTreeMap<String, u64>,
    /// Everything that was assumed.
    pub assumptions: Vec<String>,
    /// What the replay itself did.
    pub work: Work,
    /// Floors and burst, where tenants have guarantees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fairness: Option<Fairness>,
    /// Reservations, where there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservations: Option<Reservations>,
    /// Estimated starts beside the starts that followed, by what the estimate rests on, where any were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub estimates: Vec<EstimateRow>,
}

/// The estimates of one basis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EstimateRow {
    /// What they rest on, as `muster explain` says it; `none`: nothing gave a time, and the error counts from when it was asked.
    pub basis: String,
    /// Jobs.
    pub asked: u64,
    /// Of those, not started when the replay stopped; they count with their wait so far.
    pub never_started: u64,
    /// Of all, those whose wait from then on was at least half and at most twice what was said; waits under a minute count as a minute.
    pub within_factor_2: u64,
    /// How far away the start was said to be.
    pub ahead_s: Percentiles,
    /// Against what was said.
    pub error: Lateness,
}

/// Whether floors held and how evenly burst was shared, within the window, by what tenants held and waited for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fairness {
    /// Tenants that do not hand all of their guarantee down, by path.
    pub floors: Vec<FloorRow>,
    /// Groups of siblings.
    pub jain: Vec<JainRow>,
}

/// How long one tenant waited for its floor: a job of its own waited that its guarantee holds beside all that it used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FloorRow {
    /// Its path.
    pub path: String,
    /// Its guarantee, in cards of all models.
    pub guarantee_gpus: f64,
    /// In all.
    pub waited_h: f64,
    /// Without a break.
    pub waited_longest_s: f64,
    /// Without a break and without a start of any of its jobs.
    pub unserved_longest_s: f64,
}

/// How evenly siblings shared burst: Jain's index of burst GPU time over weight in windows of ten minutes, among those that waited all the time and
/// had room under their max; the mean is weighted by their burst.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JainRow {
    /// Their parent; `root` for organisations.
    pub parent: String,
    /// Windows in which at least two siblings counted and had burst.
    pub windows: u64,
    /// GPU-hours above guarantees in these windows.
    pub burst_gpu_h: f64,
    /// 1 is even.
    pub mean: f64,
    /// Of the most uneven window.
    pub least: f64,
}

/// Reservations and when their jobs began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reservations {
    /// Jobs that ever had one.
    pub given: u64,
    /// Of those, not started when the replay stopped; they count with their wait so far.
    pub never_started: u64,
    /// Gangs that a floor account covered each time that they were told one, and paid for when they began. Nodes that are reserved for others yield to floors,
    /// so only these reservations hold against everybody.
    #[serde(default)]
    pub covered_throughout: u64,
    /// Of those that began later than they were first told, gangs that a floor account paid for then.
    pub late_covered: u64,
    /// Of those, gangs that a floor covered throughout.
    #[serde(default)]
    pub late_covered_throughout: u64,
    /// From when a job was first told a time until that time.
    pub told_ahead_s: Percentiles,
    /// Against the first time that each was told: the error of its estimated start.
    pub first: Lateness,
    /// Against the earliest time that each was ever told.
    pub earliest: Lateness,
}

/// Actual start less the time that was told, in seconds: negative where it began earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Jobs that began later at all.
    pub late: u64,
    /// A tenth began so early or earlier.
    pub p10_s: f64,
    /// Half.
    pub p50_s: f64,
    /// Nine tenths.
    pub p90_s: f64,
    /// The latest.
    pub worst_s: f64,
}

/// The fleet in figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetFacts {
    /// Its name.
    pub name: String,
    /// Nodes.
    pub nodes: u64,
    /// Cards.
    pub gpus: u64,
    /// Cards by model.
    pub gpus_by_model: BTreeMap<String, u64>,
    /// Leaf switches.
    pub leaves: u64,
    /// Spine groups.
    pub blocks: u64,
    /// Cells.
    pub cells: u64,
}

/// The window in figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowFacts {
    /// Its first day, counted from the day of the trace's first submission.
    pub from_day: u32,
    /// Its length in days.
    pub days: f64,
    /// Its first second on the trace's clock.
    pub from_s: u64,
    /// The second after its last.
    pub to_s: u64,
}

/// Every job ends up in exactly one of these, `submitted` and `warm` being their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCounts {
    /// Submitted in the window.
    pub submitted: u64,
    /// Submitted before it and still running when it began.
    pub warm: u64,
    /// Refused at submission.
    pub refused: u64,
    /// Ended well.
    pub completed: u64,
    /// Ended with an error.
    pub failed: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Reached their time limit.
    pub timed_out: u64,
    /// Held devices when the replay stopped.
    pub running_at_stop: u64,
    /// Waited when the replay stopped.
    pub waiting_at_stop: u64,
    /// Gangs that were split into tasks because no node holds them.
    pub gangs_split: u64,
    /// GPUs that gangs gained because they do not divide into equal tasks.
    pub gpus_added: u64,
}

impl JobCounts {
    /// Whether every job is accounted for.
    #[must_use]
    pub const fn balances(&self) -> bool {
        let ended = self.completed + self.failed + self.cancelled + self.timed_out;
        self.submitted + self.warm == self.refused + ended + self.running_at_stop + self.waiting_at_stop
    }
}

/// How the fleet was used within the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Cards × hours there were.
    pub capacity_gpu_h: f64,
    /// Cards × hours that submissions of the window asked for (recorded durations), whenever they ran.
    pub offered_gpu_h: f64,
    /// Cards × hours held.
    pub allocated_gpu_h: f64,
    /// Cards × hours held by gangs whose tasks all ran.
    pub running_gpu_h: f64,
    /// `allocated_gpu_h` of `capacity_gpu_h`.
    pub allocated_share: f64,
    /// `running_gpu_h` of `capacity_gpu_h`.
    pub running_share: f64,
    /// Cards × hours that were free while waiting jobs asked for as many: what placement, shape, ceilings and cards kept for
    /// large gangs cost together.
    pub idle_while_waiting_gpu_h: f64,
    /// Cards × hours held beyond what jobs of the trace asked for: shares rounded up to profiles and percentages, gangs to equal
    /// tasks, and the time of starting and stopping.
    pub rounded_up_gpu_h: f64,
    /// Most cards held at once.
    pub peak_gpus: f64,
    /// Most jobs that waited at once.
    pub peak_waiting_jobs: u64,
    /// Cards × hours held over the whole replay, the time after the window included.
    pub allocated_gpu_h_to_stop: f64,
    /// Attempts that were preempted.
    #[serde(default)]
    pub preempted_attempts: u64,
    /// Cards × hours that preempted attempts held since their last checkpoint, over the whole replay.
    #[serde(default)]
    pub lost_to_preemption_gpu_h: f64,
    /// Of the capacity, what attempts that completed held within the window.
    #[serde(default)]
    pub goodput_share: f64,
    /// Of the capacity, what preempted attempts held within the window until their last checkpoint: their jobs go on from there.
    #[serde(default)]
    pub saved_share: f64,
    /// Of the capacity, what preempted attempts held within the window from their last checkpoint on.
    #[serde(default)]
    pub lost_share: f64,
    /// Of the capacity, what attempts held within the window that still ran when the replay stopped.
    #[serde(default)]
    pub unfinished_share: f64,
    /// What no schedule exceeds in `goodput_share`, even one that knows all jobs in advance: the least of `A(s) + C · (T − s)` over all times
    /// `s` of the window, of `C · T`, where `A(s)` is the GPU time that jobs can have used by `s` if each begins when it is submitted.
    #[serde(default)]
    pub goodput_bound_share: f64,
    /// From the first submission to the end of the last job; absent when jobs were left when the replay stopped.
    pub makespan_h: Option<f64>,
}

/// Waits of one class of gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitRow {
    /// In words: `8`, `9-16`, `share`.
    pub size: String,
    /// Jobs submitted in the window and not refused.
    pub jobs: u64,
    /// Of those, bound in the same millisecond.
    pub at_once: u64,
    /// Of those, not bound when the replay stopped; they count with their wait so far, a lower bound.
    pub never_bound: u64,
    /// GPU-hours they asked for.
    pub gpu_h: f64,
    /// From submission to binding.
    pub wait_s: Percentiles,
    /// The same in the trace, where it says; `None` where it does not.
    pub recorded_wait_s: Option<Percentiles>,
}

/// How close together the gangs of one size were placed. Sums over the gangs; the fewest are what an empty fleet would need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosenessRow {
    /// In words: `8`, `9-16`.
    pub size: String,
    /// Gangs of at least two cards, submitted in the window and bound.
    pub gangs: u64,
    /// Of those, on one node.
    pub one_node: u64,
    /// Of those, under one leaf.
    pub one_leaf: u64,
    /// Of those, in one block.
    pub one_block: u64,
    /// Nodes they stood on.
    pub nodes: u64,
    /// Nodes they would need at least.
    pub nodes_fewest: u64,
    /// Leaves they stood under.
    pub leaves: u64,
    /// Leaves they would need at least.
    pub leaves_fewest: u64,
    /// Blocks they stood in.
    pub blocks: u64,
    /// Blocks they would need at least.
    pub blocks_fewest: u64,
}

/// Percentiles by the nearest rank: the smallest value that at least that part does not pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Mean.
    pub mean: f64,
    /// Half.
    pub p50: f64,
    /// Nine tenths.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Percentiles {
    /// Of milliseconds, in seconds; zeros when there are none.
    #[must_use]
    pub fn of_ms(mut values: Vec<u64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_unstable();
        let at = |share: f64| {
            values[((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1] as f64 / 1000.0
        };
        let sum: u128 = values.iter().map(|v| u128::from(*v)).sum();
        let mean = sum as f64 / values.len() as f64 / 1000.0;
        Percentiles { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// One tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantRow {
    /// Its path.
    pub path: String,
    /// Jobs submitted in the window.
    pub jobs: u64,
    /// Cards × hours held within the window, warm jobs included.
    pub gpu_h: f64,
    /// Of everything held.
    pub share: f64,
    /// Most cards held at once.
    pub peak_gpus: f64,
    /// The ceiling imposed on its organisation, in cards, if any.
    pub max_gpus: Option<f64>,
    /// Waits of its jobs.
    pub wait_s: Percentiles,
}

/// Means over equal bins of the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Length of a bin.
    pub bin_s: f64,
    /// Cards held.
    pub allocated_gpus: Vec<f64>,
    /// Cards held by gangs whose tasks all ran.
    pub running_gpus: Vec<f64>,
    /// Cards that waiting jobs ask for.
    pub waiting_gpus: Vec<f64>,
    /// Jobs that wait.
    pub waiting_jobs: Vec<f64>,
    /// Cards held by the largest tenants, by path, and by all others together.
    pub tenants: Vec<TenantSeries>,
}

/// Cards held by one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantSeries {
    /// Its path, or `others`.
    pub path: String,
    /// Mean of each bin.
    pub gpus: Vec<f64>,
}

/// Free cards and where they stand, at the end of each bin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fragmentation {
    /// The gang that `unusable_share` is about, on one island.
    pub gang_gpus: u32,
    /// Wholly free cards.
    pub free_gpus: Vec<u64>,
    /// Free cards of the island that has most.
    pub largest_island: Vec<u64>,
    /// Free cards of the leaf that has most.
    pub largest_leaf: Vec<u64>,
    /// Free cards of the block that has most.
    pub largest_block: Vec<u64>,
    /// Of the free cards, the share that no such gang can use; 0 when none is free.
    pub unusable_share: Vec<f64>,
    /// Cards of which some, but not all, is held.
    pub partly_held: Vec<u64>,
    /// Mean of `unusable_share` weighted by the free cards.
    pub unusable_share_mean: f64,
}

/// What the replay did: the same for the same input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Moments of virtual time at which something happened.
    pub moments: u64,
    /// Log entries executed.
    pub entries: u64,
    /// Commands decided.
    pub commands: u64,
    /// Passes of a shard over its cell.
    pub passes: u64,
    /// Decisions of those passes, fruitless ones included.
    pub decisions: u64,
    /// Nodes, groups and cards they looked at.
    pub steps: u64,
    /// Gangs bound.
    pub bound: u64,
    /// Jobs handed from one cell to another.
    pub handed_over: u64,
    /// Preemptions: each ends one job's attempt or several.
    #[serde(default)]
    pub preemptions: u64,
    /// Submissions repeated because the queue was full.
    pub repeated_submissions: u64,
    /// Refused proposals, by kind.
    pub rejected: BTreeMap<String, u64>,
    /// Times that every law was checked.
    pub checks: u64,
}
