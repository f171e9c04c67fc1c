//! What one leader knows of renewals, and what follows from it. Pure: the time is an argument.
//!
//! What must stay true:
//! - nothing counts from before `since`, the moment this leader took over;
//! - a node is due for its fence only when it is silent and its last renewal lies further back than the longest disconnect grace
//!   of the tasks on it plus the margin;
//! - a cell is due only under the epoch that its holder has stopped renewing.

use super::LeaseConfig;
use muster_control_core::{Command, State};
use muster_model::{CellId, Epoch, Node, NodeHealth, NodeId};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Commands of one tick: the rest follows at the next. One entry holds this many easily.
const DUE_MAX: usize = 512;

/// What is known of one node.
#[derive(Clone, Debug)]
struct NodeMark {
    /// By this leader; the silence of one it has not heard of counts from its election.
    heard: Option<Instant>,
    epoch: Epoch,
    health: NodeHealth,
}

/// What is known of one cell's lease.
#[derive(Clone, Debug)]
struct CellMark {
    renewed: Instant,
    epoch: Epoch,
}

/// The leases as one leader counts them.
#[derive(Debug)]
pub(crate) struct Table {
    /// The term in which they count.
    pub(crate) term: u64,
    since: Instant,
    nodes: BTreeMap<NodeId, NodeMark>,
    cells: BTreeMap<CellId, CellMark>,
    /// Cells of which too many nodes are silent, since when.
    held_back: BTreeMap<CellId, Instant>,
}

impl Table {
    /// A table of the leader that was elected in `term`, at `now` or before.
    pub(crate) fn new(term: u64, now: Instant) -> Self {
        Table { term, since: now, nodes: BTreeMap::new(), cells: BTreeMap::new(), held_back: BTreeMap::new() }
    }

    /// A node was heard of. False when it is not in the fleet under that epoch, or fenced: its agent has to join again.
    pub(crate) fn renew_node(&mut self, state: &State, id: NodeId, epoch: Epoch, now: Instant) -> bool {
        let Some(node) = state.nodes.get(&id) else { return false };
        if node.epoch != epoch || node.health == NodeHealth::Down {
            return false;
        }
        // Two renewals may pass each other on their way here: the later one counts.
        let mark = self.node_mark(node);
        mark.heard = mark.heard.max(Some(now));
        true
    }

    /// A shard renews a cell. False when the lease is not its own any more.
    pub(crate) fn renew_cell(&mut self, state: &State, id: CellId, epoch: Epoch, shard: &str, now: Instant) -> bool {
        let Some(cell) = state.cells.get(&id) else { return false };
        if cell.epoch != epoch || cell.holder.as_deref() != Some(shard) {
            return false;
        }
        let mark = self.cells.entry(id).or_insert(CellMark { renewed: now, epoch });
        if mark.epoch == epoch {
            mark.renewed = mark.renewed.max(now);
        } else {
            *mark = CellMark { renewed: now, epoch };
        }
        true
    }

    fn node_mark(&mut self, node: &Node) -> &mut NodeMark {
        let fresh = NodeMark { heard: None, epoch: node.epoch, health: node.health };
        self.nodes.entry(node.id).or_insert(fresh)
    }

    /// What is due at `now`, bounded.
    pub(crate) fn due(&mut self, state: &State, now: Instant, config: &LeaseConfig) -> Vec<Command> {
        let mut due = self.due_cells(state, now, config);
        due.extend(self.due_nodes(state, now, config));
        due.truncate(DUE_MAX);
        due
    }

    fn due_cells(&mut self, state: &State, now: Instant, config: &LeaseConfig) -> Vec<Command> {
        self.cells.retain(|id, _| state.cells.contains_key(id));
        let mut due = Vec::new();
        for cell in state.cells.values().filter(|cell| cell.holder.is_some()) {
            let mark = self.cells.entry(cell.id).or_insert(CellMark { renewed: now, epoch: cell.epoch });
            if mark.epoch != cell.epoch {
                *mark = CellMark { renewed: now, epoch: cell.epoch };
            }
            if now.duration_since(mark.renewed) > config.cell_lease() {
                due.push(Command::ExpireCell { cell: cell.id, epoch: cell.epoch });
            }
        }
        due
    }

    fn due_nodes(&mut self, state: &State, now: Instant, config: &LeaseConfig) -> Vec<Command> {
        self.nodes.retain(|id, _| state.nodes.contains_key(id));
        let mut due = Vec::new();
        let mut fences: Vec<(&Node, Duration)> = Vec::new();
        let since = self.since;
        for node in state.nodes.values() {
            let mark = self.node_mark(node);
            // Joining is being heard of: a node that turned ready, or has another epoch, starts its lease now.
            if mark.epoch != node.epoch || (mark.health != node.health && node.health == NodeHealth::Ready) {
                mark.heard = Some(now);
            }
            (mark.epoch, mark.health) = (node.epoch, node.health);
            let quiet = now.duration_since(mark.heard.unwrap_or(since));
            match node.health {
                NodeHealth::Ready if quiet > config.node_silent() => {
                    due.push(Command::MarkSilent { node: node.id, epoch: node.epoch });
                    // A join before the next tick is then seen as one.
                    mark.health = NodeHealth::Silent;
                }
                NodeHealth::Silent if mark.heard.is_some() && quiet <= config.node_silent() => {
                    due.push(Command::MarkReady { node: node.id, epoch: node.epoch });
                }
                NodeHealth::Silent => fences.push((node, quiet)),
                NodeHealth::Ready | NodeHealth::Down => {}
            }
        }
        self.note_mass_silence(state, now, config);
        for (node, quiet) in fences {
            if quiet > grace_of(state, node.id, config) && self.may_fence(node.cell, now, config) {
                due.push(Command::FenceNode { node: node.id, epoch: node.epoch });
            }
        }
        due
    }

    /// Finds the cells of which too many nodes are silent at once. Fenced nodes count on neither side.
    fn note_mass_silence(&mut self, state: &State, now: Instant, config: &LeaseConfig) {
        let mut counts: BTreeMap<CellId, (usize, usize)> = BTreeMap::new();
        for node in state.nodes.values().filter(|node| node.health != NodeHealth::Down) {
            let (all, silent) = counts.entry(node.cell).or_default();
            *all += 1;
            *silent += usize::from(node.health == NodeHealth::Silent);
        }
        let many = |(all, silent): (usize, usize)| {
            silent >= config.mass_silence_nodes_min && silent as u64 * 100 > all as u64 * config.mass_silence_percent
        };
        self.held_back.retain(|cell, _| counts.get(cell).copied().is_some_and(many));
        for (cell, (all, silent)) in counts {
            if many((all, silent)) && !self.held_back.contains_key(&cell) {
                tracing::warn!(%cell, silent, all, "too many nodes of the cell are silent at the same time: no node is fenced for now");
                self.held_back.insert(cell, now);
            }
        }
    }

    fn may_fence(&self, cell: CellId, now: Instant, config: &LeaseConfig) -> bool {
        let longest = Duration::from_millis(config.mass_silence_hold_ms);
        self.held_back.get(&cell).is_none_or(|since| now.duration_since(*since) > longest)
    }
}

/// How long after its last renewal every task on the node is dead by its shim's deadline, kill time and drift included.
fn grace_of(state: &State, node: NodeId, config: &LeaseConfig) -> Duration {
    Duration::from_secs(state.disconnect_grace_s(node)) + Duration::from_millis(config.fence_margin_ms)
}
