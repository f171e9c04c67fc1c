//! The trivial model of nodes: what tasks do once they are bound, as the reports that agents would send.
//!
//! Tasks start a fixed delay after binding, work for the job's duration, and stop a fixed delay after they are told to. Nothing
//! fails that the trace does not say failed.

use crate::import::EndState;
use muster_control_core::{Command, TaskReport};
use muster_model::{Allocation, Epoch, NodeId, Rank, TaskState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How nodes behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeModel {
    /// From binding until every task runs.
    pub start_delay_ms: u64,
    /// From the order to stop until every task is gone.
    pub stop_delay_ms: u64,
}

impl Default for NodeModel {
    fn default() -> Self {
        NodeModel { start_delay_ms: 1_000, stop_delay_ms: 1_000 }
    }
}

/// The reports of every node of `allocation` about those of its tasks that are not over.
pub(crate) fn reports(allocation: &Allocation, seen: impl Fn(Rank) -> Option<TaskState>) -> Vec<Command> {
    let mut by_node: BTreeMap<NodeId, Vec<TaskReport>> = BTreeMap::new();
    for (index, task) in allocation.tasks.iter().enumerate() {
        let rank = Rank(index as u32);
        if allocation.task_states[index].is_over() {
            continue;
        }
        if let Some(state) = seen(rank) {
            by_node.entry(task.node).or_default().push(TaskReport {
                allocation: allocation.id,
                rank,
                state,
                ended_ms: None,
                checkpoint: None,
                clean_up: muster_model::task::CleanUp::default(),
            });
        }
    }
    let epoch = |node: NodeId| allocation.node_epochs.get(&node).copied().unwrap_or(Epoch(0));
    by_node.into_iter().map(|(node, reports)| Command::ReportTasks { node, epoch: epoch(node), reports }).collect()
}

/// What rank 0 and the others report when the job's work ends as it did in the trace; `None` for those that go on until they
/// are told to stop.
pub(crate) fn last_words(end: EndState, rank: Rank) -> Option<TaskState> {
    match end {
        EndState::Completed => Some(TaskState::Exited { code: 0 }),
        EndState::Failed => (rank == Rank(0)).then_some(TaskState::Exited { code: 1 }),
        EndState::TimedOut => Some(TaskState::TimedOut),
        EndState::Cancelled => None,
    }
}
