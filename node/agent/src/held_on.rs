//! Devices that are held on after their task was over, for the rest of its gang: what of that the meter counts.
//!
//! What must stay true: it counts up to a moment at which this session has confirmed that they were held. What an agent was told in an
//! earlier session may have changed while it was cut off, and what changed then is charged to nobody.

use crate::shared::State;
use muster_node_core::{Desired, TaskKey};
use std::sync::Arc;

impl State {
    /// Takes over what is desired from `now_ns` on. Up to then the one before it held, if it is of the same session.
    pub(crate) fn desire(&mut self, desired: Arc<Desired>, now_ns: u64) {
        self.count_held_on(now_ns);
        self.desired = Some(desired);
        if let Some(session) = &mut self.session {
            session.has_desired = true;
        }
    }

    /// Counts what has been held on up to the newest confirmation, and leaves what is not held any more.
    pub(crate) fn meter_held_on(&mut self) {
        if let Some(confirmed_ns) = self.leases.confirmed_ns() {
            self.count_held_on(confirmed_ns);
        }
        let Some(desired) = &self.desired else { return };
        let is_held = |key: TaskKey| desired.tasks.contains_key(&key) || desired.held_on.contains(&key);
        self.meter.given_back(is_held);
    }

    fn count_held_on(&mut self, until_ns: u64) {
        let Some(desired) = self.desired.clone() else { return };
        if self.session.is_some_and(|session| session.has_desired) {
            self.meter.held_on(&desired.held_on, until_ns);
        }
    }
}
