//! Decides one command.

use crate::command::Command;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::Change;

/// Decides `command` at the entry's time `now_ms`: the changes it makes, in order, with its answer; or why it is refused.
///
/// # Errors
/// A typed refusal; nothing has changed then.
pub fn plan(state: &State, now_ms: u64, command: &Command) -> Result<(Vec<Change>, Done), Reject> {
    let _ = (state, now_ms, command);
    unimplemented!("the state machine's author writes this")
}
