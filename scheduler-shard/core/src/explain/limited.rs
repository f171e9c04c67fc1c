//! An explanation for somebody who sees some tenants alone.
//!
//! What must stay true: no job, tenant, node or window of others is named, in words or in fields that programs read; how much is free, held and missing is still
//! told, since without it nobody understands why a job waits; a change is told only where it names nothing of others. Every reason and every change is decided on
//! here, without a wildcard.

use super::Explanation;
use super::anti_affinity::AntiAffinityConflict;
use super::estimate::{Basis, Estimate};
use super::holders::Blocker;
use super::leaving::Leaving;
use super::reason::{Reason, Why};
use super::remedy::{Change, Remedy, ToOpen};
use super::reserved::ReservedForGang;
use super::supply::ClosedNode;
use super::windows::InWindow;
use super::words::HIDDEN;
use muster_model::JobId;

/// What the reader may know of.
pub struct Names<'a> {
    /// Whether it is a job that they see.
    pub job: &'a dyn Fn(JobId) -> bool,
    /// Whether it is the path of a tenant whose limits they see.
    pub tenant: &'a dyn Fn(&str) -> bool,
}

impl Names<'_> {
    fn of_job(&self, job: JobId) -> JobId {
        if (self.job)(job) { job } else { HIDDEN }
    }

    fn of_jobs(&self, jobs: Vec<JobId>) -> Vec<JobId> {
        jobs.into_iter().map(|job| self.of_job(job)).collect()
    }
}

impl Explanation {
    /// What of it `names` lets the reader know.
    #[must_use]
    pub fn limited(self, names: &Names<'_>) -> Self {
        let reasons = self.reasons.into_iter().map(|reason| reason.limited(names)).collect();
        let estimates = self.estimates.into_iter().map(|estimate| estimate.limited(names)).collect();
        Explanation { reasons, estimates, ..self }
    }
}

impl Reason {
    fn limited(self, names: &Names<'_>) -> Self {
        let (mut holders, others): (Vec<Blocker>, Vec<Blocker>) =
            self.holders.into_iter().partition(|held| (names.job)(held.job));
        holders.extend(together(&others));
        let remedies = self.remedies.into_iter().filter_map(|remedy| remedy.limited(names)).collect();
        Reason { why: self.why.limited(names), holders, remedies }
    }
}

/// The holders that the reader may not know of, as one.
fn together(others: &[Blocker]) -> Option<Blocker> {
    let first = others.first()?;
    Some(Blocker {
        job: HIDDEN,
        cards: others.iter().map(|held| held.cards).sum(),
        in_tasks: first.in_tasks,
        node: String::new(),
        // Those of several jobs may be the same.
        nodes: if others.len() == 1 { first.nodes } else { 0 },
        movable: others.iter().all(|held| held.movable),
        // Why each is protected says what it is.
        protection: None,
        others: others.len() as u64,
    })
}

impl Remedy {
    /// None where one of its changes is of another tenant.
    fn limited(self, names: &Names<'_>) -> Option<Self> {
        self.0.into_iter().map(|change| change.limited(names)).collect::<Option<_>>().map(Remedy)
    }
}

impl Change {
    fn limited(self, names: &Names<'_>) -> Option<Self> {
        Some(match self {
            Change::RaiseMax { ref path, .. }
            | Change::RaiseGuarantee { ref path, .. }
            | Change::Lend { ref path, .. }
            | Change::Trust { ref path, .. } => return (names.tenant)(path).then_some(self),
            Change::Open(nodes) => {
                Change::Open(nodes.into_iter().map(|node| ToOpen { name: String::new(), ..node }).collect())
            }
            Change::End(jobs) => Change::End(names.of_jobs(jobs)),
            Change::Priority(_)
            | Change::Topology { .. }
            | Change::AnyPool(_)
            | Change::AnyDriver
            | Change::AnyCard
            | Change::Model(_)
            | Change::Tasks { .. }
            | Change::Numa(_)
            | Change::TasksMax { .. }
            | Change::TimeLimit(_)
            | Change::Cpu(_)
            | Change::Memory(_) => self,
        })
    }
}

impl Estimate {
    fn limited(self, names: &Names<'_>) -> Self {
        let basis = match self.basis {
            Basis::GrowthEnds { jobs } => Basis::GrowthEnds { jobs: names.of_jobs(jobs) },
            Basis::Reclaim { victims, cool_down_ms, grace_ms } => {
                Basis::Reclaim { victims: names.of_jobs(victims), cool_down_ms, grace_ms }
            }
            Basis::NextPass
            | Basis::Claim { .. }
            | Basis::Reservation { .. }
            | Basis::TimeLimits { .. }
            | Basis::Predicted(_) => self.basis,
        };
        Estimate { basis, ..self }
    }
}

impl Leaving {
    fn limited(self, names: &Names<'_>) -> Self {
        let jobs = names.of_jobs(self.jobs);
        let nodes = if jobs.contains(&HIDDEN) { Vec::new() } else { self.nodes };
        Leaving { jobs, nodes, in_ms: self.in_ms }
    }
}

/// How the record of an attempt begins that was preempted (`control/core/src/plan/attempts.rs`), for a job, and for a window of its nodes.
const PREEMPTED_BY: &str = "preempted by job ";
const PREEMPTED: &str = "preempted (";

/// Why an attempt ended, without jobs and windows of others: `preempted by job 9 (reclaim)` is `preempted (reclaim)` for whoever does not see job 9.
#[must_use]
pub fn without_others(text: &str, sees_job: &dyn Fn(JobId) -> bool) -> String {
    if let Some((by, rest)) = text.strip_prefix(PREEMPTED_BY).and_then(|rest| rest.split_once(' ')) {
        let is_seen = by.parse().is_ok_and(|by| sees_job(JobId(by)));
        return if is_seen { text.to_owned() } else { format!("preempted {rest}") };
    }
    match text.find(')').filter(|_| text.starts_with(PREEMPTED)) {
        Some(end) => text[..=end].to_owned(),
        None => text.to_owned(),
    }
}

/// Nodes that take no work are counted, and not named.
fn unnamed(closed: Vec<ClosedNode>) -> Vec<ClosedNode> {
    closed.into_iter().map(|node| ClosedNode { name: String::new(), ..node }).collect()
}

impl Why {
    pub(super) fn limited(self, names: &Names<'_>) -> Self {
        match self {
            Why::Moving(leaving) => Why::Moving(leaving.limited(names)),
            Why::GrowthEnds(leaving) => Why::GrowthEnds(leaving.limited(names)),
            // The nodes are those where it will be.
            Why::Moved { gang, nodes, in_ms } => Why::Moved { gang: names.of_job(gang), nodes, in_ms },
            Why::StarvationGuard { cell, model, gang, cards, free } => {
                Why::StarvationGuard { cell, model, gang: names.of_job(gang), cards, free }
            }
            Why::AntiAffinityConflict(kept) => {
                let (other, node) = (String::new(), String::new());
                Why::AntiAffinityConflict(AntiAffinityConflict { other, node, ..kept })
            }
            Why::ReservedForGang(kept) => Why::ReservedForGang(ReservedForGang { job: names.of_job(kept.job), ..kept }),
            Why::InWindow(window) => Why::InWindow(InWindow { node: String::new(), name: String::new(), ..window }),
            Why::NodesClosed { cell, model, free, needed, closed } => {
                Why::NodesClosed { cell, model, free, needed, closed: unnamed(closed) }
            }
            Why::LargerThanCell { cell, needed, model, open, level, closed } => {
                Why::LargerThanCell { cell, needed, model, open, level, closed: unnamed(closed) }
            }
            Why::NoFreeGpus { cell, model, open, free, reserved, largest_node, needed, closed } => {
                Why::NoFreeGpus { cell, model, open, free, reserved, largest_node, needed, closed: unnamed(closed) }
            }
            Why::NoShare { cell, model, mode, what, free, closed } => {
                Why::NoShare { cell, model, mode, what, free, closed: unnamed(closed) }
            }
            Why::HostTooFull { cell, model, cpu, cpu_milli, memory_mib, host: _ } => {
                Why::HostTooFull { cell, model, cpu, cpu_milli, memory_mib, host: None }
            }
            Why::Requeued { why } => Why::Requeued { why: without_others(&why, names.job) },
            // Of its own tenant and those above it, of pools and cells, and sums.
            Why::JustQueued { .. }
            | Why::NoCell { .. }
            | Why::CellWithoutShard { .. }
            | Why::NoCards { .. }
            | Why::OtherCell { .. }
            | Why::OverMax { .. }
            | Why::NotLent(_)
            | Why::Preempting { .. }
            | Why::Untrusted
            | Why::NoPool { .. }
            | Why::PoolFull { .. }
            | Why::DriverTooOld { .. }
            | Why::NotSelected { .. }
            | Why::NumaSplit { .. }
            | Why::Spread(_)
            | Why::Reservation { .. }
            | Why::Reserved(_)
            | Why::Topology { .. }
            | Why::NodesTooFull { .. }
            | Why::SplitOverPools { .. }
            | Why::PinnedLayout { .. } => self,
        }
    }
}
