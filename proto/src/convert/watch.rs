//! Changes of the state as shards are sent them.
//!
//! Counters, remembered submissions, usage and device classes (jobs carry what they meant) are nobody's business outside the control plane and
//! are not sent, and nor is any other kind of object that is not named here.

use super::job::job_from_control_plane;
use super::need;
use crate::v1;
use muster_model::{AllocationId, CellId, Change, FieldError, JobId, Key, NodeId, Object, TenantId};
use v1::watch_change::Change as Wire;

/// The change as it is sent, or none when it is not.
#[must_use]
pub fn change_to_wire(change: &Change) -> Option<v1::WatchChange> {
    let wire = match change {
        Change::Put(object) => return object_to_wire(object),
        Change::Retire(job) => Wire::JobGone(job.id.0),
        Change::Audit(_) => return None,
        Change::Delete(key) => match key {
            Key::Tenant(id) => Wire::TenantGone(id.0),
            Key::Pool(name) => Wire::PoolGone(name.clone()),
            Key::Cell(id) => Wire::CellGone(id.0),
            Key::Node(id) => Wire::NodeGone(id.0),
            Key::Job(id) => Wire::JobGone(id.0),
            Key::Allocation(id) => Wire::AllocationGone(id.0),
            Key::Window(name) => Wire::WindowGone(name.clone()),
            Key::PriorityClass(name) => Wire::PriorityClassGone(name.clone()),
            Key::Move(id) => Wire::MoveGone(id.0),
            Key::UseHistory(id) => Wire::UseHistoryGone(id.0),
            _ => return None,
        },
    };
    Some(v1::WatchChange { change: Some(wire) })
}

/// The object as part of a snapshot or as a new value, or none when it is not sent.
#[must_use]
pub fn object_to_wire(object: &Object) -> Option<v1::WatchChange> {
    let wire = match object {
        Object::Tenant(tenant) => Wire::Tenant(tenant.into()),
        Object::Pool(pool) => Wire::Pool(pool.into()),
        Object::Cell(cell) => Wire::Cell(cell.into()),
        Object::Node(node) => Wire::Node(node.into()),
        Object::Job(job) => Wire::Job(job.into()),
        Object::Allocation(allocation) => Wire::Allocation(allocation.into()),
        Object::Window(window) => Wire::Window(window.into()),
        Object::PriorityClass(class) => Wire::PriorityClass(class.into()),
        Object::Move(record) => Wire::Move(record.into()),
        Object::UseHistory(record) => Wire::UseHistory(record.into()),
        _ => return None,
    };
    Some(v1::WatchChange { change: Some(wire) })
}

/// A change as the control plane told of it, to a shard that follows the state. What a job's specification says was checked when the control
/// plane accepted it.
///
/// # Errors
/// A message that is no change.
pub fn change_from_control_plane(wire: v1::WatchChange) -> Result<Change, FieldError> {
    let under = |field: &'static str| move |error: FieldError| error.under(field);
    Ok(match need(wire.change, "change")? {
        Wire::Tenant(tenant) => Change::put(Object::Tenant(tenant.try_into().map_err(under("tenant"))?)),
        Wire::Pool(pool) => Change::put(Object::Pool(pool.try_into().map_err(under("pool"))?)),
        Wire::Cell(cell) => Change::put(Object::Cell(cell.into())),
        Wire::Node(node) => Change::put(Object::Node(node.try_into().map_err(under("node"))?)),
        Wire::Job(job) => Change::put(Object::Job(job_from_control_plane(job).map_err(under("job"))?)),
        Wire::Allocation(allocation) => {
            Change::put(Object::Allocation(allocation.try_into().map_err(under("allocation"))?))
        }
        Wire::TenantGone(id) => Change::Delete(Key::Tenant(TenantId(id))),
        Wire::PoolGone(name) => Change::Delete(Key::Pool(name)),
        Wire::CellGone(id) => Change::Delete(Key::Cell(CellId(id))),
        Wire::NodeGone(id) => Change::Delete(Key::Node(NodeId(id))),
        Wire::JobGone(id) => Change::Delete(Key::Job(JobId(id))),
        Wire::AllocationGone(id) => Change::Delete(Key::Allocation(AllocationId(id))),
        Wire::PriorityClass(class) => Change::put(Object::PriorityClass(class.into())),
        Wire::Window(window) => Change::put(Object::Window(window.try_into().map_err(under("window"))?)),
        Wire::WindowGone(name) => Change::Delete(Key::Window(name)),
        Wire::PriorityClassGone(name) => Change::Delete(Key::PriorityClass(name)),
        Wire::Move(record) => Change::put(Object::Move(record.try_into().map_err(under("move"))?)),
        Wire::MoveGone(id) => Change::Delete(Key::Move(AllocationId(id))),
        Wire::UseHistory(record) => Change::put(Object::UseHistory(record.try_into().map_err(under("use_history"))?)),
        Wire::UseHistoryGone(id) => Change::Delete(Key::UseHistory(TenantId(id))),
    })
}
