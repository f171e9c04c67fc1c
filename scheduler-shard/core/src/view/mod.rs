//! What a shard knows: the books with its own pending proposals already charged, and who waits in which cell.
//!
//! What must stay true:
//! - the view is a function of the changes it was given and of its own proposals, whatever order unrelated ones came in;
//! - a pending proposal is charged like an allocation until its allocation arrives, it is refused, or its job is gone;
//! - what the control plane has committed always wins: a pending proposal in its way is given up.

mod pending;

use crate::clock::Clock;
use crate::index::Index;
use crate::queue::CellQueue;
use muster_model::capacity::Capacity;
use muster_model::{
    Allocation, AllocationId, Cell, CellId, Change, GpuModel, Job, JobId, JobPhase, Key, Node, NodeId, Object,
    ResourceVec, Tenant, TenantId,
};
use pending::Pending;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A shard's picture of the fleet.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub(crate) capacity: Capacity,
    pub(crate) index: Index,
    pub(crate) clock: Clock,
    pub(crate) cells: BTreeMap<CellId, Cell>,
    pub(crate) jobs: BTreeMap<JobId, Arc<Job>>,
    pub(crate) allocations: BTreeMap<AllocationId, Arc<Allocation>>,
    pub(crate) queues: BTreeMap<CellId, CellQueue>,
    /// Everything the fleet has, by resource: the denominators of dominant shares.
    pub(crate) totals: ResourceVec,
    pending: BTreeMap<JobId, Pending>,
    proposals_made: u64,
    /// Jobs that are left alone until a time, in ms of the caller's clock.
    resting: BTreeSet<(u64, JobId)>,
    rest_until: BTreeMap<JobId, u64>,
    refusals: BTreeMap<JobId, u32>,
    /// Jobs that had nowhere else to go, and until when they are not handed over again.
    pub(crate) stays_until: BTreeMap<JobId, u64>,
}

impl View {
    /// A view of these objects, in any order in which tenants and nodes come before the allocations that name them (the order of
    /// their keys does).
    #[must_use]
    pub fn from_objects(objects: impl IntoIterator<Item = Object>) -> Self {
        let mut view = View::default();
        for object in objects {
            view.put(object);
        }
        view
    }

    /// Takes over one change of the replicated state.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(object) => self.put((**object).clone()),
            Change::Delete(key) => self.delete(key),
            Change::Retire(job) => self.delete(&Key::Job(job.id)),
        }
    }

    /// The same for a change that nobody else needs any more, without copying it.
    pub fn absorb(&mut self, change: Change) {
        match change {
            Change::Put(object) => self.put(*object),
            other => self.apply(&other),
        }
    }

    /// The books, pending proposals charged.
    #[must_use]
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// The cells, by id.
    #[must_use]
    pub fn cells(&self) -> &BTreeMap<CellId, Cell> {
        &self.cells
    }

    /// A live job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Arc<Job>> {
        self.jobs.get(&id)
    }

    /// Jobs that wait in `cell` and may be planned now; resting and proposed ones are not counted.
    #[must_use]
    pub fn waiting(&self, cell: CellId) -> usize {
        self.queues.get(&cell).map_or(0, CellQueue::len)
    }

    fn put(&mut self, object: Object) {
        self.clock.tick();
        match object {
            Object::Tenant(tenant) => self.put_tenant(&tenant),
            Object::Pool(pool) => {
                self.capacity.put_pool(pool);
                self.everything_freed();
            }
            Object::Cell(cell) => {
                self.cells.insert(cell.id, cell);
            }
            Object::Node(node) => self.put_node(node),
            Object::Job(job) => self.put_job(job),
            Object::Allocation(allocation) => self.put_allocation(allocation),
            Object::Meta(_)
            | Object::Request(_)
            | Object::UsageStream(_)
            | Object::UsageTotal(_)
            | Object::AllocationUsage(_)
            | Object::DeviceClass(_) => {}
        }
    }

    fn delete(&mut self, key: &Key) {
        self.clock.tick();
        match key {
            Key::Tenant(id) => self.capacity.remove_tenant(*id),
            Key::Pool(name) => {
                self.capacity.remove_pool(name);
                self.everything_freed();
            }
            Key::Cell(id) => {
                self.cells.remove(id);
            }
            Key::Node(id) => self.delete_node(*id),
            Key::Job(id) => self.delete_job(*id),
            Key::Allocation(id) => {
                if let Some(allocation) = self.allocations.remove(id) {
                    self.release(&allocation);
                }
            }
            Key::Meta
            | Key::Request(_)
            | Key::UsageStream(_)
            | Key::UsageTotal(_)
            | Key::AllocationUsage(_)
            | Key::DeviceClass(_) => {}
        }
    }

    fn put_tenant(&mut self, tenant: &Tenant) {
        self.capacity.put_tenant(tenant);
        self.clock.relieved(tenant.id);
    }

    fn put_node(&mut self, node: Node) {
        let (id, cell) = (node.id, node.cell);
        if let Some(old) = self.capacity.nodes().get(&id) {
            self.totals.sub(&amount_of(&old.node));
        }
        self.totals.add(&amount_of(&node));
        self.capacity.put_node(Arc::new(node));
        self.refresh(id);
        self.node_freed(id, cell);
    }

    fn delete_node(&mut self, id: NodeId) {
        self.give_up_on_node(id);
        if let Some(old) = self.capacity.nodes().get(&id) {
            self.totals.sub(&amount_of(&old.node));
        }
        self.capacity.remove_node(id);
        self.refresh(id);
    }

    fn put_job(&mut self, job: Job) {
        let job = Arc::new(job);
        let old = self.jobs.insert(job.id, job.clone());
        if let Some(old) = &old {
            self.unqueue(old);
        }
        let same_wait =
            |old: &Arc<Job>| waits(old) && waits(&job) && old.cell == job.cell && old.attempt == job.attempt;
        if !old.as_ref().is_some_and(same_wait) {
            self.forget_efforts(job.id);
        }
        self.enqueue(&job);
    }

    fn delete_job(&mut self, id: JobId) {
        if let Some(job) = self.jobs.remove(&id) {
            self.unqueue(&job);
        }
        self.forget_efforts(id);
    }

    /// Puts a waiting job into its cell's queue, unless it rests or is proposed.
    fn enqueue(&mut self, job: &Job) {
        let free = !self.rest_until.contains_key(&job.id) && !self.pending.contains_key(&job.id);
        if let Some(cell) = job.cell
            && waits(job)
            && free
        {
            self.queues.entry(cell).or_default().insert(job);
        }
    }

    fn unqueue(&mut self, job: &Job) {
        let Some(cell) = job.cell else { return };
        let Some(queue) = self.queues.get_mut(&cell) else { return };
        queue.remove(job);
    }

    fn put_allocation(&mut self, allocation: Allocation) {
        // Only its states change once it is bound; what it holds does not.
        let allocation = Arc::new(allocation);
        if let Some(known) = self.allocations.get_mut(&allocation.id) {
            *known = allocation;
            return;
        }
        self.settle(&allocation);
        self.allocations.insert(allocation.id, allocation);
    }

    /// Charges to the books and keeps the index in step.
    fn charge(&mut self, allocation: &Allocation) {
        self.capacity.charge(allocation);
        for node in nodes_of(allocation) {
            self.refresh(node);
        }
    }

    /// Releases from the books, and remembers whom that may help.
    fn release(&mut self, allocation: &Allocation) {
        self.capacity.release(allocation);
        for node in nodes_of(allocation) {
            self.refresh(node);
            self.node_freed(node, allocation.cell);
        }
        let line: Vec<TenantId> = self.capacity.line_of(allocation.tenant).map(|(id, _)| id).collect();
        for tenant in line {
            self.clock.relieved(tenant);
        }
    }

    fn refresh(&mut self, node: NodeId) {
        self.index.refresh(node, self.capacity.nodes().get(&node));
    }

    fn node_freed(&mut self, node: NodeId, cell: CellId) {
        let Some(there) = self.capacity.nodes().get(&node) else { return };
        let models: BTreeSet<GpuModel> = there.node.spec.gpus.iter().map(|gpu| gpu.model).collect();
        self.clock.freed(cell, None);
        for model in models {
            self.clock.freed(cell, Some(model));
        }
    }

    /// Pool rules have changed: anything may fit now.
    fn everything_freed(&mut self) {
        let cells: Vec<CellId> = self.queues.keys().copied().collect();
        for cell in cells {
            self.clock.freed(cell, None);
            for model in GpuModel::ALL {
                self.clock.freed(cell, Some(model));
            }
        }
    }
}

/// Whether a job waits for devices.
pub(crate) fn waits(job: &Job) -> bool {
    job.phase == JobPhase::Queued && !job.cancelled
}

fn nodes_of(allocation: &Allocation) -> BTreeSet<NodeId> {
    allocation.tasks.iter().map(|task| task.node).collect()
}

fn amount_of(node: &Node) -> ResourceVec {
    let mut amount = ResourceVec::of_host(node.spec.cpu_milli, node.spec.memory_mib);
    for gpu in &node.spec.gpus {
        amount.add(&ResourceVec::of_gpu(gpu.model, muster_model::GpuUnits::CARD));
    }
    amount
}
