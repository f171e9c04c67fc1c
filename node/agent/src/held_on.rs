//! Devices that are held on after their task was over, for the rest of its gang: what of that the meter counts.
//!
//! What must stay true: it counts up to a moment at which this session has confirmed that they were held. What an agent was told in an
//! earlier session may have changed while it was cut off: that time is counted only if the next session says that they are held still.

use crate::shared::State;
use muster_node_core::{Desired, TaskKey};
use std::sync::Arc;

impl State {
    /// Takes over what is desired from now on. What came before it held up to the newest confirmation, if it is of the same session: when the
    /// control plane sent this, it is not known.
    pub(crate) fn desire(&mut self, desired: Arc<Desired>) {
        self.count_held_on();
        self.desired = Some(desired);
        if let Some(session) = &mut self.session {
            session.has_desired = true;
        }
    }

    /// Counts what has been held on up to the newest confirmation, and leaves what is not held any more.
    pub(crate) fn meter_held_on(&mut self) {
        self.count_held_on();
        let Some(desired) = &self.desired else { return };
        let is_held = |key: TaskKey| desired.tasks.contains_key(&key) || desired.held_on.contains(&key);
        self.meter.given_back(is_held);
    }

    /// Counts what has been held on up to the newest confirmation. Comes before a session is given up, too.
    pub(crate) fn count_held_on(&mut self) {
        let (Some(desired), Some(confirmed_ns)) = (self.desired.clone(), self.leases.confirmed_ns()) else { return };
        if self.session.is_some_and(|session| session.has_desired) {
            self.meter.held_on(&desired.held_on, confirmed_ns);
        }
    }
}
