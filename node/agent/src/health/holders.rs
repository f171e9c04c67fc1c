//! Who holds a card or a slice of it, and is ended by a fault of it.
//!
//! What must stay true: a fault of a slice ends nobody who holds another slice; when the driver names a process, only the task of that process is ended, unless
//! it shares an MPS server, which fails with it: then its neighbours end too, also when the process has gone or is the server itself.

use crate::exec::{Executor, Fault};
use muster_model::ids::{JobId, Rank};
use muster_model::task::HoldMode;
use muster_node_core::TaskKey;
use muster_node_core::health::Scope;

/// A task that a fault ends.
pub(super) struct Holder {
    pub(super) key: TaskKey,
    made_by: MadeBy,
}

/// Who made a fault.
enum MadeBy {
    /// Whoever the fault says.
    Itself,
    /// A rank of this job, another client of its MPS server.
    Neighbour(JobId, Rank),
    /// Nobody knows which client of its MPS server, or the server.
    ServerOrClient,
}

impl Holder {
    pub(super) fn fault(&self, card: usize, cause: &str, by_job: bool) -> Fault {
        let at_server = |who: String| Fault::of_device(format!("GPU {card}: {cause}; {who}"), false);
        match self.made_by {
            MadeBy::Itself => Fault::of_device(format!("GPU {card}: {cause}"), by_job),
            MadeBy::Neighbour(job, rank) => {
                at_server(format!("another client of the same MPS server, rank {rank} of job {job}, made it"))
            }
            MadeBy::ServerOrClient => {
                at_server("the MPS server of this task failed, or a client of it that has gone made it".to_owned())
            }
        }
    }
}

/// The live tasks that hold something of `scope` of a card; with a process, the one that has it and its MPS neighbours.
pub(super) fn of(executor: &dyn Executor, card: u16, scope: Scope, process: Option<u32>) -> Vec<Holder> {
    let observed = executor.observe();
    let mut holders = Vec::new();
    for (key, task) in observed.iter().filter(|(_, task)| task.is_live()) {
        let mut held = task.spec.devices.iter().filter(|hold| hold.gpu == card).map(|hold| hold.mode);
        if let Some(mode) = held.find(|mode| touches(scope, mode)) {
            holders.push((*key, mode));
        }
    }
    let is_client = |mode: &HoldMode| matches!(mode, HoldMode::Mps { .. });
    let Some(pid) = process else {
        return holders.into_iter().map(|(key, _)| Holder { key, made_by: MadeBy::Itself }).collect();
    };
    let Some(culprit) = executor.task_of(pid) else {
        let clients = holders.into_iter().filter(|(_, mode)| is_client(mode));
        return clients.map(|(key, _)| Holder { key, made_by: MadeBy::ServerOrClient }).collect();
    };
    let shares = holders.iter().any(|(key, mode)| *key == culprit && is_client(mode));
    let meant = holders.into_iter().filter(|(key, mode)| *key == culprit || shares && is_client(mode));
    let job = observed.get(&culprit).map(|task| task.spec.job).unwrap_or_default();
    let made_by = |key| if key == culprit { MadeBy::Itself } else { MadeBy::Neighbour(job, culprit.rank) };
    meant.map(|(key, _)| Holder { key, made_by: made_by(key) }).collect()
}

/// Whether who holds `mode` holds something of `scope`.
pub(super) fn touches(scope: Scope, mode: &HoldMode) -> bool {
    match mode {
        HoldMode::Mig(place) => scope.touches(Scope::Slice(*place)),
        HoldMode::Whole | HoldMode::Mps { .. } | HoldMode::TimeSlice { .. } => true,
    }
}
