//! What a node has to show after the state was restored from a backup.
//!
//! What must stay true: until an operator has confirmed the node and its agent has said what it runs, the node is told nothing, so that nothing of what runs
//! there is stopped, and nothing that has ended is started again. No node takes new work before that is so of all nodes and what the state does not know is over:
//! a job of the backup may run on any of them.

use crate::bounds::GRACE_S_MAX;
use crate::ids::{AllocationId, Epoch, JobId, Rank};
use serde::{Deserialize, Serialize};

/// What is still open of a node of a restored state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// An operator takes the node for one of the fleet.
    pub confirmed: bool,
    /// What its agent runs, as it said when it came back; `None`: it has not come back. Once settled, what of it is unknown to the state and has yet to
    /// end.
    pub held: Option<Vec<HeldTask>>,
    /// What the state had there and the agent has not is lost, and the agent is told what to run.
    pub settled: bool,
}

/// A task that an agent runs, or has yet to report the end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldTask {
    /// The attempt.
    pub allocation: AllocationId,
    /// The rank in it.
    pub rank: Rank,
    /// Its job.
    pub job: JobId,
    /// The node's epoch when it was started.
    pub node_epoch: Epoch,
    /// How long it may outlive contact with the control plane, in seconds.
    pub disconnect_grace_s: u64,
}

impl Restored {
    /// Whether nothing keeps the node from new work but other nodes.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.settled && self.held.as_ref().is_some_and(Vec::is_empty)
    }

    /// The longest time that a task of it may outlive contact, in seconds: any that a job may ask for, where its agent has not said what it runs.
    #[must_use]
    pub fn disconnect_grace_s(&self) -> u64 {
        let longest = |held: &Vec<HeldTask>| held.iter().map(|task| task.disconnect_grace_s).max().unwrap_or(0);
        self.held.as_ref().map_or(GRACE_S_MAX, longest)
    }

    /// What an operator should know or do, for people.
    #[must_use]
    pub fn in_words(&self, name: &str) -> String {
        let confirm = format!("if it belongs to the fleet: `muster machine confirm node:{name}`");
        match (self.confirmed, &self.held) {
            (false, Some(_)) => format!("the cluster was restored from a backup; {confirm}"),
            (false, None) => {
                format!("the cluster was restored from a backup, and its agent has not connected since; {confirm}")
            }
            (true, None) => format!(
                "the cluster was restored from a backup, and its agent has not connected since; if its host is off for good: `muster machine confirm --gone node:{name}`"
            ),
            (true, Some(held)) if !held.is_empty() => {
                format!(
                    "the cluster was restored from a backup, and {} tasks that the backup does not know are being stopped",
                    held.len()
                )
            }
            (true, Some(_)) => {
                "it waits for other nodes after a restore from a backup (`muster machine confirm --dry-run`)".to_owned()
            }
        }
    }
}
