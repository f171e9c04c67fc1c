//! How each kind of object is kept, and how it changes the capacity ledger and the index.
//!
//! What must stay true: a state that was loaded at once has the same as one that applied every change ([`State::check`](crate::State::check)
//! compares them).

use super::kept::{Derived, Kept, Table};
use crate::request_table::RequestTable;
use muster_model::identity::{AuditHead, Credential, Grant, JoinToken, Machine, Secret};
use muster_model::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use muster_model::node::RemovedNode;
use muster_model::object::{Number, Replicated, RequestFloor, RequestRecord};
use muster_model::usage::{AllocationUsage, UsageStream, UsageTotal};
use muster_model::{
    Allocation, Cell, DeviceClass, Job, MoveRecord, Node, Pool, PriorityClass, RunTimes, Tenant, TenantHistory,
    UseHistory, Window,
};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Kept for Tenant {
    type Held = Tenant;
    type Table = BTreeMap<TenantId, Tenant>;

    fn changed(derived: &mut Derived, old: Option<&Tenant>, new: Option<&Tenant>) {
        match (old, new) {
            (old, Some(tenant)) => {
                if let Some(old) = old.filter(|old| (old.parent, &old.path) != (tenant.parent, &tenant.path)) {
                    derived.index.remove_tenant(old);
                }
                derived.index.put_tenant(tenant);
                derived.capacity.put_tenant(tenant);
                if old.is_some_and(|old| old.parent != tenant.parent) {
                    derived.index.classes.tenant_moved(&derived.capacity);
                }
            }
            (Some(tenant), None) => {
                derived.index.remove_tenant(tenant);
                derived.capacity.remove_tenant(tenant.id);
            }
            (None, None) => {}
        }
    }
}

impl Kept for Pool {
    type Held = Pool;
    type Table = BTreeMap<String, Pool>;

    fn changed(derived: &mut Derived, old: Option<&Pool>, new: Option<&Pool>) {
        match (old, new) {
            (_, Some(pool)) => derived.capacity.put_pool(pool.clone()),
            (Some(pool), None) => derived.capacity.remove_pool(&pool.name),
            (None, None) => {}
        }
    }
}

impl Kept for Cell {
    type Held = Cell;
    type Table = BTreeMap<CellId, Cell>;

    fn changed(derived: &mut Derived, old: Option<&Cell>, new: Option<&Cell>) {
        match (old, new) {
            (_, Some(cell)) => derived.index.put_cell(cell),
            (Some(cell), None) => derived.index.remove_cell(cell),
            (None, None) => {}
        }
    }
}

impl Kept for Node {
    type Held = Arc<Node>;
    type Table = BTreeMap<NodeId, Arc<Node>>;

    fn changed(derived: &mut Derived, old: Option<&Arc<Node>>, new: Option<&Arc<Node>>) {
        derived.index.change_node(old.map(AsRef::as_ref), new.map(AsRef::as_ref));
        match (old, new) {
            (_, Some(node)) => derived.capacity.put_node(Arc::clone(node)),
            (Some(node), None) => derived.capacity.remove_node(node.id),
            (None, None) => {}
        }
    }
}

impl Kept for Job {
    type Held = Arc<Job>;
    type Table = BTreeMap<JobId, Arc<Job>>;

    fn changed(derived: &mut Derived, old: Option<&Arc<Job>>, new: Option<&Arc<Job>>) {
        derived.index.change_job(old.map(AsRef::as_ref), new.map(AsRef::as_ref));
        let claim = |job: &Job| job.claim.clone().map(|claim| (job.id, job.tenant, claim));
        let (old, new) = (old.and_then(|job| claim(job)), new.and_then(|job| claim(job)));
        if old == new {
            return;
        }
        if let Some((job, tenant, claim)) = old {
            derived.capacity.remove_claim(job, tenant, &claim);
        }
        if let Some((job, tenant, claim)) = new {
            derived.capacity.put_claim(job, tenant, &claim);
        }
    }
}

impl Kept for Allocation {
    type Held = Arc<Allocation>;
    type Table = BTreeMap<AllocationId, Arc<Allocation>>;

    /// An allocation keeps its places and its charge for life, so devices are charged once; who pays may change.
    fn changed(derived: &mut Derived, old: Option<&Arc<Allocation>>, new: Option<&Arc<Allocation>>) {
        derived.index.classes.changed(&derived.capacity, old.map(AsRef::as_ref), new.map(AsRef::as_ref));
        match (old, new) {
            (None, Some(held)) => {
                derived.capacity.charge(held);
                derived.index.add_allocation(held);
            }
            (Some(held), None) => {
                derived.capacity.release(held);
                derived.index.remove_allocation(held);
            }
            (Some(old), Some(new)) => derived.capacity.recharge(old, new),
            (None, None) => {}
        }
    }
}

impl Kept for RequestRecord {
    type Held = Arc<RequestRecord>;
    type Table = RequestTable;

    fn changed(derived: &mut Derived, old: Option<&Arc<RequestRecord>>, new: Option<&Arc<RequestRecord>>) {
        derived.index.change_request(old, new);
    }
}

impl Table<RequestRecord> for RequestTable {
    fn put(&mut self, request: RequestRecord, derived: &mut Derived) {
        let request = Arc::new(request);
        let old = self.insert(Arc::clone(&request));
        RequestRecord::changed(derived, old.as_ref(), Some(&request));
    }

    fn delete(&mut self, id: &String, derived: &mut Derived) {
        let old = self.remove(id);
        RequestRecord::changed(derived, old.as_ref(), None);
    }

    fn all(&self) -> impl Iterator<Item = RequestRecord> + '_ {
        self.sorted().map(|request| RequestRecord::clone(request))
    }
}

impl Kept for AllocationUsage {
    type Held = AllocationUsage;
    type Table = BTreeMap<AllocationId, AllocationUsage>;

    fn changed(derived: &mut Derived, old: Option<&AllocationUsage>, new: Option<&AllocationUsage>) {
        derived.index.change_usage(old, new);
    }
}

impl Kept for Window {
    type Held = Window;
    type Table = BTreeMap<String, Window>;

    fn changed(derived: &mut Derived, old: Option<&Window>, new: Option<&Window>) {
        derived.index.change_window(old, new);
    }
}

impl Kept for TenantHistory {
    type Held = TenantHistory;
    type Table = BTreeMap<TenantId, TenantHistory>;

    fn changed(derived: &mut Derived, old: Option<&TenantHistory>, new: Option<&TenantHistory>) {
        derived.index.past_versions.change(old, new);
    }
}

impl Kept for Grant {
    type Held = Grant;
    type Table = BTreeMap<Number, Grant>;

    fn changed(derived: &mut Derived, old: Option<&Grant>, new: Option<&Grant>) {
        derived.index.access.change_grant(old, new);
    }
}

impl Kept for Credential {
    type Held = Credential;
    type Table = BTreeMap<Number, Credential>;

    fn changed(derived: &mut Derived, old: Option<&Credential>, new: Option<&Credential>) {
        derived.index.access.change_credential(old, new);
    }
}

impl Kept for JoinToken {
    type Held = JoinToken;
    type Table = BTreeMap<Number, JoinToken>;

    fn changed(derived: &mut Derived, old: Option<&JoinToken>, new: Option<&JoinToken>) {
        derived.index.access.change_join_token(old, new);
    }
}

/// Kinds from which nothing is derived.
macro_rules! nothing_derived {
    ($($kind:ty),* $(,)?) => {
        $(impl Kept for $kind {
            type Held = $kind;
            type Table = BTreeMap<<$kind as Replicated>::Id, $kind>;

            fn changed(_: &mut Derived, _: Option<&$kind>, _: Option<&$kind>) {}
        })*
    };
}
nothing_derived!(
    UsageStream,
    UsageTotal,
    DeviceClass,
    RequestFloor,
    RemovedNode,
    PriorityClass,
    RunTimes,
    MoveRecord,
    UseHistory,
    Machine,
    AuditHead,
    Secret,
);
