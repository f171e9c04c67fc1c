//! The health of the node's cards: what is observed goes into the ledger of `muster-node-core`, verdicts are kept on disk, and what follows is done.
//!
//! What must stay true: the effects of an event are taken before the ledger is stored, so that after a crash between the two the kernel's log tells the
//! event again; a card is withheld before its holders are ended; verdicts outlive the agent; nothing here waits for a driver.

mod holders;
mod kernel_log;
mod readings;
mod strangers;

use self::kernel_log::Heard;
use crate::cards::Cards;
use crate::config::{AgentError, HealthConfig};
use crate::exec::Executor;
use crate::gpu::GpuBackend;
use crate::stored;
use futures::StreamExt;
use muster_model::bounds::{GPUS_PER_NODE_MAX, MIG_SLICES_MAX, TEXT_BYTES_MAX};
use muster_model::mig::MigPlacement;
use muster_model::node::{ClearedGpu, Gpu, Withheld};
use muster_model::validate::clipped;
use muster_node_core::TaskKey;
use muster_node_core::health::{
    Effect, EffectKind, GpuUuid, HealthEvent, KernelEvent, Ledger, Mode, Scope, Verdict, Xid, XidEvent,
};
use muster_runtime::Host;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, Interval};

/// Lines of the kernel's log that wait: a card that fails writes some tens at once.
const LINES_MAX: usize = 1_024;
/// Cards whose recovery action waits to be read: as many as a node has at the most.
const READS_MAX: usize = GPUS_PER_NODE_MAX;
/// A driver that needs longer for one value is in trouble.
const READ_MAX: Duration = Duration::from_secs(5);

/// What is known of the health of the node's cards.
pub(crate) struct Health {
    parts: Parts,
    ledger: Mutex<Ledger>,
    /// Until when operators' clears have been acted on, by card, in the control plane's time.
    cleared_ms: Mutex<BTreeMap<String, u64>>,
    /// Held while the ledger is written: an older one must not land on a newer.
    file: tokio::sync::Mutex<()>,
    /// Cards whose recovery action is to be read. A full queue reads what waits in it, which is as new.
    to_read: mpsc::Sender<u16>,
    reads: Mutex<Option<mpsc::Receiver<u16>>>,
    /// Cards whose health is to be read now. A full queue reads what waits in it, which is as new.
    want: mpsc::Sender<u16>,
    wanted: Mutex<Option<mpsc::Receiver<u16>>>,
    /// The NVLinks that were ever seen up, by card: a bit for each.
    links_seen: Mutex<BTreeMap<String, u32>>,
    /// When readings were stored last.
    stored: Mutex<Option<Instant>>,
    /// The last Xid of each card since this agent was started.
    last_xids: Mutex<BTreeMap<u16, u16>>,
    /// Who uses each card, as of the last look; a card that could not be looked at is not in it.
    users: Mutex<BTreeMap<u16, Vec<User>>>,
}

/// A process on a card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    /// The task that has it, if one of this node does.
    pub(crate) task: Option<TaskKey>,
    /// Its MIG instance.
    pub(crate) place: Option<MigPlacement>,
}

/// What it works with.
pub(crate) struct Parts {
    pub(crate) host: Host,
    pub(crate) config: HealthConfig,
    pub(crate) backend: Arc<dyn GpuBackend>,
    pub(crate) cards: Arc<Cards>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) gpus: Vec<Gpu>,
    /// Wakes the reconciler, and through it the session.
    pub(crate) replan: Arc<Notify>,
}

impl Health {
    /// Reads the ledger that an earlier agent has left, and tells it of this boot. What is new is on disk when it returns.
    pub(crate) async fn open(parts: Parts, boot_id: &str) -> Result<Arc<Health>, AgentError> {
        let (mut ledger, cleared_ms, links_seen) = stored::read_health(&parts.host)?;
        let effects = ledger.booted(boot_id, parts.host.clock.wall_ms(), parts.config.mode);
        let (ledger, cleared_ms) = (Mutex::new(ledger), Mutex::new(cleared_ms));
        let (to_read, reads) = mpsc::channel(READS_MAX);
        let (file, reads) = (tokio::sync::Mutex::new(()), Mutex::new(Some(reads)));
        let (want, wanted) = mpsc::channel(READS_MAX);
        let health = Health {
            parts,
            ledger,
            cleared_ms,
            file,
            to_read,
            reads,
            want,
            wanted: Mutex::new(Some(wanted)),
            links_seen: Mutex::new(links_seen),
            stored: Mutex::new(None),
            last_xids: Mutex::default(),
            users: Mutex::default(),
        };
        health.follow(effects);
        health.store().await?;
        Ok(Arc::new(health))
    }

    /// Takes events until the agent stops.
    ///
    /// # Errors
    /// The ledger cannot be stored: a verdict that is lost in a restart would let a faulty card be used.
    pub(crate) async fn run(self: Arc<Self>) -> Result<(), AgentError> {
        let (say, mut heard) = mpsc::channel(LINES_MAX);
        // Kept, so that a node without a kernel log waits here for ever.
        let _open = say.clone();
        if let Some(path) = self.parts.config.kernel_log.clone() {
            drop(self.parts.host.spawn(kernel_log::follow(path, say)));
        }
        let Some(mut reads) = self.reads.lock().take() else { return Ok(()) };
        let mut events = self.parts.backend.events();
        let mut look = self.parts.backend.processes_every().map(tokio::time::interval);
        let mut seen = strangers::Seen::new();
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                Some(heard) = heard.recv() => self.take_kernel(&heard).await?,
                Some((card, event)) = events.next() => self.take(card, &event).await?,
                Some(card) = reads.recv() => self.read_recovery_action(card).await?,
                () = sleep(due) => self.tick().await?,
                () = tick(&mut look) => self.look_for_strangers(&mut seen).await?,
            }
        }
    }

    /// What takes no new work because of its health.
    pub(crate) fn withheld(&self) -> Vec<Withheld> {
        if self.parts.config.mode == Mode::ObserveOnly {
            return Vec::new();
        }
        let ledger = self.ledger.lock();
        let mut all = Vec::new();
        for (index, gpu) in (0_u16..).zip(&self.parts.gpus) {
            let Some(card) = ledger.cards().get(&GpuUuid(gpu.uuid.clone())) else { continue };
            let mut verdicts = card.verdicts();
            let whole = verdicts.remove(&Scope::Card);
            // More than a report may name: then nothing of the card is worth the risk.
            let whole = whole.or_else(|| verdicts.values().next().filter(|_| verdicts.len() > MIG_SLICES_MAX).cloned());
            let withheld = |verdict: &Verdict, slice| Withheld {
                gpu: index,
                slice,
                reason: clipped(verdict.reason.clone(), TEXT_BYTES_MAX),
            };
            all.extend(whole.as_ref().map(|verdict| withheld(verdict, None)));
            all.extend(verdicts.iter().take(MIG_SLICES_MAX).filter_map(|(scope, verdict)| match scope {
                Scope::Slice(place) => Some(withheld(verdict, Some(*place))),
                Scope::Card => None,
            }));
        }
        all
    }

    /// Acts on operators' clears that it has not acted on; each card has one, the newest.
    pub(crate) async fn clear(&self, cleared: impl Iterator<Item = ClearedGpu>) -> Result<(), AgentError> {
        for ClearedGpu { uuid, at_ms, reason } in cleared {
            let Some(card) = self.parts.gpus.iter().position(|gpu| gpu.uuid == uuid) else { continue };
            let is_new = {
                let mut known = self.cleared_ms.lock();
                let before = known.insert(uuid.clone(), at_ms);
                before != Some(at_ms)
            };
            if is_new {
                tracing::info!(node = %self.parts.host.name, gpu = card, reason, "an operator has cleared a GPU");
                self.take(card as u16, &HealthEvent::Cleared { by: "operator".to_owned(), reason }).await?;
            }
        }
        Ok(())
    }

    async fn take_kernel(&self, heard: &Heard) -> Result<(), AgentError> {
        let pci = match &heard.event {
            KernelEvent::Xid(xid) => xid.pci,
            KernelEvent::FellOffTheBus(pci) => *pci,
        };
        let Some(card) = self.parts.backend.locate(pci) else {
            tracing::warn!(node = %self.parts.host.name, %pci, event = ?heard.event, "the kernel reports a fault of a GPU that this node does not have");
            return Ok(());
        };
        let event = match heard.event.clone() {
            KernelEvent::Xid(xid) => {
                let place = xid.gpu_instance.and_then(|instance| self.parts.cards.place_of(card, instance));
                HealthEvent::Xid(XidEvent::from_kernel(xid, heard.seq, self.moment(heard), place))
            }
            KernelEvent::FellOffTheBus(_) => HealthEvent::Lost,
        };
        self.take(card, &event).await
    }

    /// Asks the driver what it wants to be done about a card, where it tells.
    async fn read_recovery_action(&self, card: u16) -> Result<(), AgentError> {
        match tokio::time::timeout(READ_MAX, self.parts.backend.recovery_action(card)).await {
            Ok(Ok(Some(action))) => self.take(card, &HealthEvent::RecoveryAction(action)).await,
            Ok(Ok(None)) => Ok(()),
            unread => {
                tracing::warn!(node = %self.parts.host.name, gpu = card, ?unread, "cannot read the recovery action of a GPU");
                Ok(())
            }
        }
    }

    /// When it was written, in ms of Unix time.
    fn moment(&self, heard: &Heard) -> u64 {
        self.parts.host.clock.wall_ms().saturating_sub(heard.age_ms)
    }

    async fn take(&self, card: u16, event: &HealthEvent) -> Result<(), AgentError> {
        let Some(gpu) = self.parts.gpus.get(usize::from(card)) else { return Ok(()) };
        let (uuid, now_ms) = (GpuUuid(gpu.uuid.clone()), self.parts.host.clock.wall_ms());
        let effects = self.ledger.lock().observe(&uuid, event, now_ms, self.parts.config.mode);
        self.settle(effects).await
    }

    async fn tick(&self) -> Result<(), AgentError> {
        let now_ms = self.parts.host.clock.wall_ms();
        let effects = self.ledger.lock().observe_all(&HealthEvent::Tick, now_ms, self.parts.config.mode);
        self.settle(effects).await
    }

    async fn settle(&self, effects: Vec<Effect>) -> Result<(), AgentError> {
        self.follow(effects);
        self.store().await
    }

    async fn store(&self) -> Result<(), AgentError> {
        let writing = self.file.lock().await;
        let (ledger, cleared_ms) = (self.ledger.lock().clone(), self.cleared_ms.lock().clone());
        let links_seen = self.links_seen.lock().clone();
        let written = stored::write_health(&self.parts.host, ledger, cleared_ms, links_seen).await;
        drop(writing);
        written
    }

    /// Does what follows, in the order given.
    fn follow(&self, effects: Vec<Effect>) {
        let node = &self.parts.host.name;
        for Effect { uuid, observed, kind } in effects {
            match kind {
                EffectKind::VerdictChanged { scope, from, to } => {
                    let reason =
                        to.map_or_else(|| "nothing is wrong with it any more".to_owned(), |verdict| verdict.reason);
                    tracing::warn!(node, gpu = %uuid, %scope, before = %from, reason, observed, "the verdict on a GPU has changed");
                    self.parts.replan.notify_one();
                }
                EffectKind::EndHolders { scope, process, cause, by_job } => {
                    let Some(card) = self.parts.gpus.iter().position(|gpu| gpu.uuid == uuid.0) else { continue };
                    let ended = holders::of(&*self.parts.executor, card as u16, scope, process);
                    tracing::warn!(node, gpu = %uuid, %scope, ?process, cause, tasks = ended.len(), observed, "a fault of a GPU ends tasks");
                    for holder in ended.into_iter().filter(|_| !observed) {
                        self.parts.executor.fault(holder.key, holder.fault(card, &cause, by_job));
                    }
                }
                EffectKind::ReadRecoveryAction => {
                    let card = self.parts.gpus.iter().position(|gpu| gpu.uuid == uuid.0);
                    let _ = card.map(|card| self.to_read.try_send(card as u16));
                }
                EffectKind::Record(event) => {
                    tracing::warn!(node, gpu = %uuid, ?event, "a GPU event");
                    if let HealthEvent::Xid(xid) = &event {
                        self.count_xid(&uuid, xid.xid);
                    }
                }
            }
        }
    }

    /// Counts an Xid, and wants the card to be read: rows, counts and links may have changed with it.
    fn count_xid(&self, uuid: &GpuUuid, xid: Xid) {
        let Some(card) = self.parts.gpus.iter().position(|gpu| gpu.uuid == uuid.0) else { return };
        let (gpu, node) = (card.to_string(), self.parts.host.name.clone());
        let (code, action) = (xid.0.to_string(), xid.action().word());
        metrics::counter!("muster_agent_gpu_xids_total", "gpu" => gpu, "UUID" => uuid.0.clone(), "Hostname" => node, "xid" => code, "action" => action)
            .increment(1);
        self.last_xids.lock().insert(card as u16, xid.0);
        let _ = self.want.try_send(card as u16);
    }

    /// The last Xid of a card since this agent was started.
    pub(crate) fn last_xid(&self, card: u16) -> Option<u16> {
        self.last_xids.lock().get(&card).copied()
    }

    /// Who uses a card; `None` where that is not known.
    pub(crate) fn users(&self, card: u16) -> Option<Vec<User>> {
        self.users.lock().get(&card).cloned()
    }

    /// Processes on a card that Muster did not start.
    pub(crate) fn strangers(&self, card: u16) -> usize {
        self.strangers_told(card).len()
    }

    /// How long until the ledger has something to do; none: until something is observed.
    fn due(&self) -> Option<Duration> {
        let due_ms = self.ledger.lock().due_ms()?;
        Some(Duration::from_millis(due_ms.saturating_sub(self.parts.host.clock.wall_ms())))
    }
}

async fn tick(every: &mut Option<Interval>) {
    match every {
        Some(every) => {
            every.tick().await;
        }
        None => std::future::pending().await,
    }
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
