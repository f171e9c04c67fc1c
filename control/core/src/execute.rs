//! Executes a whole log entry: what every replica, and the twin, does with it.
//!
//! What must stay true: commands are decided in order, each seeing what those before it changed; a refused one leaves no trace
//! (law 11); the changes that are returned are exactly those that were applied.

use crate::classes;
use crate::command::Command;
use crate::entry::{Decided, Entry};
use crate::plan::plan;
use crate::state::State;
use muster_model::{Change, Object};

/// What an entry came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Each command's answer, in order.
    pub decided: Decided,
    /// The changes of all of them, in order; to be written and watched as one revision. Counters appear at most once, at the
    /// end, with their last value.
    pub changes: Vec<Change>,
}

/// Decides and applies every command of `entry`.
pub fn execute(state: &mut State, entry: &Entry) -> Executed {
    let mut executed = Executed { decided: Vec::with_capacity(entry.commands.len()), changes: Vec::new() };
    let mut meta_moved = false;
    for command in &entry.commands {
        let decided = plan(state, entry.now_ms, command).map(|(changes, done)| {
            for change in changes {
                state.apply(&change);
                if is_meta(&change) {
                    meta_moved = true;
                } else {
                    executed.changes.push(change);
                }
            }
            let raised = matches!(command, Command::RaiseFeatureLevel { .. });
            executed.changes.extend(classes::settle(state, entry.now_ms.max(state.meta.now_ms), raised));
            done
        });
        executed.decided.push(decided);
    }
    if meta_moved {
        executed.changes.push(Change::put(Object::Meta(state.meta.clone())));
    }
    executed
}

fn is_meta(change: &Change) -> bool {
    matches!(change, Change::Put(object) if matches!(**object, Object::Meta(_)))
}
