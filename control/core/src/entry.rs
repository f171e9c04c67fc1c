//! A log entry: a batch of commands, each decided on its own.

use crate::command::Command;
use crate::outcome::Done;
use crate::reject::Reject;
use serde::{Deserialize, Serialize};

/// What one log entry carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Wall time of the proposer, ms since the epoch; the state's own time is the largest so far.
    pub now_ms: u64,
    /// Decided in this order, each seeing what those before it changed.
    pub commands: Vec<Command>,
}

/// What became of each command of an entry, in order.
pub type Decided = Vec<Result<Done, Reject>>;
