//! Claims: devices that a waiting job gets as soon as the attempts that it preempts have ended.
//!
//! What must stay true: from the preemption on the claim is charged to the beneficiary's tenants, and its nodes take no other new work, so that
//! nobody else is given what the victims leave; the victims hold their devices until their tasks are gone, but pay no quota for them.

use crate::gpu::GpuModel;
use crate::ids::{AllocationId, CellId, Epoch, NodeId, TenantId};
use crate::resources::ResourceVec;
use crate::task::TaskPlacement;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The allocation that it becomes.
    pub allocation: AllocationId,
    /// The cell that planned it.
    pub cell: CellId,
    /// The epoch of that cell's lease at the preemption.
    pub cell_epoch: Epoch,
    /// The model of its cards; `None` for a gang without GPUs.
    pub model: Option<GpuModel>,
    /// What the tenant is charged.
    pub charge: ResourceVec,
    /// The tenant whose floor account pays; none: it is burst.
    pub account: Option<TenantId>,
    /// Where each rank will run.
    pub tasks: Vec<TaskPlacement>,
    /// Epoch of each node at the preemption: a node that has left and come back is not what was claimed.
    pub node_epochs: BTreeMap<NodeId, Epoch>,
    /// Preempted attempts whose tasks are not gone yet.
    pub victims: BTreeSet<AllocationId>,
    /// When it was made, in milliseconds since the Unix epoch.
    pub made_ms: u64,
}

impl Claim {
    /// The nodes, each once, in order.
    #[must_use]
    pub fn nodes(&self) -> BTreeSet<NodeId> {
        self.tasks.iter().map(|task| task.node).collect()
    }
}
