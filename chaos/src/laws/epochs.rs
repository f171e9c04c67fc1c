//! Law 7: "Only the holder of the newest epoch of a cell can bind in it."

use super::{Findings, Violation};
use crate::history::History;
use muster_model::{Cell, Change, Object};
use std::collections::{BTreeMap, BTreeSet};

/// Reports bindings under an epoch that was not the newest, and epochs that did not grow.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("law 7");
    let (mut cells, mut bound) = (BTreeMap::<_, Cell>::new(), BTreeSet::new());
    // Allocations that a holder has decided on and that wait for their devices: they need no holder when they begin.
    let mut claimed = BTreeSet::new();
    // The objects of the base are in the order of their kinds, not of their making: what is bound there was judged before.
    for object in &history.base {
        match object {
            Object::Cell(cell) => {
                cells.insert(cell.id, cell.clone());
            }
            Object::Allocation(allocation) => {
                bound.insert(allocation.id);
            }
            Object::Job(job) => claimed.extend(job.claim.as_ref().map(|claim| claim.allocation)),
            _ => {}
        }
    }
    for (revision, change) in
        history.log.iter().flat_map(|(revision, changes)| changes.iter().map(move |change| (revision, change)))
    {
        let Change::Put(object) = change else { continue };
        match &**object {
            Object::Cell(cell) => {
                if let Some(old) = cells.insert(cell.id, cell.clone()) {
                    let changed_hands = cell.holder.is_some() && cell.holder != old.holder;
                    findings.add_if(cell.epoch < old.epoch || (changed_hands && cell.epoch == old.epoch), || {
                        format!("revision {revision}: {old:?} became {cell:?}")
                    });
                }
            }
            Object::Job(job) => {
                let Some(claim) = job.claim.as_ref().filter(|claim| claimed.insert(claim.allocation)) else { continue };
                let cell = cells.get(&claim.cell);
                let held = cell.is_some_and(|cell| cell.epoch == claim.cell_epoch && cell.holder.is_some());
                findings.add_if(!held, || {
                    let (id, epoch) = (claim.allocation, claim.cell_epoch);
                    format!("revision {revision}: allocation {id} claimed under epoch {epoch} of {cell:?}")
                });
            }
            Object::Allocation(allocation) if bound.insert(allocation.id) => {
                let cell = cells.get(&allocation.cell);
                let decided = |cell: &Cell| cell.holder.is_some() || claimed.contains(&allocation.id);
                let held = cell.is_some_and(|cell| cell.epoch == allocation.cell_epoch && decided(cell));
                findings.add_if(!held, || {
                    format!(
                        "revision {revision}: allocation {} bound under epoch {} of {cell:?}",
                        allocation.id, allocation.cell_epoch
                    )
                });
            }
            _ => {}
        }
    }
    findings.found
}
