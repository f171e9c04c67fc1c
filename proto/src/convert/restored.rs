//! What is still open of nodes of a restored state.

use crate::v1;
use muster_model::{AllocationId, Epoch, HeldTask, JobId, Rank, Restored};

impl From<&Restored> for v1::Restored {
    fn from(Restored { confirmed, held, settled }: &Restored) -> Self {
        let held = held.as_ref().map(|held| v1::HeldTasks { tasks: held.iter().map(Into::into).collect() });
        v1::Restored { confirmed: *confirmed, held, settled: *settled }
    }
}

impl From<v1::Restored> for Restored {
    fn from(v1::Restored { confirmed, held, settled }: v1::Restored) -> Self {
        Restored { confirmed, settled, held: held.map(|held| held.tasks.into_iter().map(Into::into).collect()) }
    }
}

impl From<&HeldTask> for v1::HeldTask {
    fn from(HeldTask { allocation, rank, job, node_epoch, disconnect_grace_s }: &HeldTask) -> Self {
        v1::HeldTask {
            allocation: allocation.0,
            rank: rank.0,
            job: job.0,
            node_epoch: node_epoch.0,
            disconnect_grace_s: *disconnect_grace_s,
        }
    }
}

impl From<v1::HeldTask> for HeldTask {
    fn from(v1::HeldTask { allocation, rank, job, node_epoch, disconnect_grace_s }: v1::HeldTask) -> Self {
        let (allocation, rank) = (AllocationId(allocation), Rank(rank));
        HeldTask { allocation, rank, job: JobId(job), node_epoch: Epoch(node_epoch), disconnect_grace_s }
    }
}
