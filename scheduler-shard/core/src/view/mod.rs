//! What a shard knows: the capacity ledger with its own proposals assumed, and who waits in which cell.
//!
//! What must stay true:
//! - the view is a function of the changes it was given and of its own proposals, whatever order unrelated ones came in;
//! - a proposal under way is charged like an allocation until its allocation arrives, it is refused, or its job is gone;
//! - what the control plane has committed always wins: a proposal in its way is given up.

mod arrays;
mod assumed;
mod freed;
mod growing;
mod in_turn;
mod job;
mod preempting;
mod reservation_times;
mod reserved;
mod trial;
mod windows;

use crate::by_id::ById;
use crate::fleet::{Fleet, PlacementPolicy, Room};
use crate::job_class::JobClasses;
use crate::queue::backoff::Backoff;
use crate::queue::order::Ledger;
use crate::queue::past::PastUse;
use crate::queue::{CellQueue, Obstacle, QueueKey};
use arrays::Arrays;
pub(crate) use arrays::NextTasks;
use assumed::Assumed;
use growing::Elastics;
pub(crate) use in_turn::{first_of, in_turn, in_turn_at};
pub(crate) use job::{Known, MayGrow};
use muster_model::capacity::Capacity;
use muster_model::{
    Allocation, AllocationId, Cell, CellId, Change, Job, JobId, Key, MoveRecord, Node, NodeId, Object, PriorityClass,
    RunTimes, Tenant, TenantId, Window,
};
use preempting::{Preempting, RunningPriorities};
pub(crate) use preempting::{ReclaimFamily, ReclaimTried};
pub use reservation_times::RESERVATIONS_MAX;
pub(crate) use reservation_times::{ReservationSearch, SLACK_MS};
use reserved::Reserved;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
pub use windows::ReservationFault;

/// A shard's picture of the fleet.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub(crate) fleet: Fleet,
    pub(crate) cells: BTreeMap<CellId, Cell>,
    pub(crate) priority_classes: BTreeMap<String, PriorityClass>,
    /// By [`JobId`].
    pub(crate) jobs: ById<Arc<Known>>,
    /// By [`AllocationId`](muster_model::AllocationId).
    pub(crate) allocations: ById<Arc<Allocation>>,
    pub(crate) queues: BTreeMap<CellId, CellQueue>,
    /// Nodes that are offered to those who wait for room, and what they had before they were freed, where that is known.
    opened: BTreeMap<NodeId, Option<Room>>,
    classes: JobClasses,
    /// Proposals under way.
    assumed: BTreeMap<JobId, Assumed>,
    reserved: BTreeMap<JobId, Reserved>,
    /// When a pass was planned last.
    pub(crate) last_pass_ms: u64,
    /// How far the search for gangs to reserve for has come.
    pub(crate) searches: BTreeMap<CellId, ReservationSearch>,
    proposals_made: u64,
    /// Jobs that are left alone after their proposals came to nothing.
    backoff: Backoff,
    /// Waiting gangs by cell that the starvation guard protects, as far as their counts go, in the order of their tenants' queues.
    bypassed_enough: BTreeMap<CellId, BTreeSet<QueueKey>>,
    /// Preemptions that are proposed.
    preempting: BTreeMap<JobId, Preempting>,
    /// Of what runs, by tenant, how many have which priority.
    priorities: RunningPriorities,
    /// Groups for which no victims were found.
    pub(crate) reclaims_tried: BTreeMap<ReclaimFamily, ReclaimTried>,
    /// Cells in which somebody waits until the storage of checkpoints can take more, and until when nobody else preempts there.
    pub(crate) storage_waits: BTreeMap<CellId, u64>,
    /// Gangs for which no moves were found, and when they are tried again.
    pub(crate) moves_tried: BTreeMap<ReclaimFamily, ReclaimTried>,
    /// Records of moves: what budgets have left.
    pub(crate) moves: BTreeMap<AllocationId, MoveRecord>,
    /// Jobs that had nowhere else to go, and until when they are not handed over again.
    pub(crate) not_offered_until: BTreeMap<JobId, u64>,
    elastics: Elastics,
    /// How long the jobs of each tenant ran; shards are not told of it, only explanations use it.
    pub(crate) run_times: BTreeMap<TenantId, Arc<RunTimes>>,
    /// By name.
    pub(crate) windows: BTreeMap<String, Arc<Window>>,
    /// What tenants used before, where that counts.
    pub(crate) past: PastUse,
    arrays: Arrays,
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
            Change::Audit(_) => {}
        }
    }

    /// The same for a change that nobody else needs any more, without copying it.
    pub fn absorb(&mut self, change: Change) {
        match change {
            Change::Put(object) => self.put(*object),
            other => self.apply(&other),
        }
    }

    /// From now on places are chosen so. A fleet runs [`PlacementPolicy::Topology`]; the others are for replays that compare.
    pub fn choose_by(&mut self, policy: PlacementPolicy) {
        self.fleet.placement = policy;
    }

    /// The capacity ledger, proposals under way charged.
    #[must_use]
    pub fn capacity(&self) -> &Capacity {
        &self.fleet.capacity
    }

    /// The cells, by id.
    #[must_use]
    pub fn cells(&self) -> &BTreeMap<CellId, Cell> {
        &self.cells
    }

    /// Jobs that wait in `cell` and may be planned now; resting and proposed ones are not counted.
    #[must_use]
    pub fn waiting(&self, cell: CellId) -> usize {
        self.queues.get(&cell).map_or(0, CellQueue::len)
    }

    /// The jobs that wait in `cell`, by id.
    pub(crate) fn waiting_in(&self, cell: CellId) -> impl Iterator<Item = JobId> + '_ {
        self.queues.get(&cell).into_iter().flat_map(CellQueue::ids)
    }

    fn put(&mut self, object: Object) {
        match object {
            Object::Tenant(tenant) => self.put_tenant(&tenant),
            Object::Pool(pool) => {
                self.fleet.set_pool(&pool.name.clone(), Some(pool));
                self.everything_freed();
                self.reclaims_tried.clear();
                self.moves_tried.clear();
            }
            Object::Cell(cell) => {
                self.cells.insert(cell.id, cell);
            }
            Object::PriorityClass(class) => {
                self.priority_classes.insert(class.name.clone(), class);
                self.reclaims_tried.clear();
                self.everything_freed();
            }
            Object::Node(node) => self.put_node(node),
            Object::Job(job) => self.put_job(job),
            Object::Allocation(allocation) => self.put_allocation(allocation),
            Object::Window(window) => self.put_window(window),
            Object::Move(record) => drop(self.moves.insert(record.id, record)),
            Object::RunTimes(record) => drop(self.run_times.insert(record.tenant, Arc::new(record))),
            Object::UseHistory(record) => {
                let tenant = record.tenant;
                if self.past.put(record) {
                    self.forget_orders();
                }
                self.used_otherwise(tenant);
            }
            // Of other kinds a shard is told nothing, and no placement depends on them.
            _ => {}
        }
    }

    fn delete(&mut self, key: &Key) {
        match key {
            Key::Tenant(id) => {
                self.fleet.capacity.remove_tenant(*id);
                self.forget_orders();
                self.everything_freed();
            }
            Key::Pool(name) => {
                self.fleet.set_pool(name, None);
                self.everything_freed();
            }
            Key::Cell(id) => {
                self.cells.remove(id);
                self.fleet.forget_cell(*id);
            }
            Key::PriorityClass(name) => {
                self.priority_classes.remove(name);
            }
            Key::Node(id) => self.delete_node(*id),
            Key::Job(id) => {
                self.arrays.delete(*id);
                self.delete_job(*id);
            }
            Key::Window(name) => self.delete_window(name),
            Key::Move(id) => drop(self.moves.remove(id)),
            Key::RunTimes(id) => drop(self.run_times.remove(id)),
            Key::UseHistory(id) => {
                self.past.remove(*id);
                self.forget_orders();
            }
            Key::Allocation(id) => {
                self.part_gone(*id);
                if let Some(allocation) = self.allocations.remove(id.0) {
                    self.priorities.remove(&allocation);
                    self.release(&allocation);
                }
            }
            _ => {}
        }
    }

    /// What the order of tenants is decided by.
    pub(crate) fn ledger(&self) -> Ledger<'_> {
        self.ledger_at(self.past.kept_at())
    }

    /// The same with past use as of a time.
    fn ledger_at(&self, at_ms: u64) -> Ledger<'_> {
        Ledger { capacity: &self.fleet.capacity, totals: &self.fleet.totals, past: &self.past, at_ms }
    }

    /// Where past use counts, it counts as of now from here on, to the step.
    pub(crate) fn order_at(&mut self, now_ms: u64) {
        if self.past.go_on(now_ms) {
            self.forget_orders();
        }
    }

    /// What decides beside who waits and what is free, brought up to now: the time of past use, what later demand is expected, and what is scarce. Whoever
    /// plays a pass calls it first, or jobs go elsewhere than in the shard.
    pub(crate) fn look_around(&mut self, cell: CellId, now_ms: u64) {
        self.order_at(now_ms);
        self.fleet.look_ahead(cell);
        self.fleet.judge_scarcity(cell);
    }

    fn put_tenant(&mut self, tenant: &Tenant) {
        let before =
            self.fleet.capacity.tenants().get(&tenant.id).map(|old| old.anti_affinity.clone()).unwrap_or_default();
        self.fleet.put_tenant(tenant, held(&self.allocations, &self.assumed, &self.elastics).map(AsRef::as_ref));
        self.limits_changed(tenant.id);
        if before != tenant.anti_affinity {
            self.everything_freed();
        }
    }

    /// A tenant has other limits: what was tried in vain under the old ones may be taken under the new ones.
    fn limits_changed(&mut self, tenant: TenantId) {
        self.forget_orders();
        self.relieved(tenant);
        self.queues.values_mut().for_each(CellQueue::wake_by_guarantees);
        self.reclaims_tried.clear();
    }

    /// The tree or the fleet has changed under every standing.
    fn forget_orders(&mut self) {
        self.queues.values_mut().for_each(CellQueue::forget_order);
    }

    fn put_node(&mut self, node: Node) {
        let (id, cell) = (node.id, node.cell);
        self.invalidate(id);
        self.leaves_domain(id, node.spec.place.spanning_island());
        let unmet = self.fleet.capacity.unmet_floors().clone();
        // What floors that are not met cover decides who goes first, as what the fleet has does.
        if self.fleet.put_node(node) || *self.fleet.capacity.unmet_floors() != unmet {
            self.forget_orders();
        }
        self.node_freed(id, cell);
        self.wake_not_lent();
    }

    /// A node is about to be in another NVLink domain, or none: who is kept off whole domains for what it holds may stand on the rest of it then.
    fn leaves_domain(&mut self, id: NodeId, next: Option<String>) {
        let domain = self.fleet.capacity.nodes().get(&id).and_then(|there| there.node.spec.place.spanning_island());
        if self.fleet.capacity.has_anti_affinity() && domain.is_some() && domain != next {
            self.everything_freed();
        }
    }

    fn delete_node(&mut self, id: NodeId) {
        self.invalidate(id);
        self.give_up_on_node(id);
        self.leaves_domain(id, None);
        if let Some(cell) = self.fleet.capacity.nodes().get(&id).map(|there| there.node.cell) {
            self.withdraw(id, cell);
        }
        let unmet = self.fleet.capacity.unmet_floors().clone();
        if self.fleet.remove_node(id) || *self.fleet.capacity.unmet_floors() != unmet {
            self.forget_orders();
        }
    }

    fn put_job(&mut self, job: Job) {
        self.arrays.put(&job);
        let job = Arc::new(Known::of(job, &mut self.classes));
        if job.class.as_ref().is_some_and(|class| class.latency_critical) {
            let held = held(&self.allocations, &self.assumed, &self.elastics).map(AsRef::as_ref);
            self.fleet.watch_neighbours(job.tenant, held);
        }
        if job.needs_no_card() {
            self.fleet.watch_hosts();
        }
        let old = self.jobs.insert(job.id.0, job.clone());
        let same_place = old.as_ref().is_some_and(|old| old.stands_as(&job));
        if let Some(old) = old.as_ref().filter(|_| !same_place) {
            self.unqueue(old);
        }
        self.note_bypass(old.as_deref(), Some(&job));
        let same_wait =
            |old: &Arc<Known>| old.waits() && job.waits() && old.cell == job.cell && old.attempt == job.attempt;
        let same_wait = old.as_ref().is_some_and(same_wait);
        if !same_wait {
            self.forget_efforts(job.id);
            if let (Some(cell), Some(class)) = (job.cell, &job.class) {
                self.fleet.learned.came(cell, class);
                self.fleet.balance.came(cell, class);
            }
        }
        self.claim_changed(old.as_deref(), Some(&job));
        self.elastic_changed(job.id, Some(&job));
        if !same_place {
            self.enqueue(&job);
        }
        self.reserve_as_told(&job, same_wait);
    }

    /// Keeps in step who has been bypassed enough to be protected.
    fn note_bypass(&mut self, old: Option<&Known>, new: Option<&Known>) {
        for (job, is_new) in old.map(|old| (old, false)).into_iter().chain(new.map(|new| (new, true))) {
            let Some(cell) = job.cell.filter(|_| job.was_bypassed_enough()) else { continue };
            let gangs = self.bypassed_enough.entry(cell).or_default();
            if is_new {
                gangs.insert(job.queue_key);
            } else {
                gangs.remove(&job.queue_key);
            }
            if gangs.is_empty() {
                self.bypassed_enough.remove(&cell);
            }
        }
    }

    /// Waiting gangs of `cell` past which enough has started for the starvation guard, by priority and age.
    pub(crate) fn bypassed_enough(&self, cell: CellId) -> impl Iterator<Item = JobId> + '_ {
        self.bypassed_enough.get(&cell).into_iter().flatten().map(|queue_key| queue_key.job)
    }

    /// Whether this job is one of them.
    pub(crate) fn is_bypassed_enough(&self, cell: CellId, job: JobId) -> bool {
        let gangs = self.bypassed_enough.get(&cell);
        gangs.zip(self.jobs.get(job.0)).is_some_and(|(gangs, job)| gangs.contains(&job.queue_key))
    }

    fn delete_job(&mut self, id: JobId) {
        if let Some(job) = self.jobs.remove(id.0) {
            self.unqueue(&job);
            self.note_bypass(Some(&job), None);
            self.claim_changed(Some(&job), None);
        }
        self.elastic_changed(id, None);
        self.give_up_reservation(id);
        self.forget_efforts(id);
    }

    /// Everything that holds devices: what is committed, and what is proposed.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Arc<Allocation>> + '_ {
        held(&self.allocations, &self.assumed, &self.elastics)
    }

    /// One that holds devices.
    pub(crate) fn allocation(&self, id: AllocationId) -> Option<&Arc<Allocation>> {
        let assumed = || self.assumed.values().filter_map(Assumed::charged).find(|assumed| assumed.id == id);
        self.allocations.get(id.0).or_else(assumed)
    }

    /// Puts a waiting job into its cell's queue, unless it rests or is proposed.
    fn enqueue(&mut self, job: &Known) {
        let proposed = self.assumed.contains_key(&job.id) || self.preempting.contains_key(&job.id);
        let free = !self.backoff.holds(job.id) && !proposed;
        if let (Some(cell), Some(class)) = (job.cell, &job.class)
            && free
        {
            self.queues.entry(cell).or_default().insert(job.tenant, job.queue_key, class.clone());
        }
    }

    fn unqueue(&mut self, job: &Known) {
        let Some(cell) = job.cell else { return };
        let Some(queue) = self.queues.get_mut(&cell) else { return };
        queue.remove(job.tenant, job.id);
    }

    fn put_allocation(&mut self, mut allocation: Allocation) {
        // Once it is bound its states change, and who pays for it; what it holds does not. What its tasks are at decides nothing here.
        allocation.task_states = Vec::new();
        allocation.node_epochs = BTreeMap::new();
        let allocation = Arc::new(allocation);
        if let Some(known) = self.allocations.get(allocation.id.0).cloned() {
            self.replace_allocation(&known, allocation);
            return;
        }
        self.note_part(&allocation);
        self.confirm(&allocation);
        self.priorities.add(&allocation);
        self.allocations.insert(allocation.id.0, allocation);
    }

    /// Something of `tenant` is charged otherwise than before: its place in the order changes, its line may have more quota left, and others may lend more.
    fn quota_changed(&mut self, tenant: TenantId) {
        self.used_otherwise(tenant);
        self.wake_not_lent();
        let mut next = Some(tenant);
        while let Some(tenant) = next {
            self.relieved(tenant);
            next = self.fleet.capacity.tenants().get(&tenant).and_then(|at| at.parent);
        }
    }

    /// What was committed may be charged to another account than what was assumed.
    fn paid_otherwise(&mut self, assumed: &Allocation, committed: &Allocation) {
        if assumed.account() != committed.account() {
            self.quota_changed(committed.tenant);
        }
    }

    /// Whether a job will not be offered to another cell: it has been in each, or has nowhere else to go for now.
    pub(crate) fn stays_in(&self, cell: CellId, job: &Known, now_ms: u64) -> bool {
        let been_everywhere = self.cells.keys().all(|other| *other == cell || job.visited.contains(other));
        been_everywhere || self.is_not_offered(job.id, now_ms)
    }

    /// Whether a job is not offered to another cell for now.
    pub(crate) fn is_not_offered(&self, job: JobId, now_ms: u64) -> bool {
        self.not_offered_until.get(&job).is_some_and(|until_ms| *until_ms > now_ms)
    }

    fn used_otherwise(&mut self, tenant: TenantId) {
        self.queues.values_mut().for_each(|queue| queue.touch(tenant));
    }

    /// Quota of `tenant` has grown or is used less.
    fn relieved(&mut self, tenant: TenantId) {
        self.reserved_may_start();
        self.queues.values_mut().for_each(|queue| queue.wake(Obstacle::Tenant(tenant)));
    }
}

/// Everything that holds devices: what is committed, and what is proposed.
fn held<'v>(
    allocations: &'v ById<Arc<Allocation>>,
    pending: &'v BTreeMap<JobId, Assumed>,
    elastics: &'v Elastics,
) -> impl Iterator<Item = &'v Arc<Allocation>> {
    let growth = elastics.proposed.values().flat_map(|proposed| &proposed.parts);
    allocations.values().chain(pending.values().filter_map(Assumed::charged)).chain(growth)
}

/// The nodes it stands on, each once.
fn nodes_of(allocation: &Allocation) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = allocation.tasks.iter().map(|task| task.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}
