//! The clean-up of devices after their tasks: looks at them until nothing of the task is left, or withholds them.
//!
//! What must stay true (law 13): nothing waits for a look but what needs the device; devices of a task are held for it until they are clean or withheld, and it is
//! their verdict that withholds them, so that it outlives the agent; a look that could not be made counts as one that has found something.

mod look;
mod open_files;

use self::look::Device;
use crate::cards::Cards;
use crate::config::AgentError;
use crate::exec::Executor;
use crate::gpu::GpuBackend;
use crate::health::Health;
use crate::stored;
use muster_model::task::CleanUp;
use muster_model::validate::bounds::TEXT_BYTES_MAX;
use muster_model::validate::clipped;
use muster_node_core::clean::{self, CleanUps, Next};
use muster_node_core::health::HealthEvent;
use muster_node_core::{ObservedTask, Phase, TaskKey};
use muster_runtime::Host;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How often devices that could not be cleaned are looked at again.
const AGAIN: Duration = Duration::from_secs(10);

/// What the clean-ups work with.
pub(crate) struct Parts {
    pub(crate) host: Host,
    pub(crate) backend: Arc<dyn GpuBackend>,
    pub(crate) cards: Arc<Cards>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) health: Arc<Health>,
    /// Wakes the reconciler.
    pub(crate) replan: Arc<Notify>,
    pub(crate) stop: CancellationToken,
}

/// The clean-ups of one agent.
pub(crate) struct Cleaner {
    parts: Parts,
    all: Mutex<CleanUps>,
    /// Memory in use of cards when nobody used them, in MiB, by UUID; as it is on disk.
    idle_mib: Mutex<BTreeMap<String, u64>>,
}

impl Cleaner {
    /// Reads what an earlier agent has learnt.
    pub(crate) fn open(parts: Parts) -> Result<Arc<Cleaner>, AgentError> {
        let idle_mib = Mutex::new(stored::read_idle_memory(&parts.host)?);
        Ok(Arc::new(Cleaner { parts, all: Mutex::default(), idle_mib }))
    }

    /// Takes over which tasks are over, and begins to clean what they leave. Gives those whose devices are being cleaned.
    pub(crate) fn observe(self: &Arc<Self>, tasks: &BTreeMap<TaskKey, ObservedTask>) -> BTreeSet<TaskKey> {
        let now_ns = self.parts.host.clock.boottime_ns();
        let is_needed = self.parts.backend.is_cleaned();
        let mut begun = Vec::new();
        let under_way = {
            let mut all = self.all.lock();
            for (key, task) in tasks {
                let Phase::Over { started_ns, .. } = &task.phase else { continue };
                // What never ran has used nothing.
                let devices =
                    if is_needed && started_ns.is_some() { look::devices(&task.spec.devices) } else { Vec::new() };
                if all.over(*key, !devices.is_empty(), now_ns) {
                    begun.push((*key, devices));
                }
            }
            all.under_way()
        };
        for (key, devices) in begun {
            let cleaner = self.clone();
            drop(self.parts.host.spawn(async move {
                let stop = cleaner.parts.stop.clone();
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = cleaner.clean(key, devices) => {}
                }
            }));
        }
        under_way
    }

    /// What is known of the devices of a task that is over.
    pub(crate) fn of(&self, key: TaskKey) -> CleanUp {
        self.all.lock().of(key)
    }

    /// The record of a task is forgotten.
    pub(crate) fn forget(&self, key: TaskKey) {
        self.all.lock().forget(key);
    }

    /// Looks at the devices of one task until they are clean, or their time is over.
    async fn clean(&self, key: TaskKey, devices: Vec<Device>) {
        loop {
            let left = self.look(&devices).await;
            let now_ns = self.parts.host.clock.boottime_ns();
            let next = self.all.lock().looked(key, &left, now_ns);
            match next {
                Next::Clean => {
                    tracing::debug!(task = %key, "the GPUs of a task are clean");
                    return self.parts.replan.notify_one();
                }
                Next::Again(wait) => tokio::time::sleep(wait).await,
                Next::Withhold(reason) => {
                    let reason = clipped(reason, TEXT_BYTES_MAX);
                    tracing::error!(task = %key, reason, "the GPUs of a task could not be cleaned; they are withheld");
                    metrics::counter!("muster_agent_cleanups_failed_total").increment(1);
                    for device in &devices {
                        let event = HealthEvent::Unclean { place: device.place, what: reason.clone() };
                        if let Err(error) = self.parts.health.tell(device.gpu, &event).await {
                            // It stays held; the agent stops, since it cannot keep a verdict.
                            return tracing::error!(%error, "cannot store that GPUs are not clean");
                        }
                    }
                    self.all.lock().give_up(key, reason);
                    return self.parts.replan.notify_one();
                }
            }
        }
    }

    /// Looks again and again at what could not be cleaned, and says when it is clean.
    ///
    /// # Errors
    /// The verdict cannot be stored.
    pub(crate) async fn run(self: Arc<Self>) -> Result<(), AgentError> {
        if !self.parts.backend.is_cleaned() {
            return Ok(());
        }
        self.learn_idle_memory().await?;
        loop {
            tokio::time::sleep(AGAIN).await;
            for (gpu, place, _) in self.parts.health.unclean() {
                let left = self.look(&[Device { gpu, place }]).await;
                if left.is_empty() {
                    self.parts.health.tell(gpu, &HealthEvent::Cleaned { place }).await?;
                } else {
                    tracing::debug!(gpu, left = clean::in_words(&left), "a GPU is still not clean");
                }
            }
        }
    }

    /// What cards have in use that no task has touched and nobody uses: what comes above it later was left by somebody. Once for each card: what is learnt later
    /// could be what somebody left.
    async fn learn_idle_memory(&self) -> Result<(), AgentError> {
        self.parts.cards.until_read().await;
        let mut is_news = false;
        for (gpu, uuid) in (0_u16..).zip(self.parts.cards.uuids()) {
            let device = Device { gpu, place: None };
            let is_known = self.idle_mib.lock().contains_key(&uuid);
            let is_touched =
                || self.parts.executor.observe().values().any(|task| device.is_held_by(&task.spec.devices));
            let is_unclean = || self.parts.health.unclean().iter().any(|(unclean, ..)| *unclean == gpu);
            if is_known || is_touched() || is_unclean() || !self.processes_left(device).await.is_empty() {
                continue;
            }
            let used_mib = tokio::time::timeout(look::ASK_MAX, self.parts.backend.memory_used(gpu, None)).await;
            // A task that has been started meanwhile may have used it already.
            if let Ok(Ok(Some(used_mib))) = used_mib
                && !is_touched()
            {
                self.idle_mib.lock().insert(uuid, used_mib);
                is_news = true;
            }
        }
        let idle_mib = self.idle_mib.lock().clone();
        if is_news { stored::write_idle_memory(&self.parts.host, idle_mib).await } else { Ok(()) }
    }

    /// Whether a live task holds any of it.
    fn is_held(&self, device: Device) -> bool {
        self.parts.executor.observe().values().any(|task| task.is_live() && device.is_held_by(&task.spec.devices))
    }
}
