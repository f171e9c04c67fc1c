//! Setting the state's time back, when a wrong clock has moved it ahead.
//!
//! The state's time never goes back by itself. A cluster whose time was once moved ahead (by a version that believed one clock, or by
//! wrong clocks of a majority) refuses every submission as too old until the right time has caught up. An operator sets it back with this
//! command; the entry's own time is the right one, because the leader takes it from a majority of the voters' clocks. What must stay
//! true:
//! - no time in the state is ahead of the state's own when this has been repeated until nothing is left;
//! - law 5: request ids may have been forgotten too early while time was ahead, so nothing that was issued before the reset is accepted
//!   after it, unless its id is still known.

use crate::bounds::{CLOCK_AHEAD_MS_MIN, CLOCK_RESET_MAX};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::attempt::AttemptRecord;
use muster_model::ids::JobId;
use muster_model::node::RemovedNode;
use muster_model::object::{RequestFloor, RequestRecord};
use muster_model::task::RankFailure;
use muster_model::usage::{AllocationUsage, UsageTotal};
use muster_model::{Allocation, Job, Node, NodeNotes, Object, UseHistory};

/// `draft` counts from the entry's own time, however far the state's is ahead.
pub(super) fn reset(draft: &mut Draft<'_>) -> Result<Done, Reject> {
    let (was_ms, now_ms) = (draft.state.meta.now_ms, draft.now_ms);
    let ahead_ms = was_ms.saturating_sub(now_ms);
    let corrected = correct(draft, now_ms);
    if ahead_ms < CLOCK_AHEAD_MS_MIN && corrected == 0 {
        let problem = format!("is {ahead_ms} ms ahead of the clocks of a majority of the voters");
        return Err(Reject::field("clock", problem, "do nothing: less than a minute is normal"));
    }
    if ahead_ms >= CLOCK_AHEAD_MS_MIN {
        draft.meta.requests_floor_ms = now_ms;
    }
    Ok(Done::ClockReset { ahead_ms, corrected, more: corrected == CLOCK_RESET_MAX as u32 })
}

/// Brings times back that are ahead of `now_ms`, of so many objects at most; says of how many.
fn correct(draft: &mut Draft<'_>, now_ms: u64) -> u32 {
    let state = draft.state;
    let jobs: Vec<JobId> =
        state.jobs.values().filter(|job| is_ahead(job, now_ms)).map(|job| job.id).take(CLOCK_RESET_MAX).collect();
    let count = jobs.len();
    for id in jobs {
        if let Some(job) = draft.job_mut(id) {
            set_back(job, now_ms);
        }
    }
    let ahead = |held: &Allocation| {
        let later = held.failures.iter().any(|failure| failure.at_ms > now_ms);
        held.bound_ms > now_ms || later || held.classes.is_ahead(now_ms)
    };
    let allocations = state.allocations.values().filter(|held| ahead(held)).map(|held| {
        let mut held = Allocation::clone(held);
        held.bound_ms = held.bound_ms.min(now_ms);
        held.classes.set_back(held.bound_ms, now_ms);
        failures_back(&mut held.failures, now_ms);
        Object::Allocation(held)
    });
    let nodes = state.nodes.values().filter_map(|node| node_back(node, now_ms)).map(Object::Node);
    let removed = state.removed_nodes.values().filter(|removed| removed.removed_ms > now_ms);
    let removed = removed.map(|removed| Object::RemovedNode(RemovedNode { removed_ms: now_ms, ..removed.clone() }));
    let requests =
        state.requests.sorted().filter(|at| at.accepted_ms > now_ms || at.issued_ms > now_ms).map(|request| {
            let (accepted_ms, issued_ms) = (request.accepted_ms.min(now_ms), request.issued_ms.min(now_ms));
            Object::Request(RequestRecord { accepted_ms, issued_ms, ..RequestRecord::clone(request) })
        });
    let floors = state.request_floors.values().filter(|floor| floor.issued_ms > now_ms);
    let floors = floors.map(|floor| Object::RequestFloor(RequestFloor { issued_ms: now_ms, ..floor.clone() }));
    let released = state.allocation_usage.values().filter(|usage| usage.released_ms.is_some_and(|at| at > now_ms));
    let released = released.map(|usage| {
        let mut usage = AllocationUsage { released_ms: Some(now_ms), ..usage.clone() };
        if let Some(held) = &mut usage.held {
            held.bound_ms = held.bound_ms.min(now_ms);
            held.classes.set_back(held.bound_ms, now_ms);
        }
        Object::AllocationUsage(usage)
    });
    let totals = state.usage_totals.values().filter(|total| total.as_of_ms > now_ms);
    let totals = totals.map(|total| Object::UsageTotal(UsageTotal { as_of_ms: now_ms, ..total.clone() }));
    let histories = state.use_histories.values().filter(|record| record.at_ms > now_ms);
    let histories = histories.map(|record| Object::UseHistory(UseHistory { at_ms: now_ms, ..record.clone() }));
    let others = allocations.chain(requests).chain(floors).chain(released).chain(totals).chain(nodes).chain(removed);
    let versions = state.tenant_histories.values().cloned().filter_map(|mut history| {
        let changed = history.set_back(now_ms);
        changed.then_some(Object::TenantHistory(history))
    });
    let others = others.chain(histories).chain(versions);
    let others: Vec<Object> = others.take(CLOCK_RESET_MAX - count).collect();
    let corrected = count + others.len();
    others.into_iter().for_each(|object| draft.put(object));
    corrected as u32
}

fn is_ahead(job: &Job, now_ms: u64) -> bool {
    let later = [job.bound_ms, job.started_ms, job.finished_ms, job.checkpoint_ms].into_iter().flatten();
    let growth = [job.growth.grown_ms, job.growth.shrunk_ms];
    [job.submitted_ms, job.routed_ms].into_iter().chain(growth).chain(later).any(|at| at > now_ms)
        || job.attempts.iter().any(|record| record_is_ahead(record, now_ms))
}

fn record_is_ahead(record: &AttemptRecord, now_ms: u64) -> bool {
    let failures = record.failures.iter().map(|failure| failure.at_ms);
    let times = [record.bound_ms, record.ended_ms].into_iter().chain(record.started_ms).chain(failures);
    times.into_iter().any(|at| at > now_ms) || record.classes.is_ahead(now_ms)
}

fn set_back(job: &mut Job, now_ms: u64) {
    let later = [&mut job.bound_ms, &mut job.started_ms, &mut job.finished_ms, &mut job.checkpoint_ms];
    let later = later.into_iter().flatten();
    let growth = [&mut job.growth.grown_ms, &mut job.growth.shrunk_ms];
    for at in [&mut job.submitted_ms, &mut job.routed_ms].into_iter().chain(growth).chain(later) {
        *at = (*at).min(now_ms);
    }
    for record in &mut job.attempts {
        for at in [&mut record.bound_ms, &mut record.ended_ms].into_iter().chain(&mut record.started_ms) {
            *at = (*at).min(now_ms);
        }
        record.classes.set_back(record.bound_ms, now_ms);
        failures_back(&mut record.failures, now_ms);
    }
    // What was reserved by times that were wrong is reserved anew by the shard.
    job.reserved = None;
}

fn failures_back(failures: &mut [RankFailure], now_ms: u64) {
    for failure in failures {
        failure.at_ms = failure.at_ms.min(now_ms);
    }
}

/// The node with its notes' times brought back, if one of them is ahead.
fn node_back(node: &Node, now_ms: u64) -> Option<Node> {
    let mut back = node.clone();
    let NodeNotes {
        agent: _,
        drain_reason: _,
        start_failures: _,
        quarantine,
        rival,
        cleared_gpus,
        links: _,
        lacks: _,
        drained_by: _,
        verdicts: _,
        replaced: _,
        restored: _,
    } = &mut back.notes;
    let since = quarantine.as_mut().map(|quarantine| &mut quarantine.since_ms);
    let cleared = cleared_gpus.iter_mut().map(|cleared| &mut cleared.at_ms);
    for at in since.into_iter().chain(rival.as_mut().map(|rival| &mut rival.asked_ms)).chain(cleared) {
        *at = (*at).min(now_ms);
    }
    (back != *node).then_some(back)
}
