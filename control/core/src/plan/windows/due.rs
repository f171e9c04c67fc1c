//! What the passing of time does to windows: what may not use one is stopped before it, it opens, it ends.
//!
//! What must stay true: the entry's time decides; a window opens when everything has been told to stop that has to; one command stops a bounded
//! number of attempts, and the leader asks again while more are due.

use crate::bounds::{DUE_MAX, WINDOWS_DUE_MAX};
use crate::draft::Draft;
use crate::plan::attempts;
use muster_model::ids::AllocationId;
use muster_model::object::Key;
use muster_model::{EndCause, Object, Window, WindowKind, utc};

pub(in crate::plan) fn decide(draft: &mut Draft<'_>) {
    let (state, now_ms) = (draft.state, draft.now_ms);
    let is_due = |window: &&Window| state.window_due_ms(window, now_ms).is_some_and(|due_ms| due_ms <= now_ms);
    let mut left = DUE_MAX;
    for window in state.windows.values().filter(is_due).take(WINDOWS_DUE_MAX) {
        if window.open {
            draft.delete(Key::Window(window.name.clone()));
            continue;
        }
        if !stop_what_stays(draft, window, &mut left) {
            return;
        }
        if now_ms >= window.start_ms {
            begin(draft, window);
        }
    }
}

/// Answers whether all that is due to stop has been told to.
fn stop_what_stays(draft: &mut Draft<'_>, window: &Window, left: &mut usize) -> bool {
    if !window.preempt {
        return true;
    }
    let (state, now_ms) = (draft.state, draft.now_ms);
    let due = state.in_the_way(window).filter(|held| state.stop_ms(window, held).is_some_and(|at_ms| at_ms <= now_ms));
    let due: Vec<AllocationId> = due.map(|held| held.id).collect();
    for id in due {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        // Another window of this command may have stopped it.
        if draft.allocation(id).is_some_and(|held| held.state == muster_model::AllocationState::Active) {
            attempts::stop(draft, id, EndCause::Window { name: window.name.clone(), kind: window.kind });
        }
    }
    true
}

/// Its time has come. A drain has done its work then: its nodes are drained, until an operator opens them.
fn begin(draft: &mut Draft<'_>, window: &Window) {
    if window.kind != WindowKind::Drain {
        let over = window.end_ms.is_some_and(|end_ms| end_ms <= draft.now_ms);
        match over {
            // Nobody led the cluster through all of it.
            true => draft.delete(Key::Window(window.name.clone())),
            false => draft.put(Object::Window(Window { open: true, ..window.clone() })),
        }
        return;
    }
    for id in &window.nodes {
        if let Some(node) = draft.node_mut(*id) {
            node.drained = true;
            node.notes.drain_reason = match window.reason.is_empty() {
                true => format!("drained by {}", utc::show(window.start_ms)),
                false => window.reason.clone(),
            };
        }
    }
    draft.delete(Key::Window(window.name.clone()));
}
