//! What becomes of moves: whether the gang got its place, what each moved job lost, and when it ran again.
//!
//! What must stay true: a record follows from the changes of jobs and allocations alone, so no operation has to think of it; every record is closed
//! in the end, because the gang's claim is bound or given up, and a moved job runs again, ends, or waits in the queue like others.

use super::moves::saved_ms;
use crate::draft::Draft;
use muster_model::ids::JobId;
use muster_model::{Job, JobPhase, MoveFate, MovedJob};

/// Takes what became of the jobs that a command touched into the records of their moves.
pub(super) fn settle(draft: &mut Draft<'_>, touched: &[JobId]) {
    if draft.state.moves.is_empty() {
        return;
    }
    for id in touched {
        let Some(before) = draft.state.jobs.get(id).cloned() else { continue };
        gang(draft, &before);
        if before.moving.is_some() {
            moved(draft, &before);
        }
    }
}

/// The gang's claim is gone: it was bound, or has come to nothing.
fn gang(draft: &mut Draft<'_>, before: &Job) {
    let Some(claim) = before.claim.as_ref().map(|claim| claim.allocation) else { return };
    if !draft.state.moves.contains_key(&claim) {
        return;
    }
    let now = draft.job(before.id);
    if now.is_some_and(|job| job.claim.is_some()) {
        return;
    }
    let bound = now.is_some_and(|job| job.last_allocation == Some(claim));
    let now_ms = draft.now_ms;
    if let Some(record) = draft.move_mut(claim) {
        match bound {
            true => record.started_ms = Some(now_ms),
            false => record.given_up_ms = Some(now_ms),
        }
    }
}

/// How far a moved job has come.
fn moved(draft: &mut Draft<'_>, before: &Job) {
    let Some(id) = before.moving else { return };
    let record = draft.state.moves.get(&id);
    let Some(mut one) = record.and_then(|record| record.moved.iter().find(|one| one.job == before.id)).cloned() else {
        return;
    };
    let now_ms = draft.now_ms;
    let held = draft.state.allocations.get(&one.from).filter(|_| draft.allocation(one.from).is_none());
    if let Some(held) = held {
        one.stopped_ms = Some(now_ms);
        let now = draft.job(before.id).unwrap_or(before);
        one.unsaved_ms = now_ms.saturating_sub(saved_ms(now, held));
        one.fate = MoveFate::Starting;
    }
    one.fate = match draft.job(before.id) {
        // What ended in its grace lost nothing by the move.
        None => MoveFate::Ended,
        Some(job) => match &job.phase {
            JobPhase::Running(at) if *at == one.to => MoveFate::Resumed,
            JobPhase::Queued if job.claim.is_none() => MoveFate::Requeued,
            _ => one.fate,
        },
    };
    let over = close(&mut one, held.is_some(), now_ms);
    if over && let Some(job) = draft.job_mut(before.id) {
        job.moving = None;
    }
    if let Some(place) =
        draft.move_mut(id).and_then(|record| record.moved.iter_mut().find(|moved| moved.job == one.job))
        && *place != one
    {
        *place = one;
    }
}

/// Says what was lost once that is known, and whether it is.
fn close(one: &mut MovedJob, stopped_now: bool, now_ms: u64) -> bool {
    let stopped_ms = one.stopped_ms.unwrap_or(now_ms);
    let lost_ms = match one.fate {
        MoveFate::Stopping | MoveFate::Starting => return false,
        MoveFate::Resumed => {
            one.resumed_ms = Some(now_ms);
            one.unsaved_ms.saturating_add(now_ms.saturating_sub(stopped_ms))
        }
        MoveFate::Ended if stopped_now || one.stopped_ms.is_none() => 0,
        MoveFate::Ended | MoveFate::Requeued => one.unsaved_ms,
    };
    one.lost_unit_s = Some(one.worth_unit_s(lost_ms));
    true
}
