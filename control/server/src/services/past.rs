//! States of the last while, from which the changes that are kept lead up to now: for logs that begin in the past.
//!
//! The consensus keeps the last changes but no state that they began with. So a few times in the span of what it keeps, this task keeps the
//! state as it is: shared with the living state, so that it costs a reference for each object and the objects that have changed since. What
//! must stay true: every state kept here can be followed from; there are few of them, whatever the rate of changes.

use super::App;
use super::snapshot::Snapshot;
use crate::consensus::Reach;
use muster_model::Revision;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at how far the changes reach: far less than the ring of changes takes to turn round at the highest rate.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The next state is kept when so many thousandths of the changes that are kept have come since: the log of a running cluster reaches back
/// at least three quarters of them.
const SPACING: u64 = 250;
/// Never more than this: four by the spacing, and those of one look.
const STATES_MAX: usize = 8;

/// The states that are kept, the oldest first.
#[derive(Default)]
pub(crate) struct Past(Mutex<VecDeque<(Reach, Arc<Snapshot>)>>);

impl Past {
    /// The last state at or before `revision`; of 0, the oldest.
    pub(super) fn before(&self, revision: Revision) -> Option<Arc<Snapshot>> {
        let kept = self.0.lock();
        let found = match revision {
            Revision(0) => kept.front(),
            _ => kept.iter().rev().find(|(_, state)| state.revision <= revision),
        };
        found.map(|(_, state)| Arc::clone(state))
    }

    /// The revision of the oldest state.
    pub(super) fn oldest(&self) -> Option<Revision> {
        self.0.lock().front().map(|(_, state)| state.revision)
    }

    /// Forgets what cannot be followed any more; whether another state is due.
    fn forget(&self, now: &Reach) -> bool {
        let mut kept = self.0.lock();
        kept.retain(|(_, state)| state.revision >= now.oldest);
        kept.back().is_none_or(|(then, _)| now.since(then) >= SPACING)
    }

    fn keep(&self, now: Reach, state: Snapshot) {
        let mut kept = self.0.lock();
        if kept.len() == STATES_MAX {
            kept.pop_front();
        }
        kept.push_back((now, Arc::new(state)));
    }
}

/// Keeps states until the node stops.
pub(crate) async fn run(app: App) {
    loop {
        let now = app.consensus.reach();
        if app.past.forget(&now) {
            app.past.keep(now, app.consensus.read(Snapshot::take));
        }
        tokio::select! {
            () = app.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}
