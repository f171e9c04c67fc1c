//! Ways to find objects without scanning them all.
//!
//! What must stay true: everything here is derived from the objects alone and emptied entries are removed, so an index that was
//! kept up change by change equals one that was built from the objects at once (a test and [`crate::State::check`] compare them).

mod access;
mod cells;
mod classes;
mod requests;
mod starts;
mod versions;

pub use access::AccessIndex;
pub(crate) use cells::wanted;
pub use cells::{CardShape, CellIndex, NodeShape, Shapes, tasks_on};
pub use classes::ClassIndex;
pub use requests::RequestIndex;
pub use starts::{StartIndex, same_name};
pub use versions::VersionIndex;

use muster_model::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use muster_model::node::Repair;
use muster_model::object::RequestRecord;
use muster_model::usage::AllocationUsage;
use muster_model::{Allocation, Cell, Job, JobPhase, Node, Tenant, Window};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Stands for `/` where paths order as the tree is read: it comes before every character of a name, so that what is below a tenant
/// follows it at once (`a`, `a/x`, `a-b`).
const TREE_SEPARATOR: &str = "\0";

/// How many live jobs a tenant itself (not its children) has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantJobs {
    /// Live ones.
    pub live: u64,
    /// Those of them that are queued.
    pub waiting: u64,
}

/// Live jobs by where they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseCounts {
    /// Queued.
    pub queued: u64,
    /// Starting.
    pub starting: u64,
    /// Running.
    pub running: u64,
    /// Stopping.
    pub stopping: u64,
}

impl PhaseCounts {
    fn of(&mut self, phase: &JobPhase) -> Option<&mut u64> {
        match phase {
            JobPhase::Queued => Some(&mut self.queued),
            JobPhase::Starting(_) => Some(&mut self.starting),
            JobPhase::Running(_) => Some(&mut self.running),
            JobPhase::Stopping(_) => Some(&mut self.stopping),
            JobPhase::Finished(_) => None,
        }
    }
}

/// The derived indexes of a [`crate::State`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Tenants by path.
    pub tenant_ids: BTreeMap<String, TenantId>,
    /// Tenants as a tree is read, by path with [`TREE_SEPARATOR`] for `/`.
    tenant_tree: BTreeMap<String, TenantId>,
    /// Children of each tenant that has some.
    pub tenant_children: BTreeMap<TenantId, BTreeSet<TenantId>>,
    /// Live jobs of each tenant that has some.
    pub tenant_jobs: BTreeMap<TenantId, TenantJobs>,
    /// Nodes by name.
    pub node_ids: BTreeMap<String, NodeId>,
    /// How many nodes belong to each pool.
    pub pool_nodes: BTreeMap<String, u32>,
    /// Cells by name.
    pub cell_ids: BTreeMap<String, CellId>,
    /// What each cell consists of and what waits and runs in it.
    pub cells: BTreeMap<CellId, CellIndex>,
    /// Eligible jobs by the cell that tries to place them.
    pub queued: BTreeMap<Option<CellId>, BTreeSet<JobId>>,
    /// Live jobs by phase.
    pub phases: PhaseCounts,
    /// Live allocations with a task on each node.
    pub on_node: BTreeMap<NodeId, BTreeSet<AllocationId>>,
    /// Nodes that another agent asks to be.
    pub with_rival: BTreeSet<NodeId>,
    /// Nodes that are quarantined.
    pub quarantined: BTreeSet<NodeId>,
    /// Nodes of a backup of which not all is clear yet.
    pub restored: BTreeSet<NodeId>,
    /// Nodes with cards that are kept in use although their agents would withhold them.
    pub sparing: BTreeSet<NodeId>,
    /// How many cards are withheld, or have slices that are, by what is to be done about them.
    pub withheld: BTreeMap<Repair, usize>,
    /// Remembered requests, each tenant's and everybody's.
    pub requests: RequestIndex,
    /// Allocations by who pays for them.
    pub classes: ClassIndex,
    /// Jobs that have claimed what others are leaving.
    pub claims: BTreeSet<JobId>,
    /// Usage records of released allocations, the longest released first.
    pub released_usage: BTreeSet<(u64, AllocationId)>,
    /// Live jobs by what decides when they may start.
    pub starts: StartIndex,
    /// Versions of tenants that have ended.
    pub past_versions: VersionIndex,
    /// Grants and credentials.
    pub access: AccessIndex,
    /// Names of the windows that each node is in.
    windows: BTreeMap<NodeId, BTreeSet<String>>,
}

impl Index {
    /// Eligible jobs of one cell, oldest first; `None` for those that no cell could hold so far.
    pub fn queued_in(&self, cell: Option<CellId>) -> impl Iterator<Item = JobId> + '_ {
        self.queued.get(&cell).into_iter().flatten().copied()
    }

    /// Tenants at `under` and below it (all when it is empty), parents before their children and children by name: as a tree is read
    /// from top to bottom; after the path `after`, if one is given.
    pub fn tenants_below(&self, under: &str, after: Option<&str>) -> impl Iterator<Item = TenantId> + '_ {
        let top = in_tree(under);
        let first = match after.map(in_tree) {
            Some(after) if after >= top => Bound::Excluded(after),
            _ => Bound::Included(top.clone()),
        };
        let within = move |path: &str| {
            let below = path.strip_prefix(top.as_str());
            top.is_empty() || below.is_some_and(|rest| rest.is_empty() || rest.starts_with(TREE_SEPARATOR))
        };
        self.tenant_tree.range((first, Bound::Unbounded)).take_while(move |(path, _)| within(path)).map(|(_, id)| *id)
    }

    /// Live jobs of one tenant itself.
    #[must_use]
    pub fn jobs_of(&self, tenant: TenantId) -> TenantJobs {
        self.tenant_jobs.get(&tenant).copied().unwrap_or_default()
    }

    /// Live allocations with a task on `node`, oldest first.
    pub fn allocations_on(&self, node: NodeId) -> impl Iterator<Item = AllocationId> + '_ {
        self.on_node.get(&node).into_iter().flatten().copied()
    }

    /// Names of the windows that `node` is in.
    pub fn windows_on(&self, node: NodeId) -> impl Iterator<Item = &String> + '_ {
        self.windows.get(&node).into_iter().flatten()
    }

    pub(crate) fn change_window(&mut self, old: Option<&Window>, new: Option<&Window>) {
        if let Some(old) = old {
            old.nodes.iter().for_each(|node| remove_from(&mut self.windows, node, &old.name));
        }
        if let Some(window) = new {
            for node in &window.nodes {
                self.windows.entry(*node).or_default().insert(window.name.clone());
            }
        }
    }

    pub(crate) fn put_tenant(&mut self, tenant: &Tenant) {
        self.tenant_ids.insert(tenant.path.clone(), tenant.id);
        self.tenant_tree.insert(in_tree(&tenant.path), tenant.id);
        if let Some(parent) = tenant.parent {
            self.tenant_children.entry(parent).or_default().insert(tenant.id);
        }
    }

    pub(crate) fn remove_tenant(&mut self, tenant: &Tenant) {
        self.tenant_ids.remove(&tenant.path);
        self.tenant_tree.remove(&in_tree(&tenant.path));
        if let Some(parent) = tenant.parent {
            remove_from(&mut self.tenant_children, &parent, &tenant.id);
        }
    }

    pub(crate) fn put_cell(&mut self, cell: &Cell) {
        self.cell_ids.insert(cell.name.clone(), cell.id);
    }

    pub(crate) fn remove_cell(&mut self, cell: &Cell) {
        self.cell_ids.remove(&cell.name);
    }

    pub(crate) fn change_node(&mut self, old: Option<&Node>, new: Option<&Node>) {
        if let Some(node) = old {
            self.node_ids.remove(&node.spec.name);
            self.with_rival.remove(&node.id);
            self.quarantined.remove(&node.id);
            self.restored.remove(&node.id);
            self.sparing.remove(&node.id);
            for gpu in node.spec.gpus.iter().filter(|gpu| gpu.has_withheld()) {
                if let Some(count) = self.withheld.get_mut(&gpu.repair) {
                    *count -= 1;
                    if *count == 0 {
                        self.withheld.remove(&gpu.repair);
                    }
                }
            }
            if let Some(count) = self.pool_nodes.get_mut(&node.spec.pool) {
                *count -= 1;
                if *count == 0 {
                    self.pool_nodes.remove(&node.spec.pool);
                }
            }
            self.cell_mut(node.cell, |cell| cell.remove_node(node));
        }
        if let Some(node) = new {
            self.node_ids.insert(node.spec.name.clone(), node.id);
            if node.notes.rival.is_some() {
                self.with_rival.insert(node.id);
            }
            if node.notes.quarantine.is_some() {
                self.quarantined.insert(node.id);
            }
            if node.notes.restored.is_some() {
                self.restored.insert(node.id);
            }
            if !node.notes.verdicts.spared.is_empty() {
                self.sparing.insert(node.id);
            }
            for gpu in node.spec.gpus.iter().filter(|gpu| gpu.has_withheld()) {
                *self.withheld.entry(gpu.repair).or_default() += 1;
            }
            *self.pool_nodes.entry(node.spec.pool.clone()).or_default() += 1;
            self.cell_mut(node.cell, |cell| cell.add_node(node));
        }
    }

    pub(crate) fn change_job(&mut self, old: Option<&Job>, new: Option<&Job>) {
        self.starts.change(old, new);
        if let Some(job) = old {
            if let Some(count) = self.phases.of(&job.phase) {
                *count -= 1;
            }
            let waiting = matches!(job.phase, JobPhase::Queued);
            if let Some(jobs) = self.tenant_jobs.get_mut(&job.tenant) {
                jobs.live -= 1;
                jobs.waiting -= u64::from(waiting);
                if jobs.live == 0 {
                    self.tenant_jobs.remove(&job.tenant);
                }
            }
            if job.is_eligible() {
                remove_from(&mut self.queued, &job.cell, &job.id);
                self.cell_mut_if(job.cell, |cell| cell.remove_waiting(job));
            }
        }
        let claims = |job: &&Job| job.claim.is_some();
        if let Some(job) = old.filter(claims) {
            self.claims.remove(&job.id);
        }
        if let Some(job) = new.filter(claims) {
            self.claims.insert(job.id);
        }
        if let Some(job) = new {
            if let Some(count) = self.phases.of(&job.phase) {
                *count += 1;
            }
            let waiting = matches!(job.phase, JobPhase::Queued);
            let jobs = self.tenant_jobs.entry(job.tenant).or_default();
            jobs.live += 1;
            jobs.waiting += u64::from(waiting);
            if job.is_eligible() {
                self.queued.entry(job.cell).or_default().insert(job.id);
                self.cell_mut_if(job.cell, |cell| cell.add_waiting(job));
            }
        }
    }

    pub(crate) fn add_allocation(&mut self, allocation: &Allocation) {
        for task in &allocation.tasks {
            self.on_node.entry(task.node).or_default().insert(allocation.id);
        }
        self.cell_mut(allocation.cell, |cell| cell.held.add(&allocation.charge));
    }

    pub(crate) fn remove_allocation(&mut self, allocation: &Allocation) {
        for task in &allocation.tasks {
            remove_from(&mut self.on_node, &task.node, &allocation.id);
        }
        self.cell_mut(allocation.cell, |cell| cell.held.sub(&allocation.charge));
    }

    pub(crate) fn change_request(&mut self, old: Option<&Arc<RequestRecord>>, new: Option<&Arc<RequestRecord>>) {
        if let Some(request) = old {
            self.requests.remove(request);
        }
        if let Some(request) = new {
            self.requests.add(request);
        }
    }

    pub(crate) fn change_usage(&mut self, old: Option<&AllocationUsage>, new: Option<&AllocationUsage>) {
        let key = |usage: &AllocationUsage| usage.released_ms.map(|released| (released, usage.allocation));
        if let Some(key) = old.and_then(key) {
            self.released_usage.remove(&key);
        }
        if let Some(key) = new.and_then(key) {
            self.released_usage.insert(key);
        }
    }

    fn cell_mut(&mut self, id: CellId, touch: impl FnOnce(&mut CellIndex)) {
        let cell = self.cells.entry(id).or_default();
        touch(cell);
        if *cell == CellIndex::default() {
            self.cells.remove(&id);
        }
    }

    fn cell_mut_if(&mut self, id: Option<CellId>, touch: impl FnOnce(&mut CellIndex)) {
        if let Some(id) = id {
            self.cell_mut(id, touch);
        }
    }
}

/// A path whose bytes order as the tree is read.
fn in_tree(path: &str) -> String {
    path.replace('/', TREE_SEPARATOR)
}

fn remove_from<K: Ord, V: Ord>(sets: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}
