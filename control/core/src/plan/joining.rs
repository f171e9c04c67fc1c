//! Joining: an agent says that it serves a node, and from then on which of its cards and slices are not to be used.
//!
//! What must stay true: one agent at a time is a node. Another one is let in only when the first has fallen silent and nothing that
//! it started can run any more (its host was booted since, the new agent has cleared that host, or every grace has passed), and
//! under a new epoch; who is turned away is noted on the node. Cards that somebody still holds never change under them.

use super::{attempts, clearance, isolation, level, machines, nodes, pools, withholding};
use crate::bounds::{CELLS_MAX, NODES_MAX, REROUTE_MAX, RIVAL_EVERY_MS};
use crate::draft::Draft;
use crate::index::CellIndex;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::restoration::may_run_unknown;
use crate::routing::could_hold;
use muster_model::ids::{CellId, Epoch, JobId, NodeId};
use muster_model::node::{NodeNotes, NodeSpec, Rival, Withheld};
use muster_model::node_links::NodeLinks;
use muster_model::object::Key;
use muster_model::resources::memory_in_words;
use muster_model::usage::UsageStream;
use muster_model::{Cell, Gpu, Node, NodeHealth, Object};

/// An agent says what its host has.
pub(super) fn join(
    draft: &mut Draft<'_>,
    spec: &NodeSpec,
    claimed_usage: Option<u64>,
    agent: u64,
) -> Result<Done, Reject> {
    spec.validate().map_err(Reject::Invalid)?;
    machines::is_within(draft.state, spec)?;
    if let Some(fault) = draft.state.pools.get(&spec.pool).and_then(|pool| pools::fits_cards(pool, spec)) {
        let problem = format!("pool {}: {}: {}", spec.pool, fault.field, fault.problem);
        return Err(Reject::field("pool", problem, format!("use another pool, or in that pool {}", fault.fix)));
    }
    let known = draft.state.index().node_ids.get(&spec.name).and_then(|id| draft.state.nodes.get(id));
    if let Some(known) = known
        && let Some(why) = not_yet(draft, known, spec, agent)
    {
        note_rival(draft, known, spec, agent);
        return Ok(Done::TurnedAway { why });
    }
    // A node that was let in stays in.
    if known.is_none_or(|known| known.spec.pool != spec.pool) {
        pools::described(draft.state, &spec.pool)?;
    }
    let mut node = match known {
        Some(known) => come_back(draft, known, spec, agent)?,
        None => arrive(draft, spec, agent)?,
    };
    node.notes.lacks = isolation::lacks(draft.state, &node);
    let (id, epoch) = (node.id, node.epoch);
    if known.is_none_or(|known| **known != node) {
        adopt_waiting(draft, &node, known.map(AsRef::as_ref));
        draft.put(Object::Node(node));
        clearance::clear(draft);
    }
    let stream = usage_stream(draft, id, claimed_usage);
    Ok(Done::Joined { node: id, epoch, usage_incarnation: stream.incarnation, usage_mark: stream.mark })
}

/// An agent says what of its cards is not to be used. What runs there runs on; nothing new is placed there.
pub(super) fn report_cards(
    draft: &mut Draft<'_>,
    id: NodeId,
    epoch: Epoch,
    withheld: &[Withheld],
) -> Result<Done, Reject> {
    let known = nodes::at_epoch(draft.state, id, epoch)?;
    let mut node = known.clone();
    withholding::apply(draft, &mut node, withheld);
    if node == *known {
        return Ok(Done::Ok);
    }
    node.spec.validate().map_err(Reject::Invalid)?;
    adopt_waiting(draft, &node, Some(known));
    draft.put(Object::Node(node));
    Ok(Done::Ok)
}

/// An agent says how the cards and network cards of its node reach each other; nothing follows from it.
pub(super) fn report_links(draft: &mut Draft<'_>, id: NodeId, epoch: Epoch, links: &NodeLinks) -> Result<Done, Reject> {
    let known = nodes::at_epoch(draft.state, id, epoch)?;
    links.validate().map_err(|error| Reject::Invalid(vec![error]))?;
    if known.notes.links != *links {
        let notes = NodeNotes { links: links.clone(), ..known.notes.clone() };
        draft.put(Object::Node(Node { notes, ..known.clone() }));
    }
    Ok(Done::Ok)
}

/// Whether this is the agent that served the node before, on the same boot of its host: what runs there runs on. An agent that is too
/// old to have an id is told by its boot alone.
fn is_same(known: &Node, spec: &NodeSpec, agent: u64) -> bool {
    is_same_agent(known, agent) && known.spec.boot_id == spec.boot_id
}

fn is_same_agent(known: &Node, agent: u64) -> bool {
    let before = known.notes.agent;
    before == agent || before == 0 || agent == 0
}

/// Why this agent may not be the node now, if so: another one is, or what that one started may still run.
fn not_yet(draft: &Draft<'_>, known: &Node, spec: &NodeSpec, agent: u64) -> Option<String> {
    if is_same(known, spec, agent) {
        return None;
    }
    let (name, address, boot_id) = (&known.spec.name, &known.spec.address, &known.spec.boot_id);
    match known.health {
        NodeHealth::Ready => Some(format!(
            "node {name} has another agent, which is connected (address {address}, boot {boot_id}). If this is the same machine \
             after a restart, wait some seconds: this agent can join when the other one is silent. Otherwise two machines have the \
             same node name: give one of them another name (`name` in its node file)"
        )),
        NodeHealth::Silent if !tasks_are_gone(known, spec, agent) && is_held(draft, known) => {
            // Of a node of a backup that may take half a day.
            let sooner = match known.notes.restored {
                None => String::new(),
                Some(_) => format!(
                    ", or when an operator says that nothing of it is left (`muster machine confirm --gone node:{name}`)"
                ),
            };
            Some(format!(
                "tasks of another agent may still run on node {name} (address {address}, boot {boot_id}). This agent can join when their \
                 disconnect grace has ended and the node is down{sooner}"
            ))
        }
        NodeHealth::Silent | NodeHealth::Down => None,
    }
}

/// Whether the agent's coming proves that nothing of the one before is left: its host was booted since, or it has looked through
/// that very host for what was left, as agents do before they join.
fn tasks_are_gone(known: &Node, spec: &NodeSpec, agent: u64) -> bool {
    is_same_agent(known, agent) || known.spec.boot_id == spec.boot_id
}

fn is_held(draft: &Draft<'_>, node: &Node) -> bool {
    may_run_unknown(node) || draft.state.index().allocations_on(node.id).next().is_some()
}

/// Keeps for operators who it was that asked to be the node. Once a minute, so that one who asks all the time writes little.
fn note_rival(draft: &mut Draft<'_>, known: &Node, spec: &NodeSpec, agent: u64) {
    let asked_ms = draft.now_ms;
    let is_news = known.notes.rival.as_ref().is_none_or(|rival| {
        rival.agent != agent || rival.boot_id != spec.boot_id || asked_ms >= rival.asked_ms + RIVAL_EVERY_MS
    });
    if is_news {
        let rival = Rival { agent, address: spec.address.clone(), boot_id: spec.boot_id.clone(), asked_ms };
        let notes = NodeNotes { rival: Some(rival), ..known.notes.clone() };
        draft.put(Object::Node(Node { notes, ..known.clone() }));
    }
}

fn arrive(draft: &mut Draft<'_>, spec: &NodeSpec, agent: u64) -> Result<Node, Reject> {
    if draft.state.nodes.len() >= NODES_MAX {
        return Err(Reject::Full { what: "the fleet".to_owned(), limit: NODES_MAX as u64 });
    }
    let cell = cell_named(draft, &spec.cell)?;
    // Whoever took it out of the fleet did not mean it to take work again by itself.
    let drained = draft.state.removed_nodes.contains_key(&spec.name);
    // It may have joined before, after the backup that the others come from, and run what nobody here knows.
    let restored = clearance::is_open(draft).then(Box::default);
    let mut notes = NodeNotes { agent, restored, ..NodeNotes::default() };
    if drained {
        draft.delete(Key::RemovedNode(spec.name.clone()));
        notes.drain_reason =
            format!("it was removed from the fleet and has joined again; `muster undrain {}`", spec.name);
    }
    let (id, spec) = (draft.next_node(), spec.clone());
    Ok(Node { id, spec, cell, epoch: Epoch(1), health: NodeHealth::Ready, drained, notes })
}

fn come_back(draft: &mut Draft<'_>, known: &Node, spec: &NodeSpec, agent: u64) -> Result<Node, Reject> {
    let mut node = known.clone();
    node.health = NodeHealth::Ready;
    if !is_same(known, spec, agent) {
        // Also after a fence: a session of the agent before must not pass for one of this.
        node.epoch = node.epoch.next();
        node.notes.rival = None;
        if let Some(held) = node.notes.restored.as_mut().and_then(|restored| restored.held.as_mut()) {
            held.clear();
        }
        attempts::fence_tasks(draft, known.id);
    }
    if agent != 0 {
        node.notes.agent = agent;
    }
    if known.spec.cell != spec.cell {
        node.cell = cell_named(draft, &spec.cell)?;
    }
    still_held(draft, known, spec)?;
    note_replaced(draft, &mut node, spec);
    node.spec = spec.clone();
    withholding::joins(&mut node, &known.spec.gpus);
    Ok(node)
}

/// Notes which cards are others than those that had their indexes before: whoever has swapped one wants to see it, and who has not wants to know.
fn note_replaced(draft: &Draft<'_>, node: &mut Node, spec: &NodeSpec) {
    if !level::has(draft.state, level::ENROLMENT) {
        return;
    }
    let pairs = node.spec.gpus.iter().zip(&spec.gpus).enumerate();
    for (index, (before, after)) in pairs.filter(|(_, (before, after))| before.uuid != after.uuid) {
        let index = index as u16;
        if node.notes.replaced.get(&index) == Some(&after.uuid) {
            node.notes.replaced.remove(&index);
        } else {
            node.notes.replaced.entry(index).or_insert_with(|| before.uuid.clone());
        }
    }
}

/// What is held of a node must not change under its holder; without holders everything may.
fn still_held(draft: &Draft<'_>, known: &Node, spec: &NodeSpec) -> Result<(), Reject> {
    for id in draft.state.index().allocations_on(known.id) {
        let Some(held) = draft.allocation(id) else { continue };
        let in_use = |why: String| Err(Reject::InUse { what: "allocation".to_owned(), id: id.to_string(), why });
        if known.spec.cell != spec.cell {
            return in_use(format!(
                "node {} cannot change its cell while this allocation runs on it; drain the node first",
                spec.name
            ));
        }
        for hold in held.tasks.iter().filter(|task| task.node == known.id).flat_map(|task| &task.devices) {
            let index = usize::from(hold.gpu);
            let (before, after) = (known.spec.gpus.get(index), spec.gpus.get(index));
            let same = |(a, b): (&Gpu, &Gpu)| a.model == b.model && a.memory_mib == b.memory_mib && a.uuid == b.uuid;
            if !before.zip(after).is_some_and(same) {
                let [before, after] = [before, after].map(|card| card.map_or_else(|| "none".to_owned(), card_in_words));
                return in_use(format!(
                    "it holds GPU {index} of node {} ({before}), but the node now has {after} there; put the GPU back, or wait until the job has ended",
                    spec.name
                ));
            }
        }
    }
    Ok(())
}

/// `h100 with 80 GiB, GPU-5f3e`: all that has to stay the same while somebody holds it.
fn card_in_words(card: &Gpu) -> String {
    format!("{} with {}, {}", card.model, memory_in_words(card.memory_mib), card.uuid)
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
