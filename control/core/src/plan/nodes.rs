//! Nodes: joining, health, fencing, draining, leaving.
//!
//! What must stay true: a node's epoch grows only when its tasks are known to be dead (a fence that has passed, a reboot), and
//! every task of the older epoch is marked so in the same step; only a node that is silent is fenced; cards that somebody still
//! holds never change under them.

use super::{attempts, pools};
use crate::bounds::{CELLS_MAX, NODES_MAX, REROUTE_MAX};
use crate::draft::Draft;
use crate::index::CellIndex;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::routing::could_hold;
use crate::state::State;
use muster_model::ids::{CellId, Epoch, JobId, NodeId};
use muster_model::node::NodeSpec;
use muster_model::object::Key;
use muster_model::usage::UsageStream;
use muster_model::{Cell, Node, NodeHealth, Object};

/// An agent says what its host has.
pub(super) fn join(draft: &mut Draft<'_>, spec: &NodeSpec, claimed_usage: Option<u64>) -> Result<Done, Reject> {
    spec.validate().map_err(Reject::Invalid)?;
    if let Some(fault) = draft.state.pools.get(&spec.pool).and_then(|pool| pools::fits_cards(pool, spec)) {
        let problem = format!("pool {}: {}: {}", spec.pool, fault.field, fault.problem);
        return Err(Reject::field("pool", problem, format!("join another pool, or for that one {}", fault.fix)));
    }
    let known = draft.state.index().node_ids.get(&spec.name).and_then(|id| draft.state.nodes.get(id));
    let node = match known {
        Some(known) => come_back(draft, known, spec)?,
        None => arrive(draft, spec)?,
    };
    let (id, epoch) = (node.id, node.epoch);
    if known.is_none_or(|known| **known != node) {
        adopt_waiting(draft, &node, known.map(AsRef::as_ref));
        draft.put(Object::Node(node));
    }
    let stream = usage_stream(draft, id, claimed_usage);
    Ok(Done::Joined { node: id, epoch, usage_incarnation: stream.incarnation, usage_mark: stream.mark })
}

fn arrive(draft: &mut Draft<'_>, spec: &NodeSpec) -> Result<Node, Reject> {
    if draft.state.nodes.len() >= NODES_MAX {
        return Err(Reject::Full { what: "the fleet".to_owned(), limit: NODES_MAX as u64 });
    }
    let cell = cell_named(draft, &spec.cell)?;
    let (id, spec) = (draft.next_node(), spec.clone());
    Ok(Node { id, spec, cell, epoch: Epoch(1), health: NodeHealth::Ready, drained: false })
}

fn come_back(draft: &mut Draft<'_>, known: &Node, spec: &NodeSpec) -> Result<Node, Reject> {
    let mut node = known.clone();
    node.health = NodeHealth::Ready;
    if known.spec.boot_id != spec.boot_id {
        node.epoch = node.epoch.next();
        attempts::fence_tasks(draft, known.id);
    }
    if known.spec.cell != spec.cell {
        node.cell = cell_named(draft, &spec.cell)?;
    }
    still_held(draft, known, spec)?;
    node.spec = spec.clone();
    Ok(node)
}

/// What is held of a node must not change under its holder; without holders everything may.
fn still_held(draft: &Draft<'_>, known: &Node, spec: &NodeSpec) -> Result<(), Reject> {
    for id in draft.state.index().allocations_on(known.id) {
        let Some(held) = draft.allocation(id) else { continue };
        let in_use = |why: String| Err(Reject::InUse { what: "allocation".to_owned(), id: id.to_string(), why });
        if known.spec.cell != spec.cell {
            return in_use(format!("node {} cannot change its cell while it runs there; drain it first", spec.name));
        }
        for hold in held.tasks.iter().filter(|task| task.node == known.id).flat_map(|task| &task.devices) {
            let index = usize::from(hold.gpu);
            let (before, after) = (known.spec.gpus.get(index), spec.gpus.get(index));
            let same = before.zip(after).is_some_and(|(a, b)| a.model == b.model && a.memory_mib == b.memory_mib);
            if !same {
                return in_use(format!("it holds GPU {index} of node {}, which is another card now", spec.name));
            }
        }
    }
    Ok(())
}

fn cell_named(draft: &mut Draft<'_>, name: &str) -> Result<CellId, Reject> {
    if let Some(id) = draft.state.index().cell_ids.get(name) {
        return Ok(*id);
    }
    if draft.state.cells.len() >= CELLS_MAX {
        return Err(Reject::Full { what: "the table of cells".to_owned(), limit: CELLS_MAX as u64 });
    }
    let id = draft.next_cell();
    draft.put(Object::Cell(Cell { id, name: name.to_owned(), epoch: Epoch(0), holder: None }));
    Ok(id)
}

/// The stream that the agent goes on with: its own when it still has the record of it, else a new one. A new incarnation is
/// above any that the agent has claimed, so intervals of a forgotten stream never pass for new ones.
fn usage_stream(draft: &mut Draft<'_>, node: NodeId, claimed: Option<u64>) -> UsageStream {
    let known = draft.state.usage_streams.get(&node);
    if let Some(stream) = known.filter(|stream| claimed == Some(stream.incarnation)) {
        return stream.clone();
    }
    let newest = known.map_or(0, |stream| stream.incarnation).max(claimed.unwrap_or(0));
    let stream = UsageStream { node, incarnation: newest.saturating_add(1), mark: 0 };
    draft.put(Object::UsageStream(stream.clone()));
    stream
}

/// Jobs that no cell could hold so far may wait for this node's cell.
fn adopt_waiting(draft: &mut Draft<'_>, node: &Node, known: Option<&Node>) {
    let state = draft.state;
    let waiting: Vec<JobId> = state.index().queued_in(None).take(REROUTE_MAX).collect();
    if waiting.is_empty() {
        return;
    }
    let mut cell: CellIndex = state.index().cells.get(&node.cell).cloned().unwrap_or_default();
    if let Some(known) = known.filter(|known| known.cell == node.cell) {
        cell.remove_node(known);
    }
    cell.add_node(node);
    let now_ms = draft.now_ms;
    for id in waiting {
        if draft.job(id).is_some_and(|job| could_hold(state, &cell, &job.spec))
            && let Some(job) = draft.job_mut(id)
        {
            job.cell = Some(node.cell);
            job.routed_ms = now_ms;
        }
    }
}

pub(super) fn set_drained(draft: &mut Draft<'_>, id: NodeId, drained: bool) -> Result<Done, Reject> {
    let node = find(draft.state, id)?;
    if node.drained != drained {
        draft.put(Object::Node(Node { drained, ..node.clone() }));
    }
    Ok(Done::Ok)
}

pub(super) fn remove(draft: &mut Draft<'_>, id: NodeId) -> Result<Done, Reject> {
    let node = find(draft.state, id)?;
    if let Some(held) = draft.state.index().allocations_on(id).next() {
        let why = format!("it runs on node {}; drain the node and wait, or cancel the job", node.spec.name);
        return Err(Reject::InUse { what: "allocation".to_owned(), id: held.to_string(), why });
    }
    draft.delete(Key::Node(id));
    if draft.state.usage_streams.contains_key(&id) {
        draft.delete(Key::UsageStream(id));
    }
    Ok(Done::Ok)
}

pub(super) fn mark_silent(draft: &mut Draft<'_>, id: NodeId, epoch: Epoch) -> Result<Done, Reject> {
    change_health(draft, id, epoch, NodeHealth::Ready, NodeHealth::Silent)
}

/// A node that is down already must join again: only then does it learn its new epoch.
pub(super) fn mark_ready(draft: &mut Draft<'_>, id: NodeId, epoch: Epoch) -> Result<Done, Reject> {
    change_health(draft, id, epoch, NodeHealth::Silent, NodeHealth::Ready)
}

fn change_health(
    draft: &mut Draft<'_>,
    id: NodeId,
    epoch: Epoch,
    from: NodeHealth,
    to: NodeHealth,
) -> Result<Done, Reject> {
    let node = at_epoch(draft.state, id, epoch)?;
    if node.health == from {
        draft.put(Object::Node(Node { health: to, ..node.clone() }));
    }
    Ok(Done::Ok)
}

pub(super) fn fence(draft: &mut Draft<'_>, id: NodeId, epoch: Epoch) -> Result<Done, Reject> {
    let node = at_epoch(draft.state, id, epoch)?;
    if node.health != NodeHealth::Silent {
        // It was heard of since the leader found it due, and may have started what it was told to run.
        return Err(Reject::NotSilent { node: node.spec.name.clone(), health: node.health.word().to_owned() });
    }
    draft.put(Object::Node(Node { health: NodeHealth::Down, epoch: node.epoch.next(), ..node.clone() }));
    attempts::fence_tasks(draft, id);
    Ok(Done::Ok)
}

fn find(state: &State, id: NodeId) -> Result<&Node, Reject> {
    state.nodes.get(&id).map(AsRef::as_ref).ok_or_else(|| Reject::not_found("node", id))
}

/// The node, if `epoch` is its newest.
pub(super) fn at_epoch(state: &State, id: NodeId, epoch: Epoch) -> Result<&Node, Reject> {
    let node = find(state, id)?;
    if node.epoch == epoch {
        Ok(node)
    } else {
        Err(Reject::StaleEpoch { what: format!("node {}", node.spec.name), newest: node.epoch, got: epoch })
    }
}
