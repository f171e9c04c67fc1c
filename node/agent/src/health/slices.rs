//! How full the MIG slices of tasks are: read once a second, so that a task that fails for want of GPU memory can be told which profile has more.
//!
//! What must stay true: nothing but a note follows from it, in the words of the core ([`muster_node_core::slices`]); a card that cannot be read voids no note,
//! since notes become too old by themselves.

use super::Health;
use muster_model::mig::MigPlacement;
use muster_model::request::SharingMode;
use muster_model::task::HoldMode;
use muster_node_core::{Phase, TaskKey, slices};
use std::time::Duration;
use tokio::time::timeout;

/// Reading takes milliseconds; what a driver in trouble does not answer is asked for again at the next look.
const READ_MAX: Duration = Duration::from_secs(5);

impl Health {
    /// Looks at the slices of a card once, if running tasks hold some.
    pub(super) async fn look_at_slices(&self, card: u16) {
        let holds = self.slice_holders(card);
        let Some(model) = self.parts.cards.model(card).filter(|_| !holds.is_empty()) else { return };
        let read = match timeout(READ_MAX, self.parts.backend.slices_memory(card)).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => return,
            Err(_) => return self.parts.cards.was_silent(card, "reading the memory of its slices", READ_MAX),
        };
        for (task, place) in holds {
            if let Some(seen) = read.iter().find(|slice| slice.place == place) {
                self.parts.executor.note_memory(task, slices::hint(card, model, *seen));
            }
        }
    }

    /// The running tasks that hold a slice of a card.
    fn slice_holders(&self, card: u16) -> Vec<(TaskKey, MigPlacement)> {
        if self.parts.cards.mode(card) != Some(SharingMode::Mig) || self.parts.cards.is_silent(card) {
            return Vec::new();
        }
        let tasks = self.parts.executor.observe();
        let running = tasks.iter().filter(|(_, task)| matches!(task.phase, Phase::Running { .. }));
        let holds = running.flat_map(|(key, task)| task.spec.devices.iter().map(|hold| (*key, hold)));
        let slice = |(key, hold): (TaskKey, &muster_model::task::DeviceHold)| match hold.mode {
            HoldMode::Mig(place) if hold.gpu == card => Some((key, place)),
            _ => None,
        };
        holds.filter_map(slice).collect()
    }
}
