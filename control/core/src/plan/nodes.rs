//! Nodes in the fleet: health, fencing, draining, leaving. [`super::joining`] lets them in.
//!
//! What must stay true: a node's epoch grows only when its tasks are known to be dead (a fence that has passed, a reboot), and
//! every task of the older epoch is marked so in the same step; only a node that is silent is fenced; a node that was taken out of
//! the fleet is remembered, so that it does not come back to work by itself.

use super::{attempts, clearance, level, machines, windows};
use crate::bounds::{
    DRAIN_REASON_BYTES_MAX, DRAINED_BY_MAX, REMOVED_NODE_HORIZON_MS, REMOVED_NODES_MAX, RIVAL_HORIZON_MS, SWEEP_MAX,
};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::restoration::may_run_unknown;
use crate::state::State;
use muster_model::ids::{Epoch, NodeId};
use muster_model::node::{ClearedGpu, NodeNotes, RemovedNode, Rival};
use muster_model::object::Key;
use muster_model::{Node, NodeHealth, Object, Principal};
use std::collections::BTreeMap;

/// Stops new work on a node, or lets it in again. Each operator lifts what they have drained themselves, unless they `force` it: whoever drained it may be at
/// work on it. An operator who undrains a node has looked at it, so a quarantine is lifted too.
pub(super) fn set_drained(
    draft: &mut Draft<'_>,
    id: NodeId,
    drained: bool,
    reason: &str,
    force: bool,
) -> Result<Done, Reject> {
    let node = find(draft.state, id)?;
    if reason.len() > DRAIN_REASON_BYTES_MAX {
        return Err(Reject::field("reason", format!("has {} bytes", reason.len()), "use at most 256 bytes"));
    }
    let named = draft.author.map(|author| &author.principal).filter(|who| **who != Principal::Anonymous);
    // Below that level the state has no place for it, and in an open cluster everybody is the same.
    let who = named.filter(|_| level::has(draft.state, level::ENROLMENT)).map(ToString::to_string);
    let mut by = node.notes.drained_by.clone();
    let notes = match (drained, who) {
        (true, None) => NodeNotes { drain_reason: reason.to_owned(), ..node.notes.clone() },
        (true, Some(who)) => {
            if !by.contains_key(&who) && by.len() >= DRAINED_BY_MAX {
                let what = format!("the list of those who have drained node {}", node.spec.name);
                return Err(Reject::Full { what, limit: DRAINED_BY_MAX as u64 });
            }
            by.insert(who, reason.to_owned());
            NodeNotes { drain_reason: drained_by(&by), drained_by: by, ..node.notes.clone() }
        }
        (false, who) => {
            match who.filter(|_| !force) {
                None => by.clear(),
                Some(who) if by.remove(&who).is_none() && !by.is_empty() => {
                    let why = format!("{} drained it; have them undrain it, or use --force", drained_by(&by));
                    return Err(Reject::InUse { what: "node".to_owned(), id: node.spec.name.clone(), why });
                }
                Some(_) => {}
            }
            let drain_reason = drained_by(&by);
            NodeNotes {
                drain_reason,
                drained_by: by,
                start_failures: Vec::new(),
                quarantine: None,
                ..node.notes.clone()
            }
        }
    };
    windows::leave(draft, id, false);
    let drained = drained || !notes.drained_by.is_empty();
    if node.drained != drained || node.notes != notes {
        draft.put(Object::Node(Node { drained, notes, ..node.clone() }));
    }
    Ok(Done::Ok)
}

/// Who has drained a node, and why, for people.
#[must_use]
pub fn drained_by(by: &BTreeMap<String, String>) -> String {
    let one = |(who, why): (&String, &String)| if why.is_empty() { who.clone() } else { format!("{who} ({why})") };
    by.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Notes that an operator takes a card for well; its agent is told. Only the newest of each card is kept, and nothing of cards that have gone.
pub(super) fn clear_gpu(draft: &mut Draft<'_>, id: NodeId, gpu: u16, reason: &str) -> Result<Done, Reject> {
    let node = find(draft.state, id)?;
    if reason.is_empty() || reason.len() > DRAIN_REASON_BYTES_MAX {
        let problem = format!("has {} bytes", reason.len());
        return Err(Reject::field("reason", problem, "say in 1 to 256 bytes why the GPU may be used"));
    }
    let Some(card) = node.spec.gpus.get(usize::from(gpu)) else {
        let problem = format!("is {gpu}, but node {} has {} GPUs", node.spec.name, node.spec.gpus.len());
        return Err(Reject::field("gpu", problem, "use an index that `muster gpus` shows"));
    };
    let mut notes = node.notes.clone();
    notes
        .cleared_gpus
        .retain(|cleared| cleared.uuid != card.uuid && node.spec.gpus.iter().any(|there| there.uuid == cleared.uuid));
    notes.replaced.remove(&gpu);
    notes.cleared_gpus.push(ClearedGpu { uuid: card.uuid.clone(), at_ms: draft.now_ms, reason: reason.to_owned() });
    draft.put(Object::Node(Node { notes, ..node.clone() }));
    Ok(Done::Ok)
}

pub(super) fn remove(draft: &mut Draft<'_>, id: NodeId) -> Result<Done, Reject> {
    let node = find(draft.state, id)?;
    if let Some(held) = draft.state.index().allocations_on(id).next() {
        let why = format!(
            "it runs on node {}; drain the node and wait until the job ends, or cancel the job",
            node.spec.name
        );
        return Err(Reject::InUse { what: "allocation".to_owned(), id: held.to_string(), why });
    }
    if may_run_unknown(node) {
        let why = format!(
            "it comes from a backup, and tasks that the backup does not know may run there. If its host is off for good, say so: \
             `muster machine confirm --gone node:{}`",
            node.spec.name
        );
        return Err(Reject::InUse { what: "node".to_owned(), id: node.spec.name.clone(), why });
    }
    draft.delete(Key::Node(id));
    windows::leave(draft, id, true);
    remember_removed(draft, &node.spec.name);
    clearance::clear(draft);
    if draft.state.usage_streams.contains_key(&id) {
        draft.delete(Key::UsageStream(id));
    }
    Ok(Done::Ok)
}

/// Bounded: of very many the longest removed is forgotten.
fn remember_removed(draft: &mut Draft<'_>, name: &str) {
    let removed = &draft.state.removed_nodes;
    if removed.len() >= REMOVED_NODES_MAX
        && let Some(oldest) = removed.values().min_by_key(|removed| (removed.removed_ms, &removed.name))
    {
        draft.delete(Key::RemovedNode(oldest.name.clone()));
    }
    draft.put(Object::RemovedNode(RemovedNode { name: name.to_owned(), removed_ms: draft.now_ms }));
}

/// Forgets what nobody needs to know any more: agents that ask no longer to be another's node, nodes removed long ago.
pub(super) fn forget(draft: &mut Draft<'_>) {
    let (state, now_ms) = (draft.state, draft.now_ms);
    for id in state.index().with_rival.iter().take(SWEEP_MAX) {
        let is_over = |rival: &Rival| now_ms >= rival.asked_ms.saturating_add(RIVAL_HORIZON_MS);
        let is_due = draft.node(*id).and_then(|node| node.notes.rival.as_ref()).is_some_and(is_over);
        if is_due && let Some(node) = draft.node_mut(*id) {
            node.notes.rival = None;
        }
    }
    let before_ms = now_ms.saturating_sub(REMOVED_NODE_HORIZON_MS);
    let old = state.removed_nodes.values().filter(|removed| removed.removed_ms < before_ms);
    for removed in old.take(SWEEP_MAX) {
        draft.delete(Key::RemovedNode(removed.name.clone()));
    }
}

pub(super) fn mark_silent(draft: &mut Draft<'_>, id: NodeId, epoch: Epoch) -> Result<Done, Reject> {
    change_health(draft, id, epoch, NodeHealth::Ready, NodeHealth::Silent)
}

/// A node that is down already must join again: only then does it learn its new epoch. One whose identity has been suspended since the leader heard of it
/// counts as silent: what it said does not count (law SL5).
pub(super) fn mark_ready(draft: &mut Draft<'_>, id: NodeId, epoch: Epoch) -> Result<Done, Reject> {
    let node = at_epoch(draft.state, id, epoch)?;
    if level::has(draft.state, level::USE_KINDS) && machines::is_suspended(draft.state, &node.spec.name) {
        return Ok(Done::Ok);
    }
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
    clearance::nothing_is_left(draft, id);
    clearance::clear(draft);
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
