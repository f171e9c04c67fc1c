//! Hand-over: a shard that cannot place a job passes it to another cell.
//!
//! What must stay true: a job visits each cell at most once per round, and a new round begins at the earliest [`ROUND_MS`] after
//! the last hop, so jobs that fit nowhere do not circle.

use super::{bind, cells};
use crate::bounds::ROUND_MS;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::routing::Router;
use muster_model::ids::{CellId, Epoch, JobId};
use std::collections::BTreeSet;

pub(super) fn hand_over(draft: &mut Draft<'_>, from: CellId, epoch: Epoch, id: JobId) -> Result<Done, Reject> {
    cells::held_at(draft.state, from, epoch)?;
    let job = bind::waiting_in(draft, from, id, None)?;
    let router = Router::new(draft.state);
    let mut visited = job.visited.clone();
    let mut next = router.pass_on(from, &job.spec, &visited);
    if next.is_none() && draft.now_ms >= job.routed_ms.saturating_add(ROUND_MS) {
        visited = BTreeSet::new();
        next = router.pass_on(from, &job.spec, &visited);
    }
    let Some(to) = next else { return Err(Reject::NowhereElse { job: id }) };
    visited.insert(from);
    let now_ms = draft.now_ms;
    if let Some(job) = draft.job_mut(id) {
        job.cell = Some(to);
        job.visited = visited;
        job.routed_ms = now_ms;
        job.reserved = None;
    }
    Ok(Done::HandedOver { to })
}
