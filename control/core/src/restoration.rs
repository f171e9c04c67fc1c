//! What is asked of a state that was restored from a backup, and what an operator is shown before confirming it.
//!
//! What must stay true: a review says exactly what confirming would do, by the same look at the state.

use crate::state::State;
use muster_model::identity::{Machine, MachineStanding, Principal, Shown};
use muster_model::ids::{AllocationId, Epoch, JobId, NodeId, Rank};
use muster_model::{Allocation, HeldTask, Node, NodeHealth};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One step of a restoration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restoration {
    /// Begins a new history of the cluster: credentials of the old one are void, ids of the old one are never given out again, and every machine
    /// waits to be confirmed. Executed once, before anything serves the restored state.
    Begin {
        /// The control node whose folder it becomes.
        member: u64,
        /// SHA-256 of that node's public key, where machines have identities.
        key_sha256: Option<[u8; 32]>,
        /// When the backup was made, by the state's time, in ms since the Unix epoch.
        backup_ms: u64,
        /// The number of the new history is above this: of an earlier restore that agents have met, after which a clock went back.
        above: u64,
    },
    /// An agent that meets the new history says what it runs.
    Held {
        /// Its node.
        node: NodeId,
        /// The node's epoch in its session.
        epoch: Epoch,
        /// All of it.
        tasks: Vec<HeldTask>,
        /// What the agent has proved itself with, where machines have identities. Its key may be newer than the one in the backup.
        shown: Option<Shown>,
    },
    /// An operator takes machines for those of the fleet.
    Confirm {
        /// Which; empty: all. Those that are gone are named.
        machines: BTreeSet<Principal>,
        /// The hosts of these nodes are off, and nothing runs there.
        gone: bool,
    },
}

/// What becomes of a node when it is confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReview {
    /// Which.
    pub name: String,
    /// Its agent has connected since the restore.
    pub is_back: bool,
    /// An operator has confirmed it.
    pub confirmed: bool,
    /// Another agent asks to be this node, and is kept out while tasks of the one in the backup may run.
    pub has_rival: bool,
    /// Jobs whose tasks run there and go on.
    pub kept: BTreeSet<JobId>,
    /// Jobs that the backup does not have, or has as over there, and whose tasks run there: they are stopped.
    pub unknown: BTreeSet<JobId>,
    /// Jobs that ran there when the backup was made and whose tasks are not there: this attempt ends as if the node had been lost.
    pub gone: BTreeSet<JobId>,
}

/// What confirming would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Review {
    /// Nodes that are not confirmed, or have not come back.
    pub nodes: Vec<NodeReview>,
    /// Shards that are not confirmed.
    pub shards: Vec<String>,
    /// Machines of nodes that are enrolled, and are not in the fleet.
    pub enrolled: Vec<String>,
}

/// What is still open of a restored state; nothing of one that was not restored.
#[must_use]
pub fn review(state: &State) -> Review {
    let open = state.index().restored.iter().filter_map(|id| state.nodes.get(id));
    let nodes = open.filter_map(|node| of_node(state, node)).collect();
    let has_node = |name: &String| state.index().node_ids.contains_key(name);
    let is_restored = |machine: &&Machine| machine.standing == MachineStanding::Restored;
    let shards = state.machines.values().filter(is_restored).filter_map(|machine| match &machine.principal {
        Principal::Shard(name) => Some(name.clone()),
        _ => None,
    });
    let enrolled = state.machines.values().filter(is_restored).filter_map(|machine| match &machine.principal {
        Principal::Node(name) if !has_node(name) => Some(name.clone()),
        _ => None,
    });
    Review { nodes, shards: shards.collect(), enrolled: enrolled.collect() }
}

impl State {
    /// Whether a task that an agent runs is one that is to run there.
    #[must_use]
    pub fn expects(&self, node: NodeId, task: &HeldTask) -> bool {
        self.allocations.get(&task.allocation).is_some_and(|held| is_live(held, node, task))
    }

    /// The machine of a node of that name, while no operator has confirmed it after a restore.
    #[must_use]
    pub fn unconfirmed_machine(&self, name: &str) -> Option<&Machine> {
        let machine = self.machines.get(&Principal::Node(name.to_owned()).to_string());
        machine.filter(|machine| machine.standing == MachineStanding::Restored)
    }

    /// Whether the agent of a node of that name has to say what it runs before it may come in.
    #[must_use]
    pub fn awaits_held(&self, name: &str) -> bool {
        match self.index().node_ids.get(name).and_then(|id| self.nodes.get(id)) {
            Some(node) => node.notes.restored.as_ref().is_some_and(|restored| restored.held.is_none()),
            None => self.index().restored.iter().filter_map(|id| self.nodes.get(id)).any(|node| may_run_unknown(node)),
        }
    }
}

/// Whether the task is one of this allocation there, and not over.
pub(crate) fn is_live(held: &Allocation, node: NodeId, task: &HeldTask) -> bool {
    let rank = task.rank.0 as usize;
    held.tasks.get(rank).is_some_and(|placed| placed.node == node) && !held.task_states[rank].is_over()
}

/// Whether something that the state does not know may run there. Nothing does on a node that is down: a restore takes every node for silent, so it was fenced
/// since.
pub(crate) fn may_run_unknown(node: &Node) -> bool {
    node.health != NodeHealth::Down && node.notes.restored.as_ref().is_some_and(|restored| !restored.is_clear())
}

fn of_node(state: &State, node: &Node) -> Option<NodeReview> {
    let restored = node.notes.restored.as_ref()?;
    let held: BTreeSet<(AllocationId, Rank)> =
        restored.held.iter().flatten().map(|task| (task.allocation, task.rank)).collect();
    let (mut kept, mut gone) = (BTreeSet::new(), BTreeSet::new());
    for allocation in state.index().allocations_on(node.id).filter_map(|id| state.allocations.get(&id)) {
        for rank in allocation.ranks_on(node.id) {
            let is_over = allocation.task_states.get(rank.0 as usize).is_none_or(muster_model::TaskState::is_over);
            match held.contains(&(allocation.id, rank)) {
                _ if is_over => false,
                true => kept.insert(allocation.job),
                false => gone.insert(allocation.job),
            };
        }
    }
    let unknown =
        restored.held.iter().flatten().filter(|task| !state.expects(node.id, task)).map(|task| task.job).collect();
    let is_back = restored.held.is_some();
    if !is_back {
        gone.clear();
    }
    if restored.settled {
        // What is there now is what the agent has said.
        kept.append(&mut gone);
    }
    let (confirmed, has_rival) = (restored.confirmed, node.notes.rival.is_some());
    Some(NodeReview { name: node.spec.name.clone(), is_back, confirmed, has_rival, kept, unknown, gone })
}
