//! Leases of cells.
//!
//! What must stay true (law 7): the epoch of a cell grows each time its lease is taken, and only the holder of the newest epoch
//! of a cell that is held may act in it.

use crate::bounds::SHARD_NAME_BYTES_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::ids::{CellId, Epoch};
use muster_model::{Cell, Object};

pub(super) fn acquire(draft: &mut Draft<'_>, id: CellId, shard: &str) -> Result<Done, Reject> {
    if shard.is_empty() || shard.len() > SHARD_NAME_BYTES_MAX {
        return Err(Reject::field("shard", format!("has {} bytes", shard.len()), "use 1 to 128 bytes"));
    }
    let cell = find(draft.state, id)?;
    if let Some(holder) = cell.holder.as_ref().filter(|holder| *holder != shard) {
        return Err(Reject::Held { holder: holder.clone() });
    }
    let epoch = cell.epoch.next();
    draft.put(Object::Cell(Cell { epoch, holder: Some(shard.to_owned()), ..cell.clone() }));
    Ok(Done::Acquired { cell: id, epoch })
}

pub(super) fn expire(draft: &mut Draft<'_>, id: CellId, epoch: Epoch) -> Result<Done, Reject> {
    let cell = find(draft.state, id)?;
    if cell.epoch != epoch {
        return Err(stale(cell, epoch));
    }
    if cell.holder.is_some() {
        draft.put(Object::Cell(Cell { holder: None, ..cell.clone() }));
    }
    Ok(Done::Ok)
}

/// The cell, if `epoch` is the newest and the lease has not ended.
pub(super) fn held_at(state: &State, id: CellId, epoch: Epoch) -> Result<&Cell, Reject> {
    let cell = find(state, id)?;
    if cell.epoch != epoch || cell.holder.is_none() {
        return Err(stale(cell, epoch));
    }
    Ok(cell)
}

/// What people call it: `cell eu-1`.
pub(super) fn name(state: &State, id: CellId) -> String {
    state.cells.get(&id).map_or_else(|| format!("cell #{id}"), |cell| format!("cell {}", cell.name))
}

fn stale(cell: &Cell, got: Epoch) -> Reject {
    let ended = if cell.holder.is_none() { " (whose lease has ended)" } else { "" };
    Reject::StaleEpoch { what: format!("cell {}{ended}", cell.name), newest: cell.epoch, got }
}

fn find(state: &State, id: CellId) -> Result<&Cell, Reject> {
    state.cells.get(&id).ok_or_else(|| Reject::not_found("cell", id))
}
