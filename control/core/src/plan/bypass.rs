//! The starvation guard's count: how many cards others have started on past a gang that waits.
//!
//! What must stay true: only the cell's holder counts, only for a job that waits there; the count only grows while the job waits and is part
//! of the job, so that whoever plans the cell next goes on from it. What the guard does with it is the shard's business, and no law depends on it.

use super::{bind, cells};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::ids::{CellId, Epoch, JobId};

pub(super) fn record(draft: &mut Draft<'_>, cell: CellId, epoch: Epoch, id: JobId, cards: u64) -> Result<Done, Reject> {
    cells::held_at(draft.state, cell, epoch)?;
    let job = bind::waiting_in(draft, cell, id, None)?;
    if cards > job.bypassed_cards
        && let Some(job) = draft.job_mut(id)
    {
        job.bypassed_cards = cards;
    }
    Ok(Done::Ok)
}
