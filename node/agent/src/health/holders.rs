//! Who holds a card or a slice of it, and is ended by a fault of it.
//!
//! What must stay true: a fault of a slice ends nobody who holds another slice; when the driver names a process, only the task of that process is ended, unless
//! it shares an MPS server, which fails with it.

use crate::exec::{Executor, Fault};
use muster_model::task::HoldMode;
use muster_node_core::TaskKey;
use muster_node_core::health::Scope;

/// A task that a fault ends.
pub(super) struct Holder {
    pub(super) key: TaskKey,
    /// Another client of its MPS server made the fault: that task.
    neighbour: Option<TaskKey>,
}

impl Holder {
    pub(super) fn fault(&self, card: usize, cause: &str, by_job: bool) -> Fault {
        match self.neighbour {
            None => Fault { reason: format!("GPU {card}: {cause}"), by_job },
            Some(culprit) => Fault {
                reason: format!("GPU {card}: {cause}; another client of the same MPS server, task {culprit}, made it"),
                by_job: false,
            },
        }
    }
}

/// The live tasks that hold something of `scope` of a card; with a process, the one that has it and its MPS neighbours.
pub(super) fn of(executor: &dyn Executor, card: u16, scope: Scope, process: Option<u32>) -> Vec<Holder> {
    let observed = executor.observe();
    let mut holders = Vec::new();
    for (key, task) in observed.iter().filter(|(_, task)| task.is_live()) {
        let touches = |mode: &HoldMode| match mode {
            HoldMode::Mig(place) => scope.touches(Scope::Slice(*place)),
            HoldMode::Whole | HoldMode::Mps { .. } | HoldMode::TimeSlice { .. } => true,
        };
        let mut held = task.spec.devices.iter().filter(|hold| hold.gpu == card).map(|hold| hold.mode);
        if let Some(mode) = held.find(touches) {
            holders.push((*key, mode));
        }
    }
    let Some(pid) = process else {
        return holders.into_iter().map(|(key, _)| Holder { key, neighbour: None }).collect();
    };
    let Some(culprit) = executor.task_of(pid) else { return Vec::new() };
    let shares = holders.iter().any(|(key, mode)| *key == culprit && matches!(mode, HoldMode::Mps { .. }));
    let meant =
        holders.into_iter().filter(|(key, mode)| *key == culprit || shares && matches!(mode, HoldMode::Mps { .. }));
    meant.map(|(key, _)| Holder { key, neighbour: (key != culprit).then_some(culprit) }).collect()
}
