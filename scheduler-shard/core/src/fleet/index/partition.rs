//! Partitions of a cell, which a gang does not cross: pools, and in each the nodes that are reserved for a waiting gang or in a window.
//!
//! What must stay true: a node is in one partition; where two gangs have the same node reserved, the one that starts first has it.

use muster_model::{JobId, NodeId, WindowTimes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A node is reserved for a waiting job: whatever runs on it meanwhile must be over by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hold {
    /// When the job is to start, in ms of the state's clock.
    pub(crate) until_ms: u64,
    pub(crate) job: JobId,
}

/// Nodes of one pool that are reserved for the same job, or for none, and that are in the same windows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Partition {
    pub(crate) pool: Arc<str>,
    pub(crate) hold: Option<Hold>,
    /// What windows they are in, the earliest first; most nodes are in none.
    pub(crate) windows: Windows,
}

/// Windows of one node, in order.
pub(crate) type Windows = Arc<[WindowTimes]>;

/// Which nodes are reserved for which job.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds(BTreeMap<NodeId, BTreeSet<Hold>>);

impl Holds {
    pub(super) fn of(&self, node: NodeId) -> Option<Hold> {
        self.0.get(&node)?.first().copied()
    }

    pub(super) fn add(&mut self, node: NodeId, hold: Hold) {
        self.0.entry(node).or_default().insert(hold);
    }

    pub(super) fn remove(&mut self, node: NodeId, hold: Hold) {
        let Some(holds) = self.0.get_mut(&node) else { return };
        holds.remove(&hold);
        if holds.is_empty() {
            self.0.remove(&node);
        }
    }
}
