//! Executes a whole log entry: what every replica, and the twin, does with it.
//!
//! What must stay true: commands are decided in order, each seeing what those before it changed; a refused one leaves no trace
//! (law 11); the changes that are returned are exactly those that were applied.

use crate::audit;
use crate::classes;
use crate::command::Command;
use crate::entry::{Decided, Entry};
use crate::plan::plan;
use crate::state::State;
use crate::use_histories;
use muster_model::ids::AllocationId;
use muster_model::object::Meta;
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
    let (mut meta_moved, mut raised) = (false, false);
    let first_new = state.meta.next_allocation;
    for command in &entry.commands {
        // What was freed is given to what runs before new work is charged; else once, at the end, so that the first in order come first
        // whatever the entry's commands freed one after the other.
        if matches!(command.parts().1, Command::Bind(_) | Command::Preempt { .. }) {
            settle(state, entry, (&mut raised, first_new), &mut executed);
        }
        let decided = plan(state, entry.now_ms, command).map(|(changes, done)| {
            // What changes nothing (a repetition that is answered again) is not told twice.
            let changed = !changes.is_empty();
            for change in changes {
                state.apply(&change);
                if is_meta(&change) {
                    meta_moved = true;
                } else {
                    executed.changes.push(change);
                }
            }
            raised |= matches!(command, Command::RaiseFeatureLevel { .. });
            if changed && let Some(record) = audit::record(state, entry.now_ms.max(state.meta.now_ms), command, &done) {
                let meta = Meta { audited: record.number, audit_head: record.hash, ..state.meta.clone() };
                state.apply(&Change::put(Object::Meta(meta)));
                meta_moved = true;
                executed.changes.push(Change::Audit(Box::new(record)));
            }
            done
        });
        executed.decided.push(decided);
    }
    settle(state, entry, (&mut raised, first_new), &mut executed);
    executed.changes.extend(use_histories::settle(state, entry.now_ms.max(state.meta.now_ms)));
    if meta_moved {
        executed.changes.push(Change::put(Object::Meta(state.meta.clone())));
    }
    executed
}

fn settle(state: &mut State, entry: &Entry, (raised, first_new): (&mut bool, AllocationId), executed: &mut Executed) {
    let now_ms = entry.now_ms.max(state.meta.now_ms);
    executed.changes.extend(classes::settle(state, now_ms, std::mem::take(raised), first_new));
}

fn is_meta(change: &Change) -> bool {
    matches!(change, Change::Put(object) if matches!(**object, Object::Meta(_)))
}
