//! What agents report of tasks.
//!
//! What must stay true: a report says what was seen, and is worth the same however often it arrives.

use muster_model::ids::{AllocationId, Rank};
use muster_model::task::CleanUp;
use muster_model::{Checkpoint, TaskState};
use serde::{Deserialize, Serialize};

/// What an agent saw of one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReport {
    /// Whose.
    pub allocation: AllocationId,
    /// Which rank.
    pub rank: Rank,
    /// What became of it.
    pub state: TaskState,
    /// When it was over by the node's clock (ms since the epoch), if it is.
    #[serde(default)]
    pub ended_ms: Option<u64>,
    /// The newest checkpoint that it says it has made.
    #[serde(default)]
    pub checkpoint: Option<Checkpoint>,
    /// What is known of its devices, if it is over.
    #[serde(default)]
    pub clean_up: CleanUp,
}
