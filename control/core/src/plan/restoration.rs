//! A state that comes from a backup.
//!
//! What must stay true: nothing that was given out after the backup is given out again, and no credential of before is good any more; nothing is stopped or
//! started on a node before an operator has confirmed it and its agent has said what it runs; what an agent no longer runs is not started again; nothing is
//! bound anywhere before all nodes are clear, since a job of the backup may run under another attempt on any of them (law 6).

use super::clearance::clear;
use super::{attempts, level, machines, nodes};
use crate::bounds::HELD_TASKS_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::restoration::{Restoration, is_live};
use crate::state::State;
use muster_model::identity::{Machine, MachineStanding, Shown};
use muster_model::ids::{AllocationId, Epoch, NodeId, Rank};
use muster_model::object::Key;
use muster_model::{Cell, HeldTask, Node, NodeHealth, NodeNotes, Object, Principal, Restored};
use std::collections::BTreeSet;

/// Ids that may have been given out between the backup and the loss: no fleet gives out so many between two backups. Tenants get fewer, since
/// their numbers become users of hosts.
const JOBS_SKIPPED: u64 = 1_000_000;
const ALLOCATIONS_SKIPPED: u64 = 1_000_000_000;
const EPOCHS_SKIPPED: u64 = 1_000_000;
const NODES_SKIPPED: u32 = 100_000;
const TENANTS_SKIPPED: u32 = 1_000;
const CELLS_SKIPPED: u32 = 1_000;
const CREDENTIALS_SKIPPED: u64 = 1_000_000;
/// And those that a first restore of the same backup may have given out, for each second since the backup; of nodes, tenants and cells it is one in an hour.
const JOBS_PER_S: u64 = 10;
const ALLOCATIONS_PER_S: u64 = 1_000;
/// Of a history; far below it a second of the year 9999.
const INCARNATION_MAX: u64 = 1 << 62;
const MEMBER_OF_BEFORE: &str = "a control node of before the restore";

pub(super) fn plan(draft: &mut Draft<'_>, step: &Restoration) -> Result<Done, Reject> {
    level::need(draft.state, level::RESTORATION, "restoration")?;
    match step {
        Restoration::Begin { member, key_sha256, backup_ms, above } => {
            // A second restore of the same backup goes on above what the first has given out.
            let since_s = draft.now_ms.saturating_sub(*backup_ms) / 1_000;
            skip_ids(draft, since_s, *above)?;
            begin(draft, *member, *key_sha256, since_s)
        }
        Restoration::Held { node, epoch, tasks, shown } => {
            hold(draft, *node, *epoch, tasks)?;
            adopt_key(draft, *node, shown.as_ref());
            Ok(Done::Ok)
        }
        Restoration::Confirm { machines, gone: false } => confirm(draft, machines),
        Restoration::Confirm { machines, gone: true } => give_up(draft, machines),
    }
}

fn begin(draft: &mut Draft<'_>, member: u64, key_sha256: Option<[u8; 32]>, since_s: u64) -> Result<Done, Reject> {
    let state = draft.state;
    if key_sha256.is_none() && !state.machines.is_empty() {
        let problem = format!("is missing, and {} machines of the backup have identities", state.machines.len());
        return Err(Reject::field("identity", problem, "give the folder with the identity of this control node"));
    }
    for id in state.credentials.keys() {
        draft.delete(Key::Credential(*id));
    }
    for id in state.join_tokens.keys() {
        draft.delete(Key::JoinToken(*id));
    }
    // The records of refusals are files of control nodes that are gone.
    for id in state.audit_heads.keys() {
        draft.delete(Key::AuditHead(*id));
    }
    // What of an agent's record was counted after the backup, the agent has no longer: it begins a new stream.
    for node in state.usage_streams.keys() {
        draft.delete(Key::UsageStream(*node));
    }
    for machine in state.machines.values() {
        match (&machine.principal, &machine.standing) {
            (_, MachineStanding::Suspended { .. }) => {}
            // The other control nodes join anew. One of before that is still there must not pass for one of these.
            (Principal::Member(_), _) => machines::suspended(draft, machine.clone(), MEMBER_OF_BEFORE),
            _ => draft.put(Object::Machine(Machine { standing: MachineStanding::Restored, ..machine.clone() })),
        }
    }
    if let Some(key) = key_sha256 {
        let own = machines::pinned(draft, &Principal::Member(member), key);
        draft.put(Object::Machine(own));
    }
    for cell in state.cells.values() {
        let epoch = Epoch(cell.epoch.0.saturating_add(EPOCHS_SKIPPED).saturating_add(since_s));
        draft.put(Object::Cell(Cell { epoch, holder: None, ..cell.clone() }));
    }
    for node in state.nodes.values() {
        let notes = NodeNotes { restored: Some(Box::default()), ..node.notes.clone() };
        // One that was down may have come back after the backup: only what this history fences is known to run nothing.
        draft.put(Object::Node(Node { health: NodeHealth::Silent, notes, ..Node::clone(node) }));
    }
    Ok(Done::Ok)
}

fn skip_ids(draft: &mut Draft<'_>, since_s: u64, above: u64) -> Result<(), Reject> {
    if above > INCARNATION_MAX {
        let problem = format!("is {above}");
        return Err(Reject::field("incarnation_above", problem, format!("use a number up to {INCARNATION_MAX}")));
    }
    let now_ms = draft.now_ms;
    let since_h = u32::try_from(since_s / 3_600).unwrap_or(u32::MAX);
    let meta = &mut draft.meta;
    // Two restores of one backup must not be one history.
    meta.incarnation = meta.incarnation.max(above).saturating_add(1).max(now_ms / 1_000);
    meta.next_job.0 = meta.next_job.0.saturating_add(JOBS_SKIPPED).saturating_add(since_s.saturating_mul(JOBS_PER_S));
    meta.next_allocation.0 = meta
        .next_allocation
        .0
        .saturating_add(ALLOCATIONS_SKIPPED)
        .saturating_add(since_s.saturating_mul(ALLOCATIONS_PER_S));
    meta.next_node.0 = meta.next_node.0.saturating_add(NODES_SKIPPED).saturating_add(since_h);
    meta.next_tenant.0 = meta.next_tenant.0.saturating_add(TENANTS_SKIPPED).saturating_add(since_h);
    meta.next_cell.0 = meta.next_cell.0.saturating_add(CELLS_SKIPPED).saturating_add(since_h);
    meta.next_credential =
        meta.next_credential.saturating_add(CREDENTIALS_SKIPPED).saturating_add(since_s.saturating_mul(JOBS_PER_S));
    // Nobody knows which submissions were acknowledged after the backup: none of before is taken for a new one.
    meta.requests_floor_ms = meta.requests_floor_ms.max(now_ms);
    Ok(())
}

fn hold(draft: &mut Draft<'_>, id: NodeId, epoch: Epoch, tasks: &[HeldTask]) -> Result<(), Reject> {
    let node = nodes::at_epoch(draft.state, id, epoch)?;
    if tasks.len() > HELD_TASKS_MAX {
        let problem = format!("has {} tasks", tasks.len());
        return Err(Reject::field("held", problem, format!("send at most {HELD_TASKS_MAX}")));
    }
    let restored = match &node.notes.restored {
        Some(restored) => Restored::clone(restored),
        // It joined the fleet after the backup and runs what the state does not know, or nobody has confirmed its machine.
        None if tasks.iter().any(|task| !draft.state.expects(id, task))
            || draft.state.unconfirmed_machine(&node.spec.name).is_some() =>
        {
            Restored::default()
        }
        None => return Ok(()),
    };
    // Tasks of a later epoch than the backup's were started after it. They go on until the node is confirmed, so they must not pass for tasks of
    // before a fence.
    let epoch = tasks.iter().map(|task| task.node_epoch).fold(epoch, Epoch::max);
    let restored = Restored { held: Some(tasks.to_vec()), settled: false, ..restored };
    let notes = NodeNotes { restored: Some(Box::new(restored)), ..node.notes.clone() };
    draft.put(Object::Node(Node { epoch, notes, ..node.clone() }));
    settle(draft, id);
    clear(draft);
    Ok(())
}

/// Machines renew their keys, so that some have one that is newer than the backup: of several the newest. What was confirmed already is active with it.
fn adopt_key(draft: &mut Draft<'_>, id: NodeId, shown: Option<&Shown>) {
    let state = draft.state;
    let known = state.nodes.get(&id).and_then(|node| state.unconfirmed_machine(&node.spec.name));
    let Some((shown, known)) = shown.zip(known) else { return };
    let mut now = known.clone();
    if !known.has_key(&shown.key_sha256) && shown.issued_ms > known.since_ms {
        (now.key_sha256, now.next_key_sha256, now.since_ms) = (shown.key_sha256, None, shown.issued_ms);
    }
    // `clear` has removed the note of one that was confirmed and runs nothing else.
    let restored = |node: &Node| node.notes.restored.clone();
    let is_confirmed = draft.node(id).is_some_and(|node| restored(node).is_none_or(|restored| restored.confirmed));
    if is_confirmed {
        now.standing = MachineStanding::Active;
    }
    draft.put(Object::Machine(now));
}

fn confirm(draft: &mut Draft<'_>, named: &BTreeSet<Principal>) -> Result<Done, Reject> {
    let state = draft.state;
    let is_meant = |machine: &Principal| named.is_empty() || named.contains(machine);
    if let Some(unknown) = named.iter().find(|machine| !is_known(draft, machine)) {
        return Err(Reject::not_found("machine", unknown));
    }
    for machine in state.machines.values().filter(|machine| is_meant(&machine.principal)) {
        // The agent of one that is not back yet may have a newer key than the backup: it becomes active with what it shows.
        if machine.standing == MachineStanding::Restored && !is_awaited(state, &machine.principal) {
            draft.put(Object::Machine(Machine { standing: MachineStanding::Active, ..machine.clone() }));
        }
    }
    for id in &state.index().restored {
        let Some(node) = state.nodes.get(id) else { continue };
        if !is_meant(&Principal::Node(node.spec.name.clone())) {
            continue;
        }
        if let Some(restored) = draft.node_mut(*id).and_then(|node| node.notes.restored.as_mut()) {
            restored.confirmed = true;
        }
        settle(draft, *id);
    }
    clear(draft);
    Ok(Done::Ok)
}

/// Whether its agent has yet to show its key, and to say what it runs.
fn is_awaited(state: &State, machine: &Principal) -> bool {
    let Principal::Node(name) = machine else { return false };
    let node = state.index().node_ids.get(name).and_then(|id| state.nodes.get(id));
    node.is_some_and(|node| node.notes.restored.as_ref().is_none_or(|restored| restored.held.is_none()))
}

/// The hosts of these nodes are off: as if every grace of what ran there had passed.
fn give_up(draft: &mut Draft<'_>, named: &BTreeSet<Principal>) -> Result<Done, Reject> {
    if named.is_empty() {
        return Err(Reject::field("machines", "is empty", "name the nodes whose hosts are off"));
    }
    for machine in named {
        let Principal::Node(name) = machine else {
            return Err(Reject::field("machines", format!("names {machine}"), "name nodes only (`node:NAME`)"));
        };
        let known = draft.state.index().node_ids.get(name).and_then(|id| draft.state.nodes.get(id));
        let node = known.ok_or_else(|| Reject::not_found("machine", machine))?;
        let why = match (node.notes.restored.is_some(), node.health) {
            (false, _) => "it does not wait for a confirmation; `muster remove-node` takes it out of the fleet",
            (true, NodeHealth::Ready) => "its agent is connected, so its host is not off",
            (true, NodeHealth::Silent | NodeHealth::Down) => {
                let now = given_up(node);
                draft.put(Object::Node(now));
                attempts::fence_tasks(draft, node.id);
                continue;
            }
        };
        return Err(Reject::InUse { what: "node".to_owned(), id: name.clone(), why: why.to_owned() });
    }
    clear(draft);
    Ok(Done::Ok)
}

/// The node without its host. Where another agent asks to be it, that one is let in, and says what it runs: it may have served the node after the backup. The
/// node's epoch grows when it joins.
fn given_up(node: &Node) -> Node {
    let Some(rival) = &node.notes.rival else {
        let restored = Restored { confirmed: true, held: Some(Vec::new()), settled: true };
        let notes = NodeNotes { restored: Some(Box::new(restored)), ..node.notes.clone() };
        return Node { health: NodeHealth::Down, epoch: node.epoch.next(), notes, ..node.clone() };
    };
    let restored = Restored { confirmed: true, held: None, settled: false };
    let (agent, restored) = (rival.agent, Some(Box::new(restored)));
    Node { notes: NodeNotes { agent, rival: None, restored, ..node.notes.clone() }, ..node.clone() }
}

fn is_known(draft: &Draft<'_>, machine: &Principal) -> bool {
    let is_node = matches!(machine, Principal::Node(name) if draft.state.index().node_ids.contains_key(name));
    is_node || draft.state.machines.contains_key(&machine.to_string())
}

/// Once the node is confirmed and its agent has said what it runs: what is not there is lost, and what is unknown has yet to end.
fn settle(draft: &mut Draft<'_>, id: NodeId) {
    let restored = draft.node(id).and_then(|node| node.notes.restored.as_deref());
    let Some(Restored { confirmed: true, held: Some(held), settled: false }) = restored.cloned() else { return };
    let there: BTreeSet<(AllocationId, Rank)> = held.iter().map(|task| (task.allocation, task.rank)).collect();
    attempts::lose_tasks(draft, id, |allocation, rank| there.contains(&(allocation, rank)));
    let is_expected = |task: &HeldTask| draft.allocation(task.allocation).is_some_and(|held| is_live(held, id, task));
    let unknown = held.into_iter().filter(|task| !is_expected(task)).collect();
    if let Some(node) = draft.node_mut(id) {
        node.notes.restored = Some(Box::new(Restored { confirmed: true, held: Some(unknown), settled: true }));
    }
}
