//! Reasons of jobs for which others are leaving: attempts that are preempted, jobs that are moved, growth that is given back.
//!
//! What must stay true: jobs and nodes are those of the allocations that end for this very job; the time is the longest of their graces and the time to
//! stop, from the command on where that is known (a claim), otherwise from now; a job with a claim is in no queue.

use super::estimate;
use super::leaving::{Leaving, names};
use super::reason::Why;
use crate::view::{Known, View};
use muster_model::preemption::STOP_MS_MAX;
use muster_model::{Allocation, AllocationState, EndCause, JobId, PreemptReason};

impl Why {
    /// The job has claimed what others are leaving, or is moved itself.
    pub(super) fn claimed(view: &View, job: &Known, now_ms: u64) -> Option<Self> {
        let claim = job.claim.as_ref()?;
        let in_ms = estimate::of_claim(view, claim, now_ms).in_ms;
        let victims = || claim.victims.iter().filter_map(|victim| view.allocation(*victim)).map(AsRef::as_ref);
        if let Some(by) = victims().find_map(moved_by) {
            return Some(match by == job.id {
                true => Why::Moving(Leaving::of(view, victims(), in_ms)),
                false => Why::Moved { gang: by, nodes: names(view, claim.nodes()), in_ms },
            });
        }
        if !claim.victims.is_empty() && victims().count() == claim.victims.len() && victims().all(|held| held.is_growth)
        {
            return Some(Why::GrowthEnds(Leaving::of(view, victims(), in_ms)));
        }
        Some(Why::Preempting { left: claim.victims.len(), account: claim.account })
    }

    /// Growth ends for a job that waits in the queue.
    pub(super) fn growth_ends(view: &View, job: &Known) -> Option<Self> {
        let ending = || view.ending_for(job).map(AsRef::as_ref);
        let grace_ms = ending().map(|part| estimate::grace_ms(view, part.id)).max()?;
        Some(Why::GrowthEnds(Leaving::of(view, ending(), grace_ms.saturating_add(STOP_MS_MAX))))
    }
}

/// For which gang an allocation is moved.
fn moved_by(held: &Allocation) -> Option<JobId> {
    match &held.state {
        AllocationState::Stopping(EndCause::Preempted { by, reason: PreemptReason::Move }) => *by,
        _ => None,
    }
}
