//! Who goes before whom: the order of a cell's queue played through, as if nothing ever blocked.
//!
//! What must stay true: it is the order in which a pass would look at the jobs; it changes nothing and is bounded.

use crate::view::{View, in_turn_at};
use muster_model::{CellId, JobId};
use std::ops::ControlFlow;

/// A position in the queue is played through up to here; beyond, it is said to be at least this.
pub const POSITION_MAX: u64 = 10_000;

/// How many jobs go before `id`.
pub(super) fn of(view: &View, cell: CellId, id: JobId, now_ms: u64) -> Option<u64> {
    let mut before = 0;
    let found = in_turn_at(view, cell, now_ms, |job| {
        if job == id || before == POSITION_MAX {
            return ControlFlow::Break(());
        }
        before += 1;
        ControlFlow::Continue(())
    });
    found.then_some(before)
}
