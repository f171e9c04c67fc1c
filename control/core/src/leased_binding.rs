//! A binding with the lease under which a shard proposes it.
//!
//! What must stay true: its layout in the log is that of its fields, which therefore never change.

use muster_model::ids::{Attempt, CellId, Epoch, JobId};
use muster_model::{Binding, GpuModel, TaskPlacement};
use serde::{Deserialize, Serialize};

/// A binding with the lease under which a shard proposes it. Its layout in the log is that of these fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename = "Binding")]
pub struct LeasedBinding {
    /// The cell it is bound in.
    pub cell: CellId,
    /// The lease under which.
    pub epoch: Epoch,
    /// The job.
    pub job: JobId,
    /// The attempt it would be: the job's last one plus one.
    pub attempt: Attempt,
    /// Model of all its cards; `None` for a gang without GPUs.
    pub model: Option<GpuModel>,
    /// Rank by rank.
    pub tasks: Vec<TaskPlacement>,
}

impl LeasedBinding {
    /// What the shard that holds `cell` under `epoch` found.
    #[must_use]
    pub fn under(cell: CellId, epoch: Epoch, found: Binding) -> Self {
        let Binding { job, attempt, model, tasks } = found;
        LeasedBinding { cell, epoch, job, attempt, model, tasks }
    }
}
