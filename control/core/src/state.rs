//! The state that is replicated, and the one way to change it.
//!
//! What must stay true: [`State::apply`] refuses nothing and is the only mutator. It panics on an allocation that does not fit the capacity ledger,
//! which `plan` has proved: that is a bug, every replica meets it at the same entry, and stops there before anything is stored. The
//! capacity ledger ([`Capacity`]) and the [`Index`] are derived from the objects alone, so that a state loaded by [`State::from_objects`] equals
//! one that applied every change.

use crate::index::Index;
use crate::request_table::RequestTable;
use muster_model::capacity::Capacity;
use muster_model::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use muster_model::node::RemovedNode;
use muster_model::object::{Key, Meta, RequestFloor, RequestRecord};
use muster_model::usage::{AllocationUsage, UsageStream, UsageTotal};
use muster_model::{Allocation, Cell, Change, DeviceClass, Job, Node, Object, Pool, Tenant};
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
    pub requests: RequestTable,
    /// Usage streams.
    pub usage_streams: BTreeMap<NodeId, UsageStream>,
    /// Sums per tenant.
    pub usage_totals: BTreeMap<TenantId, UsageTotal>,
    /// Sums per allocation.
    pub allocation_usage: BTreeMap<AllocationId, AllocationUsage>,
    /// Device classes.
    pub device_classes: BTreeMap<String, DeviceClass>,
    /// Up to when request ids have been forgotten early, by the tenant's path.
    pub request_floors: BTreeMap<String, RequestFloor>,
    /// Nodes that were taken out of the fleet, by name.
    pub removed_nodes: BTreeMap<String, RemovedNode>,
    /// The capacity ledger, derived from the above.
    capacity: Capacity,
    /// Ways to find objects without scanning, derived from the above.
    index: Index,
}

impl State {
    /// Pools as they are described, and last the standard one with its rules where nobody has described it.
    pub fn all_pools(&self) -> impl Iterator<Item = &Pool> {
        let standard = Some(Pool::standard_rules()).filter(|pool| !self.pools.contains_key(&pool.name));
        self.pools.values().chain(standard)
    }

    /// An empty cluster. Its identity is drawn by whoever bootstraps it; 0 as long as that has not happened. Ids count from 1.
    #[must_use]
    pub fn new(cluster: u64) -> Self {
        State {
            meta: Meta {
                incarnation: 1,
                feature_level: 1,
                next_job: JobId(1),
                next_allocation: AllocationId(1),
                next_node: NodeId(1),
                next_tenant: TenantId(1),
                next_cell: CellId(1),
                now_ms: 0,
                requests_floor_ms: 0,
                cluster,
                finished_kept: 0,
                finished_forgotten: 0,
            },
            tenants: BTreeMap::new(),
            pools: BTreeMap::new(),
            cells: BTreeMap::new(),
            nodes: BTreeMap::new(),
            jobs: BTreeMap::new(),
            allocations: BTreeMap::new(),
            requests: RequestTable::default(),
            usage_streams: BTreeMap::new(),
            usage_totals: BTreeMap::new(),
            allocation_usage: BTreeMap::new(),
            device_classes: BTreeMap::new(),
            request_floors: BTreeMap::new(),
            removed_nodes: BTreeMap::new(),
            capacity: Capacity::default(),
            index: Index::default(),
        }
    }

    /// A state from its objects, in any order: what a snapshot or a restart loads. Without a [`Meta`] among them it is as
    /// after [`State::new`]`(0)`.
    pub fn from_objects(objects: impl IntoIterator<Item = Object>) -> Self {
        let mut state = State::new(0);
        // Allocations are charged to nodes and tenants, so they wait until those are there; then in the order of their binding,
        // which is the order in which shares of a card are listed.
        let mut allocations = BTreeMap::new();
        for object in objects {
            match object {
                Object::Allocation(allocation) => {
                    allocations.insert(allocation.id, allocation);
                }
                other => state.put(other),
            }
        }
        for allocation in allocations.into_values() {
            state.put_allocation(allocation);
        }
        state
    }

    /// The capacity ledger.
    #[must_use]
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Ways to find objects without scanning.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Makes one change.
    ///
    /// # Panics
    /// When an allocation does not fit the capacity ledger: `plan` has proved that it does.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(object) => self.put(Object::clone(object)),
            Change::Delete(key) => self.delete(key),
            Change::Retire(job) => self.delete(&Key::Job(job.id)),
        }
    }

    fn put(&mut self, object: Object) {
        match object {
            Object::Meta(meta) => self.meta = meta,
            Object::Tenant(tenant) => {
                self.index.put_tenant(&tenant);
                self.capacity.put_tenant(&tenant);
                if self.capacity.wants_tenants_counted() {
                    self.capacity.count_tenants(self.allocations.values().map(AsRef::as_ref));
                }
                self.tenants.insert(tenant.id, tenant);
            }
            Object::Pool(pool) => {
                self.capacity.put_pool(pool.clone());
                self.pools.insert(pool.name.clone(), pool);
            }
            Object::Cell(cell) => {
                self.index.put_cell(&cell);
                self.cells.insert(cell.id, cell);
            }
            Object::Node(node) => {
                let node = Arc::new(node);
                let old = self.nodes.insert(node.id, Arc::clone(&node));
                self.index.change_node(old.as_deref(), Some(&node));
                self.capacity.put_node(node);
            }
            Object::Job(job) => {
                let job = Arc::new(job);
                let old = self.jobs.insert(job.id, Arc::clone(&job));
                self.index.change_job(old.as_deref(), Some(&job));
            }
            Object::Allocation(allocation) => self.put_allocation(allocation),
            Object::Request(request) => {
                let request = Arc::new(request);
                let old = self.requests.insert(Arc::clone(&request));
                self.index.change_request(old.as_ref(), Some(&request));
            }
            Object::UsageStream(stream) => {
                self.usage_streams.insert(stream.node, stream);
            }
            Object::UsageTotal(total) => {
                self.usage_totals.insert(total.tenant, total);
            }
            Object::AllocationUsage(usage) => {
                self.index.change_usage(self.allocation_usage.get(&usage.allocation), Some(&usage));
                self.allocation_usage.insert(usage.allocation, usage);
            }
            Object::DeviceClass(class) => {
                self.device_classes.insert(class.name.clone(), class);
            }
            Object::RequestFloor(floor) => {
                self.request_floors.insert(floor.tenant.clone(), floor);
            }
            Object::RemovedNode(removed) => {
                self.removed_nodes.insert(removed.name.clone(), removed);
            }
        }
    }

    /// An allocation keeps its places and its charge for life, so only a new one is charged.
    fn put_allocation(&mut self, allocation: Allocation) {
        let allocation = Arc::new(allocation);
        let old = self.allocations.insert(allocation.id, Arc::clone(&allocation));
        if old.is_none() {
            self.capacity.charge(&allocation);
            self.index.add_allocation(&allocation);
        }
    }

    fn delete(&mut self, key: &Key) {
        match key {
            Key::Meta => {}
            Key::Tenant(id) => {
                if let Some(tenant) = self.tenants.remove(id) {
                    self.index.remove_tenant(&tenant);
                    self.capacity.remove_tenant(*id);
                }
            }
            Key::Pool(name) => {
                self.pools.remove(name);
                self.capacity.remove_pool(name);
            }
            Key::Cell(id) => {
                if let Some(cell) = self.cells.remove(id) {
                    self.index.remove_cell(&cell);
                }
            }
            Key::Node(id) => {
                let old = self.nodes.remove(id);
                self.index.change_node(old.as_deref(), None);
                self.capacity.remove_node(*id);
            }
            Key::Job(id) => {
                let old = self.jobs.remove(id);
                self.index.change_job(old.as_deref(), None);
            }
            Key::Allocation(id) => {
                if let Some(allocation) = self.allocations.remove(id) {
                    self.capacity.release(&allocation);
                    self.index.remove_allocation(&allocation);
                }
            }
            Key::Request(id) => {
                let old = self.requests.remove(id);
                self.index.change_request(old.as_ref(), None);
            }
            Key::UsageStream(node) => {
                self.usage_streams.remove(node);
            }
            Key::UsageTotal(tenant) => {
                self.usage_totals.remove(tenant);
            }
            Key::AllocationUsage(id) => {
                let old = self.allocation_usage.remove(id);
                self.index.change_usage(old.as_ref(), None);
            }
            Key::DeviceClass(name) => {
                self.device_classes.remove(name);
            }
            Key::RequestFloor(tenant) => {
                self.request_floors.remove(tenant);
            }
            Key::RemovedNode(name) => {
                self.removed_nodes.remove(name);
            }
            Key::Finished(_) => {}
        }
    }

    /// Every object, in the order of its key: for snapshots, watches from the beginning, and comparing replicas. `Retire`d jobs
    /// are not among them.
    pub fn objects(&self) -> impl Iterator<Item = Object> + '_ {
        std::iter::once(Object::Meta(self.meta.clone()))
            .chain(self.tenants.values().cloned().map(Object::Tenant))
            .chain(self.pools.values().cloned().map(Object::Pool))
            .chain(self.cells.values().cloned().map(Object::Cell))
            .chain(self.nodes.values().map(|node| Object::Node(Node::clone(node))))
            .chain(self.jobs.values().map(|job| Object::Job(Job::clone(job))))
            .chain(self.allocations.values().map(|held| Object::Allocation(Allocation::clone(held))))
            .chain(self.requests.sorted().map(|request| Object::Request(RequestRecord::clone(request))))
            .chain(self.usage_streams.values().cloned().map(Object::UsageStream))
            .chain(self.usage_totals.values().cloned().map(Object::UsageTotal))
            .chain(self.allocation_usage.values().cloned().map(Object::AllocationUsage))
            .chain(self.device_classes.values().cloned().map(Object::DeviceClass))
            .chain(self.request_floors.values().cloned().map(Object::RequestFloor))
            .chain(self.removed_nodes.values().cloned().map(Object::RemovedNode))
    }
}
