//! Reservations: a shard keeps nodes of its cell for a gang that waits, so that whoever plans the cell next keeps them too.
//!
//! What must stay true: only the cell's holder reserves, only for a job that waits there and only nodes of that cell; a job that no
//! longer waits there has nothing reserved. Which work may use the nodes meanwhile is the shard's business: a reservation is a promise
//! about waiting, not a hold on devices, and no law depends on it.

use super::{bind, cells};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::shape_fault::ReservationFault;
use muster_model::Reservation;
use muster_model::ids::{CellId, Epoch, JobId};
use muster_model::job::{RESERVATION_AHEAD_MS_MAX, RESERVATION_PAST_MS_MAX};

pub(super) fn reserve(
    draft: &mut Draft<'_>,
    cell: CellId,
    epoch: Epoch,
    id: JobId,
    reserved: Option<&Reservation>,
) -> Result<Done, Reject> {
    cells::held_at(draft.state, cell, epoch)?;
    let job = bind::waiting_in(draft, cell, id, None)?;
    if let Some(reserved) = reserved {
        check(draft, cell, id, reserved)?;
    }
    if job.reserved.as_ref() != reserved
        && let Some(job) = draft.job_mut(id)
    {
        job.reserved = reserved.cloned();
    }
    Ok(Done::Ok)
}

fn check(draft: &Draft<'_>, cell: CellId, id: JobId, reserved: &Reservation) -> Result<(), Reject> {
    let wrong = |fault: ReservationFault| Reject::shape(id, fault);
    let now_ms = draft.now_ms;
    let (first_ms, last_ms) =
        (now_ms.saturating_sub(RESERVATION_PAST_MS_MAX), now_ms.saturating_add(RESERVATION_AHEAD_MS_MAX));
    if !(first_ms..=last_ms).contains(&reserved.start_ms) {
        let start_ms = reserved.start_ms;
        return Err(wrong(ReservationFault::Start { start_ms, first_ms, last_ms }));
    }
    if reserved.nodes.is_empty() {
        return Err(wrong(ReservationFault::NoNodes));
    }
    if !reserved.nodes.is_sorted_by(|one, next| one < next) {
        return Err(wrong(ReservationFault::Unordered));
    }
    let here = |node| draft.state.nodes.get(node).is_some_and(|node| node.cell == cell);
    match reserved.nodes.iter().find(|node| !here(node)) {
        Some(node) => {
            let node = draft.state.nodes.get(node).map_or_else(|| format!("#{node}"), |node| node.spec.name.clone());
            Err(wrong(ReservationFault::OtherCell { node, cell: cells::name(draft.state, cell) }))
        }
        None => Ok(()),
    }
}
