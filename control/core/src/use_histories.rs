//! Keeps the histories of use, where a half-life is set.
//!
//! What must stay true: at the end of every entry the record of each tenant says what is in use now, and was brought up to the entry's time when that
//! changed. A tenant that never used anything has no record. Without a half-life nothing is looked at.

use crate::state::State;
use muster_model::{Change, Object, UseHistory};

/// Takes the changes of an entry into the records; answers the changes of records, which are applied already.
pub(crate) fn settle(state: &mut State, now_ms: u64) -> Vec<Change> {
    let mut changes = Vec::new();
    let half_life_s = state.meta.half_life_s;
    if half_life_s == 0 {
        return changes;
    }
    for id in state.take_use_changed() {
        let Some(at) = state.capacity().tenants().get(&id) else { continue };
        let known = state.use_histories.get(&id);
        if let Some(record) = UseHistory::settled(known, (id, at), half_life_s, now_ms) {
            let change = Change::put(Object::UseHistory(record));
            state.apply(&change);
            changes.push(change);
        }
    }
    changes
}
