//! The health of the node's cards: what is observed goes into the ledger of `muster-node-core`, verdicts are kept on disk, and what follows is done.
//!
//! What must stay true: the effects of an event are taken before the ledger is stored, so that after a crash between the two the kernel's log tells the
//! event again; a card is withheld before its holders are ended; verdicts outlive the agent; nothing here waits for a driver.

mod holders;
mod kernel_log;
mod readings;
mod shares;
mod slices;
mod sources;
mod strangers;

use crate::cards::{Cards, WasReset};
use crate::config::{AgentError, HealthConfig};
use crate::exec::Executor;
use crate::gpu::GpuBackend;
use crate::stored::{self, KeptHealth};
use muster_model::bounds::{GPUS_PER_NODE_MAX, MIG_SLICES_MAX, TEXT_BYTES_MAX};
use muster_model::mig::MigPlacement;
use muster_model::node::{ClearedGpu, Gpu, Repair, Withheld};
use muster_model::sharing::CardSharing;
use muster_model::task::{DeviceHold, HoldMode};
use muster_model::validate::clipped;
use muster_node_core::TaskKey;
use muster_node_core::health::{
    Cause, Effect, EffectKind, GpuUuid, HealthEvent, Ledger, Mode, Scope, Verdict, VerdictKind, Xid,
};
use muster_runtime::Host;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

/// Events that wait: a card that fails writes some tens of lines at once.
const EVENTS_MAX: usize = 1_024;
/// Cards whose recovery action waits to be read: as many as a node has at the most.
const READS_MAX: usize = GPUS_PER_NODE_MAX;

/// Cards and slices that are not clean, with what is left.
pub(crate) type Unclean = Vec<(u16, Option<MigPlacement>, String)>;

/// Tells the loop of a card.
type Tell = mpsc::Sender<(u16, HealthEvent)>;

/// What is known of the health of the node's cards.
pub(crate) struct Health {
    parts: Parts,
    ledger: Mutex<Ledger>,
    /// Until when operators' clears have been acted on, by card, in the control plane's time. Locked after the ledger.
    cleared_ms: Mutex<BTreeMap<String, u64>>,
    /// Held while the ledger is written: an older one must not land on a newer.
    file: tokio::sync::Mutex<()>,
    /// Cards whose recovery action is to be read. A full queue reads what waits in it, which is as new.
    to_read: mpsc::Sender<u16>,
    reads: Mutex<Option<mpsc::Receiver<u16>>>,
    /// Wakes who reads recovery actions.
    verdicts_changed: Notify,
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
    /// How cards are shared, as the control plane has it.
    sharing: Mutex<CardSharing>,
    /// What verdicts would withhold, and the control plane keeps in use.
    spared: Mutex<BTreeSet<(u16, Option<MigPlacement>)>>,
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
        let KeptHealth { mut ledger, cleared_ms, mps_failed, links_seen } = stored::read_health(&parts.host)?;
        for (card, _) in (0_u16..).zip(&parts.gpus).filter(|(_, gpu)| mps_failed.contains(&gpu.uuid)) {
            parts.cards.mps_failed(card);
        }
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
            verdicts_changed: Notify::new(),
            want,
            wanted: Mutex::new(Some(wanted)),
            links_seen: Mutex::new(links_seen),
            stored: Mutex::new(None),
            last_xids: Mutex::default(),
            users: Mutex::default(),
            sharing: Mutex::default(),
            spared: Mutex::default(),
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
        let (tell, told) = mpsc::channel(EVENTS_MAX);
        let _sources = self.start_sources(&tell);
        tokio::select! {
            biased;
            taken = self.take_all(told) => taken,
            () = self.hear_driver(tell) => Ok(()),
        }
    }

    async fn take_all(&self, mut told: mpsc::Receiver<(u16, HealthEvent)>) -> Result<(), AgentError> {
        let mut resets = self.parts.cards.resets();
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                Some((card, event)) = told.recv() => self.take(card, &event).await?,
                Some((card, heard)) = next_reset(&mut resets) => {
                    self.take(card, &HealthEvent::ResetDone).await?;
                    // Whoever waited may have gone.
                    let _ = heard.send(());
                }
                () = sleep(due) => self.tick().await?,
            }
        }
    }

    /// What the control plane keeps in use from now on although verdicts would withhold it.
    pub(crate) fn set_spared(&self, spared: BTreeSet<(u16, Option<MigPlacement>)>) {
        let before = std::mem::replace(&mut *self.spared.lock(), spared.clone());
        if spared != before && !spared.is_empty() {
            let node = &self.parts.host.name;
            tracing::warn!(node, gpus = ?spared, "GPUs are used although their health is in doubt: as many GPUs of the cell are withheld as the pool allows");
        }
    }

    /// The same as [`withheld`](Self::withheld) without what the control plane keeps in use.
    pub(crate) fn refused(&self) -> Vec<Withheld> {
        let spared = self.spared.lock().clone();
        let mut all = self.withheld();
        all.retain(|one| !(one.by_verdict && spared.contains(&(one.gpu, one.slice))));
        all
    }

    /// What takes no new work because of its health, the gravest verdicts first.
    pub(crate) fn withheld(&self) -> Vec<Withheld> {
        if self.parts.config.mode == Mode::ObserveOnly {
            // What is not clean is withheld in every mode: no device passes on before its clean-up (law 13).
            let unclean = self.unclean().into_iter();
            let withheld = |(gpu, slice, reason)| {
                let (by_verdict, repair) = (false, Repair::Wait);
                Withheld { gpu, slice, reason, by_verdict, repair }
            };
            return unclean.map(withheld).collect();
        }
        let ledger = self.ledger.lock();
        let mut all: Vec<(VerdictKind, Withheld)> = Vec::new();
        for (index, gpu) in (0_u16..).zip(&self.parts.gpus) {
            let Some(card) = ledger.cards().get(&GpuUuid(gpu.uuid.clone())) else { continue };
            let mut verdicts = card.verdicts();
            let whole = verdicts.remove(&Scope::Card);
            // More than a report may name: then nothing of the card is worth the risk.
            let whole = whole.or_else(|| verdicts.values().next().filter(|_| verdicts.len() > MIG_SLICES_MAX).cloned());
            let stands_for_all = verdicts.len() > MIG_SLICES_MAX;
            let is_certain = |scope: Scope| {
                let of = |at: Scope| at == scope || (stands_for_all && scope == Scope::Card);
                card.conditions().iter().any(|one| one.cause.is_certain() && of(one.scope))
            };
            let withheld = |verdict: &Verdict, slice: Option<MigPlacement>| {
                let by_verdict = !is_certain(slice.map_or(Scope::Card, Scope::Slice));
                let reason = clipped(verdict.reason.clone(), TEXT_BYTES_MAX);
                (verdict.kind, Withheld { gpu: index, slice, reason, by_verdict, repair: verdict.kind.repair() })
            };
            all.extend(whole.as_ref().map(|verdict| withheld(verdict, None)));
            all.extend(verdicts.iter().take(MIG_SLICES_MAX).filter_map(|(scope, verdict)| match scope {
                Scope::Slice(place) => Some(withheld(verdict, Some(*place))),
                Scope::Card => None,
            }));
        }
        all.sort_by_key(|(kind, _)| Reverse(*kind));
        all.into_iter().map(|(_, withheld)| withheld).collect()
    }

    /// Why nothing may be started on one of these devices, if so.
    pub(crate) fn withheld_from(&self, devices: &[DeviceHold]) -> Option<String> {
        let touches = |withheld: &Withheld| {
            let scope = withheld.slice.map_or(Scope::Card, Scope::Slice);
            devices.iter().any(|hold| hold.gpu == withheld.gpu && holders::touches(scope, &hold.mode))
        };
        let withheld = self.refused().into_iter().find(touches)?;
        Some(format!("GPU {}: {}", withheld.gpu, withheld.reason))
    }

    /// Whether an MPS server of these devices has failed, in words.
    pub(crate) fn failed_mps(&self, devices: &[DeviceHold]) -> Option<String> {
        let failed = self.parts.cards.failed_mps();
        let is_failed = |hold: &&DeviceHold| {
            let gpu = self.parts.gpus.get(usize::from(hold.gpu));
            matches!(hold.mode, HoldMode::Mps { .. }) && gpu.is_some_and(|gpu| failed.contains(&gpu.uuid))
        };
        let card = devices.iter().find(is_failed)?.gpu;
        Some(format!("GPU {card}: its MPS server failed while this task was being started"))
    }

    /// Acts on operators' clears that it has not acted on; each card has one, the newest.
    pub(crate) async fn clear(&self, cleared: impl Iterator<Item = ClearedGpu>) -> Result<(), AgentError> {
        for ClearedGpu { uuid, at_ms, reason } in cleared {
            let Some(card) = self.parts.gpus.iter().position(|gpu| gpu.uuid == uuid) else { continue };
            let (uuid, now_ms) = (GpuUuid(uuid), self.parts.host.clock.wall_ms());
            let event = HealthEvent::Cleared { by: "operator".to_owned(), reason: reason.clone(), at_ms };
            let (effects, left) = {
                let mut ledger = self.ledger.lock();
                let mut known = self.cleared_ms.lock();
                // An older one was acted on, or the control plane's clock was set back.
                if known.get(&uuid.0).is_some_and(|before| *before >= at_ms) {
                    continue;
                }
                known.insert(uuid.0.clone(), at_ms);
                let effects = ledger.observe(&uuid, &event, now_ms, self.parts.config.mode);
                (effects, ledger.withheld(&uuid, Scope::Card, self.parts.config.mode))
            };
            let left = left.map(|verdict| verdict.reason);
            tracing::info!(node = %self.parts.host.name, gpu = card, reason, ?left, "an operator has cleared a GPU");
            self.follow(effects);
            self.store().await?;
        }
        Ok(())
    }

    /// Takes what another part of the agent has found out of a card.
    ///
    /// # Errors
    /// The ledger cannot be stored.
    pub(crate) async fn tell(&self, card: u16, event: &HealthEvent) -> Result<(), AgentError> {
        self.take(card, event).await
    }

    /// Which cards and slices could not be cleaned, and what is left on them.
    pub(crate) fn unclean(&self) -> Unclean {
        let ledger = self.ledger.lock();
        let mut all = Unclean::new();
        for (index, gpu) in (0_u16..).zip(&self.parts.gpus) {
            let known = ledger.cards().get(&GpuUuid(gpu.uuid.clone()));
            let conditions = known.into_iter().flat_map(|known| known.conditions());
            all.extend(conditions.filter(|condition| condition.cause == Cause::Unclean).map(|condition| {
                let slice = match condition.scope {
                    Scope::Card => None,
                    Scope::Slice(place) => Some(place),
                };
                (index, slice, clipped(condition.what.clone(), TEXT_BYTES_MAX))
            }));
        }
        all
    }

    async fn take(&self, card: u16, event: &HealthEvent) -> Result<(), AgentError> {
        let Some(gpu) = self.parts.gpus.get(usize::from(card)) else { return Ok(()) };
        let (uuid, now_ms) = (GpuUuid(gpu.uuid.clone()), self.parts.host.clock.wall_ms());
        let (effects, is_changed) = {
            let mut ledger = self.ledger.lock();
            let before = ledger.cards().get(&uuid).cloned();
            let effects = ledger.observe(&uuid, event, now_ms, self.parts.config.mode);
            (effects, ledger.cards().get(&uuid) != before.as_ref())
        };
        self.follow(effects);
        if is_changed { self.store().await } else { Ok(()) }
    }

    async fn tick(&self) -> Result<(), AgentError> {
        let now_ms = self.parts.host.clock.wall_ms();
        let effects = self.ledger.lock().observe_all(&HealthEvent::Tick, now_ms, self.parts.config.mode);
        self.follow(effects);
        self.store().await
    }

    async fn store(&self) -> Result<(), AgentError> {
        let writing = self.file.lock().await;
        let (ledger, cleared_ms) = {
            // Of one moment: a clear is stored with what it has lifted.
            let ledger = self.ledger.lock();
            (ledger.clone(), self.cleared_ms.lock().clone())
        };
        let (mps_failed, links_seen) = (self.parts.cards.failed_mps(), self.links_seen.lock().clone());
        let kept = KeptHealth { ledger, cleared_ms, mps_failed, links_seen };
        let written = stored::write_health(&self.parts.host, kept).await;
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
                    self.verdicts_changed.notify_one();
                }
                EffectKind::EndHolders { scope, process, cause, by_job } => {
                    let Some(card) = self.parts.gpus.iter().position(|gpu| gpu.uuid == uuid.0) else { continue };
                    if !observed {
                        self.parts.cards.mps_failed(card as u16);
                    }
                    let ended = holders::of(&*self.parts.executor, card as u16, scope, process);
                    // Where the driver names nobody, it is known who made it only if one task is there.
                    let by_job = by_job && (process.is_some() || ended.len() == 1);
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

async fn next_reset(resets: &mut Option<mpsc::Receiver<WasReset>>) -> Option<WasReset> {
    match resets {
        Some(resets) => resets.recv().await,
        None => std::future::pending().await,
    }
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
