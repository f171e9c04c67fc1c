//! What tasks take of the cards that they share: read once a second. A task that takes more than its share is ended, and named. Slices are looked at in the same
//! turns ([`super::slices`]).
//!
//! What must stay true: the rule is the core's ([`muster_node_core::shares`]); only the task that took more is ended, and at once, since what it took is its
//! neighbours'; a card that cannot be read ends nobody; one whose listing overruns is silent until it is read again.

use super::Health;
use crate::exec::Fault;
use crate::gpu::GpuProcess;
use muster_model::request::SharingMode;
use muster_model::sharing::CardSharing;
use muster_model::task::HoldMode;
use muster_node_core::shares::{OverShare, SeenProcess, SharedCard};
use muster_node_core::{ShareWatch, TaskKey};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, timeout};

/// A listing takes milliseconds; what a driver in trouble does not answer is asked for again at the next look.
const LIST_MAX: Duration = Duration::from_secs(5);
/// For an MPS server to let go of clients. They are killed after that in any case.
const END_MAX: Duration = Duration::from_secs(2);

/// Looks at every card that is shared, each by itself, for ever.
pub(super) async fn watch(health: Arc<Health>, every: Duration) {
    let cards = 0..health.parts.gpus.len() as u16;
    futures::future::join_all(cards.map(|card| health.watch_shares(card, every))).await;
}

impl Health {
    /// How the cards are shared from now on.
    pub(crate) fn set_sharing(&self, sharing: CardSharing) {
        *self.sharing.lock() = sharing;
    }

    async fn watch_shares(&self, card: u16, every: Duration) {
        let mut every = tokio::time::interval(every);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = ShareWatch::default();
        loop {
            every.tick().await;
            self.look_at_slices(card).await;
            let holds = self.sharers(card);
            if holds.is_empty() || self.parts.cards.is_silent(card) {
                watch.forget(card);
                continue;
            }
            match timeout(LIST_MAX, self.parts.backend.processes(card)).await {
                Ok(Ok(listed)) => {
                    for over in self.over_share(card, &holds, &listed, &mut watch) {
                        self.end_over_share(card, over).await;
                    }
                }
                Ok(Err(_)) => watch.forget(card),
                Err(_) => {
                    watch.forget(card);
                    self.parts.cards.was_silent(card, "listing its processes", LIST_MAX);
                }
            }
        }
    }

    /// The live tasks that hold a share of a card.
    fn sharers(&self, card: u16) -> Vec<(TaskKey, HoldMode)> {
        if !matches!(self.parts.cards.mode(card), Some(SharingMode::Mps | SharingMode::TimeSlice)) {
            return Vec::new();
        }
        let tasks = self.parts.executor.observe();
        let live = tasks.iter().filter(|(_, task)| task.is_live());
        let holds = live.flat_map(|(key, task)| task.spec.devices.iter().map(|hold| (*key, hold)));
        holds.filter(|(_, hold)| hold.gpu == card).map(|(key, hold)| (key, hold.mode)).collect()
    }

    fn over_share(
        &self,
        card: u16,
        holds: &[(TaskKey, HoldMode)],
        listed: &[GpuProcess],
        watch: &mut ShareWatch,
    ) -> Vec<OverShare> {
        let Some(model) = self.parts.cards.model(card) else { return Vec::new() };
        let of_task = |GpuProcess { pid, used_mib, .. }: &GpuProcess| {
            let task = self.parts.executor.task_of(*pid)?;
            Some(SeenProcess { task, pid: *pid, used_mib: *used_mib })
        };
        let processes: Vec<SeenProcess> = listed.iter().filter_map(of_task).collect();
        let sharing = *self.sharing.lock();
        watch.read(&SharedCard { card, model, holds, processes: &processes }, &sharing)
    }

    async fn end_over_share(&self, card: u16, OverShare { task, pids, reason }: OverShare) {
        tracing::warn!(node = %self.parts.host.name, gpu = card, %task, reason, "a task takes more than its share of a GPU and is ended");
        metrics::counter!("muster_agent_over_share_total").increment(1);
        if self.parts.cards.mode(card) == Some(SharingMode::Mps) {
            // A client that is killed in the middle of its work can take the server along, and with it its neighbours.
            let ended = timeout(END_MAX, self.parts.backend.end_mps_clients(card, pids)).await;
            if let Ok(Err(error)) = &ended {
                tracing::warn!(gpu = card, %task, %error, "its MPS server does not let go of it; it is killed all the same");
            }
        }
        self.parts.executor.fault(task, Fault::over_share(reason));
        self.parts.executor.kill(task);
    }
}
