//! The state that is replicated, and the one way to change it.

use muster_model::capacity::Capacity;
use muster_model::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use muster_model::laws::Broken;
use muster_model::object::{Meta, RequestRecord};
use muster_model::usage::{AllocationUsage, UsageStream, UsageTotal};
use muster_model::{Allocation, Cell, Change, Job, Node, Object, Pool, Tenant};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything that lives in memory. Fields are public to read; only [`State::apply`] writes them.
#[derive(Clone, Debug)]
pub struct State {
    /// Counters and clock.
    pub meta: Meta,
    /// Tenants.
    pub tenants: BTreeMap<TenantId, Tenant>,
    /// Pools.
    pub pools: BTreeMap<String, Pool>,
    /// Cells.
    pub cells: BTreeMap<CellId, Cell>,
    /// Nodes.
    pub nodes: BTreeMap<NodeId, Arc<Node>>,
    /// Live jobs.
    pub jobs: BTreeMap<JobId, Arc<Job>>,
    /// Live allocations.
    pub allocations: BTreeMap<AllocationId, Arc<Allocation>>,
    /// Remembered submissions.
    pub requests: BTreeMap<String, RequestRecord>,
    /// Usage streams.
    pub usage_streams: BTreeMap<NodeId, UsageStream>,
    /// Sums per tenant.
    pub usage_totals: BTreeMap<TenantId, UsageTotal>,
    /// Sums per allocation.
    pub allocation_usage: BTreeMap<AllocationId, AllocationUsage>,
    /// The books, derived from the above.
    capacity: Capacity,
}

impl State {
    /// An empty cluster. The id of its history is chosen by whoever bootstraps it.
    #[must_use]
    pub fn new(incarnation: u64) -> Self {
        let _ = incarnation;
        unimplemented!("the state machine's author writes this")
    }

    /// The books.
    #[must_use]
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Makes one change. Cannot fail.
    pub fn apply(&mut self, change: &Change) {
        let _ = change;
        unimplemented!("the state machine's author writes this")
    }

    /// Every object, in the order of its key: for snapshots, watches from the beginning, and comparing replicas. `Retire`d jobs
    /// are not among them.
    pub fn objects(&self) -> impl Iterator<Item = Object> + '_ {
        std::iter::empty()
    }

    /// Looks for broken laws; slow, for tests and simulation.
    ///
    /// # Errors
    /// The first law found broken.
    pub fn check(&self) -> Result<(), Broken> {
        unimplemented!("the state machine's author writes this")
    }
}
