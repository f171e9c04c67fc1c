//! Law 2: "An allocation of a gang is bound whole or not at all, and preempted whole or not at all."
//!
//! An allocation appears with as many tasks as its job has, and no rank of it is ever bound again or alone.

use super::{Findings, Violation};
use crate::history::History;
use muster_model::ids::JobId;
use muster_model::{AllocationState, Change, Object};
use std::collections::{BTreeMap, BTreeSet};

/// Reports every part of a gang.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("law 2");
    let (mut sizes, mut stopping) = (BTreeMap::<JobId, u32>::new(), BTreeSet::new());
    for (revision, change) in history.changes() {
        let Change::Put(object) = change else { continue };
        match *object {
            Object::Job(job) => {
                sizes.insert(job.id, job.spec.tasks);
            }
            Object::Allocation(allocation) => {
                let (bound, whole) = (allocation.tasks.len(), sizes.get(&allocation.job).copied());
                findings.add_if(whole != u32::try_from(bound).ok(), || {
                    format!("revision {revision}: allocation {} has {bound} tasks, its job {whole:?}", allocation.id)
                });
                let states = allocation.task_states.len();
                findings.add_if(states != bound, || {
                    format!("allocation {} knows {states} of {bound} tasks", allocation.id)
                });
                if matches!(allocation.state, AllocationState::Stopping(_)) {
                    stopping.insert(allocation.id);
                } else {
                    findings.add_if(stopping.contains(&allocation.id), || {
                        format!("revision {revision}: allocation {} was stopping and is active again", allocation.id)
                    });
                }
            }
            _ => {}
        }
    }
    findings.found
}
