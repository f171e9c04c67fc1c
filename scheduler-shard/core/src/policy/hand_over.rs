//! Handing jobs over: what has waited long enough for room in one cell is offered to the others.
//!
//! What must stay true: a job is offered to each cell in turn and not again to the one that it came from; one with a reservation stays.

use crate::proposal::{Bounds, Plan, Proposal};
use crate::queue::Blocked;
use crate::view::View;
use muster_model::{CellId, JobId};

/// A job is handed over when it has waited this long in its cell without finding room: about as long as the watch needs to show a
/// shard what others have freed.
pub const HAND_OVER_AFTER_MS: u64 = 2_000;
/// A hand-over is not repeated before this: its answer takes one round trip.
const HAND_OVER_AGAIN_MS: u64 = 5_000;
/// Control starts a new round of hand-overs this long after the job was routed to its cell.
pub const HAND_OVER_ROUND_MS: u64 = 30_000;
/// Jobs of one group that one pass looks at for hand-over; the next pass goes on.
const HAND_OVERS_PER_GROUP_MAX: usize = 16;

/// Offers jobs to other cells that have waited long enough for room here.
pub(crate) fn hand_over(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64, plan: &mut Plan) {
    if view.cells.len() < 2 {
        return;
    }
    let mut due: Vec<JobId> = Vec::new();
    let Some(queue) = view.queues.get(&cell) else { return };
    for group in queue.groups().filter(|group| group.blocked.as_ref().is_some_and(Blocked::wants_room)) {
        let room = bounds.proposals_max.saturating_sub(plan.proposals.len() + due.len());
        let jobs = group.keys.iter().take(HAND_OVERS_PER_GROUP_MAX).map(|queue_key| queue_key.job);
        due.extend(jobs.filter(|job| may_leave(view, cell, *job, now_ms)).take(room));
    }
    for job in due {
        view.not_offered_before(job, now_ms + HAND_OVER_AGAIN_MS);
        plan.proposals.push(Proposal::HandOver(job));
    }
}

fn may_leave(view: &View, cell: CellId, job: JobId, now_ms: u64) -> bool {
    let Some(job) = view.jobs.get(job.0) else { return false };
    let waited_ms = now_ms.saturating_sub(job.routed_ms);
    let unvisited = view.cells.keys().any(|other| *other != cell && !job.visited.contains(other));
    let elsewhere = unvisited || waited_ms >= HAND_OVER_ROUND_MS;
    waited_ms >= HAND_OVER_AFTER_MS
        && elsewhere
        && !view.is_not_offered(job.id, now_ms)
        && view.reserved(job.id).is_none()
}
