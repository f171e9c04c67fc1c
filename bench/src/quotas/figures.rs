//! The figures of one run, from the report of its replay.

use super::referee::Verdict;
use super::{Policy, Source};
use muster_twin::report::{EstimateRow, Report, WaitRow};
use serde::{Deserialize, Serialize};

/// Waits of one size of gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// `9-16`.
    pub size: String,
    /// How many.
    pub jobs: u64,
    /// Half waited so long at most.
    pub p50_s: f64,
    /// 99 of 100.
    pub p99_s: f64,
}

/// See the module. Shares are of the fleet's GPU time in the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Which trace.
    pub source: Source,
    /// Thousandths.
    pub load_permille: u32,
    /// Of the draw.
    pub seed: u64,
    /// Who decided.
    pub policy: Policy,
    /// Jobs submitted in the window.
    pub jobs: u64,
    /// Jobs refused, because a max can never hold them.
    pub refused: u64,
    /// GPU time asked for in the window.
    pub offered: f64,
    /// Held.
    pub allocated: f64,
    /// Held by attempts that reached their end.
    pub goodput: f64,
    /// Held by preempted attempts until their last checkpoint.
    pub saved: f64,
    /// Held by preempted attempts since then.
    pub lost: f64,
    /// Held by attempts that still ran when the replay stopped.
    pub unfinished: f64,
    /// What no schedule exceeds in goodput.
    pub bound: f64,
    /// Preempted attempts.
    pub preempted: u64,
    /// Longest time that a tenant waited for its floor.
    pub floor_longest_s: f64,
    /// The same, counted anew whenever one of its jobs started.
    pub floor_unserved_s: f64,
    /// Hours that tenants waited for their floors, together.
    pub floor_h: f64,
    /// Jain's index of burst shares, all groups of siblings, weighted by burst.
    pub jain: Option<f64>,
    /// By size of the gang, smallest first.
    pub waits: Vec<Wait>,
    /// Waits of all jobs.
    pub all_waits_p99_s: f64,
    /// Gangs that were told a time.
    pub reserved: u64,
    /// Of those, later than they were told first.
    pub late: u64,
    /// Of those, gangs that a floor account paid for.
    pub late_covered: u64,
    /// Gangs that a floor covered each time that they were told one, and when they began: their reservations yield to nobody.
    #[serde(default)]
    pub covered_throughout: u64,
    /// Of those, later than they were told first.
    #[serde(default)]
    pub late_covered_throughout: u64,
    /// The latest against the first time that was told.
    pub latest_s: f64,
    /// Error of the first time that was told: a tenth is below the first, half below the second, nine tenths below the third.
    pub estimate_s: [f64; 3],
    /// How far ahead it was told.
    pub ahead_p50_s: f64,
    /// Estimated starts by their basis, where they were asked for.
    #[serde(default)]
    pub estimates: Vec<EstimateRow>,
    /// The referee's verdict, where it judged.
    pub verdict: Option<Verdict>,
    /// The replay took this long.
    pub replay_s: f64,
    /// The referee took this long.
    pub referee_s: f64,
}

impl Figures {
    pub(super) fn of(
        (source, load_permille, seed, policy): (Source, u32, u64, Policy),
        report: &Report,
        verdict: Option<Verdict>,
        (replay_s, referee_s): (f64, f64),
    ) -> Self {
        let usage = &report.usage;
        let wait = |row: &WaitRow| Wait {
            size: row.size.clone(),
            jobs: row.jobs,
            p50_s: row.wait_s.p50,
            p99_s: row.wait_s.p99,
        };
        let floors = || report.fairness.iter().flat_map(|fairness| &fairness.floors);
        let reservations = report.reservations.as_ref();
        let first = reservations.map(|reservations| reservations.first).unwrap_or_default();
        Figures {
            source,
            load_permille,
            seed,
            policy,
            jobs: report.jobs.submitted,
            refused: report.jobs.refused,
            offered: usage.offered_gpu_h / usage.capacity_gpu_h,
            allocated: usage.allocated_share,
            goodput: usage.goodput_share,
            saved: usage.saved_share,
            lost: usage.lost_share,
            unfinished: usage.unfinished_share,
            bound: usage.goodput_bound_share,
            preempted: usage.preempted_attempts,
            floor_longest_s: floors().map(|row| row.waited_longest_s).fold(0.0, f64::max),
            floor_unserved_s: floors().map(|row| row.unserved_longest_s).fold(0.0, f64::max),
            floor_h: floors().map(|row| row.waited_h).sum(),
            jain: jain(report),
            waits: report.waits.iter().map(wait).collect(),
            all_waits_p99_s: report.waits_all_s.p99,
            reserved: reservations.map_or(0, |reservations| reservations.given),
            late: first.late,
            late_covered: reservations.map_or(0, |reservations| reservations.late_covered),
            covered_throughout: reservations.map_or(0, |reservations| reservations.covered_throughout),
            late_covered_throughout: reservations.map_or(0, |reservations| reservations.late_covered_throughout),
            latest_s: first.worst_s,
            estimate_s: [first.p10_s, first.p50_s, first.p90_s],
            ahead_p50_s: reservations.map_or(0.0, |reservations| reservations.told_ahead_s.p50),
            estimates: report.estimates.clone(),
            verdict,
            replay_s,
            referee_s,
        }
    }

    /// GPU time of work that was kept, over capacity: these traces do not say how busy a job kept its GPUs.
    pub(super) fn effective(&self) -> f64 {
        self.goodput + self.saved
    }

    /// Goodput over its bound.
    pub(super) fn of_bound(&self) -> f64 {
        self.goodput / self.bound.max(1e-9)
    }

    /// The same with the saved part of preempted attempts.
    pub(super) fn effective_of_bound(&self) -> f64 {
        self.effective() / self.bound.max(1e-9)
    }

    /// Lost, over what was held.
    pub(super) fn lost_of_held(&self) -> f64 {
        self.lost / self.allocated.max(1e-9)
    }
}

fn jain(report: &Report) -> Option<f64> {
    let rows = || report.fairness.iter().flat_map(|fairness| &fairness.jain);
    let burst: f64 = rows().map(|row| row.burst_gpu_h).sum();
    (burst > 0.0).then(|| rows().map(|row| row.mean * row.burst_gpu_h).sum::<f64>() / burst)
}

/// Mean and range over the seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Spread {
    /// Of the values that there are.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (mut count, mut sum, mut low, mut high) = (0_u32, 0.0, f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (count, sum, low, high) = (count + 1, sum + value, low.min(value), high.max(value));
        }
        (count > 0).then(|| Spread { mean: sum / f64::from(count), low, high })
    }
}
