//! A plan in the making: what a command would change, seen on top of the state.
//!
//! Operations that touch several objects (a node that is lost ends many attempts) read their own writes here. What must stay
//! true: the state itself is never touched; dropping a draft leaves no trace (law 11); [`Draft::finish`] yields the changes in
//! the order in which objects were first touched, each with its last value.

use crate::outcome::Done;
use crate::state::State;
use muster_model::identity::Author;
use muster_model::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use muster_model::object::{Key, Meta};
use muster_model::{Allocation, Change, Job, MoveRecord, Node, Object, Outcome, RunTimes};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// What is to become of one object.
enum Staged {
    Put(Box<Object>),
    Delete,
    Retired(Box<Job>),
}

/// See the module.
pub(crate) struct Draft<'a> {
    /// The state underneath.
    pub(crate) state: &'a State,
    /// The command's time: the latest that any command carried.
    pub(crate) now_ms: u64,
    /// Who asks for it; nobody where the cluster does it by itself.
    pub(crate) author: Option<&'a Author>,
    /// Counters, as they will be.
    pub(crate) meta: Meta,
    order: Vec<Key>,
    staged: BTreeMap<Key, Staged>,
}

impl<'a> Draft<'a> {
    /// Nothing changed yet.
    pub(crate) fn new(state: &'a State, now_ms: u64) -> Self {
        Draft::at(state, now_ms.max(state.meta.now_ms))
    }

    /// The same at exactly `now_ms`, also when the state's time is ahead of it.
    pub(crate) fn at(state: &'a State, now_ms: u64) -> Self {
        Draft { state, now_ms, author: None, meta: state.meta.clone(), order: Vec::new(), staged: BTreeMap::new() }
    }

    /// The object has this value from now on.
    pub(crate) fn put(&mut self, object: Object) {
        self.stage(object.key(), Staged::Put(Box::new(object)));
    }

    /// The object is gone from now on.
    pub(crate) fn delete(&mut self, key: Key) {
        self.stage(key, Staged::Delete);
    }

    fn stage(&mut self, key: Key, staged: Staged) {
        if self.staged.insert(key.clone(), staged).is_none() {
            self.order.push(key);
        }
    }

    /// A live job as it stands in this draft.
    pub(crate) fn job(&self, id: JobId) -> Option<&Job> {
        match self.staged.get(&Key::Job(id)) {
            None => self.state.jobs.get(&id).map(AsRef::as_ref),
            Some(Staged::Put(object)) => match &**object {
                Object::Job(job) => Some(job),
                _ => None,
            },
            Some(_) => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        let state = self.state;
        let object = self.load(Key::Job(id), || state.jobs.get(&id).map(|job| Object::Job(Job::clone(job))))?;
        match object {
            Object::Job(job) => Some(job),
            _ => None,
        }
    }

    /// Jobs that have been changed or have ended in this draft, in the order in which they were first touched.
    pub(crate) fn touched_jobs(&self) -> Vec<JobId> {
        let job = |key: &Key| if let Key::Job(id) = key { Some(*id) } else { None };
        self.order.iter().filter_map(job).collect()
    }

    /// A job that ends in this draft.
    pub(crate) fn ended(&self, id: JobId) -> Option<&Job> {
        match self.staged.get(&Key::Job(id)) {
            Some(Staged::Retired(job)) => Some(job),
            _ => None,
        }
    }

    /// A live allocation as it stands in this draft.
    pub(crate) fn allocation(&self, id: AllocationId) -> Option<&Allocation> {
        match self.staged.get(&Key::Allocation(id)) {
            None => self.state.allocations.get(&id).map(AsRef::as_ref),
            Some(Staged::Put(object)) => match &**object {
                Object::Allocation(allocation) => Some(allocation),
                _ => None,
            },
            Some(_) => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn allocation_mut(&mut self, id: AllocationId) -> Option<&mut Allocation> {
        let state = self.state;
        let load = || state.allocations.get(&id).map(|held| Object::Allocation(Allocation::clone(held)));
        match self.load(Key::Allocation(id), load)? {
            Object::Allocation(allocation) => Some(allocation),
            _ => None,
        }
    }

    /// A node as it stands in this draft.
    pub(crate) fn node(&self, id: NodeId) -> Option<&Node> {
        match self.staged.get(&Key::Node(id)) {
            None => self.state.nodes.get(&id).map(AsRef::as_ref),
            Some(Staged::Put(object)) => match &**object {
                Object::Node(node) => Some(node),
                _ => None,
            },
            Some(_) => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        let state = self.state;
        match self.load(Key::Node(id), || state.nodes.get(&id).map(|node| Object::Node(Node::clone(node))))? {
            Object::Node(node) => Some(node),
            _ => None,
        }
    }

    /// How long a tenant's jobs ran, to be changed.
    pub(crate) fn run_times_mut(&mut self, tenant: TenantId) -> Option<&mut RunTimes> {
        let state = self.state;
        let load = || state.run_times.get(&tenant).cloned().unwrap_or_else(|| RunTimes::new(tenant));
        match self.load(Key::RunTimes(tenant), || Some(Object::RunTimes(load())))? {
            Object::RunTimes(record) => Some(record),
            _ => None,
        }
    }

    /// The record of a move, to be changed.
    pub(crate) fn move_mut(&mut self, id: AllocationId) -> Option<&mut MoveRecord> {
        let state = self.state;
        match self.load(Key::Move(id), || state.moves.get(&id).cloned().map(Object::Move))? {
            Object::Move(record) => Some(record),
            _ => None,
        }
    }

    fn load(&mut self, key: Key, load: impl FnOnce() -> Option<Object>) -> Option<&mut Object> {
        match self.staged.entry(key) {
            Entry::Occupied(entry) => match entry.into_mut() {
                Staged::Put(object) => Some(object),
                Staged::Delete | Staged::Retired(_) => None,
            },
            Entry::Vacant(entry) => {
                let object = load()?;
                self.order.push(entry.key().clone());
                match entry.insert(Staged::Put(Box::new(object))) {
                    Staged::Put(object) => Some(object),
                    Staged::Delete | Staged::Retired(_) => None,
                }
            }
        }
    }

    /// The job is over: it leaves memory for the history.
    pub(crate) fn retire(&mut self, id: JobId, outcome: Outcome) {
        let Some(mut job) = self.job(id).cloned() else { return };
        job.phase = muster_model::JobPhase::Finished(outcome);
        job.finished_ms = Some(self.now_ms);
        self.meta.finished_kept += 1;
        self.stage(Key::Job(id), Staged::Retired(Box::new(job)));
    }

    /// Gives out the next job id.
    pub(crate) fn next_job(&mut self) -> JobId {
        let id = self.meta.next_job;
        self.meta.next_job = id.next();
        id
    }

    /// Gives out the next allocation id.
    pub(crate) fn next_allocation(&mut self) -> AllocationId {
        let id = self.meta.next_allocation;
        self.meta.next_allocation = id.next();
        id
    }

    /// Gives out the next node id.
    pub(crate) fn next_node(&mut self) -> NodeId {
        let id = self.meta.next_node;
        self.meta.next_node = id.next();
        id
    }

    /// Gives out the next tenant id.
    pub(crate) fn next_tenant(&mut self) -> TenantId {
        let id = self.meta.next_tenant;
        self.meta.next_tenant = id.next();
        id
    }

    /// Gives out the next cell id.
    pub(crate) fn next_cell(&mut self) -> CellId {
        let id = self.meta.next_cell;
        self.meta.next_cell = id.next();
        id
    }

    /// The changes, and the answer. The clock moves with the first change, never by itself.
    pub(crate) fn finish(mut self, done: Done) -> (Vec<Change>, Done) {
        let mut changes = Vec::with_capacity(self.order.len() + 1);
        for key in self.order {
            match self.staged.remove(&key) {
                Some(Staged::Put(object)) => changes.push(Change::Put(object)),
                Some(Staged::Delete) => changes.push(Change::Delete(key)),
                Some(Staged::Retired(job)) => changes.push(Change::Retire(job)),
                None => {}
            }
        }
        if !changes.is_empty() || self.meta != self.state.meta {
            self.meta.now_ms = self.now_ms;
            if self.meta != self.state.meta {
                changes.push(Change::put(Object::Meta(self.meta)));
            }
        }
        (changes, done)
    }
}
